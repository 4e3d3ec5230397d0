"""What is refused before the application sees it, as a whole answer in our shape."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final

from kimi_gateway.errors import GatewayError, ShuttingDown
from kimi_gateway.lifecycle import Lifecycle

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

LINGER_S: Final = 1.0
"""How long what a refused client still sends is read, so that it sees the answer."""
_ALWAYS_ANSWERED: Final = frozenset({"/health", "/ready"})


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
