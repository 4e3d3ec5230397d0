"""DELETE /admin/keys/{name}/thinking: forgets the thoughts kept under a key's name, for who may read /metrics."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from kimi_gateway.errors import StateOut
from kimi_gateway.ports import StateUnavailable
from kimi_gateway.routes.answers import json_answer
from kimi_gateway.routes.metrics import check_admin
from kimi_gateway.settings import Settings


def thoughts_path(forget: Callable[[str], Awaitable[int]], settings: Callable[[], Settings], host: str) -> Path:
    """The route, served on `host`. `forget` deletes what a name has and counts the thoughts."""

    async def delete(request: Request) -> Response:
        check_admin(request.scope["headers"], settings().admin.key, host)
        name = request.path_params["name"]
        try:
            return json_answer({"key": name, "forgotten": await forget(name)})
        except StateUnavailable as err:
            raise StateOut(str(err)) from err

    return Path("/admin/keys/{name}/thinking", delete, methods=["DELETE"])
