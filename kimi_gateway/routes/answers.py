"""JSON answers in the shapes clients know, whatever route they come from."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from backends.json import encode
from kimi_gateway.errors import GatewayError, MethodNotAllowed, NotFound

_PATHS_HINT = "the base_url of a client ends in /v1, and chat is POST /v1/chat/completions"


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
        return NotFound(f"there is nothing at {path}; {_PATHS_HINT}", code="not_found")
    if failure.status_code == 405:
        allowed = ", ".join(sorted((failure.headers or {}).get("Allow", "").replace(" ", "").split(",")))
        return MethodNotAllowed(
            f"{path} does not take {request.method}; it takes {allowed}",
            code="method_not_allowed",
            headers={"allow": allowed},
        )
    return GatewayError(str(failure.detail), status=failure.status_code)
