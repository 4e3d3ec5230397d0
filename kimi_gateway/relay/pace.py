"""The clocks of one answer, as a pure value: what is due next, given the time."""

from dataclasses import dataclass
from typing import Final

_FAR: Final = 3600.0


@dataclass(slots=True)
class Limits:
    """Periods in seconds. `keepalive_s` None sends none (folded answers, keepalive off)."""

    first_byte_s: float
    idle_s: float
    keepalive_s: float | None
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
    def begin(cls, limits: Limits, now: float) -> "Pace":
        """Clocks that start now."""
        return cls(limits=limits, started=now, last_sent=now, last_progress=now)

    def wait_s(self, now: float) -> float:
        """Seconds until the next thing is due, never negative."""
        due = [self.silence_due(), self.last_progress + self.limits.progress_s]
        if self.limits.keepalive_s is not None:
            due.append(self.last_sent + self.limits.keepalive_s)
        if self.finished is not None:
            due.append(self.finished + self.limits.grace_s)
        return min(max(0.0, min(due) - now), _FAR)

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
