"""What a client may be told, in OpenAI's error shape.

    GatewayError
      InvalidRequest        400 a field, a value or the body is wrong
      NotFound              404 no such route or model
      MethodNotAllowed      405
      TooLarge              413
      UnsupportedMedia      415
      Unauthenticated       401 no or wrong key
      Forbidden             403 a right is missing, or open mode met a stranger
      LedgerUnavailable     503 nothing may be booked, so nothing is served
      StateOut              503 the state that several gateways share does not answer
      ShuttingDown          503 draining
      UpstreamError         what an upstream did, already translated

Messages name the field, the value's problem and the remedy; they never hold a key or a prompt.
"""

from collections.abc import Mapping

from backends.json import encode


class GatewayError(Exception):
    """An answer with an error body. `status` is HTTP's; `type`, `code`, `param` are OpenAI's fields."""

    status = 500
    type = "server_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        status: int | None = None,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.status = self.status if status is None else status
        self.type = self.type if type is None else type
        self.headers: Mapping[str, str] = headers or {}

    def error_object(self, *, with_status: bool = False) -> dict[str, object]:
        """The object under `error`; with the HTTP status inside where it goes into a stream."""
        body: dict[str, object] = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        if with_status:
            body["status"] = self.status
        return body

    def body(self, *, with_status: bool = False) -> bytes:
        """The whole JSON body."""
        return encode({"error": self.error_object(with_status=with_status)})


class InvalidRequest(GatewayError):
    """400: says which field, what is wrong with it and how to set it right."""

    status = 400
    type = "invalid_request_error"


class NotFound(InvalidRequest):
    """404: no such path or model."""

    status = 404


class MethodNotAllowed(InvalidRequest):
    """405."""

    status = 405


class TooLarge(InvalidRequest):
    """413."""

    status = 413


class UnsupportedMedia(InvalidRequest):
    """415: not JSON, or compressed."""

    status = 415


class Unauthenticated(GatewayError):
    """401: no key, or one that is not known."""

    status = 401
    type = "authentication_error"


class Forbidden(GatewayError):
    """403: the key or the caller's place lacks the right."""

    status = 403
    type = "permission_error"


class LedgerUnavailable(GatewayError):
    """503: the journal cannot be written, and what cannot be booked is not served."""

    status = 503

    def __init__(self, message: str) -> None:
        super().__init__(
            message, code="ledger_unavailable", headers={"retry-after": "5", "x-should-retry": "true"}
        )


class StateOut(GatewayError):
    """503: what was asked for needs the shared state, which does not answer."""

    status = 503

    def __init__(self, message: str) -> None:
        super().__init__(message, code="state_unavailable", headers={"retry-after": "1", "x-should-retry": "true"})


class ShuttingDown(GatewayError):
    """503: the gateway is being stopped."""

    status = 503

    def __init__(self) -> None:
        super().__init__(
            "the gateway is shutting down; send the request again, another instance will take it",
            code="shutting_down",
            headers={"retry-after": "1", "x-should-retry": "true"},
        )


class UpstreamError(GatewayError):
    """What an upstream did, in our words; see `kimi_gateway.relay.faults` for the table."""

    status = 502
    type = "upstream_error"
