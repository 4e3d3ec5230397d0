"""The HTTP server: uvicorn inside our own event loop, with a life that is ours.

uvicorn's `serve` takes over the signals and closes its listener at once; a gateway that drains has to go on
answering first. So only its parts are used here: the protocol, `startup` and the tick that keeps the date.
"""

import asyncio
import errno
import re
import resource
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kimi_gateway.errors import GatewayError, InvalidRequest, ShuttingDown
from kimi_gateway.lifecycle import Lifecycle

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

HEAD_LIMIT_BYTES: Final = 64 * 1024
HEAD_TIMEOUT_S: Final = 30.0
LINGER_S: Final = 1.0
KEEPALIVE_S: Final = 75.0
"""Longer than the idle limits of clients and balancers (5 to 60 s), so that they close first and never send into a
connection that is just being closed."""
_BACKLOG: Final = 2048
_SPARE_DESCRIPTORS: Final = 64  # journal, ledger, log, listener
_POLL_S: Final = 0.02
_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_ALWAYS_ANSWERED: Final = frozenset({"/health", "/ready"})


class ListenError(Exception):
    """The address cannot be listened on; the message says why and what to do."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with bounds on what it lacks: the size of a request's head and the time it may take."""

    head_timeout_s = HEAD_TIMEOUT_S
    _head_is_open = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _refused = False

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_is_late)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    @override
    def on_message_begin(self) -> None:
        self._head_is_open = True
        super().on_message_begin()

    @override
    def on_headers_complete(self) -> None:
        self._head_is_open = False
        self._head_bytes = 0
        self._stop_head_timer()
        super().on_headers_complete()

    @override
    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        cycle = getattr(self, "cycle", None)
        if cycle is None or not cycle.more_body:
            data = without_upgrade(data)
        super().data_received(data)
        if not self._head_is_open:
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_LIMIT_BYTES:
            self._refuse(431, "headers_too_large", f"the request's head is larger than {HEAD_LIMIT_BYTES} bytes")
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_is_late)

    @override
    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "invalid_http", f"{msg.rstrip('.')}; send HTTP/1.1")

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answers what never became a request and closes; an answer under way is only cut off.

        What the client still sends is read for a moment: closing on it would reset the connection, and the client
        would not see the answer.
        """
        if self.transport.is_closing():
            return
        cycle = getattr(self, "cycle", None)  # None until the first request, whatever uvicorn's annotation says
        if cycle is None or cycle.response_complete:
            body = InvalidRequest(message, code=code).body()
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self._refused = True
            self.transport.write(head.encode() + body)
            self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.close)
            return
        self.transport.close()

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def without_upgrade(data: bytes) -> bytes:
    """The start of a request with its `Upgrade` header under a name that nothing acts on.

    The parser (httptools 0.9) drops the body of a request that offers an upgrade, and the JDK's HTTP client offers
    h2c with every first POST. A server may ignore the offer; one split over two packets goes unnoticed.
    """
    end = data.find(b"\r\n\r\n")
    head = data if end < 0 else data[:end]
    if not _UPGRADE.search(head):
        return data
    return _UPGRADE.sub(b"\r\nx-upgrade:", head) + data[len(head) :]


class Gate:
    """The outermost callable: refuses what comes beyond `max_connections` or after the listener has closed.

    /health and /ready are answered whatever the load, so that a full gateway is not taken for a dead one.
    """

    def __init__(self, app: AsgiApp, lifecycle: Lifecycle, *, max_connections: int) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._max_connections = max_connections
        self.count_connections: Callable[[], int] = lambda: 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in _ALWAYS_ANSWERED:
            if self.count_connections() > self._max_connections:
                await refuse(receive, send, _too_many(self._max_connections))
                return
            if not self._lifecycle.accepting:
                await refuse(receive, send, ShuttingDown())
                return
        await self._app(scope, receive, send)


def _too_many(limit: int) -> GatewayError:
    return GatewayError(
        f"the gateway has its {limit} connections; send the request again shortly, or raise "
        "server.max_connections",
        status=503,
        code="too_many_connections",
        headers={"retry-after": "1", "x-should-retry": "true"},
    )


async def refuse(receive: Receive, send: Send, error: GatewayError) -> None:
    """Sends an error as a whole answer and closes the connection after it, once the body has been read: closing on
    unread bytes would reset it before the client has the answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body"):
                pass
    body = error.body()
    headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in error.headers.items()]
    headers += [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class Hold:
    """A hold on the connection of one request, for an emulated upstream that misbehaves. `refuse(seconds)` makes
    the listener refuse new connections for so long."""

    def __init__(self, scope: Scope, connections: Iterable[Any], refuse: Callable[[float], None]) -> None:
        self._scope = scope
        self._connections = connections
        self.refuse = refuse

    def close(self) -> None:
        """Ends the connection after the bytes already sent, whatever the answer's framing says."""
        self._transport.close()

    def reset(self) -> None:
        """Ends the connection with a TCP reset: closing a socket that lingers for no time is one."""
        transport = self._transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    @property
    def _transport(self) -> Any:
        return next(held.transport for held in self._connections if held.cycle and held.cycle.scope is self._scope)


class Listener:
    """One ASGI application on one bound socket. All methods belong to the running loop.

    With `gives_holds` each request's scope has the extension `kimi.connection`, a `Hold`.
    """

    def __init__(
        self,
        app: AsgiApp,
        sock: socket.socket,
        *,
        head_timeout_s: float = HEAD_TIMEOUT_S,
        gives_holds: bool = False,
    ) -> None:
        self._sock = sock
        self._app = app
        self._reopening: asyncio.TimerHandle | None = None
        self._config = uvicorn.Config(
            self._with_hold if gives_holds else app,
            http=type("Protocol", (BoundedProtocol,), {"head_timeout_s": head_timeout_s}),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            forwarded_allow_ips="",
            workers=1,
            backlog=_BACKLOG,
            timeout_keep_alive=int(KEEPALIVE_S),
        )
        self._server = uvicorn.Server(self._config)
        self._ticker: asyncio.Task[None] | None = None
        if isinstance(app, Gate):
            app.count_connections = self._server.server_state.connections.__len__

    @property
    def address(self) -> tuple[str, int]:
        """Host and real port."""
        host, port = self._sock.getsockname()[:2]
        return str(host), int(port)

    async def start(self) -> None:
        """Takes connections from now on."""
        self._config.load()
        self._server.lifespan = self._config.lifespan_class(self._config)
        await self._server.startup(sockets=[self._sock])
        await self._server.on_tick(0)
        self._ticker = asyncio.create_task(self._tick(), name="http-date")

    async def _tick(self) -> None:
        """Renews the date header every second, for ever."""
        while True:
            await asyncio.sleep(1)
            await self._server.on_tick(0)

    async def _with_hold(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"] = {"kimi.connection": Hold(scope, self._server.server_state.connections, self.refuse)}
        await self._app(scope, receive, send)

    def refuse(self, seconds: float) -> None:
        """New connections are refused for so long. The port stays bound, so that nobody takes it meanwhile."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds
        if self._reopening is None:
            address = self._sock.getsockname()
            self.stop_accepting()
            self._sock = socket.socket(self._sock.family, socket.SOCK_STREAM)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sock.setblocking(False)
            self._sock.bind(address)
        else:
            until_s = max(until_s, self._reopening.when())
            self._reopening.cancel()
        self._reopening = loop.call_at(until_s, self._reopen)

    def _reopen(self) -> None:
        self._reopening = None
        self._sock.listen(_BACKLOG)
        self._opening = asyncio.create_task(self._server.startup(sockets=[self._sock]), name="listen-again")

    def stop_accepting(self) -> None:
        """Closes the listening socket and the idle connections; the others close after their answer."""
        for server in self._server.servers:
            server.close()
        self._sock.close()
        for connection in list(self._server.server_state.connections):
            connection.shutdown()

    @property
    def is_idle(self) -> bool:
        """No connection and no request is left."""
        state = self._server.server_state
        return not state.connections and not state.tasks

    async def wait_idle(self, timeout_s: float) -> bool:
        """Whether everything has ended within that time."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not self.is_idle:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def close(self) -> None:
        """Ends what is left, at once. Safe to call again."""
        if self._ticker is None:
            self._sock.close()
            return
        self._ticker.cancel()
        if self._reopening is not None:
            self._reopening.cancel()
        self.stop_accepting()
        state = self._server.server_state
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel()
        for connection in list(state.connections):
            connection.transport.abort()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        await asyncio.sleep(0)  # lets the aborted transports say so


def bind(host: str, port: int) -> socket.socket:
    """A bound socket (port 0: one that the system picks). Raises `ListenError` with the remedy."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as err:
        raise ListenError(
            f"the host {host} is not an address of this machine ({err.strerror}); use --host 127.0.0.1"
        ) from err
    # A name with both kinds of address is meant as IPv4: clients are told 127.0.0.1.
    family, _, _, _, address = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)  # now, so that a port that another process listens on is found out here
        sock.setblocking(False)
    except OSError as err:
        sock.close()
        raise ListenError(_listen_problem(host, port, err)) from err
    return sock


def _listen_problem(host: str, port: int, err: OSError) -> str:
    if err.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is taken by another process; stop that one, or choose another port with "
            "--port (0 picks a free one)"
        )
    if err.errno == errno.EACCES:
        return f"port {port} needs more rights than this process has; choose one above 1023 with --port"
    if err.errno == errno.EADDRNOTAVAIL:
        return f"the host {host} is not an address of this machine; use --host 127.0.0.1 or 0.0.0.0"
    return f"{host} port {port} cannot be listened on ({err.strerror}); choose others with --host and --port"


def raise_descriptor_limit(max_connections: int) -> str:
    """Raises the limit of open descriptors to the hard one; says so where `max_connections` needs more.

    Each connection may need two: the client's and the upstream's.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # some systems state a hard limit above what they grant
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = 2 * max_connections + _SPARE_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return ""
    most = max(1, (soft - _SPARE_DESCRIPTORS) // 2)
    return (
        f"this process may open {soft} descriptors, but server.max_connections = {max_connections} can need "
        f"{needed}; raise the limit (ulimit -n {needed}) or lower max_connections to {most}"
    )
