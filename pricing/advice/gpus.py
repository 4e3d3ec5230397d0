"""What the ledger's tokens would cost on GPUs of one's own, and from how many tokens an hour on they pay.

Nothing here knows how fast a GPU is: price, number and throughput are the user's assumptions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

_S_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class GpuAssumptions:
    """What is assumed: nano-dollars per GPU and hour (several to compare), GPUs that serve the model together, and
    how many fresh prompt tokens and output tokens they do a second; None where that was not said."""

    gpu_hour_nano: tuple[int, ...]
    gpus: int
    input_tokens_per_s: int | None = None
    output_tokens_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What has to be done. `hours` are those of the period, rounded up; `read_tokens` came from a cache."""

    fresh_tokens: int
    read_tokens: int
    output_tokens: int
    hours: int

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.fresh_tokens + self.read_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Alternative:
    """What a number of tokens costs elsewhere, nano-dollars: with the cache kept and with all reads lost."""

    name: str
    tokens: int
    kept_nano: int
    lost_nano: int


@dataclass(frozen=True, slots=True)
class BreakEven:
    """From how many tokens an hour on, in the ledger's mix, the GPUs are cheaper than an alternative.

    `low` against the alternative with its cache lost, `high` with it kept; None where it costs nothing.
    """

    against: str
    low_tokens_per_hour: int | None
    high_tokens_per_hour: int | None


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """One GPU price. Nano-dollars: all GPUs for an hour, for the whole period, and for the busy time alone (reads
    kept, all reads computed anew; None without throughput)."""

    gpu_hour_nano: int
    hour_nano: int
    period_nano: int
    busy_nano: tuple[int, int] | None
    break_even: tuple[BreakEven, ...]


def busy_s(load: Load, assumed: GpuAssumptions) -> tuple[Fraction, Fraction] | None:
    """The seconds of work with all reads kept and with all of them computed anew; None without throughput."""
    if not assumed.input_tokens_per_s or not assumed.output_tokens_per_s:
        return None
    kept = Fraction(load.fresh_tokens, assumed.input_tokens_per_s) + Fraction(
        load.output_tokens, assumed.output_tokens_per_s
    )
    return kept, kept + Fraction(load.read_tokens, assumed.input_tokens_per_s)


def capacity_tokens_per_hour(load: Load, assumed: GpuAssumptions) -> tuple[int, int] | None:
    """Tokens an hour at full load in the ledger's mix: all reads computed anew, and kept. None if not known."""
    seconds = busy_s(load, assumed)
    if seconds is None or not load.tokens or not seconds[0]:
        return None
    kept, lost = seconds
    return int(load.tokens * _S_PER_HOUR / lost), int(load.tokens * _S_PER_HOUR / kept)


def gpu_answers(load: Load, assumed: GpuAssumptions, others: Sequence[Alternative]) -> list[GpuAnswer]:
    """One answer per GPU price. Fractions of a nano-dollar and of a token are rounded up."""
    seconds = busy_s(load, assumed)
    found = []
    for gpu_nano in assumed.gpu_hour_nano:
        hour_nano = gpu_nano * assumed.gpus
        busy = None
        if seconds is not None:
            busy = (_ceil(hour_nano * seconds[0] / _S_PER_HOUR), _ceil(hour_nano * seconds[1] / _S_PER_HOUR))
        even = tuple(_break_even(hour_nano, other) for other in others if other.tokens)
        found.append(GpuAnswer(gpu_nano, hour_nano, hour_nano * load.hours, busy, even))
    return found


def busiest(tokens_by_hour: Mapping[int, int]) -> int:
    """The tokens of the hour with the most of them."""
    return max(tokens_by_hour.values(), default=0)


def _break_even(hour_nano: int, other: Alternative) -> BreakEven:
    per_hour = hour_nano * other.tokens
    ends = [_ceil(Fraction(per_hour, nano)) if nano else None for nano in (other.lost_nano, other.kept_nano)]
    return BreakEven(other.name, *ends)


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
