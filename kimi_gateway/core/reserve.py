"""The most that a request can cost, reserved before its first attempt. Pure; integer nano-dollars."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pricing.rates import Rates, WriteRule

DEFAULT_OUTPUT: Final = 131_072
"""What runs where nobody names a limit (platform.kimi.ai/docs/api/chat)."""
LEAST_OUTPUT: Final = 16_000
"""The least limit that a request without one is cut down to, as the vendor recommends at least so many."""


@dataclass(frozen=True, slots=True)
class Price:
    """The rates of one target that may serve the request."""

    rates: Rates
    write_rule: WriteRule = "replaces"


@dataclass(frozen=True, slots=True)
class Ceiling:
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
