"""The emulator behind the server of `kimi-gateway emulate`, and a client that hears bytes and how they end."""

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvloop

from backends.emulator.app import Emulator, EmulatorConfig
from backends.emulator.fault_file import read_fault_file
from kimi_gateway.server import Listener, bind

_LONGEST_S = 10.0


@dataclass(slots=True)
class Heard:
    """What came over one connection: the writes with their moments in seconds, and how it ended: `closed`,
    `reset`, `refused`, or `open` where nothing more came for as long as one listened."""

    writes: list[tuple[float, bytes]] = field(default_factory=list)
    end: str = "closed"

    @property
    def raw(self) -> bytes:
        return b"".join(data for _, data in self.writes)

    @property
    def status(self) -> int:
        """The status, 0 where no status line came."""
        found = re.match(rb"HTTP/1\.1 (\d{3}) ", self.raw)
        return int(found[1]) if found else 0

    @property
    def headers(self) -> dict[str, str]:
        head = self.raw.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in head)}

    @property
    def body(self) -> bytes:
        """The body without its chunk framing, as far as it came."""
        data = self.raw.partition(b"\r\n\r\n")[2]
        if self.headers.get("transfer-encoding") != "chunked":
            return data
        whole = b""
        while data:
            size, _, data = data.partition(b"\r\n")
            count = int(size, 16)
            whole, data = whole + data[:count], data[count + 2 :]
        return whole

    @property
    def is_whole(self) -> bool:
        """The framing says that the answer is complete."""
        if self.headers.get("transfer-encoding") == "chunked":
            return self.raw.endswith(b"0\r\n\r\n")
        return len(self.body) == int(self.headers.get("content-length", "-1"))

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The stream's events as JSON, `[DONE]` as itself."""
        found = [line.removeprefix("data: ") for line in self.body.decode().splitlines() if line[:5] == "data:"]
        return [text if text == "[DONE]" else json.loads(text) for text in found]

    @property
    def text(self) -> str:
        """The text of all deltas."""
        return "".join(
            choice["delta"].get("content") or ""
            for event in self.events
            if event != "[DONE]" and "error" not in event
            for choice in event["choices"]
        )


@dataclass(slots=True)
class Upstream:
    """An emulator on a port of its own."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, *, listen_s: float = 1.0, path: str = "/v1/chat/completions", **fields: Any) -> Heard:
        """One chat request on a connection of its own, heard to its end or until nothing came for `listen_s`."""
        body = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "hi"}], **fields}
        return self.send(json.dumps(body).encode(), listen_s=listen_s, path=path)

    def send(
        self,
        body: bytes,
        *,
        listen_s: float = 1.0,
        path: str = "/v1/chat/completions",
        method: str = "POST",
        headers: str = "",
    ) -> Heard:
        heard = Heard()
        try:
            held = socket.create_connection(("127.0.0.1", self.port), timeout=_LONGEST_S)
        except ConnectionRefusedError:
            heard.end = "refused"
            return heard
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
            f"{headers}content-length: {len(body)}\r\n\r\n"
        )
        with held:
            held.settimeout(listen_s)
            try:
                held.sendall(head.encode() + body)
                while data := held.recv(1 << 20):
                    heard.writes.append((time.monotonic(), data))
            except TimeoutError:
                heard.end = "open"
            except ConnectionResetError:
                heard.end = "reset"
        return heard

    def get(self, path: str) -> Heard:
        """The answer to a GET."""
        return self.send(b"", method="GET", path=path, listen_s=_LONGEST_S)

    def control(self, path: str, post: str | None = None) -> Any:
        """A control endpoint's answer; a POST where there is something to send. Waits for a port that refuses."""
        method = "GET" if post is None else "POST"
        deadline_s = time.monotonic() + _LONGEST_S
        while True:
            heard = self.send((post or "").encode(), method=method, path=path, listen_s=_LONGEST_S)
            if heard.end != "refused" or time.monotonic() > deadline_s:
                break
            time.sleep(0.01)
        assert heard.status == 200, heard.raw
        return heard.json

    def lines(self) -> list[Any]:
        """The invoice's lines."""
        held: list[Any] = self.control("/emulator/invoice")["lines"]
        return held

    def fault_names(self) -> list[str]:
        """The fault of each request, empty where there was none."""
        return [entry["fault"] for entry in self.control("/emulator/requests")["requests"]]


@contextmanager
def misbehaving(faults: str = "", **config: Any) -> Iterator[Upstream]:
    """An emulator with the faults of a file, at pace 0 unless `config` says otherwise."""
    made = read_fault_file(faults).applied_to(EmulatorConfig(**{"pace": 0, **config}))
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    loop = uvloop.new_event_loop()
    stop = asyncio.Event()
    started = threading.Event()

    async def run() -> None:
        listener = Listener(Emulator(made), sock, gives_holds=True)
        await listener.start()
        started.set()
        await stop.wait()
        await listener.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    assert started.wait(_LONGEST_S), "the emulator did not start"
    try:
        yield Upstream(port)
    finally:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)
        thread.join(_LONGEST_S)
        loop.close()
