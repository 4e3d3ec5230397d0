"""What follows an upstream's fault before any content was forwarded: again, elsewhere, or the end.

One table for every dialect. The vendor's words decide, not the status alone: one 429 is not another.

| kind | same target | another target |
|---|---|---|
| connect | after a pause, once no other target is left | at once |
| server (a 5xx, a page, an unreadable answer) | after a pause, once no other target is left | at once |
| overload | after a pause, or the time that it names | once a wait has not helped, or where it names more |
| rate | after the time that it names, else a pause | once a wait has not helped, or where it names more |
| timeout, reset, incomplete | never: it may have been billed | at once, the attempt marked |
| quota, auth, tls | never | at once |
| context | never | only one with a larger window |
| filter, request | never | never |

A pause is 0.25 to 8 seconds, see `pause_s`. A named time is kept exactly up to `max_wait_s`; beyond it the request
goes elsewhere, or ends where there is nowhere else. Nothing follows content that was forwarded, nor a request
whose own retries are spent. Repeats count against a budget of all requests, but for those after a wait that the
upstream named; moves do not: the other target is there for that, and its breaker bounds them.
What a fault means for the requests that come after it is `kimi_gateway.core.routing.health`'s.
"""

from dataclasses import dataclass
from typing import Final, Literal

from backends.faults import Fault, FaultKind

Step = Literal["again", "next", "stop"]

_ELSEWHERE_ONLY: Final = frozenset(
    {
        FaultKind.TIMEOUT,
        FaultKind.RESET,
        FaultKind.INCOMPLETE,
        FaultKind.QUOTA,
        FaultKind.AUTH,
        FaultKind.TLS,
        FaultKind.CONTEXT,
    }
)
_FINAL: Final = frozenset({FaultKind.FILTER, FaultKind.REQUEST})
_LEAST_WAIT_S: Final = 0.25
_WAITS_S: Final = (_LEAST_WAIT_S, 1.0, 2.0, 4.0, 8.0)
"""Where the windows that pauses are drawn from begin and end."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a request stands after a failed attempt. `repeats` counts attempts on this target before this one
    that ended in a fault; `others` says whether another target may take it; `draw` is random in [0, 1)."""

    retries_left: int
    repeats: int
    others: bool
    max_wait_s: float
    draw: float


@dataclass(frozen=True, slots=True)
class Decision:
    """The next step and the pause before it, in seconds."""

    step: Step
    wait_s: float = 0.0


_STOP: Final = Decision("stop")
_NEXT: Final = Decision("next")


def next_step(fault: Fault, standing: Standing) -> Decision:
    """What to do after this fault."""
    if standing.retries_left <= 0 or fault.kind in _FINAL:
        return _STOP
    if fault.kind in _ELSEWHERE_ONLY:
        return _NEXT if standing.others else _STOP
    if fault.kind in (FaultKind.OVERLOAD, FaultKind.RATE):
        return _after_limit(fault, standing)
    return _NEXT if standing.others else Decision("again", pause_s(standing.repeats, standing.draw))


def _after_limit(fault: Fault, standing: Standing) -> Decision:
    """A wait that the upstream named is kept exactly; one longer than allowed sends the request elsewhere, and so
    does a second refusal: the target was given its time."""
    named = fault.retry_after_s
    if named is not None and named > standing.max_wait_s:
        return _NEXT if standing.others else _STOP
    if standing.repeats > 0 and standing.others:
        return _NEXT
    least_s = pause_s(standing.repeats, standing.draw)
    return Decision("again", least_s if named is None else max(named, _LEAST_WAIT_S))


def pause_s(repeats: int, draw: float) -> float:
    """A pause drawn from the whole of a window: 0.25 to 1, 1 to 2, 2 to 4, then 4 to 8 seconds.

    Full jitter, so that a crowd that was refused together does not come back together; each window begins where
    the one before it ends, so that pauses grow all the same.
    """
    at = min(repeats, len(_WAITS_S) - 2)
    return _WAITS_S[at] + draw * (_WAITS_S[at + 1] - _WAITS_S[at])


@dataclass(slots=True)
class RetryBudget:
    """Further attempts over all requests: at most `ratio` for each request, with a small reserve, so that an
    outage is not answered by a storm of our own."""

    ratio: float
    reserve: float = 10.0
    tokens: float = 10.0

    def request(self) -> None:
        """A request came: it earns a part of a retry."""
        self.tokens = min(self.tokens + self.ratio, self.reserve)

    def take(self) -> bool:
        """Takes one further attempt; false where the budget is spent."""
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True
