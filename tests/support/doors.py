"""Doors before upstreams: TCP relays that can be killed, stalled, slowed down or cut off while requests pass."""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, Literal

Mode = Literal["open", "killed", "stalled", "slow", "partitioned"]
_START_S: Final = 10.0
_SLOW_S: Final = 0.25
_CLOSING_S: Final = 0.1
_RST: Final = struct.pack("ii", 1, 0)


class Door:
    """One door. `killed` breaks every connection and refuses new ones; `stalled` takes connections and bytes and
    passes nothing on; `slow` passes each piece on late; `partitioned` freezes connections, and new ones hang."""

    def __init__(self, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self._upstream_port = port
        self._loop = loop
        self._mode: Mode = "open"
        self._moves = asyncio.Event()
        self._moves.set()
        self._server: asyncio.Server | None = None
        self._held: list[socket.socket] = []
        self._lines: set[asyncio.StreamWriter] = set()
        self.port = 0

    @property
    def base_url(self) -> str:
        """The address of the upstream behind this door."""
        return f"http://127.0.0.1:{self.port}/v1"

    def set(self, mode: Mode) -> None:
        """Changes the mode, from any thread."""
        asyncio.run_coroutine_threadsafe(self.change(mode), self._loop).result(_START_S)

    async def change(self, mode: Mode) -> None:
        """Changes the mode."""
        self._mode = mode
        self._let_go()
        if mode in ("killed", "partitioned"):
            await self._stop_listening()
        if mode == "killed":
            self._break()
        if mode == "partitioned":
            self._fill()
        if mode in ("open", "stalled", "slow"):
            await self._listen()
        if mode in ("stalled", "partitioned"):
            self._moves.clear()
        else:
            self._moves.set()

    def _bound(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", self.port))
        self.port = sock.getsockname()[1]
        return sock

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._pass, sock=self._bound())

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            await asyncio.sleep(0)

    def _fill(self) -> None:
        """A socket that listens and whose queue is full: whoever comes now gets no answer at all."""
        sock = self._bound()
        sock.listen(0)
        self._held.append(sock)
        for _ in range(3):
            caller = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            caller.setblocking(False)
            with suppress(BlockingIOError):
                caller.connect(("127.0.0.1", self.port))
            self._held.append(caller)

    def _let_go(self) -> None:
        for sock in self._held:
            sock.close()
        self._held.clear()

    def _break(self) -> None:
        for line in list(self._lines):
            sock: socket.socket = line.get_extra_info("socket")
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
            line.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        self._lines |= {writer, far_writer}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, far_writer))
                group.create_task(self._pump(far_reader, writer))
        except* OSError:
            pass
        finally:
            self._lines -= {writer, far_writer}
            writer.close()
            far_writer.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self._moves.wait()
            if self._mode == "slow":
                await asyncio.sleep(_SLOW_S)
            sink.write(data)
            await sink.drain()
        await self._moves.wait()
        sink.close()

    async def close(self) -> None:
        """Breaks everything."""
        await self.change("killed")


@contextmanager
def doors(ports: Mapping[str, int]) -> Iterator[dict[str, Door]]:
    """One open door before each of these ports."""
    made: dict[str, Door] = {}
    ready, loop = threading.Event(), asyncio.new_event_loop()
    ended = asyncio.Event()

    async def run() -> None:
        for name, port in ports.items():
            made[name] = Door(port, loop)
            await made[name].change("open")
        ready.set()
        await ended.wait()
        for door in made.values():
            await door.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(_CLOSING_S)  # transports close in later turns of the loop

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), name="doors", daemon=True)
    thread.start()
    if not ready.wait(_START_S):
        raise RuntimeError("the doors did not open")
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(_START_S)
        loop.close()
