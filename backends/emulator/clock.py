"""The time the emulator lives in: the wall clock, plus what a test has added."""

from collections.abc import Callable
from datetime import UTC, datetime


def wall_clock_s() -> float:
    """Unix seconds."""
    return datetime.now(UTC).timestamp()


class Clock:
    """Seconds since 1970 that can be moved forward, so that a cache's lifetime need not be waited for."""

    def __init__(self, base: Callable[[], float]) -> None:
        self._base = base
        self._offset_s = 0.0

    def now_s(self) -> float:
        """The current second."""
        return self._base() + self._offset_s

    def advance(self, seconds: float) -> None:
        """Moves the clock forward. Raises `ValueError` for a negative step: lifetimes only run out."""
        if seconds < 0:
            raise ValueError(f"advance_s must be zero or more, not {seconds}")
        self._offset_s += seconds

    def reset(self) -> None:
        """Back to the base clock."""
        self._offset_s = 0.0
