"""The client's side of one request, over ASGI: body in, head and body out, and whether it is still there."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from functools import partial
from typing import Any, Final, Protocol

from kimi_gateway.errors import GatewayError, InvalidRequest, TooLarge, UnsupportedMedia

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


_PIECE_BYTES: Final = 256 * 1024
_SMALL_BODY_BYTES: Final = 64 * 1024
_VALUE_CHARACTERS: Final = 4096  # x-kimi-plan is the longest
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")


class ClientGone(Exception):
    """The client left before its request was whole."""


class ClientStalled(Exception):
    """The client took nothing for longer than the stall limit."""


class BufferBudget:
    """Bytes of request bodies in memory over all requests, against one limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Reserves room. Raises a 503 `GatewayError` where there is none."""
        if self.held_bytes + size_bytes > self.limit_bytes:
            raise GatewayError(
                f"request bodies in memory would exceed {self.limit_bytes} bytes; send the request again shortly",
                status=503,
                code="buffer_full",
                headers={"retry-after": "1", "x-should-retry": "true"},
            )
        self.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Releases what was reserved."""
        self.held_bytes -= size_bytes


class Line(Protocol):
    """What a server may offer beside ASGI's messages: `kimi_gateway.server.cycle.Cycle`."""

    def is_ready(self) -> bool: ...

    def body_now(self) -> bytes | None: ...

    def start_now(self, status: int, lines: bytes, *, length_bytes: int | None) -> None: ...

    def pass_now(self, data: bytes) -> bool: ...

    def write_now(self, data: bytes) -> None: ...

    def finish_now(self, data: bytes) -> None: ...


