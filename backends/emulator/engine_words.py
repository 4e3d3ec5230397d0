"""What vLLM and SGLang say alike: the names of their errors, and the words of their validation library."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from backends.emulator.errors import Refusal
from backends.emulator.profile import Trouble

_TYPES: Final = {
    400: "BadRequestError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
OWN_MODELS: Final = ("kimi-k3.1-pro", "moonshotai/Kimi-K3.1-Pro")
"""The names that the recorded servers were started with (`--served-model-name`)."""


def type_of(refusal: Refusal) -> str:
    """The error's type: the name of its status, unless the refusal has its own."""
    if refusal.reason:
        return "Bad Request"
    if refusal.type != "invalid_request_error":
        return refusal.type
    return _TYPES.get(refusal.status) or phrase(refusal.status)


def phrase(status: int) -> str:
    """HTTP's own words for a status; `Error` for one that has none."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def location(param: str | None) -> tuple[str | int, ...]:
    """Where in the body something is: `messages[0].role` is `("body", "messages", 0, "role")`."""
    steps = (param or "").replace("[", ".").replace("]", "").split(".")
    return ("body", *(int(step) if step.isdigit() else step for step in steps if step))


def dotted(steps: Sequence[str | int]) -> str:
    """The same with dots, as vLLM writes it."""
    return ".".join(map(str, steps))


def bad_request(message: str, *, param: str | None = None, value: object = None) -> Refusal:
    """A 400 about one field; vLLM repeats field and value at the end of its message."""
    if param is not None:
        named = f"parameter={param}" if value is None else f"parameter={param}, value={value}"
        message = f"{message} ({named})"
    return Refusal(message, param=param)


def trouble_text(trouble: Trouble) -> tuple[int, str]:
    """Status and words of a trouble that an engine alone does not have: what a proxy before it would say."""
    match trouble.kind:
        case "overloaded":
            return trouble.status or 429, "The server is overloaded, please retry later."
        case "rate":
            unit = {"concurrency": "requests at once", "rpm": "requests per minute"}.get(trouble.limit)
            limit = f"{trouble.most} {unit or 'tokens per ' + ('minute' if trouble.limit == 'tpm' else 'day')}"
            return 429, f"Rate limit of {limit} reached, please retry after {trouble.wait_s} seconds."
        case "quota":
            return trouble.status or 429, "You exceeded your current quota, please check your plan."
        case "forbidden":
            return trouble.status or 403, "Forbidden"
        case "filter":
            return trouble.status or 400, "The request was rejected by the content filter."
        case _:
            status = trouble.status or 500
            return status, phrase(status)


def trouble_type(trouble: Trouble, status: int) -> str:
    """The type that goes with `trouble_text`; only an empty account and a filter have names of their own."""
    named = {"quota": "insufficient_quota", "filter": "content_filter"}
    return named.get(trouble.kind) or _TYPES.get(status) or phrase(status)
