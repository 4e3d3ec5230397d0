"""Exact cost: the sum over the meters of count times rate, in integer nano-dollars. Nothing is ever rounded.

Because meters are disjoint and the arithmetic is integer, the cost of a sum of usages is the sum of their costs,
in any order and any split.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Final, assert_never

from pricing.money import usd
from pricing.rates import Rates, WriteRule
from pricing.usage import METERS, Meter, TokenUsage

PROMPT_METERS: Final[tuple[Meter, ...]] = ("input", "cache_read", "write_5m", "write_1h")


@dataclass(frozen=True, slots=True)
class Line:
    """One meter of a cost. `rate` is what was billed, in nano-dollars per token (`search`: per call).

    None as rate means that the meter has no price; `nano` is 0 then and the whole cost is unknown.
    """

    meter: Meter
    count: int
    rate: int | None
    nano: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one usage. `nano` is None where a meter that was used has no price: unknown, never free.

    `lines` holds the meters that were used, in the order of `METERS`; `unpriced` names those without a price.
    """

    nano: int | None
    lines: tuple[Line, ...]
    unpriced: tuple[Meter, ...] = ()
    write_rule: WriteRule = "replaces"

    @property
    def usd(self) -> Decimal | None:
        """Exact dollars, None where the cost is unknown."""
        return None if self.nano is None else usd(self.nano)


def cost_of(usage: TokenUsage, rates: Rates, *, write_rule: WriteRule = "replaces") -> Cost:
    """The cost of a usage at these rates, one line per meter that was used.

    Counts that are unknown (None) are billed as 0. A missing cache rate bills as input.
    """
    lines: list[Line] = []
    for meter in METERS:
        count = usage.count(meter)
        if count:
            rate = billed_rate(rates, meter, write_rule=write_rule)
            lines.append(Line(meter, count, rate, 0 if rate is None else count * rate))
    unpriced = tuple(line.meter for line in lines if line.rate is None)
    nano = None if unpriced else sum(line.nano for line in lines)
    return Cost(nano, tuple(lines), unpriced, write_rule)


def billed_rate(rates: Rates, meter: Meter, *, write_rule: WriteRule = "replaces") -> int | None:
    """What one unit of a meter costs, in nano-dollars; None where it has no price.

    A cache meter without a rate of its own bills as input: a price nobody stated is not a discount. Under the
    rule `adds` a write costs the input rate and the write rate together.
    """
    match meter:
        case "input" | "output" | "search":
            return rates.of(meter)
        case "cache_read":
            return rates.input if rates.cache_read is None else rates.cache_read
        case "write_5m" | "write_1h":
            return _write_rate(rates.input, rates.of(meter), write_rule)
        case _:
            assert_never(meter)


def _write_rate(fresh: int | None, write: int | None, rule: WriteRule) -> int | None:
    if write is None:
        return fresh
    if rule == "replaces":
        return write
    return None if fresh is None else fresh + write
