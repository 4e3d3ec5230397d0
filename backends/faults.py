"""One vocabulary for what upstreams do wrong, read from status, headers and body of any dialect.

An upstream's own names (type, code) decide first, because one status has several meanings (a 429 can be a rate, an
overload or an empty account); then the status; the text of the message only where both leave it open.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from backends.fault_text import (
    clean_message,
    clean_word,
    context_counts,
    field_path,
    findings_text,
    first_field,
    page_title,
    says_context,
)
from backends.json import Json, JsonError, JsonObject, as_count, as_list, as_object, as_str, decode
from backends.retry_after import asked_wait_s, limit_reset_s


class FaultKind(StrEnum):
    """What went wrong, by what one can do about it."""

    CONNECT = "connect"  # never reached the upstream: safe to repeat
    TLS = "tls"  # certificate or handshake: repeating does not help
    TIMEOUT = "timeout"  # sent, then silent: may have been billed
    RESET = "reset"  # connection broke after sending: may have been billed
    SERVER = "server"  # 5xx, HTML page, unreadable answer
    OVERLOAD = "overload"  # engine_overloaded_error, queue full, 503/529
    RATE = "rate"  # RPM, TPM, concurrency
    QUOTA = "quota"  # the operator's account is empty or suspended: final
    AUTH = "auth"  # 401, 403 of the operator's key
    CONTEXT = "context"  # prompt or limit beyond the window
    FILTER = "filter"  # content refused
    REQUEST = "request"  # 400, 404, 413, 422: the request itself
    INCOMPLETE = "incomplete"  # a stream that ended without a finish reason


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure of an upstream.

    `status` is the HTTP status the upstream gave (0 where there was none), `type` and `code` its own words,
    `message` is safe to show to a client: no account ids, keys, file paths or HTML. `retry_after_s` is what the
    upstream asked for, in seconds from now, whatever form it used. `context_tokens` is what the request came to as
    the upstream counts it: the prompt, the prompt with the output limit, or the limit alone.
    """

    kind: FaultKind
    message: str
    status: int = 0
    type: str | None = None
    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None
    context_limit: int | None = None
    context_tokens: int | None = None


_NAMES: Final[Mapping[str, FaultKind]] = {
    # Moonshot (platform.kimi.ai/docs/api/errors), OpenAI's spelling, OpenRouter's metadata.error_type
    "exceeded_current_quota_error": FaultKind.QUOTA,
    "insufficient_quota": FaultKind.QUOTA,
    "payment_required": FaultKind.QUOTA,
    "engine_overloaded_error": FaultKind.OVERLOAD,
    "overloaded_error": FaultKind.OVERLOAD,
    "provider_overloaded": FaultKind.OVERLOAD,
    "rate_limit_reached_error": FaultKind.RATE,
    "rate_limit_exceeded": FaultKind.RATE,
    "rate_limit_error": FaultKind.RATE,
    "content_filter": FaultKind.FILTER,
    "context_length_exceeded": FaultKind.CONTEXT,
    "exceed_context_size_error": FaultKind.CONTEXT,  # llama.cpp b11549
}
"""Names that decide whatever the status is."""

_NAMES_WITHOUT_STATUS: Final[Mapping[str, FaultKind]] = {
    "invalid_authentication_error": FaultKind.AUTH,
    "incorrect_api_key_error": FaultKind.AUTH,
    "authentication_error": FaultKind.AUTH,
    "permission_denied_error": FaultKind.AUTH,
    "invalid_request_error": FaultKind.REQUEST,
    "resource_not_found_error": FaultKind.REQUEST,
    "badrequesterror": FaultKind.REQUEST,  # vLLM, SGLang
    "badrequest": FaultKind.REQUEST,
    "bad request": FaultKind.REQUEST,
    "notfounderror": FaultKind.REQUEST,
    "unprocessableentityerror": FaultKind.REQUEST,
    "service_unavailable": FaultKind.OVERLOAD,  # SGLang, queue full in a stream
    "serviceunavailableerror": FaultKind.OVERLOAD,  # vLLM, queue admission
    "server_unavailable": FaultKind.OVERLOAD,
}
"""Names that repeat a status: they decide where an event of a stream has none."""

