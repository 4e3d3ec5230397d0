"""Requests refused before they were planned, counted in memory until the ledger takes the counts.

They have no row and no record in the journal: somebody who knocks without a key must not be able to fill a disk.
What was counted since the last booking is lost with the process.
"""

import threading
from collections import Counter
from typing import Final, TypeAlias

Counts: TypeAlias = dict[tuple[int, str, str], int]
"""How many, by Unix hour, key name and code."""

_HOUR_S: Final = 3600


class Refusals:
    """Counts of one process. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[int, str, str]] = Counter()

    def count(self, key: str, code: str, *, at_s: float) -> None:
        """One more at that time (Unix seconds); `key` is the caller's name, "" where none is known."""
        with self._lock:
            self._counts[(int(at_s // _HOUR_S), key, code)] += 1

    def take(self) -> Counts:
        """What was counted since the last time."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts)

    def give_back(self, counts: Counts) -> None:
        """What was taken could not be booked."""
        with self._lock:
            self._counts.update(counts)
