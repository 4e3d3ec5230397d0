"""Which error an answer of the other side is. Pure: the wording of every server is read by `backends.faults`."""

from dataclasses import replace
from typing import Final, NamedTuple

from backends.faults import Fault, FaultKind, fault_from_response
from backends.json import JsonError, as_count, as_object, decode
from backends.retry_after import asked_wait_s
from kimi_sdk.errors import (
    AuthenticationFailed,
    BadRequest,
    BudgetExceeded,
    ContentFiltered,
    ContextTooLong,
    Overloaded,
    PermissionRefused,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    ServerFailed,
)
from kimi_sdk.wire import Answer, Endpoint

_BUDGET_CODE = "budget_exceeded"
_CLASSES: dict[FaultKind, type[RequestRefused]] = {
    FaultKind.CONTEXT: ContextTooLong,
    FaultKind.FILTER: ContentFiltered,
    FaultKind.REQUEST: BadRequest,
    FaultKind.QUOTA: QuotaExhausted,
    FaultKind.RATE: RateLimited,
    FaultKind.OVERLOAD: Overloaded,
}


class _Told(NamedTuple):
    """What an answer with this code says in status and head, which a stream has no room for."""

    status: int
    should_retry: bool


_GATEWAY_CODES: Final = {
    "bad_gateway": _Told(502, False),
    "upstream_auth": _Told(502, False),
    "upstream_timeout": _Told(504, False),
    "no_target": _Told(503, True),
    "shutting_down": _Told(503, True),
    "ledger_unavailable": _Told(503, True),
    "queue_timeout": _Told(429, True),
    "rate_limit_exceeded": _Told(429, True),
}
"""The gateway's own errors (its README, Errors)."""
_SECRET_LENGTH: Final = 4
"""A shorter key is a placeholder, which may stand in any word."""


def refusal(answer: Answer, endpoint: Endpoint, now_s: float) -> RequestRefused:
    """The error to raise for an answer that is one. `now_s` is Unix time, for a retry-after that is a date."""
    if 300 <= answer.status < 400:
        return _redirected(answer, endpoint)
    body = without_key(answer.body.decode("latin-1"), endpoint).encode("latin-1")  # before a long one is shortened
    fault = _without_key(fault_from_response(_status(answer), answer.headers, body, now_s), endpoint)
    wait_s = fault.retry_after_s
    if wait_s is None:  # a fault names no wait where waiting heals nothing; a budget that is reset is healed
        wait_s = asked_wait_s(answer.headers, "", now_s)
    kind = _class_of(fault)
    return kind(
        _message(kind, fault, endpoint),
        status=fault.status,
        type=fault.type,
        code=fault.code,
        param=fault.param,
        request_id=answer.request_id,
        retry_after_s=wait_s,
        should_retry={"true": True, "false": False}.get(answer.headers.get("x-should-retry", "").lower()),
    )


def refusal_in_stream(fault: Fault, endpoint: Endpoint, request_id: str | None) -> RequestRefused:
    """The error to raise for one that came in a stream, whose own status was a success."""
    fault = _without_key(fault, endpoint)
    told = _GATEWAY_CODES.get(fault.code or "")
    kind = _class_of(fault)
    if told is not None and told.status == 503:
        kind = Overloaded
    return kind(
        f"error in the stream from {endpoint.base_url}: {fault.message}",
        status=fault.status or (200 if told is None else told.status),
        type=fault.type,
        code=fault.code,
        param=fault.param,
        request_id=request_id,
        retry_after_s=fault.retry_after_s,
        should_retry=None if told is None else told.should_retry,
    )


def without_key(text: str, endpoint: Endpoint) -> str:
    """The text without the key, where the other side repeats it: messages end up in logs."""
    return text if len(endpoint.api_key) < _SECRET_LENGTH else text.replace(endpoint.api_key, "[the key]")


def _without_key(fault: Fault, endpoint: Endpoint) -> Fault:
    def cut(text: str | None) -> str | None:
        return None if text is None else without_key(text, endpoint)

    return replace(
        fault,
        message=without_key(fault.message, endpoint),
        type=cut(fault.type),
        code=cut(fault.code),
        param=cut(fault.param),
    )


def _redirected(answer: Answer, endpoint: Endpoint) -> RequestRefused:
    """Redirects are not followed: conversation and key are for the address that was given, and no other."""
    to = without_key(answer.headers.get("location", "").partition("?")[0], endpoint)
    return ServerFailed(
        f"{answer.status} from {endpoint.base_url}: it redirects to {to or 'an address it does not name'}, which "
        f"is not followed, because the conversation was meant for the other (from {endpoint.base_url_origin}). "
        "If that is where the API is, give it as base_url",
        status=answer.status,
        request_id=answer.request_id,
        should_retry=False,
    )


def _status(answer: Answer) -> int:
    """The HTTP status; for an error in a 200 the one it would have had, which the gateway puts in the object."""
    if answer.status >= 400:
        return answer.status
    try:
        body = as_object(decode(answer.body)) or {}
    except JsonError:
        return answer.status
    error = as_object(body.get("error")) or {}
    return as_count(error.get("status")) or answer.status


def _class_of(fault: Fault) -> type[RequestRefused]:
    if fault.status == 401:
        return AuthenticationFailed
    if fault.status == 403 and fault.kind is FaultKind.AUTH:
        return PermissionRefused
    if fault.code == _BUDGET_CODE:
        return BudgetExceeded
    return _CLASSES.get(fault.kind, ServerFailed)


def _message(kind: type[RequestRefused], fault: Fault, endpoint: Endpoint) -> str:
    text = f"{fault.status} from {endpoint.base_url}: {fault.message}"
    if kind is not AuthenticationFailed:
        return text
    used = f"The key came from {endpoint.api_key_origin}" if endpoint.api_key else "No key was sent"
    return (
        f"{text}. {used}; base_url came from {endpoint.base_url_origin}. "
        "Set api_key or KIMI_API_KEY to a key that is known there"
    )
