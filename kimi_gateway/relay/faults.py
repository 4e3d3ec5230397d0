"""What a client is told about an upstream's fault: the error table of the design, in one place."""

import math
from dataclasses import replace

from backends.faults import Fault, FaultKind
from kimi_gateway.core.secret import Secret
from kimi_gateway.errors import GatewayError, InvalidRequest, UpstreamError


def error_for(fault: Fault) -> GatewayError:
    """The error answer for a fault that no further attempt can mend."""
    build = _TABLE[fault.kind]
    return build(fault)


def without_secret(fault: Fault, secret: Secret | None) -> Fault:
    """The fault with the target's key taken out of its words, should the upstream have repeated it."""
    if secret is None or secret.reveal() not in f"{fault.message}{fault.code}{fault.type}{fault.param}":
        return fault
    key = secret.reveal()

    def clean(text: str | None) -> str | None:
        return None if text is None else text.replace(key, "***")

    return replace(
        fault,
        message=fault.message.replace(key, "***"),
        code=clean(fault.code),
        type=clean(fault.type),
        param=clean(fault.param),
    )


def _headers(fault: Fault, *, retry: str, default_s: float | None = None) -> dict[str, str]:
    """`x-should-retry` for the OpenAI clients, `retry-after` in whole seconds, rounded up."""
    headers = {"x-should-retry": retry} if retry else {}
    wait_s = fault.retry_after_s if fault.retry_after_s is not None else default_s
    if wait_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(wait_s)))
    return headers


def _limited(fault: Fault) -> GatewayError:
    """429: our plan is spent, so the client's own retries would only multiply; retry-after says when."""
    return GatewayError(
        fault.message,
        status=429,
        type=fault.type or "rate_limit_error",
        code=fault.code or "rate_limit_exceeded",
        param=fault.param,
        headers=_headers(fault, retry="false", default_s=5),
    )


def _quota(fault: Fault) -> GatewayError:
    return GatewayError(
        fault.message,
        status=402,
        type="exceeded_current_quota_error",
        code=fault.code or "exceeded_current_quota_error",
        headers={"x-should-retry": "false"},
    )


def _auth(fault: Fault) -> GatewayError:
    return UpstreamError(
        "the upstream refused the operator's key; `kimi-gateway check` says which target, its log says why",
        code="upstream_auth",
        headers={"x-should-retry": "false"},
    )


def _context(fault: Fault) -> GatewayError:
    return InvalidRequest(
        fault.message,
        code="context_length_exceeded",
        param=fault.param or "messages",
        headers={"x-should-retry": "false"},
    )


def _filter(fault: Fault) -> GatewayError:
    return InvalidRequest(
        fault.message,
        type="content_filter",
        code="content_filter",
        param=fault.param,
        headers={"x-should-retry": "false"},
    )


def _request(fault: Fault) -> GatewayError:
    status = fault.status if fault.status in (400, 404, 413, 422) else 400
    return InvalidRequest(
        fault.message, status=status, code=fault.code, param=fault.param, headers={"x-should-retry": "false"}
    )


def _timeout(fault: Fault) -> GatewayError:
    return UpstreamError(
        fault.message,
        status=504,
        type="upstream_timeout",
        code="upstream_timeout",
        headers={"x-should-retry": "false"},
    )


def _bad_gateway(fault: Fault) -> GatewayError:
    if fault.status == 504:
        return _timeout(fault)
    return UpstreamError(fault.message, code="bad_gateway", headers=_headers(fault, retry="false"))


def _unreachable(fault: Fault) -> GatewayError:
    """The address stays with the operator: in the log and in the row's attempts."""
    return UpstreamError(
        "the upstream could not be reached; the operator sees why in the gateway's log and with kimi-pricing show",
        code="bad_gateway",
        headers={"x-should-retry": "false"},
    )


def _broken(fault: Fault) -> GatewayError:
    """A connection that broke: the address stays with the operator here too."""
    return UpstreamError(
        "the connection to the upstream broke before its answer was whole; it may have been billed, and "
        "kimi-pricing show says more",
        code="bad_gateway",
        headers=_headers(fault, retry="false"),
    )


def _overload(fault: Fault) -> GatewayError:
    """An overload that came as 429 stays one; a 503 of an engine's full queue is a bad gateway to the client."""
    return _limited(fault) if fault.status == 429 else _bad_gateway(fault)


_TABLE = {
    FaultKind.CONNECT: _unreachable,
    FaultKind.TLS: _unreachable,
    FaultKind.TIMEOUT: _timeout,
    FaultKind.RESET: _broken,
    FaultKind.SERVER: _bad_gateway,
    FaultKind.OVERLOAD: _overload,
    FaultKind.RATE: _limited,
    FaultKind.QUOTA: _quota,
    FaultKind.AUTH: _auth,
    FaultKind.CONTEXT: _context,
    FaultKind.FILTER: _filter,
    FaultKind.REQUEST: _request,
    FaultKind.INCOMPLETE: _bad_gateway,
}
