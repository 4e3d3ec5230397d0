"""JSON answers in the shapes clients know, whatever route they come from."""

from collections.abc import Iterable
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backends.json import encode
from kimi_gateway.core.near import meant, quoted
from kimi_gateway.errors import GatewayError, MethodNotAllowed, NotFound
from kimi_gateway.routes.unbuilt import unbuilt_path

_PATHS_HINT: Final = "the base_url of a client ends in /v1, and chat is POST /v1/chat/completions"


def json_answer(value: object, status: int = 200) -> Response:
    """A whole JSON answer."""
    return Response(encode(value), status, media_type="application/json")


def error_answer(error: GatewayError) -> Response:
    """An error in OpenAI's shape."""
    return Response(error.body(), error.status, dict(error.headers), media_type="application/json")


def http_error(request: Request, failure: HTTPException) -> GatewayError:
    """What the router found wrong, in our words: an unknown path, a wrong method."""
    path = request.url.path
    if failure.status_code == 404:
        return _no_path(path, _served(request))
    if failure.status_code == 405:
        allowed = ", ".join(sorted((failure.headers or {}).get("Allow", "").replace(" ", "").split(",")))
        return MethodNotAllowed(
            f"{path} does not take {request.method}; it takes {allowed}",
            code="method_not_allowed",
            headers={"allow": allowed},
        )
    return GatewayError(str(failure.detail), status=failure.status_code)


def _no_path(path: str, served: Iterable[str]) -> NotFound:
    announced = unbuilt_path(path)
    if announced:
        return NotFound(f"{announced} is not built yet; chat is POST /v1/chat/completions", code="not_built")
    return NotFound(f"there is nothing at {quoted(path)};{meant(path, served)} {_PATHS_HINT}", code="not_found")


def _served(request: Request) -> list[str]:
    """The paths of the application that a request came to."""
    routes = getattr(request.scope.get("app"), "routes", ())
    return [route.path for route in routes if isinstance(route, Route) and "{" not in route.path]
