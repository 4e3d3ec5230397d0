"""What a second costs that Highspeed saves: its dearer tokens over the time its faster output takes away.

The time is that from the first token to the end; what is waited before it is taken as the same on both tiers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from pricing.ledger.row import LedgerRow

STATED_FACTORS: Final = (Fraction(2), Fraction(3))
"""Highspeed's output speed over the standard one's, as the vendor states it: 2 to 3 times."""

Basis = Literal["measured", "stated"]


@dataclass(frozen=True, slots=True)
class TierSpeed:
    """What was measured of a tier: requests, output tokens, and the milliseconds from first token to end."""

    requests: int = 0
    output_tokens: int = 0
    output_ms: int = 0

    def with_row(self, output_tokens: int, output_ms: int) -> "TierSpeed":
        """This and one more request."""
        return TierSpeed(self.requests + 1, self.output_tokens + output_tokens, self.output_ms + output_ms)

    @property
    def tokens_per_s(self) -> Fraction | None:
        """Output tokens per second, None where nothing was measured."""
        return Fraction(self.output_tokens * 1000, self.output_ms) if self.output_ms else None


@dataclass(frozen=True, slots=True)
class Trade:
    """Money for time, from low to high. Nano-dollars and seconds; `nano_per_s` is None where no time is saved."""

    requests: int
    extra_nano: tuple[int, int]
    saved_s: tuple[Fraction, Fraction]

    @property
    def nano_per_s(self) -> tuple[Fraction, Fraction] | None:
        """Nano-dollars for each second saved: the least money over the most time, and the other way round."""
        fewest, most = self.saved_s
        low, high = self.extra_nano
        if fewest <= 0 or most <= 0:
            return None
        return min(low / fewest, low / most), max(high / fewest, high / most)


@dataclass(frozen=True, slots=True)
class SpeedAnswer:
    """Both tiers, the factor between them from low to high and where it is from, and the two trades.

    `if_moved`: the standard requests on Highspeed, their cache kept (low) or lost (high). `as_used`: the Highspeed
    requests against the standard tier.
    """

    standard: TierSpeed
    highspeed: TierSpeed
    basis: Basis
    factors: tuple[Fraction, Fraction]
    if_moved: Trade
    as_used: Trade


class SpeedSums:
    """Sums over timed requests of both tiers."""

    def __init__(self) -> None:
        self._standard = self._highspeed = TierSpeed()
        self._moved = [0, 0]
        self._paid = 0

    def add_standard(self, row: LedgerRow, standard_nano: int, kept_nano: int, lost_nano: int) -> None:
        """A standard request: its cost there, and on Highspeed with its cache kept or lost."""
        if (output_ms := _output_ms(row)) is not None:
            self._standard = self._standard.with_row(row.completion_tokens or 0, output_ms)
            self._moved[0] += kept_nano - standard_nano
            self._moved[1] += lost_nano - standard_nano

    def add_highspeed(self, row: LedgerRow, highspeed_nano: int, standard_nano: int) -> None:
        """A Highspeed request: its cost there, and on the standard tier with the same cache."""
        if (output_ms := _output_ms(row)) is not None:
            self._highspeed = self._highspeed.with_row(row.completion_tokens or 0, output_ms)
            self._paid += highspeed_nano - standard_nano

    def answer(self) -> SpeedAnswer:
        """What it comes to."""
        basis, factors = _factors(self._standard.tokens_per_s, self._highspeed.tokens_per_s)
        standard_s = Fraction(self._standard.output_ms, 1000)
        highspeed_s = Fraction(self._highspeed.output_ms, 1000)
        return SpeedAnswer(
            standard=self._standard,
            highspeed=self._highspeed,
            basis=basis,
            factors=factors,
            if_moved=Trade(
                self._standard.requests,
                (self._moved[0], self._moved[1]),
                _ends(standard_s * (1 - 1 / factor) for factor in factors),
            ),
            as_used=Trade(
                self._highspeed.requests,
                (self._paid, self._paid),
                _ends(highspeed_s * (factor - 1) for factor in factors),
            ),
        )


def _factors(standard: Fraction | None, highspeed: Fraction | None) -> tuple[Basis, tuple[Fraction, Fraction]]:
    if standard and highspeed:
        return "measured", (highspeed / standard, highspeed / standard)
    return "stated", STATED_FACTORS


def _ends(values: Iterable[Fraction]) -> tuple[Fraction, Fraction]:
    found = sorted(values)
    return found[0], found[-1]


def _output_ms(row: LedgerRow) -> int | None:
    """The time from first token to end of a whole, counted answer; None where that cannot be told."""
    if row.status != "ok" or row.estimated or not row.completion_tokens:
        return None
    if row.ttft_ms is None or row.total_ms is None or row.total_ms <= row.ttft_ms:
        return None
    return row.total_ms - row.ttft_ms
