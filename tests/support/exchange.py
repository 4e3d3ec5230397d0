"""The scripted upstream's end of a connection: HTTP/1.1 read and written by hand, byte for byte.

No HTTP library on purpose: a test must be able to cut, stall, lie about a length or reset at any byte.
"""

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import cast

from typing_extensions import override

from backends.json import JsonObject, as_object, decode

MAX_HEAD_BYTES = 1 << 20
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 502: "Bad Gateway"}


class ClientLeft(Exception):
    """The client closed its connection before the answer was complete."""


@dataclass(slots=True)
class Received:
    """One request as it came. Times are `time.monotonic()` seconds; `connection` counts connections from 0."""

    method: str
    path: str
    raw_headers: list[tuple[str, str]]
    body: bytes
    connection: int
    at_s: float
    closed_by_client_at: float | None = None
    complete: bool = False  # the answer went out whole
    headers: dict[str, str] = field(init=False)  # lower-case names

    def __post_init__(self) -> None:
        self.headers = {name.lower(): value for name, value in self.raw_headers}

    @property
    def json(self) -> JsonObject:
        """The body as an object. Raises where it is none."""
        value = as_object(decode(self.body))
        if value is None:
            raise ValueError(f"the request body is not a JSON object: {self.body[:200]!r}")
        return value


class Line(asyncio.Protocol):
    """One TCP (or TLS) connection: buffered reading, writing with backpressure, and the moment the client left."""

    def __init__(
        self,
        begin: Callable[["Line"], None],
        left: Callable[["Line"], None],
        ended: Callable[["Line"], None],
    ) -> None:
        self._begin = begin
        self._left = left
        self._ended = ended
        self.ended = asyncio.Event()  # the transport is gone
        self._buffer = bytearray()
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self.left_at_s: float | None = None
        self.closed_here = False
        self.received: Received | None = None  # the request being answered
        self.transport: asyncio.Transport

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._begin(self)

    @override
    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._news.set()

    @override
    def eof_received(self) -> bool | None:
        self._gone()
        return None

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()
        self.ended.set()
        self._ended(self)

    @override
    def pause_writing(self) -> None:
        self._writable.clear()

    @override
    def resume_writing(self) -> None:
        self._writable.set()

    def _gone(self) -> None:
        if self.left_at_s is None:
            self.left_at_s = time.monotonic()
            if not self.closed_here:
                self._left(self)
        self._news.set()
        self._writable.set()

    async def _more(self) -> None:
        if self.left_at_s is not None:
            raise ClientLeft
        self._news.clear()
        await self._news.wait()

    async def read_until(self, mark: bytes) -> bytes:
        """The bytes up to and including `mark`. Raises `ClientLeft`."""
        while (found := self._buffer.find(mark)) < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise ClientLeft
            await self._more()
        return self._take(found + len(mark))

    async def read_exactly(self, count: int) -> bytes:
        """That many bytes. Raises `ClientLeft`."""
        while len(self._buffer) < count:
            await self._more()
        return self._take(count)

    def _take(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    async def write(self, data: bytes) -> None:
        """Sends bytes; waits while the client does not read. Raises `ClientLeft`."""
        if self.left_at_s is not None:
            raise ClientLeft
        self.transport.write(data)
        await self._writable.wait()
        if self.left_at_s is not None:
            raise ClientLeft

    async def client_leaves(self) -> None:
        """Returns when the client has closed."""
        while self.left_at_s is None:
            self._news.clear()
            await self._news.wait()

    def close(self) -> None:
        """Sends what is buffered, then FIN."""
        self.closed_here = True
        self.transport.close()

    def reset(self) -> None:
        """Sends RST: what the client has not read yet may be lost to it."""
        self.closed_here = True
        sock: socket.socket = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


async def read_head(line: Line, connection: int) -> Received:
    """The next request's head, without its body. Raises `ClientLeft` when there is none."""
    head = await line.read_until(b"\r\n\r\n")
    first, *rest = head[:-4].decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    pairs = [(name, value.strip()) for name, _, value in (row.partition(":") for row in rest)]
    return Received(method, path, pairs, b"", connection, time.monotonic())


async def read_body(line: Line, received: Received) -> None:
    """Fills in the body, by content-length or chunks. Raises `ClientLeft`."""
    if "chunked" not in received.headers.get("transfer-encoding", ""):
        received.body = await line.read_exactly(int(received.headers.get("content-length", "0")))
        return
    parts: list[bytes] = []
    while size := int((await line.read_until(b"\r\n")).split(b";")[0], 16):
        parts.append(await line.read_exactly(size))
        await line.read_exactly(2)
    while await line.read_until(b"\r\n") != b"\r\n":
        pass
    received.body = b"".join(parts)


class Exchange:
    """One request and its answer, for scripts written as a coroutine.

    The connection is closed after the script, unless it set `keep` (only right for a complete, framed answer).
    `received.body` is empty until `body()` where the upstream was told not to read bodies by itself.
    """

    def __init__(self, line: Line, received: Received) -> None:
        self.line = line
        self.received = received
        self.keep = False

    async def body(self) -> bytes:
        """Reads the request's body now (for scripts marked `unread`)."""
        await read_body(self.line, self.received)
        return self.received.body

    async def head(self, status: int, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Sends the status line and these headers, nothing else."""
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Scripted')}"]
        lines += [f"{name}: {value}" for name, value in headers]
        await self.line.write("\r\n".join([*lines, "", ""]).encode("latin-1"))

    async def write(self, data: bytes) -> None:
        """Sends raw bytes."""
        await self.line.write(data)

    async def chunk(self, data: bytes) -> None:
        """Sends one chunk of a chunked body in one write; nothing for no bytes."""
        if data:
            await self.line.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_chunks(self) -> None:
        """Ends a chunked body well."""
        await self.line.write(b"0\r\n\r\n")

    async def pause(self, seconds: float) -> None:
        """Waits that long. Raises `ClientLeft` as soon as the client closes."""
        try:
            async with asyncio.timeout(seconds):
                await self.line.client_leaves()
        except TimeoutError:
            return
        raise ClientLeft

    async def hold(self) -> None:
        """Sends nothing more until the client closes."""
        await self.line.client_leaves()
        raise ClientLeft

    def close(self) -> None:
        """FIN, after what is buffered."""
        self.line.close()

    def reset(self) -> None:
        """RST at once."""
        self.line.reset()
