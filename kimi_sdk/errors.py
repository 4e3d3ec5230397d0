"""What a call can raise. Every message says what was wrong, what was expected and how to set it right.

    KimiError                   request_id: what the other side calls the request, None where it named none
      InvalidInput              an argument or variable is wrong; nothing was sent (also a ValueError)
        NothingToResume         no answer of this chat broke off
      ConnectionFailed          nobody answered at base_url, or the connection broke
        NoAnswerInTime          sent, but no answer within timeout_s: it may have been billed
      BadReply                  a 200 that is not a whole chat completion: it may have been billed
        BadOutput               a whole answer that does not fit `output`, and neither did its repair
      ThinkingExhausted         the output limit was used up by the thinking; billed
      StreamCut                 the answer broke off after it had begun; `reply` has what came
      TooManyRounds             the model still calls tools after max_rounds
      BudgetError               a budget does not allow the call
        MaxCostReached          this chat's max_cost or the meter's; nothing was sent
      RequestRefused            the other side answered with an error
        BadRequest              400, 404, 413, 415, 422: a field, the model or the size is wrong
          ContextTooLong        the conversation does not fit into the context window
          ContentFiltered       the content was refused
        AuthenticationFailed    401: no key, or one that is not known there
        PermissionRefused       403: the key lacks a right
        QuotaExhausted          the account behind it has no money left; repeating does not help
          BudgetExceeded        402: this key's own budget at the gateway is used up (also a BudgetError)
        RateLimited             429: too many requests or tokens; `retry_after_s` says when to come back
        Overloaded              the model's servers are full, or the gateway cannot serve just now
        ServerFailed            5xx: something broke on the other side; 3xx: it sends elsewhere, not followed

What may help is repeated before it is raised (`kimi_sdk.retry`), and never after content has been given out. The
three that carry a reply stand in `kimi_sdk.broken`.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from typing_extensions import override


class KimiError(Exception):
    """Base of the tree.

    `request_id` finds the request in the ledger (`kimi-pricing show`), or with the seller's support.
    """

    def __init__(self, message: str, *, request_id: str | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id

    @override
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """For pickle and copy: arguments by name are no part of `args`, so they come as the state."""
        cause = {"__cause__": self.__cause__} if isinstance(self.__cause__, KimiError) else {}
        return _bare, (type(self), self.args), {**self.__dict__, **cause}


def _bare(kind: type[KimiError], args: tuple[Any, ...]) -> KimiError:
    return kind.__new__(kind, *args)


class InvalidInput(KimiError, ValueError):
    """Nothing was sent: an argument or a variable is wrong."""


class NothingToResume(InvalidInput):
    """No answer of this chat broke off since its last whole one."""


class ConnectionFailed(KimiError):
    """Nobody answered at this base_url, or the connection broke before the answer was complete.

    `was_sent`: the request had left, so it may have been billed.
    """

    def __init__(self, message: str, *, was_sent: bool = False, request_id: str | None = None) -> None:
        super().__init__(message, request_id=request_id)
        self.was_sent = was_sent


class NoAnswerInTime(ConnectionFailed):
    """The request was sent, but the other side was silent for too long. It may have been billed."""


class BadReply(KimiError):
    """The answer is not a whole chat completion. It may have been billed."""


class BadOutput(BadReply):
    """The answer does not fit `output`, also after one repair round. `text` is the last one, `problems` say
    where."""

    def __init__(
        self, message: str, *, text: str, problems: tuple[str, ...], request_id: str | None = None
    ) -> None:
        super().__init__(message, request_id=request_id)
        self.text = text
        self.problems = problems


class BudgetError(KimiError):
    """A budget does not allow the call."""


class MaxCostReached(BudgetError):
    """The call could exceed `max_cost`. Nothing was sent.

    In dollars: `spent` so far (estimates of broken answers among it), `reserved` for calls under way, `bound` is
    the most that this call could cost, None where no price is known.
    """

    def __init__(
        self, message: str, *, max_cost: Decimal, spent: Decimal, reserved: Decimal, bound: Decimal | None
    ) -> None:
        super().__init__(message)
        self.max_cost = max_cost
        self.spent = spent
        self.reserved = reserved
        self.bound = bound


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
        super().__init__(message, request_id=request_id)
        self.status = status
        self.type = type
        self.code = code
        self.param = param
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


class BudgetExceeded(QuotaExhausted, BudgetError):
    """The budget of this key at the gateway is used up; `retry_after_s` is the time to its reset."""


class RateLimited(RequestRefused):
    """Too many requests or tokens for now."""


class Overloaded(RequestRefused):
    """The servers are full, or the gateway is draining or has no target for now."""


class ServerFailed(RequestRefused):
    """Something broke on the other side, or it sends elsewhere: redirects are not followed."""
