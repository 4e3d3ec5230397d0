"""The most that a request can cost, reserved before its first attempt. Pure; integer nano-dollars."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from pricing.rates import Rates, WriteRule

DEFAULT_OUTPUT: Final = 131_072
"""What runs where nobody names a limit (platform.kimi.ai/docs/api/chat)."""
LEAST_OUTPUT: Final = 16_000
"""The least limit that a request without one is cut down to, as the vendor recommends at least so many."""


class Price(Struct, frozen=True, gc=False):
    """The rates of one target that may serve the request."""

    rates: Rates
    write_rule: WriteRule = "replaces"


class Ceiling(Struct, frozen=True, gc=False):
    """The dearest nano-dollars per token that can apply, over all targets that may serve."""

    input: int
    output: int

    def cost(self, prompt_tokens: int, output_tokens: int) -> int:
        """The most that so many tokens can cost."""
        return self.input * prompt_tokens + self.output * output_tokens

    def output_that_fits(self, left_nano: int, prompt_tokens: int, answers: int) -> int:
        """The largest output limit for each of `answers` that so much money pays for; 0 where none is."""
        rest = left_nano - self.input * prompt_tokens
        if rest <= 0:
            return 0
        return rest // (self.output * answers) if self.output else DEFAULT_OUTPUT


class Offer(Struct, frozen=True, gc=False):
    """What to reserve for a request, and the output limit to send: None where it is the one asked for already.

    `tokens` is the most that the request can use, which is what a limit on tokens is charged with.
    """

    nano: int
    tokens: int
    lowered_to: int | None = None


def offer(
    prices: Ceiling, *, prompt_tokens: int, limit: int | None, window: int, answers: int = 1, left_nano: int | None
) -> Offer:
    """What a request has to reserve. `limit` is the one that it, its key or its route names, None where none does.

    Without one the default applies, as far as the window has room for it; where that does not fit into `left_nano`
    (None: no budget), the largest limit that does is offered, down to 16,000. It need not fit even so: whether it
    does is the limiter's to say.
    """
    wanted = DEFAULT_OUTPUT if limit is None else limit
    wanted = max(1, min(wanted, window - min(prompt_tokens, window)))
    lowered = None
    if limit is None and left_nano is not None:
        fits = prices.output_that_fits(left_nano, prompt_tokens, answers)
        if fits < wanted:
            lowered = max(min(fits, wanted), min(LEAST_OUTPUT, wanted))
            wanted = lowered
    tokens = wanted * answers
    return Offer(prices.cost(prompt_tokens, tokens), prompt_tokens + tokens, lowered)


def byte_bound(text_bytes: int, window: int) -> int:
    """The cheapest bound on a prompt's tokens: no token has less than a byte, and no prompt more than the window.

    `text_bytes` is the body without what stands in it as base64; images are bounded apart from it.
    """
    return min(text_bytes, window)


def grown_bound(last_tokens: int, added_bytes: int, window: int) -> int:
    """A closer bound: what the conversation's last turn was reported to have, and the bytes that came since."""
    return min(last_tokens + added_bytes, window)


def ceiling(prices: Sequence[Price], *, one_hour: bool) -> Ceiling:
    """The ceiling of these prices, of which each has an input and an output rate.

    `one_hour`: cache writes at 1 h can happen, because they were asked for or seen on the prefix within the hour.
    """
    return Ceiling(
        max((_input(price, one_hour=one_hour) for price in prices), default=0),
        max((price.rates.output or 0 for price in prices), default=0),
    )


def is_priced(rates: Rates | None) -> bool:
    """A budget can be held with these rates: what goes in and what comes out both have a price."""
    return rates is not None and rates.input is not None and rates.output is not None


def _input(price: Price, *, one_hour: bool) -> int:
    fresh = price.rates.input or 0
    writes = [price.rates.write_5m, price.rates.write_1h if one_hour else None]
    added = fresh if price.write_rule == "adds" else 0
    return max(fresh, price.rates.cache_read or 0, *(added + rate for rate in writes if rate is not None))
