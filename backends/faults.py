"""One vocabulary for what upstreams do wrong, read from status, headers and body of any dialect."""

from dataclasses import dataclass
from enum import StrEnum


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
    upstream asked for, in seconds from now, whatever form it used.
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
