"""What routing knows of targets and of a request: the values that planner, queue, breaker and load share.

Times are seconds of one monotonic clock unless they say otherwise; money is integer nano-dollars; tokens are ints.
"""

from dataclasses import dataclass

from backends.faults import Fault


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine says of itself, as of `at_s`. `cache_used` is the part of its KV cache in use, 0 to 1; None:
    it does not say."""

    running: int
    waiting: int
    at_s: float
    cache_used: float | None = None


@dataclass(frozen=True, slots=True)
class Out:
    """A target that takes nothing now, because of `fault`. `until_s` None: until the configuration is read again.

    `probing` says that its breaker is half open and its one probe is under way.
    """

    fault: Fault
    until_s: float | None
    probing: bool = False


@dataclass(frozen=True, slots=True)
class Quota:
    """How much a target or its account may be asked for; 0 is no limit. Requests and tokens per minute, tokens
    per day (UTC)."""

    concurrency: int = 0
    rpm: int = 0
    tpm: int = 0
    tpd: int = 0

    @property
    def any(self) -> bool:
        """There is a limit at all."""
        return bool(self.concurrency or self.rpm or self.tpm or self.tpd)


@dataclass(frozen=True, slots=True)
class Place:
    """One target that a request could go to, with the account whose limits it shares. Before `not_before_s` it
    takes nothing (a rate limit that it named); 0: now."""

    target: str
    account: str
    quota: Quota
    not_before_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that wants one of these places, the first choice first. `tokens` is what it is taken
    to use at most, `key` the caller between whom the queue is fair. `id` is the attempt's own."""

    id: str
    key: str
    tokens: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Grant:
    """A place that was given. It is held until it is given back."""

    ticket: Ticket
    place: Place
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Refused:
    """No place within the time, or no room to wait in. `reason` is `full` (the queue) or `timeout`."""

    reason: str
    retry_after_s: float