def header(scope: Scope, name: bytes) -> str | None:
    """The first value of a request header (name in lower case), None where it is absent."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return None


class Client:
    """One client. `head_sent` turns true with the status line; after that only the body can say anything."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, stall_timeout_s: float, is_own_send: bool = False
    ) -> None:
        """`is_own_send`: `send` is the server's own, so that nobody minds where it is gone around."""
        self.scope = scope
        self.head_sent = False
        self._headers: dict[bytes, bytes] | None = None
        self._receive = receive
        self._send = send
        self._stall_timeout_s = stall_timeout_s
        extensions = scope.get("extensions") or {}
        self._is_slow: Callable[[], bool] = extensions.get("kimi.is_slow", _unknown)
        self._on_gone: Callable[[Callable[[], object] | None], None] | None = extensions.get("kimi.on_gone")
        self._line: Line | None = extensions.get("kimi.line") if is_own_send else None

    def header(self, name: bytes) -> str | None:
        """A request header, by its lower-case name; the first where there are several."""
        headers = self._headers
        if headers is None:  # ten of them are asked for: 0.1 µs each, and 1 µs each by looking through all
            headers = self._headers = dict(reversed(self.scope["headers"]))
        value = headers.get(name)
        return value.decode("latin-1") if value is not None else None

    @property
    def is_usual(self) -> bool:
        """No header asks for anything special: none is ours, and none says how long the client waits."""
        if self._headers is None:
            self.header(b"")
        for name in self._headers or ():
            if name.startswith(b"x-") and (name.startswith(b"x-kimi-") or name == b"x-stainless-read-timeout"):
                return False
        return True

    def body_now(self, *, max_bytes: int, budget: BufferBudget) -> bytes | None:
        """The body as `read_body` gives it, where it is here whole; None where it must be read. Raises `TooLarge`
        and 503 as that does."""
        if self._line is None or self._announced_length(max_bytes) > _SMALL_BODY_BYTES:
            return None
        body = self._line.body_now()
        if body is not None:
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
            budget.take(len(body))
        return body

    def check_media(self) -> None:
        """Raises 415 unless the body is uncompressed JSON."""
        kind = (self.header(b"content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise UnsupportedMedia(
                f"content-type must be application/json, not {kind or 'absent'}", code="unsupported_media_type"
            )
        coding = (self.header(b"content-encoding") or "identity").strip().lower()
        if coding != "identity":
            raise UnsupportedMedia(
                f"content-encoding {coding} is not taken; send the body uncompressed", code="unsupported_encoding"
            )

    async def read_body(self, *, max_bytes: int, budget: BufferBudget) -> bytes:
        """The whole body, which stays counted in `budget` until the caller gives its length back.

        Raises `TooLarge`, `ClientGone`, 408 for a client that stops sending, and 503 where the budget is full,
        before the body is read where its length was announced.
        """
        announced = self._announced_length(max_bytes)
        taken = announced
        budget.take(taken)
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                message = await self._receive_part()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                size += len(part)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                if size > taken:
                    budget.take(size - taken)
                    taken = size
                parts.append(part)
                if not message.get("more_body"):
                    break
        except BaseException:
            budget.give_back(taken)
            raise
        budget.give_back(taken - size)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _receive_part(self) -> Message:
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                return await self._receive()
        except TimeoutError as err:
            raise InvalidRequest(
                f"the body stopped arriving for {self._stall_timeout_s:g} s; send it again",
                status=408,
                code="body_timeout",
                headers={"x-should-retry": "true", "connection": "close"},
            ) from err

    def _announced_length(self, max_bytes: int) -> int:
        text = self.header(b"content-length")
        if text is None:
            return 0
        if not text.isdecimal():
            raise InvalidRequest("content-length is not a number", code="invalid_header", param="content-length")
        if int(text) > max_bytes:
            raise _too_large(max_bytes)
        return int(text)

    def watch(self, tell: Callable[[], object]) -> Callable[[], object]:
        """Has `tell` called when the client has left; gives back what ends that. Where the server cannot call, a
        task waits for it, which costs 20 us a request."""
        if self._on_gone is not None:
            self._on_gone(tell)
            return partial(self._on_gone, None)
        watcher = asyncio.ensure_future(self.gone())
        watcher.add_done_callback(lambda done: None if done.cancelled() else tell())
        return watcher.cancel

    async def gone(self) -> None:
        """Returns when the client has left."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Sends status and headers: the head commit."""
        self.head_sent = True
        line, headers = self._ready(), list(headers)
        if line is None or any(name == b"connection" for name, _ in headers):
            await self._out({"type": "http.response.start", "status": status, "headers": headers})
            return
        length_bytes, lines = None, []
        for name, value in headers:
            if name == b"content-length":
                length_bytes = int(value)
            else:
                lines.append(b"%b: %b\r\n" % (name, value))
        line.start_now(status, b"".join(lines), length_bytes=length_bytes)

    async def start_stream(self, headers: Mapping[str, str]) -> None:
        """Sends the head of a 200 whose length nobody knows."""
        line = self._ready()
        if line is None:
            await self.start(200, encoded(headers))
            return
        self.head_sent = True
        line.start_now(200, header_lines(headers), length_bytes=None)

    async def write(self, data: bytes) -> None:
        """Sends body bytes; waits while the client is slow. Raises `ClientStalled` beyond the limit."""
        line = self._ready()
        if line is not None:
            line.write_now(data)
            return
        await self._out({"type": "http.response.body", "body": data, "more_body": True})

    def pass_now(self, data: bytes) -> bool:
        """Sends a part of a stream where nothing has to be waited for; false, and nothing sent, elsewhere."""
        line = self._line
        return line is not None and self.head_sent and line.pass_now(data)

    async def finish(self, data: bytes = b"") -> None:
        """Sends the last body bytes."""
        line = self._ready()
        if line is not None:
            line.finish_now(data)
            return
        await self._out({"type": "http.response.body", "body": data, "more_body": False})

    async def finish_slowly(self, data: bytes) -> None:
        """Sends the rest of a large body piece by piece, so that a client which takes nothing is noticed."""
        for start in range(0, len(data), _PIECE_BYTES):
            await self.write(data[start : start + _PIECE_BYTES])
        await self.finish()

    async def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Sends a whole JSON answer."""
        pairs = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *encoded(headers),
        ]
        await self.start(status, pairs)
        if len(body) > _PIECE_BYTES:
            await self.finish_slowly(body)
        else:
            await self.finish(body)

    async def refuse(self, error: GatewayError, headers: Mapping[str, str]) -> None:
        """Sends an error as a whole answer."""
        await self.respond(error.status, {**headers, **error.headers}, error.body())

    def _ready(self) -> Line | None:
        """The server's line, where sending over it waits for nothing: 12 µs a write less than by messages."""
        line = self._line
        return line if line is not None and line.is_ready() else None

    async def _out(self, message: Message) -> None:
        if not self._is_slow():  # nothing will wait, so no timer is set: 5 µs a write
            await self._send(message)
            return
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                await self._send(message)
        except TimeoutError as err:
            self._abort()
            raise ClientStalled from err

    def _abort(self) -> None:
        """Ends the connection: closing it would wait for a flush that this client never allows."""
        abort = (self.scope.get("extensions") or {}).get("kimi.abort")
        if abort is not None:
            abort()


def _unknown() -> bool:
    """A server that does not say whether a client is slow: it may be."""
    return True


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Header pairs as ASGI wants them; what an upstream said of itself is kept to printable ASCII and bounded."""
    return [
        (name.encode("latin-1"), _UNPRINTABLE.sub("?", value)[:_VALUE_CHARACTERS].encode("latin-1"))
        for name, value in headers.items()
    ]


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Header lines, each with its line end, with the values as `encoded` has them."""
    values = "".join(headers.values())
    if len(values) <= _VALUE_CHARACTERS and values.isascii() and values.isprintable():  # 3 µs less for a head
        return "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode("ascii")
    return b"".join([b"%b: %b\r\n" % pair for pair in encoded(headers)])


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(
        f"the body is larger than {max_bytes} bytes; raise server.max_body_bytes or send less",
        code="body_too_large",
    )
