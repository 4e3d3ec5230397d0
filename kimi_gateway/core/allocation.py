"""What a request took of the GPUs that served it: their time, shared by those who were served at the same time.

At each moment a target's cost is divided evenly among the requests that are under way on it in this process; idle
time is nobody's. Each request pays for its part of a sum that grows by dt/n, so beginning and ending cost a few
additions, however many there are. An allocation beside the books, not a price: tokens say nothing of it.
"""

from dataclasses import dataclass
from typing import Final

_SECONDS_PER_HOUR: Final = 3600


@dataclass(slots=True)
class _Target:
    shared_s: float = 0.0  # what one request that was always there would have had
    under_way: int = 0
    at_s: float = 0.0

    def advance(self, now_s: float) -> None:
        if self.under_way:
            self.shared_s += max(0.0, now_s - self.at_s) / self.under_way
        self.at_s = now_s


class Allocation:
    """Shares of targets' time, by one monotonic clock in seconds. Belongs to one event loop."""

    def __init__(self) -> None:
        self._targets: dict[str, _Target] = {}

    def begin(self, target: str, now_s: float) -> float:
        """A request goes to a target; what comes back is for `end`."""
        found = self._targets.setdefault(target, _Target(at_s=now_s))
        found.advance(now_s)
        found.under_way += 1
        return found.shared_s

    def end(self, target: str, mark: float, now_s: float) -> float:
        """It has ended there: its share of the target's time since `begin`, in seconds."""
        found = self._targets[target]
        found.advance(now_s)
        found.under_way -= 1
        return found.shared_s - mark


def allocated_nano(shared_s: float, nano_per_hour: int) -> int:
    """What a share of the time costs, in whole nano-dollars."""
    return round(shared_s * nano_per_hour / _SECONDS_PER_HOUR)
