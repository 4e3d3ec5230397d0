"""The circuit breaker of one target: a value, and what becomes of it.

    closed      requests go; so many of the upstream's faults in a row open it
    open        nothing goes until its time is over
    half open   one request goes as a probe: it closes the breaker, or opens it for the same time again

Only faults of the upstream count: not those of a request, not a limit, an empty account or a refused key, which
are answers of a target that works. An overload says neither: who is full may be well or may never get up again.

A request that began before the breaker opened tells nothing of what the target is like now, so attempts have
names, and only a probe's own end counts while the breaker is not closed. A probe that does not end (its answer is
long, or whoever sent it has forgotten it) keeps others out for `probe_s` only.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal

from backends.faults import Fault, FaultKind

Phase = Literal["closed", "open", "half_open"]
Says = Literal["bad", "well", "nothing"]

BAD: Final = frozenset(
    {
        FaultKind.CONNECT,
        FaultKind.TLS,
        FaultKind.TIMEOUT,
        FaultKind.RESET,
        FaultKind.SERVER,
        FaultKind.INCOMPLETE,
    }
)
"""Faults of the upstream itself."""

_MOST_PROBES: Final = 16
"""Probes of one period whose end is still waited for."""


def says(kind: FaultKind) -> Says:
    """What a fault says of the health of its target."""
    if kind in BAD:
        return "bad"
    return "nothing" if kind is FaultKind.OVERLOAD else "well"


@dataclass(frozen=True, slots=True)
class Rules:
    """How many faults in a row open a breaker, for how long it is open and, in seconds, how long an unfinished
    probe keeps other probes out."""

    failures: int = 5
    open_s: float = 30.0
    probe_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Breaker:
    """A breaker. `until_s` is when it stops being open, None while it is closed.

    `gone` says that it opened because nobody listens there, which whoever looks can find ended before the time.
    `probes` are the names of the attempts under way that may close it.
    """

    failures: int = 0
    fault: Fault | None = None
    until_s: float | None = None
    gone: bool = False
    probes: tuple[str, ...] = ()
    probe_until_s: float = 0.0

    def phase(self, now_s: float) -> Phase:
        """Where it stands."""
        if self.until_s is None:
            return "closed"
        return "open" if now_s < self.until_s else "half_open"

    def probing(self, now_s: float) -> bool:
        """Half open, and its probe is taken."""
        return bool(self.probes) and now_s < self.probe_until_s and self.phase(now_s) == "half_open"


CLOSED: Final = Breaker()


def begin(breaker: Breaker, rules: Rules, now_s: float, attempt: str) -> tuple[Breaker, bool]:
    """The breaker once an attempt of that name is to be sent, and whether it may be."""
    phase = breaker.phase(now_s)
    if phase != "half_open":
        return breaker, phase == "closed"
    if breaker.probing(now_s):
        return breaker, False
    probes = (*breaker.probes, attempt)[-_MOST_PROBES:]
    return replace(breaker, probes=probes, probe_until_s=now_s + rules.probe_s), True


def failed(breaker: Breaker, rules: Rules, now_s: float, fault: Fault, attempt: str) -> Breaker:
    """The breaker once that attempt has ended in a fault."""
    said = says(fault.kind)
    if said == "well":
        return succeeded(breaker, now_s, attempt)
    if said == "nothing":
        return given_up(breaker, attempt)
    phase = breaker.phase(now_s)
    if phase == "closed":
        failures = breaker.failures + 1
        return opened(rules, now_s, fault) if failures >= rules.failures else replace(breaker, failures=failures)
    if phase == "half_open" and attempt in breaker.probes:
        return opened(rules, now_s, fault)
    return breaker


def succeeded(breaker: Breaker, now_s: float, attempt: str) -> Breaker:
    """The breaker once that attempt came to its clean end."""
    if breaker.phase(now_s) == "closed" or (breaker.phase(now_s) == "half_open" and attempt in breaker.probes):
        return CLOSED
    return breaker


def given_up(breaker: Breaker, attempt: str) -> Breaker:
    """The breaker once that attempt ended without a word on its target: if it was the probe, the next may go."""
    if attempt not in breaker.probes:
        return breaker
    is_last = attempt == breaker.probes[-1]
    left = list(breaker.probes)
    left.remove(attempt)
    return replace(breaker, probes=tuple(left), probe_until_s=0.0 if is_last else breaker.probe_until_s)


def opened(rules: Rules, now_s: float, fault: Fault) -> Breaker:
    """A breaker that opens now because of `fault`."""
    gone = fault.kind in (FaultKind.CONNECT, FaultKind.TLS)
    return Breaker(fault=fault, until_s=now_s + rules.open_s, gone=gone)


def found_gone(breaker: Breaker, rules: Rules, now_s: float, fault: Fault) -> Breaker:
    """The breaker once somebody who looked beside the requests found that nobody listens there.

    What is open stays so while this is found again; so that it does not change at every look, only in the second
    half of its time.
    """
    if breaker.gone and breaker.until_s is not None and breaker.until_s - now_s > rules.open_s / 2:
        return breaker
    return replace(opened(rules, now_s, fault), gone=True)


def found_there(breaker: Breaker, now_s: float) -> Breaker:
    """The breaker once somebody who looked found the target there: a probe may go at once, where it had opened
    because nobody listened. Where requests failed for another cause, that the target is there proves nothing."""
    return replace(breaker, until_s=now_s) if breaker.gone and breaker.phase(now_s) == "open" else breaker


def opened_elsewhere(breaker: Breaker, now_s: float, fault: Fault, until_s: float) -> Breaker:
    """The breaker once another process has said that its own is open until `until_s`."""
    if until_s <= max(now_s, breaker.until_s or now_s):
        return breaker
    return Breaker(fault=fault, until_s=until_s, gone=fault.kind in (FaultKind.CONNECT, FaultKind.TLS))


def closed_elsewhere(breaker: Breaker, now_s: float) -> Breaker:
    """The breaker once another process's probe has succeeded: one of our own may go at once. It is not closed on
    another's word: the way from there to the target may work where ours does not."""
    return replace(breaker, until_s=now_s) if breaker.phase(now_s) == "open" else breaker
