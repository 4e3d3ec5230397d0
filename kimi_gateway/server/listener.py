"""One application on one socket, from its start to its end."""

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

import uvicorn

from kimi_gateway.server.gate import AsgiApp, Gate, Receive, Scope, Send
from kimi_gateway.server.protocol import HEAD_TIMEOUT_S, BoundedProtocol
from kimi_gateway.server.sockets import BACKLOG

KEEPALIVE_S: Final = 75.0
"""Longer than the idle limits of clients and balancers (5 to 60 s), so that they close first and never send into a
connection that is just being closed."""
_POLL_S: Final = 0.02


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

    Each request's scope has the extension `kimi.abort`, a callable without arguments that ends the connection at
    once; with `gives_holds` also `kimi.connection`, a `Hold`.
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
            backlog=BACKLOG,
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
        hold = Hold(scope, self._server.server_state.connections, self.refuse)
        scope["extensions"]["kimi.connection"] = hold
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
        self._sock.listen(BACKLOG)
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

    def abort(self) -> int:
        """Ends every connection at once, with what its client has not taken; says how many there were."""
        connections = [one for one in self._server.server_state.connections if isinstance(one, BoundedProtocol)]
        for connection in connections:
            connection.abort()
        return len(connections)

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
        self.abort()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        await asyncio.sleep(0)  # lets the aborted transports say so
