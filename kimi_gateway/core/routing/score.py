"""What a request would cost at a target, and how long it would wait there for its first token. Pure.

Score = money + predicted wait x the price of waiting. Money is integer nano-dollars: what is warm at the read
price, the rest at the fresh or the write price, the expected answer at the output price. A target that is paid by
the hour has no price per token: its money is 0, because the machine costs the same whether it works or not.
"""

from typing import Final

from msgspec import Struct

from kimi_gateway.core.routing.candidate import Candidate, Pace, Policy, Wants
from pricing.usage import Meter

ASSUMED_PACE: Final = Pace(first_s=0.5, fresh_s=1 / 10_000, token_s=1 / 50, answer_s=10.0)
"""What a target is taken to be like that nobody has measured: between a small server of one's own and Moonshot."""

_HOUR_S: Final = 3600


class Bill(Struct, frozen=True, gc=False):
    """The expected money by meter: (meter, tokens, nano-dollars), only what is used; `nano` is the sum."""

    lines: tuple[tuple[Meter, int, int], ...]
    nano: int


def bill(wants: Wants, candidate: Candidate) -> Bill | None:
    """The expected money at a target, meter by meter; None where it has no price."""
    tariff = candidate.tariff
    if tariff is None:
        return None
    warm = warm_tokens(wants, candidate)
    meters: tuple[tuple[Meter, int, int], ...] = (
        ("cache_read", warm, warm * tariff.read),
        (tariff.meter, wants.prompt.tokens - warm, (wants.prompt.tokens - warm) * tariff.fresh),
        ("output", wants.output_tokens * wants.n, wants.output_tokens * wants.n * tariff.output),
    )
    lines = tuple(line for line in meters if line[1])
    return Bill(lines, sum(line[2] for line in lines))


def money_nano(wants: Wants, candidate: Candidate, warm: int) -> int:
    """The sum of the bill with so many warm tokens; 0 where there is no price."""
    tariff = candidate.tariff
    if tariff is None:
        return 0
    fresh = wants.prompt.tokens - warm
    return warm * tariff.read + fresh * tariff.fresh + wants.output_tokens * wants.n * tariff.output


def warm_tokens(wants: Wants, candidate: Candidate) -> int:
    """How many of the prompt's tokens are expected to be read; 0 where nobody can say."""
    return min(candidate.read_tokens or 0, wants.prompt.tokens)


def queue_s(wants: Wants, candidate: Candidate) -> float:
    """How long the request waits before the target begins with it: in our queue, in the engine's, for the end of a
    rate limit."""
    answer_s = (candidate.pace or ASSUMED_PACE).answer_s
    waits_s = 0.0
    if candidate.full:
        waits_s = answer_s * (candidate.queued + 1) / max(candidate.quota.concurrency, candidate.in_flight, 1)
    load = candidate.load
    if load is not None and load.waiting:
        waits_s = max(waits_s, answer_s * load.waiting / (load.running or 1))
    return waits_s if candidate.out is None else max(waits_s, cooling_s(wants, candidate))


def cooling_s(wants: Wants, candidate: Candidate) -> float:
    """How long a target still takes nothing; 0 where it takes requests."""
    out = candidate.out
    return 0.0 if out is None or out.until_s is None else max(0.0, out.until_s - wants.now_s)


def prefill_s(candidate: Candidate, fresh: int) -> float:
    """From the target's beginning to its first token, with so many prompt tokens to compute."""
    pace = candidate.pace or ASSUMED_PACE
    return pace.first_s + fresh * pace.fresh_s


def total_s(wants: Wants, candidate: Candidate, wait_s: float) -> float:
    """To the end of the expected answer, whose first token comes after `wait_s`."""
    pace = candidate.pace or ASSUMED_PACE
    return wait_s + wants.output_tokens * pace.token_s


def busy(candidate: Candidate) -> int:
    """Requests at a target, ours or, where it tells, everybody's."""
    load = candidate.load
    return candidate.in_flight if load is None else max(candidate.in_flight, load.running + load.waiting)


def wait_nano(wait_s: float, policy: Policy) -> int:
    """What so much waiting is worth."""
    return int(wait_s * policy.wait_nano_per_hour / _HOUR_S)
