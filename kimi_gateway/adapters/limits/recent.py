"""Requests that ended a short while ago: what a state that begins anew cannot find in the ledger yet."""

from collections import deque
from collections.abc import Callable
from typing import Final

from kimi_gateway.adapters.limits.state import Ended

_KEEP_S: Final = 30.0
_MOST: Final = 20_000


class Recent:
    """The ends of the last half minute, or the last twenty thousand. `mono` is seconds."""

    def __init__(self, mono: Callable[[], float], *, keep_s: float = _KEEP_S) -> None:
        self._mono = mono
        self._keep_s = keep_s
        self._ends: deque[tuple[float, Ended]] = deque(maxlen=_MOST)

    def add(self, end: Ended) -> None:
        """This one has just ended. What counts no money need not be known."""
        now_s = self._mono()
        while self._ends and self._ends[0][0] < now_s - self._keep_s:
            self._ends.popleft()
        if end[1].has_budget:
            self._ends.append((now_s, end))

    def all(self) -> list[Ended]:
        """Those that are recent, the oldest first."""
        oldest_s = self._mono() - self._keep_s
        return [end for at_s, end in self._ends if at_s >= oldest_s]