_STATUSES: Final[Mapping[int, FaultKind]] = {
    401: FaultKind.AUTH,
    402: FaultKind.QUOTA,
    403: FaultKind.AUTH,
    408: FaultKind.TIMEOUT,
    409: FaultKind.SERVER,  # a passing conflict: Moonshot's own client repeats it
    429: FaultKind.RATE,
    499: FaultKind.SERVER,  # the upstream lost us, or its own upstream did
    503: FaultKind.OVERLOAD,
    504: FaultKind.TIMEOUT,
    524: FaultKind.TIMEOUT,  # a proxy gave up waiting
    529: FaultKind.OVERLOAD,
}

_EMPTY_ACCOUNT: Final = (
    "insufficient balance",
    "insufficient quota",
    "insufficient credit",
    "insufficient funds",
    "exceeded your current quota",
    "exceeded current quota",
    "check your plan",
    "account is suspended",
    "account suspended",
    "recharge",
    "arrears",
)
"""Wording of an empty or suspended account where no type says so (a help page of Moonshot's: 403)."""

_WAITS: Final = frozenset({FaultKind.RATE, FaultKind.OVERLOAD, FaultKind.SERVER, FaultKind.TIMEOUT})
"""Kinds that time may mend; a wait named with any other would invite attempts that cannot succeed."""


@dataclass(frozen=True, slots=True)
class _Words:
    """What an error object says, not yet cleaned."""

    message: str = ""
    type: str = ""
    code: str = ""
    param: str = ""
    error_type: str = ""  # OpenRouter's metadata
    limit: int | None = None
    tokens: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name.lower() for name in (self.type, self.code, self.error_type) if name)


def fault_from_response(status: int, headers: Mapping[str, str], body: bytes, now: float) -> Fault:
    """The fault of an error answer, whatever its body: an error object of any dialect, text, HTML, or nothing.

    `now` is Unix seconds, for waits that are given as a date.
    """
    text = body.removeprefix(b"\xef\xbb\xbf").strip()
    try:
        return _fault(_words(decode(text)), status, headers, now)
    except JsonError:
        return _unreadable(text.decode("utf-8", "replace"), status, headers, now)


def fault_from_error_object(obj: Json, *, status: int = 0) -> Fault:
    """The fault that a JSON body or an event of a stream holds: `{"error": {…}}`, `{"error": "…"}`, a flat object,
    `{"detail": …}` or bare text. Its own status (`code`) counts where `status` is none of an error."""
    return _fault(_words(obj), status, {}, 0.0)


def _fault(words: _Words, status: int, headers: Mapping[str, str], now: float) -> Fault:
    status = _status(status, words.code)
    kind = _kind(words, status)
    limit, tokens = context_counts(words.message) if kind is FaultKind.CONTEXT else (None, None)
    return Fault(
        kind=kind,
        message=clean_message(words.message) or _without_words(status),
        status=status,
        type=clean_word(words.type or words.error_type) or None,
        code=clean_word(words.code) or None,
        param=clean_word(_param(words), 200) or None,
        retry_after_s=_wait_s(kind, headers, words.message, now),
        context_limit=words.limit or limit,
        context_tokens=words.tokens or tokens,
    )


def _status(status: int, code: str) -> int:
    """The status of the error: the answer's own, else the one inside the body (OpenRouter, SGLang), else 0."""
    if status >= 400:
        return status
    if re.fullmatch("[45][0-9][0-9]", code):
        return int(code)
    return status if status >= 300 else 0


def _param(words: _Words) -> str:
    """The request field at fault. vLLM puts its own place in the request before it, SGLang only in the message."""
    if words.param and not words.param.startswith("body"):
        return words.param
    return field_path(words.param.split(".")) or first_field(words.message) or ""


