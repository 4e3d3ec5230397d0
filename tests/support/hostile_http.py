"""A server that answers with exactly the bytes a test wants, in the client's own event loop; and what came of it.

In one loop on purpose: after a write and a few turns the client has read it, so a test says where an answer is
cut, and needs no waits.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from backends.faults import Fault
from backends.ports import Call, Reply, Upstream, UpstreamFault

URL_PATH = "/v1/chat/completions"
_LONGEST_S = 5.0
_TURNS = 3  # of the loop, until what was written on loopback is read at the other end


class Visit:
    """One connection of the client, for a test's own server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader, self.writer, self.number = reader, writer, number

    async def head(self) -> bytes:
        """The next request's head. Raises `asyncio.IncompleteReadError` where the client has left."""
        return await self.reader.readuntil(b"\r\n\r\n")

    async def request(self) -> bytes:
        """The next request, its body read as its length says."""
        head = await self.head()
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return head + await self.reader.readexactly(int(length or b"0"))

    async def send(self, *pieces: bytes) -> None:
        """Sends each piece so that it is a read of its own at the client."""
        for piece in pieces:
            self.writer.write(piece)
            for _ in range(_TURNS):
                await asyncio.sleep(0)

    async def flood(self, piece: bytes, most_bytes: int) -> int:
        """Sends the piece again and again until the client leaves, or `most_bytes` are out; how many it took."""
        sent = 0
        try:
            while sent < most_bytes:
                self.writer.write(piece)
                await self.writer.drain()
                await asyncio.sleep(0)
                sent += len(piece)
        except ConnectionError:
            pass
        return sent

    async def left(self) -> bytes:
        """What else came, once the client has closed."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    def reset(self) -> None:
        """Closes at once; with unread bytes at our end that is a RST."""
        self.writer.transport.abort()


Speak: TypeAlias = Callable[[Visit], Awaitable[None]]


@dataclass(slots=True)
class Place:
    """Where a hostile server is; `visits` counts connections."""

    url: str
    port: int
    visits: int = 0
    errors: list[BaseException] = field(default_factory=list)


@asynccontextmanager
async def hostile(speak: Speak, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Place]:
    """A server that speaks so on every connection, and closes it after. Its own errors are raised at the end."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(mine := _current())
        visit = Visit(reader, writer, place.visits)
        place.visits += 1
        try:
            await speak(visit)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has left, or the test is over
        except Exception as err:  # last line of defence of this task: raised again when the context ends
            place.errors.append(err)
        finally:
            tasks.discard(mine)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls, limit=1 << 20)
    port: int = server.sockets[0].getsockname()[1]
    place = Place(f"{'https' if tls else 'http'}://127.0.0.1:{port}{URL_PATH}", port)
    try:
        yield place
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2)
    if place.errors:
        raise place.errors[0]


def _current() -> "asyncio.Task[None]":
    task = asyncio.current_task()
    assert task is not None
    return task


def answering(*answers: Sequence[bytes], keeps: bool = True) -> Speak:
    """Answers each request of a connection with the next answer, given as pieces; then closes, or with `keeps`
    waits for the client to close."""

    async def speak(visit: Visit) -> None:
        for pieces in answers:
            await visit.request()
            await visit.send(*pieces)
        if keeps:
            await visit.left()

    return speak


@dataclass(frozen=True, slots=True)
class Told:
    """What a client made of one call."""

    status: int
    headers: dict[str, str]
    body: bytes
    fault: Fault | None


async def told(client: Upstream, url: str, body: bytes = b"{}", method: str = "POST") -> Told:
    """One call, read to its end. Raises `TimeoutError` where that does not come."""
    reply: Reply | None = None
    got = b""
    try:
        async with asyncio.timeout(_LONGEST_S):  # pytest's own limit cannot interrupt uvloop
            reply = await client.open(Call(url, {}, body, method=method))
            while data := await reply.read(_LONGEST_S):
                got += data
    except UpstreamFault as err:
        return Told(reply.status if reply else 0, dict(reply.headers) if reply else {}, got, err.fault)
    assert reply is not None
    reply.close()
    return Told(reply.status, dict(reply.headers), got, None)
