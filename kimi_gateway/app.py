"""The FastAPI application: the chat endpoint as plain ASGI, the small routes, every error in OpenAI's shape."""

import logging
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence
from typing import Any, Final

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Route as Path
from typing_extensions import override

from kimi_gateway import __version__
from kimi_gateway.core.callers import Caller, identify
from kimi_gateway.core.standing import Standings
from kimi_gateway.errors import GatewayError
from kimi_gateway.relay.context import Context
from kimi_gateway.routes.answers import error_answer, http_error
from kimi_gateway.routes.balance import balance_path
from kimi_gateway.routes.health import health_paths
from kimi_gateway.routes.metrics import metrics_path
from kimi_gateway.routes.models import model_paths
from kimi_gateway.routes.thoughts import thoughts_path
from kimi_gateway.settings import Settings

CHAT_PATH: Final = "/v1/chat/completions"
TOKENS_PATH: Final = "/v1/tokenizers/estimate-token-count"

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Exposition = Callable[[], Awaitable[bytes]]
Handler = Callable[[Request, Exception], Coroutine[Any, Any, Response]]

_log: Final = logging.getLogger("kimi_gateway.app")
_UNEXPECTED: Final = "an unexpected error in the gateway; its log says where"


class GatewayApp(FastAPI):
    """FastAPI whose chat endpoint is called straight: its stack would wrap `send` twice for every chunk."""

    def __init__(
        self, routes: Sequence[BaseRoute], on_path_error: Handler, *, chat: AsgiApp | None = None
    ) -> None:
        self._chat = chat
        super().__init__(
            title="Kimi Gateway",
            version=__version__,
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            routes=list(routes),
            exception_handlers={
                GatewayError: _gateway_error,
                HTTPException: on_path_error,
                Exception: _unexpected,
            },
        )

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        chat = self._chat
        if chat is not None and scope.get("path") == CHAT_PATH and scope.get("method") == "POST":
            await _guarded(chat, scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(
    ctx: Context,
    chat: AsgiApp,
    tokens: AsgiApp,
    *,
    ledger_problem: Callable[[], str],
    metrics_here: bool = True,
    exposition: Exposition | None = None,
    standings: Standings | None = None,
) -> GatewayApp:
    """The gateway's application. `chat` serves POST /v1/chat/completions, `tokens` the token counts;
    `ledger_problem` says why nothing could be booked ("" where all is well); without `metrics_here` /metrics is
    served elsewhere; `exposition` gives the metrics of several workers (None: this process's); `standings` what is
    known of the targets."""

    def settings() -> Settings:
        return ctx.settings

    routes: list[BaseRoute] = [
        Path(CHAT_PATH, chat, methods=["POST"]),
        Path(TOKENS_PATH, tokens, methods=["POST"]),
        balance_path(ctx.authenticate, ctx.limiter),
        *model_paths(settings, ctx.authenticate),
        *health_paths(settings, ctx.lifecycle, ledger_problem, standings),
    ]
    if metrics_here:
        routes += _admin_paths(ctx, ctx.settings.server.host, exposition)
    return GatewayApp(routes, _path_error(ctx.authenticate), chat=chat)


def create_admin_app(
    ctx: Context,
    host: str,
    *,
    ledger_problem: Callable[[], str],
    exposition: Exposition | None = None,
    standings: Standings | None = None,
) -> GatewayApp:
    """The application of the admin listener on `host`: /metrics and the deletion of thoughts, and health and
    readiness once more."""

    def settings() -> Settings:
        return ctx.settings

    health = health_paths(settings, ctx.lifecycle, ledger_problem, standings)
    routes = [*_admin_paths(ctx, host, exposition), *health]
    return GatewayApp(routes, _path_error(None))


def _admin_paths(ctx: Context, host: str, exposition: Exposition | None) -> list[BaseRoute]:
    """What only an administrator may do or see, served on `host`."""

    async def own() -> bytes:
        await ctx.thinking.sample()
        return ctx.metrics.render()

    async def forget(key: str) -> int:
        """Deletes the thoughts of a key, which are counted, and the answers that are kept for its retries."""
        await ctx.idempotency.store.forget_key(key)
        return await ctx.thinking.forget_key(key)

    def settings() -> Settings:
        return ctx.settings

    return [
        metrics_path(exposition or own, settings, host),
        thoughts_path(forget, settings, host),
    ]


def authenticator(settings: Callable[[], Settings]) -> Callable[[Scope], Caller]:
    """The function that gives a request's caller from its ASGI scope, by the settings in force.

    It raises `errors.Unauthenticated` (401) and, in open mode, `errors.Forbidden` (403).
    """

    def authenticate(scope: Scope) -> Caller:
        return identify(scope["headers"], settings().key_ring)

    return authenticate


def _path_error(authenticate: Callable[[Scope], Caller] | None) -> Handler:
    """The handler of unknown paths and wrong methods; who has no key learns nothing about paths."""

    async def handle(request: Request, failure: Exception) -> Response:
        assert isinstance(failure, HTTPException)
        try:
            if authenticate is not None:
                authenticate(request.scope)
        except GatewayError as refused:
            return error_answer(refused)
        return error_answer(http_error(request, failure))

    return handle


async def _gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return error_answer(error)


async def _unexpected(request: Request, error: Exception) -> Response:
    """The last line of defence of a small route; the server logs what it was."""
    return error_answer(GatewayError(_UNEXPECTED))


async def _guarded(chat: AsgiApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Calls the chat endpoint; what escapes it is logged, answered where no head has left, and else cut off."""
    try:
        await chat(scope, receive, send)
    except Exception as error:  # the last line of defence: nobody above can answer in our shape
        _log.exception("an unexpected error in the chat endpoint")
        answer = error_answer(GatewayError(_UNEXPECTED))
        try:
            await answer(scope, receive, send)
        except RuntimeError:  # a head has left; the server closes the connection, so that no end looks clean
            raise error from None
