"""The clocks of one answer, as a pure value: what is due next, given the time."""

from dataclasses import dataclass
from typing import Final

_FAR: Final = 3600.0
_SHORTEST_S: Final = 0.5


@dataclass(slots=True)
class Limits:
    """Periods in seconds. `keepalive_s` None sends none; the first one may come later than the others."""

    first_byte_s: float
    idle_s: float
    keepalive_s: float | None
    first_keepalive_s: float
    grace_s: float
    progress_s: float


@dataclass(slots=True)
class Pace:
    """Deadlines on one monotonic clock. The first-byte limit ends with the first body byte, comments included;
    from then on the idle limit runs, which any byte renews. There is no limit on the whole."""

    limits: Limits
    started: float
    last_sent: float
    last_progress: float
    last_byte: float | None = None
    finished: float | None = None  # every choice has its finish reason; only usage and the end mark may follow

    @classmethod
    def begin(cls, limits: Limits, now: float, spread: float = 0.0) -> "Pace":
        """Clocks that start now. The first progress is due earlier by `spread` (0 to 1) of half its period: of
        streams that began together not all are to be booked in the same turn of the loop."""
        later_s = limits.first_keepalive_s - limits.keepalive_s if limits.keepalive_s is not None else 0.0
        earlier_s = spread * limits.progress_s / 2
        return cls(limits=limits, started=now, last_sent=now + later_s, last_progress=now - earlier_s)

    def wait_s(self, now: float) -> float:
        """Seconds until the next thing is due, never negative."""
        return min(max(0.0, self.due_s() - now), _FAR)

    def due_s(self) -> float:
        """When the next thing is due."""
        due = min(self.silence_due(), self.last_progress + self.limits.progress_s)
        if self.limits.keepalive_s is not None:
            due = min(due, self.last_sent + self.limits.keepalive_s)
        if self.finished is not None:
            due = min(due, self.finished + self.limits.grace_s)
        return due

    def silence_due(self) -> float:
        """When the upstream has been silent for too long."""
        if self.last_byte is None:
            return self.started + self.limits.first_byte_s
        return self.last_byte + self.limits.idle_s

    def is_silent(self, now: float) -> bool:
        return now >= self.silence_due()

    def keepalive_due(self, now: float) -> bool:
        return self.limits.keepalive_s is not None and now >= self.last_sent + self.limits.keepalive_s

    def keepalive_in(self, now: float) -> float:
        """Seconds until a keep-alive is due; a long time where none is sent."""
        if self.limits.keepalive_s is None:
            return _FAR
        return max(0.0, self.last_sent + self.limits.keepalive_s - now)

    def progress_due(self, now: float) -> bool:
        return now >= self.last_progress + self.limits.progress_s

    def grace_over(self, now: float) -> bool:
        return self.finished is not None and now >= self.finished + self.limits.grace_s


def keepalives(
    *, streams: bool, interval_s: float | None, read_timeout_s: float | None
) -> tuple[float | None, float]:
    """The period of keep-alives and when the first is due, None and 0 where there are none.

    `interval_s` is the setting (None: off); `read_timeout_s` is what the client announced. A stream has them at
    the smaller of the setting and half the client's patience; a folded answer, which nothing could be sent of
    before, starts at 0.8 of that patience with white space, which JSON allows.
    """
    if streams:
        if interval_s is None:
            return None, 0.0
        period_s = interval_s if read_timeout_s is None else min(interval_s, _half(read_timeout_s))
        return period_s, period_s
    if read_timeout_s is None:
        return None, 0.0
    half_s = _half(read_timeout_s)
    first_s = max(0.8 * read_timeout_s, _SHORTEST_S)
    return (half_s if interval_s is None else min(interval_s, half_s)), first_s


def _half(read_timeout_s: float) -> float:
    """Half of a client's patience, but never so little that one client keeps the loop busy."""
    return max(read_timeout_s / 2, _SHORTEST_S)
