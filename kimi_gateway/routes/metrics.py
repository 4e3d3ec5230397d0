"""GET /metrics, for the admin key; without it only for programs on this machine."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from kimi_gateway.core import callers, openmode
from kimi_gateway.core.keys import same
from kimi_gateway.core.secret import Secret
from kimi_gateway.errors import Forbidden, Unauthenticated
from kimi_gateway.metrics import CONTENT_TYPE
from kimi_gateway.settings import Settings


def metrics_path(render: Callable[[], Awaitable[bytes]], settings: Callable[[], Settings], host: str) -> Path:
    """The route, served on `host`. `render` gives the exposition, of all workers where there are several."""

    async def show(request: Request) -> Response:
        check_admin(request.scope["headers"], settings().admin.key, host)
        return Response(await render(), headers={"content-type": CONTENT_TYPE})

    return Path("/metrics", show, methods=["GET"])


def check_admin(headers: callers.Headers, key: Secret | None, host: str) -> None:
    """Lets pass who has the admin key, and, where `host` is a loopback address, who comes from this machine.

    What a web page or a proxy brings in does not come from this machine (as in open mode). Raises
    `Unauthenticated` or `Forbidden` with the remedy.
    """
    if openmode.is_loopback(host) and openmode.refusal(headers) is None:
        return
    if key is None:
        raise Forbidden(
            "metrics need the admin key here, and none is set; set the variable that [admin] key_env names, or "
            'listen = "127.0.0.1:9000" in [admin]',
            code="no_admin_key",
        )
    if not same(callers.bearer(headers), key):
        raise Unauthenticated(
            "this is not the admin key; send it as Authorization: Bearer",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