def _kind(words: _Words, status: int) -> FaultKind:
    for name in words.names:
        if name in _NAMES:
            return _NAMES[name]
    lowered = words.message.lower()
    if status in (403, 429) and any(sign in lowered for sign in _EMPTY_ACCOUNT):
        return FaultKind.QUOTA
    if status == 403 and ("moderation" in lowered or "flagged" in lowered):
        return FaultKind.FILTER  # OpenRouter
    if status == 429 and "overloaded" in lowered:
        return FaultKind.OVERLOAD
    if status in (0, 400, 413, 422) and says_context(words.message):
        return FaultKind.CONTEXT
    if status == 0:
        named = (_NAMES_WITHOUT_STATUS[name] for name in words.names if name in _NAMES_WITHOUT_STATUS)
        return next(named, FaultKind.SERVER)
    by_family = FaultKind.REQUEST if 400 <= status <= 499 else FaultKind.SERVER
    return _STATUSES.get(status, by_family)


def _wait_s(kind: FaultKind, headers: Mapping[str, str], message: str, now: float) -> float | None:
    if kind not in _WAITS:
        return None
    wait_s = asked_wait_s(headers, message, now)
    if wait_s is None and kind in (FaultKind.RATE, FaultKind.OVERLOAD):
        wait_s = limit_reset_s(headers, now)
    return wait_s


def _words(obj: Json) -> _Words:
    """Reads an error body of any shape."""
    if isinstance(obj, list) and obj:
        obj = obj[0]
    body = as_object(obj)
    if body is None:
        return _Words(message=obj if isinstance(obj, str) else "")
    error = body.get("error")
    if isinstance(error, dict):
        return _words_of(error)
    if isinstance(error, str):
        # `{"error": "Unauthorized"}` of vLLM and SGLang; Moonshot's unknown route: {"code": 5, "error": "url.…"}
        return _Words(message=as_str(body.get("message")) or error, code=_name(body.get("code")))
    if "detail" in body and "message" not in body:
        detail = body.get("detail")
        return _Words(message=as_str(detail) or findings_text(detail) or "", param=_first_loc(detail))
    return _words_of(body)


def _words_of(error: JsonObject) -> _Words:
    metadata = as_object(error.get("metadata")) or {}
    return _Words(
        message=as_str(error.get("message")) or "",
        type=_name(error.get("type")),
        code=_name(error.get("code")),
        param=as_str(error.get("param")) or "",
        error_type=_name(metadata.get("error_type")),
        limit=as_count(error.get("n_ctx")),  # llama.cpp
        tokens=as_count(error.get("n_prompt_tokens")),
    )


def _name(value: Json) -> str:
    """A type or code as a string: engines send codes as numbers, and typed clients fail on those."""
    if isinstance(value, str):
        return value
    count = as_count(value)
    return "" if count is None else str(count)


def _first_loc(detail: Json) -> str:
    first = as_object(next(iter(as_list(detail)), None))
    return field_path(map(str, as_list(first.get("loc")))) if first is not None else ""


def _unreadable(text: str, status: int, headers: Mapping[str, str], now: float) -> Fault:
    """The fault of a body that is not JSON. A 503 that no engine wrote is a broken way, not a full queue."""
    kind = _kind(_Words(), status)
    if status == 503:
        kind = FaultKind.SERVER
    title = page_title(text)
    if not text:
        message = f"the upstream answered {status} without a body"
    elif title is not None:
        message = f"the upstream answered {status} with an HTML page" + (f" ({title})" if title else "")
    elif text[0] in "{[":
        message = f"the upstream answered {status} with JSON that was cut"
    else:
        message = clean_message(text) or _without_words(status)
    return Fault(kind, message, status, retry_after_s=_wait_s(kind, headers, message, now))


def _without_words(status: int) -> str:
    if 300 <= status <= 399:
        return f"the upstream answered with the redirect {status}; its base_url must be the final address"
    return f"the upstream answered {status} and gave no reason" if status else "the upstream gave no reason"
