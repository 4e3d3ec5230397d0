"""Token usage as disjoint meters: each token stands in exactly one of them, so cost is a plain sum of products.

The wire counts inclusively (`prompt_tokens` holds the cached ones). The one place that converts is
`backends.usage`; everything after it uses these meters and never subtracts.
"""

from dataclasses import dataclass, fields
from typing import Final, Literal

Meter = Literal["input", "cache_read", "write_5m", "write_1h", "output", "search"]
METERS: Final[tuple[Meter, ...]] = ("input", "cache_read", "write_5m", "write_1h", "output", "search")

Ttl = Literal["5m", "1h"]


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """What one answer used, in tokens (`search` in calls). All zero or more; disjoint.

    `None` in a cache meter means that the upstream did not report it: it is billed as 0 and shown as unknown,
    because a zero would be a claim. `reasoning` is information only: those tokens are inside `output`.
    Raises `ValueError` for a negative count.
    """

    input: int = 0
    output: int = 0
    cache_read: int | None = None
    write_5m: int | None = None
    write_1h: int | None = None
    search: int = 0
    reasoning: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            count = getattr(self, field.name)
            if count is not None and count < 0:
                raise ValueError(f"{field.name} must be zero or more tokens, not {count}")

    @property
    def prompt(self) -> int:
        """All prompt tokens: fresh, read from cache and written to it."""
        return self.input + (self.cache_read or 0) + (self.write_5m or 0) + (self.write_1h or 0)

    def count(self, meter: Meter) -> int:
        """The count of one meter, 0 where it is unknown."""
        value: int | None = getattr(self, meter)
        return value or 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        """Sums meter by meter; a meter is unknown only where it is unknown in both."""
        return TokenUsage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=_sum(self.cache_read, other.cache_read),
            write_5m=_sum(self.write_5m, other.write_5m),
            write_1h=_sum(self.write_1h, other.write_1h),
            search=self.search + other.search,
            reasoning=_sum(self.reasoning, other.reasoning),
        )


def _sum(left: int | None, right: int | None) -> int | None:
    if left is None:
        return right
    return left if right is None else left + right
