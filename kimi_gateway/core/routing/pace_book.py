"""How fast each target has been of late, and how long the answers of each route are: measured, and forgotten.

For each target and tier a straight line is fitted through (fresh prompt tokens, time to the first token): where it
begins is the wait that every request has, its slope what a fresh token adds. Beside it the time of a token of the
answer, and of a whole answer. All are averages in which a measurement counts half as much `half_life_s` later;
where too little is left of them, nothing is known.

In memory and of one process. Time is seconds of one monotonic clock. A call takes about 2 us. Not safe for
threads.
"""

from math import isfinite
from typing import Final

from msgspec import Struct

from kimi_gateway.core.routing.candidate import USUAL_OUTPUT_TOKENS, Pace
from kimi_gateway.core.routing.score import ASSUMED_PACE
from pricing.ledger.row import LedgerRow

HALF_LIFE_S: Final = 300.0
LEAST_WEIGHT: Final = 0.05
"""Less than this of one measurement is nothing: after 4.3 half lives a single one is forgotten."""
MOST_WEIGHT: Final = 64.0
"""Of a busy target the last 64 measurements count, or so: what was true a thousand requests ago says little."""

_LEAST_SPREAD_TOKENS: Final = 512.0
"""With prompts this much alike a line through them is noise, so the usual slope is taken."""
_LONGEST_S: Final = 3600.0
_USUAL_OUTPUTS: Final = 4.0  # so many measured answers count as much as the usual length
_KEYS_MAX: Final = 4096


class Timing(Struct, frozen=True, gc=False):
    """One answer as it was timed. `first_s` and `answer_s` count from when the target was asked."""

    first_s: float
    answer_s: float
    fresh_tokens: int
    output_tokens: int


def timing_of(row: LedgerRow) -> Timing | None:
    """The timing of a settled row; None where it shows none: it came to no clean end, or its tokens were not
    reported. Time in our queue, and in attempts that failed, is not the target's."""
    if row.status != "ok" or row.estimated or not row.attempts:
        return None
    if row.ttft_ms is None or row.total_ms is None or row.prompt_tokens is None or not row.completion_tokens:
        return None
    asked_ms = row.attempts[-1].start_ms
    fresh = row.prompt_tokens - (row.cached_tokens or 0)
    return Timing((row.ttft_ms - asked_ms) / 1000, (row.total_ms - asked_ms) / 1000, fresh, row.completion_tokens)


class _Sums(Struct, gc=False):
    """Weighted sums over the measurements: of weights, x, y, x squared, x times y, and of the answers."""

    at_s: float
    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    tokens: float = 0.0
    token_s: float = 0.0
    answer_s: float = 0.0


class PaceBook:
    """What is measured of targets, by target and tier."""

    def __init__(self, half_life_s: float = HALF_LIFE_S) -> None:
        self._half_life_s = half_life_s
        self._sums: dict[tuple[str, str], _Sums] = {}

    def learn(self, target: str, tier: str, timing: Timing, now_s: float) -> None:
        """Takes one measurement; one that cannot be true is left out."""
        first_s, answer_s = timing.first_s, timing.answer_s
        if not (isfinite(answer_s) and 0 <= first_s <= answer_s <= _LONGEST_S) or timing.fresh_tokens < 0:
            return
        sums = self._sums.get((target, tier))
        if sums is None:
            if len(self._sums) >= _KEYS_MAX:
                self._sums.clear()
            sums = self._sums[target, tier] = _Sums(now_s)
        _fade(sums, self._faded(sums, now_s), now_s)
        if sums.weight > MOST_WEIGHT:
            _fade(sums, MOST_WEIGHT / sums.weight, now_s)
        x = float(timing.fresh_tokens)
        sums.weight += 1.0
        sums.x += x
        sums.y += first_s
        sums.xx += x * x
        sums.xy += x * first_s
        sums.answer_s += answer_s
        if timing.output_tokens > 1:
            sums.tokens += timing.output_tokens - 1  # the first one came with the first byte
            sums.token_s += answer_s - first_s

    def pace(self, target: str, tier: str, now_s: float) -> Pace | None:
        """The pace of a target; None where nothing is known, or not any more."""
        sums = self._sums.get((target, tier))
        if sums is None or sums.weight * self._faded(sums, now_s) < LEAST_WEIGHT:
            return None
        first_s, fresh_s = _line(sums)
        token_s = sums.token_s / sums.tokens if sums.tokens else ASSUMED_PACE.token_s
        return Pace(first_s, fresh_s, token_s, sums.answer_s / sums.weight)

    def tokens_per_s(self, now_s: float) -> dict[tuple[str, str], float]:
        """The measured tokens per second of answers, by target and tier, for metrics."""
        found = {key: self.pace(*key, now_s) for key in self._sums}
        return {
            key: 1 / pace.token_s
            for key, pace in found.items()
            if pace is not None and pace.token_s > 0 and self._sums[key].tokens
        }

    def _faded(self, sums: _Sums, now_s: float) -> float:
        return float(0.5 ** (max(0.0, now_s - sums.at_s) / self._half_life_s))


def _fade(sums: _Sums, factor: float, now_s: float) -> None:
    sums.at_s = now_s
    sums.weight *= factor
    sums.x *= factor
    sums.y *= factor
    sums.xx *= factor
    sums.xy *= factor
    sums.tokens *= factor
    sums.token_s *= factor
    sums.answer_s *= factor


def _line(sums: _Sums) -> tuple[float, float]:
    """Where the line begins and its slope, neither below 0. Where the prompts are too much alike to tell, the
    slope is the usual one, as far as the measured times leave room for it."""
    x, y = sums.x / sums.weight, sums.y / sums.weight
    spread = sums.xx / sums.weight - x * x
    if spread < _LEAST_SPREAD_TOKENS**2:
        slope = min(ASSUMED_PACE.fresh_s, y / x if x > 0 else ASSUMED_PACE.fresh_s)
    else:
        slope = max(0.0, (sums.xy / sums.weight - x * y) / spread)
        slope = min(slope, y / x)  # a line that began below 0 would predict too little for short prompts
    return max(0.0, y - slope * x), slope


class OutputBook:
    """How long answers are, by any name: such as a route with an effort, because thought is most of an answer."""

    def __init__(self, half_life_s: float = 12 * HALF_LIFE_S) -> None:
        self._half_life_s = half_life_s
        self._means: dict[str, tuple[float, float, float]] = {}  # weight, sum of tokens, when

    def learn(self, name: str, output_tokens: int, now_s: float) -> None:
        """Takes one answer's length."""
        if len(self._means) >= _KEYS_MAX and name not in self._means:
            self._means.clear()
        weight, tokens = self._now(name, now_s)
        scale = min(1.0, MOST_WEIGHT / weight) if weight else 1.0
        self._means[name] = (weight * scale + 1.0, tokens * scale + output_tokens, now_s)

    def expected(self, name: str, limit: int | None, now_s: float) -> int:
        """The tokens that an answer is expected to have: the mean, which begins with the usual length; no more
        than the request's limit."""
        weight, tokens = self._now(name, now_s)
        mean = int((tokens + _USUAL_OUTPUTS * USUAL_OUTPUT_TOKENS) / (weight + _USUAL_OUTPUTS))
        return mean if limit is None else min(mean, limit)

    def _now(self, name: str, now_s: float) -> tuple[float, float]:
        weight, tokens, at_s = self._means.get(name, (0.0, 0.0, now_s))
        faded = float(0.5 ** (max(0.0, now_s - at_s) / self._half_life_s))
        return weight * faded, tokens * faded
