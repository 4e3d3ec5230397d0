"""aiohttp set up for upstream calls: its pool, requests and responses with the few things changed that matter.

Changed, and why (aiohttp 3.14): a kept connection is looked at before it is written to; idle connections are
bounded, aiohttp bounds only open ones; leaving aborts instead of flushing; the reader of a body is told when its
connection is lost; large bodies go out in slices.
"""

import asyncio
import functools
import select
import socket
import ssl
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.payload import Payload
from typing_extensions import override

READ_LIMIT_BYTES = 64 * 1024
"""aiohttp stops reading a connection above twice this; with one socket read on top (256 KiB) at most 384 KiB of
an answer wait in memory for a slow reader."""
SLICE_BYTES = 256 * 1024  # a request body goes out in slices: one write at a time, then other calls get the loop
MAX_FIELD_BYTES = 16 * 1024  # one response header
MAX_FIELDS = 128
KEEPALIVE_TLS_S = 45.0  # load balancers close at 60 s and more
KEEPALIVE_PLAIN_S = 4.0  # engines run uvicorn, which closes at 5 s
MAX_IDLE_PER_HOST = 256
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 60, 15, 4  # TCP keep-alive while a prefill is silent for minutes
_ADDED_BY_AIOHTTP = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class StaleConnection(aiohttp.ClientConnectionError):
    """A kept connection turned out to be closed or spoken on before anything was sent."""


@dataclass(slots=True)
class Watch:
    """One open connection: the pool key it belongs to, and the body that is being read from it."""

    origin: object
    content: aiohttp.StreamReader | None = None


class Connector(aiohttp.TCPConnector):
    """A pool that knows its connections: which served before, how many of an origin idle, which one is lost."""

    def __init__(self, *, max_idle_per_host: int, **options: Any) -> None:
        super().__init__(**options)
        self._max_idle = max_idle_per_host
        self._watches: dict[ResponseHandler, Watch] = {}
        self._idle: dict[object, set[ResponseHandler]] = {}

    def take(self, origin: object, protocol: ResponseHandler) -> Watch:
        """The watch of a connection that is about to be used. Raises `StaleConnection` for a kept one that the
        server has closed or written to; nothing was sent on it then."""
        watch = self._watches.get(protocol)
        if watch is not None:
            self._idle[origin].discard(protocol)
            if protocol.should_close or _has_news(protocol.transport):
                raise StaleConnection
            return watch
        closed = protocol.closed
        if closed is None:
            raise StaleConnection
        watch = self._watches[protocol] = Watch(origin)
        closed.add_done_callback(functools.partial(self._lost, protocol))
        return watch

    def about_to_keep(self, origin: object, protocol: ResponseHandler) -> None:
        """Counts a connection that is being given back, or has it closed where enough are kept."""
        idle = self._idle.setdefault(origin, set())
        if protocol in self._watches and not protocol.should_close:
            if len(idle) >= self._max_idle:
                protocol.force_close()
            else:
                idle.add(protocol)

    def _lost(self, protocol: ResponseHandler, closed: "asyncio.Future[None]") -> None:
        if not closed.cancelled():
            closed.exception()  # seen: asyncio would log one that nobody looked at
        watch = self._watches.pop(protocol)
        idle = self._idle.get(watch.origin)
        if idle is not None:
            idle.discard(protocol)
            if not idle:
                del self._idle[watch.origin]
        content = watch.content
        if content is not None and not content.is_eof() and content.exception() is None:
            # aiohttp drops a connection whose chunks are malformed without a word to who reads the body.
            content.set_exception(aiohttp.ClientPayloadError("the connection is gone"))


class Request(aiohttp.ClientRequest):
    """A request that looks at a kept connection before it writes to it."""

    @override
    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        connector, protocol = self.session.connector, conn.protocol
        assert isinstance(connector, Connector)
        assert protocol is not None
        origin = self.connection_key
        watch = connector.take(origin, protocol)
        conn.add_callback(functools.partial(connector.about_to_keep, origin, protocol))
        response = await super().send(conn)
        assert isinstance(response, Response)
        response.watch = watch
        return response


class Response(aiohttp.ClientResponse):
    """A response that drops its connection, unsent request bytes included, when it is not wanted any more."""

    line: ResponseHandler | None = None
    watch: Watch

    @override
    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        self.line = connection.protocol
        transport = connection.transport
        try:
            await super().start(connection)
        except BaseException:
            # aiohttp closes after flushing, which an upstream that does not read can delay for ever.
            if transport is not None:
                transport.abort()
            raise
        self.watch.content = self.content
        return self

    def drop(self) -> None:
        """Closes the connection at once unless it went back to the pool already."""
        transport = None if self.connection is None else self.connection.transport
        self.close()
        if transport is not None:
            transport.abort()


class Body(Payload):
    """A request body sent in slices: aiohttp's own payload hands a large one over whole and warns about it."""

    _autoclose = True  # nothing to release

    def __init__(self, value: bytes) -> None:
        super().__init__(value)
        self._size = len(value)

    @override
    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return bytes(self._value).decode(encoding, errors)

    @override
    async def write(self, writer: AbstractStreamWriter) -> None:
        view = memoryview(self._value)
        for start in range(0, len(view), SLICE_BYTES):
            await writer.write(view[start : start + SLICE_BYTES])


def new_session(
    *, max_connections: int, max_idle_per_host: int, keepalive_s: float, tls: ssl.SSLContext
) -> aiohttp.ClientSession:
    """A session with no limit on time, no cookies, and no header of its own but `Host` and the body's length."""
    connector = Connector(
        max_idle_per_host=max_idle_per_host,
        limit=max_connections,
        keepalive_timeout=keepalive_s,
        ssl=tls,
        socket_factory=_socket,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(),  # the caller owns every limit but the connect timeout
        skip_auto_headers=_ADDED_BY_AIOHTTP,
        request_class=Request,
        response_class=Response,
        trust_env=False,
        read_bufsize=READ_LIMIT_BYTES,
        max_field_size=MAX_FIELD_BYTES,
        max_headers=MAX_FIELDS,
    )


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that finds out by itself when a silent peer is gone."""
    sock = socket.socket(*address[:3])
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _PROBE_AFTER_S),
        ("TCP_KEEPINTVL", _PROBE_EVERY_S),
        ("TCP_KEEPCNT", _PROBES),
    ):
        if hasattr(socket, name):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock


def _has_news(transport: asyncio.BaseTransport | None) -> bool:
    """Whether an idle connection has something to read: its end, or words nobody asked for."""
    if transport is None:
        return True
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))
