"""What callers learn of their limits: refusals, headers, the balance. Pure.

A budget that refuses is 402 and no reason to try again before its period ends; a rate or too many at one time is
429 and is.
"""

from math import ceil
from typing import Final

from kimi_gateway.core.limits import Allowance, Verdict
from kimi_gateway.errors import GatewayError
from pricing.money import usd, usd_text

_HEADERS: Final = {
    "requests": ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    "tokens": ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
}
_HELD_RETRY_S: Final = 2.0
"""When to ask again for what is only held: nobody knows when a request ends."""
_RATES: Final = {
    "requests": "requests a minute",
    "tokens": "tokens a minute",
    "concurrency": "requests at one time",
}


def refusal(verdict: Verdict, *, key: str, concurrency: int = 0, asked_nano: int | None = None) -> GatewayError:
    """The answer to a claim that was not admitted. `asked_nano`: what it would have had to reserve."""
    if verdict.refused_by in ("budget", "highspeed_budget"):
        return _budget_refusal(verdict, key, asked_nano)
    allowance = {"requests": verdict.requests, "tokens": verdict.tokens}.get(verdict.refused_by)
    limit = allowance.limit if allowance is not None else concurrency
    return GatewayError(
        f"the key {key} may have {limit:,} {_RATES[verdict.refused_by]}, and has them; send the request again "
        "after the time in retry-after",
        status=429,
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers={
            **rate_headers(verdict),
            "retry-after": _seconds(verdict.retry_after_s),
            "x-should-retry": "true",
        },
    )


def rate_headers(verdict: Verdict) -> dict[str, str]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}` for the limits that there are; reset in seconds."""
    headers: dict[str, str] = {}
    for name, allowance in (("requests", verdict.requests), ("tokens", verdict.tokens)):
        if allowance is not None:
            headers |= _three(name, allowance)
    return headers


def balance(verdict: Verdict) -> dict[str, object]:
    """The `data` of GET /v1/users/me/balance for a key with a budget, in Moonshot's shape and with more.

    `available_balance` is what neither is booked nor reserved, never below zero; exact dollars. Without a budget
    for the whole, that for Highspeed is the only one there is.
    """
    budget = _budget(verdict.budget_nano, verdict.left_nano, verdict.spent_nano)
    fast = _budget(verdict.highspeed_nano, verdict.highspeed_left_nano, verdict.highspeed_spent_nano)
    available = (budget or fast or {"left": None})["left"]
    return {
        "available_balance": available,
        "voucher_balance": 0,
        "cash_balance": available,
        "has_budget": True,
        "currency": "USD",
        "period": verdict.period,
        "budget": budget,
        "highspeed_budget": fast,
    }


def _budget(whole: int | None, left: int | None, spent: int) -> dict[str, object] | None:
    if whole is None or left is None:
        return None
    return {
        "limit": usd(whole),
        "spent": usd(spent),
        "reserved": usd(whole - spent - left),
        "left": usd(max(0, left)),
    }


def _budget_refusal(verdict: Verdict, key: str, asked_nano: int | None) -> GatewayError:
    """The 402. What is only held for requests under way comes back as they end: then it makes sense to ask again
    soon."""
    whole, left = verdict.decided
    fast = verdict.refused_by == "highspeed_budget"
    held = whole - (verdict.highspeed_spent_nano if fast else verdict.spent_nano) - left
    waits = asked_nano is not None and held > 0 and asked_nano <= left + held
    asked = "" if asked_nano is None else f", and this request may cost up to {usd_text(asked_nano)} USD"
    has_end = verdict.retry_after_s > 0
    then = "wait for the next period (retry-after)" if has_end else "have the budget raised"
    if waits:
        then = f"wait for those under way, for which {usd_text(held)} USD are held"
    retry_s = _HELD_RETRY_S if waits else verdict.retry_after_s
    return GatewayError(
        f"the key {key} has {usd_text(left)} USD left of its {'Highspeed budget' if fast else 'budget'} of "
        f"{usd_text(whole)} USD{asked}; ask for a shorter answer (max_completion_tokens), or {then}",
        status=402,
        type="insufficient_quota",
        code="budget_exceeded",
        headers={
            **rate_headers(verdict),
            **({"retry-after": _seconds(retry_s)} if has_end or waits else {}),
            "x-should-retry": "true" if waits else "false",
        },
    )


def _three(name: str, allowance: Allowance) -> dict[str, str]:
    reset = f"{allowance.reset_s:.3f}".rstrip("0").rstrip(".")
    return dict(zip(_HEADERS[name], (str(allowance.limit), str(allowance.left), reset), strict=True))


def _seconds(value: float) -> str:
    return str(max(1, ceil(value)))
