"""What a call can raise. Every message says what was wrong, what was expected and how to set it right.

    KimiError
      InvalidInput              an argument or variable is wrong; nothing was sent (also a ValueError)
      ConnectionFailed          nobody answered at base_url, or the connection broke
        NoAnswerInTime          sent, but no answer within timeout_s: it may have been billed
      BadReply                  a 200 that is not a whole chat completion: it may have been billed
      RequestRefused            the other side answered with an error
        BadRequest              400, 404, 413, 415, 422: a field, the model or the size is wrong
          ContextTooLong        the conversation does not fit into the context window
          ContentFiltered       the content was refused
        AuthenticationFailed    401: no key, or one that is not known there
        PermissionRefused       403: the key lacks a right
        QuotaExhausted          the account behind it has no money left; repeating does not help
          BudgetExceeded        402: this key's own budget at the gateway is used up
        RateLimited             429: too many requests or tokens; `retry_after_s` says when to come back
        Overloaded              the model's servers are full, or the gateway cannot serve just now
        ServerFailed            5xx: something broke on the other side

One call is one request: nothing here is repeated, because the gateway retries and fails over itself.
"""


class KimiError(Exception):
    """Base of the tree."""


class InvalidInput(KimiError, ValueError):
    """Nothing was sent: an argument or a variable is wrong."""


class ConnectionFailed(KimiError):
    """Nobody answered at this base_url, or the connection broke before the answer was complete."""


class NoAnswerInTime(ConnectionFailed):
    """The request was sent, but the other side was silent for too long. It may have been billed."""


class BadReply(KimiError):
    """The answer is not a whole chat completion. It may have been billed.

    `request_id` finds it in the ledger (`kimi-pricing show`), where the answer named one.
    """

    def __init__(self, message: str, *, request_id: str | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id


class RequestRefused(KimiError):
    """The other side answered with an error; `status` is HTTP's, `type`, `code` and `param` are its own words.

    `retry_after_s` is when a new request makes sense, in seconds from the answer; `should_retry` is what the
    gateway says about repeating it (None: nothing).
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        type: str | None = None,
        code: str | None = None,
        param: str | None = None,
        request_id: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.code = code
        self.param = param
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry


class BadRequest(RequestRefused):
    """A field, the model's name or the size of the request is wrong."""


class ContextTooLong(BadRequest):
    """The conversation does not fit into the context window."""


class ContentFiltered(BadRequest):
    """The content was refused."""


class AuthenticationFailed(RequestRefused):
    """No key, or one that is not known at this base_url; the message says which of them were used."""


class PermissionRefused(RequestRefused):
    """The key lacks a right."""


class QuotaExhausted(RequestRefused):
    """The account has no money left. Repeating does not help."""


class BudgetExceeded(QuotaExhausted):
    """The budget of this key at the gateway is used up; `retry_after_s` is the time to its reset."""


class RateLimited(RequestRefused):
    """Too many requests or tokens for now."""


class Overloaded(RequestRefused):
    """The servers are full, or the gateway is draining or has no target for now."""


class ServerFailed(RequestRefused):
    """Something broke on the other side."""
