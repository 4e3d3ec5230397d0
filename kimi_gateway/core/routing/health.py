"""Which targets take nothing now, and why: what a fault means for the requests that come after it.

| fault | who takes nothing | until |
|---|---|---|
| quota | every target of the account | `quota_out_s` is over |
| auth, 401 | every target with that key at that host | the configuration is read again |
| auth, 403 | the target | the configuration is read again |
| rate | every target of the account | the time that it names; without one 0.5, 1, 2, 4, then 8 seconds |
| overload that names a time | the target | then |
| connect, tls, timeout, reset, server, incomplete | the target | its breaker's |
| overload without a time, context, filter, request | nobody | |

The breaker is `kimi_gateway.core.routing.breaker`. A 401 is about the key; a 403 may be about what is asked for,
so it takes out the target alone.

A target may be asked about, and attempts may end, under names that a reload has taken away or given to another
address or key: then nothing is known, nothing is noted and nothing is raised.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from backends.faults import Fault, FaultKind
from kimi_gateway.core.routing import breaker as breakers
from kimi_gateway.core.routing.breaker import CLOSED, Breaker
from kimi_gateway.core.routing.facts import Out
from kimi_gateway.core.routing.health_notice import WHYS, Notice, Why

LONGEST_RATE_S: Final = 3600.0
"""A limit is asked again after an hour, whatever it names: a wrong date must not take an account out for years."""

_UNNAMED_RATES_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
_MOST_UNDER_WAY: Final = 100_000
_KEY_REFUSED: Final = 401

_Place = tuple[Why, str]
"""A reason, and the group of targets that is out for it."""


@dataclass(frozen=True, slots=True)
class Member:
    """A target as health knows it. `login` is one value for all with one key at one host; `identity` changes when
    its address or its key does, and gives neither away."""

    target: str
    account: str
    login: str
    identity: str

    def is_still(self, before: "Member") -> bool:
        """What was known of `before` holds for this one too."""
        return (self.account, self.identity) == (before.account, before.identity)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules in force; `quota_out_s` is how long an empty account is left alone."""

    breaker: breakers.Rules = field(default_factory=breakers.Rules)
    quota_out_s: float = 300.0


@dataclass(frozen=True, slots=True)
class _Mark:
    """Why a group of targets takes nothing, and the member that was told so."""

    fault: Fault
    until_s: float | None
    by: Member


class HealthBook:
    """The health of all targets. Every call is told the time: seconds of one clock that never runs back.

    `attempt` is the attempt's own name, the same from `begin` to its end. Without one (""), an attempt's end
    counts as the probe's where one is under way.
    """

    def __init__(self) -> None:
        self._rules = Rules()
        self._members: dict[str, Member] = {}
        self._places: dict[str, tuple[_Place, ...]] = {}
        self._marks: dict[_Place, _Mark] = {}
        self._breakers: dict[str, Breaker] = {}
        self._rates: dict[str, int] = {}  # by account: refusals in a row that named no time
        self._under_way: dict[str, Member] = {}
        self._news: dict[str, Notice] = {}

    def configure(self, members: Iterable[Member], rules: Rules, now_s: float) -> None:
        """Takes a configuration that was just read: the operator's word that things have been set right. So every
        target is tried again, here and by others with the same configuration."""
        self._rules = rules
        self._members = {member.target: member for member in members}
        self._places = {name: _places(member) for name, member in self._members.items()}
        for member in self._members.values():
            self._tell(Notice("auth", member.target, member.identity, None, now_s))
        for place, mark in self._marks.items():
            if place[0] != "auth" and mark.by.target in self._members:
                self._tell(Notice(place[0], mark.by.target, mark.by.identity, None, now_s))
        for name in self._breakers:
            if name in self._members:
                self._tell(Notice("breaker", name, self._members[name].identity, None, now_s))
        self._breakers, self._marks, self._rates = {}, {}, {}

    def out(self, target: str, now_s: float) -> Out | None:
        """Why a target takes nothing now, the gravest reason first; None where it may be asked."""
        member = self._members.get(target)
        if member is None or not (self._marks or target in self._breakers):
            return None
        for place in self._places[target]:
            found = self._broken(target, now_s) if place[0] == "breaker" else self._marked(place, now_s)
            if found is not None:
                return found
        return None

    def begin(self, target: str, now_s: float, attempt: str = "") -> bool:
        """Whether an attempt may be sent as far as the breaker is concerned: false while it is open, and while it
        is half open and its probe is taken."""
        member = self._members.get(target)
        if member is None:
            return True
        broken = self._breakers.get(target)
        if broken is not None:
            self._breakers[target], admitted = breakers.begin(broken, self._rules.breaker, now_s, attempt)
            if not admitted:
                return False
        if attempt and len(self._under_way) < _MOST_UNDER_WAY:
            self._under_way[attempt] = member
        return True

    def failed(self, target: str, fault: Fault, now_s: float, attempt: str = "") -> None:
        """An attempt has ended in a fault."""
        member = self._ended(target, attempt)
        if member is None:
            return
        broken = self._breakers.get(target, CLOSED)
        self._become(member, breakers.failed(broken, self._rules.breaker, now_s, fault, attempt), now_s)
        match fault.kind:
            case FaultKind.QUOTA:
                self._mark("quota", member, fault, now_s + self._rules.quota_out_s, now_s)
            case FaultKind.AUTH:
                self._mark("auth", member, fault, None, now_s)
            case FaultKind.RATE:
                self._limited(member, fault, now_s)
            case FaultKind.OVERLOAD if fault.retry_after_s is not None:
                self._mark("overload", member, fault, now_s + min(fault.retry_after_s, LONGEST_RATE_S), now_s)
            case _:
                pass

    def succeeded(self, target: str, now_s: float, attempt: str = "") -> None:
        """An attempt has come to its clean end."""
        member = self._ended(target, attempt)
        if member is None:
            return
        self._rates.pop(member.account, None)
        broken = self._breakers.get(target)
        if broken is not None:
            self._become(member, breakers.succeeded(broken, now_s, attempt), now_s)

    def given_up(self, target: str, attempt: str = "") -> None:
        """An attempt ended and said nothing of its target."""
        if self._ended(target, attempt) is not None and target in self._breakers:
            self._breakers[target] = breakers.given_up(self._breakers[target], attempt)

    def found_gone(self, target: str, fault: Fault, now_s: float) -> None:
        """Whoever looks after targets beside the requests found that nobody listens there."""
        member = self._members.get(target)
        if member is not None:
            broken = self._breakers.get(target, CLOSED)
            self._become(member, breakers.found_gone(broken, self._rules.breaker, now_s, fault), now_s)

    def found_there(self, target: str, now_s: float) -> None:
        """Whoever looks after targets beside the requests found this one there."""
        if target in self._breakers:
            self._breakers[target] = breakers.found_there(self._breakers[target], now_s)

    def heard(self, notice: Notice, now_s: float) -> None:
        """Takes what another process has learned. What it says of a target that is another here is not for us."""
        member = self._members.get(notice.target)
        if member is None or member.identity != notice.identity:
            return
        if notice.why == "breaker":
            self._heard_of_breaker(notice, now_s)
        elif notice.fault is None:
            for place in self._places[notice.target]:
                if place[0] == notice.why:
                    self._marks.pop(place, None)
        elif notice.until_s is None or notice.until_s > now_s:
            group = _group(notice.why, member, notice.fault)
            self._marks[notice.why, group] = _Mark(notice.fault, notice.until_s, member)

    @property
    def has_news(self) -> bool:
        """There is something that others should hear."""
        return bool(self._news)

    def take_news(self) -> list[Notice]:
        """What others should hear, once; the last word on each subject."""
        news = list(self._news.values())
        self._news.clear()
        return news

    def untold(self, news: Iterable[Notice]) -> None:
        """Keeps news that could not be told, where there is no newer word on the subject."""
        for notice in news:
            self._news.setdefault(notice.place, notice)

    # --- the breaker ------------------------------------------------------------------------------------------

    def _broken(self, target: str, now_s: float) -> Out | None:
        broken = self._breakers.get(target)
        if broken is None or broken.fault is None or broken.until_s is None:
            return None
        if now_s < broken.until_s:
            return Out(broken.fault, broken.until_s)
        return Out(broken.fault, broken.probe_until_s, probing=True) if broken.probing(now_s) else None

    def _become(self, member: Member, now: Breaker, now_s: float) -> None:
        """Sets a target's breaker, and tells others where it has opened or closed."""
        was = self._breakers.get(member.target, CLOSED)
        if now == CLOSED:
            self._breakers.pop(member.target, None)
        else:
            self._breakers[member.target] = now
        if now.until_s is not None and now.until_s != was.until_s:
            self._tell(Notice("breaker", member.target, member.identity, now.fault, now.until_s))
        elif now.until_s is None and was.until_s is not None:
            self._tell(Notice("breaker", member.target, member.identity, None, now_s))

    def _heard_of_breaker(self, notice: Notice, now_s: float) -> None:
        broken = self._breakers.get(notice.target, CLOSED)
        if notice.fault is not None and notice.until_s is not None:
            broken = breakers.opened_elsewhere(broken, now_s, notice.fault, notice.until_s)
        else:
            broken = breakers.closed_elsewhere(broken, now_s)
        if broken != CLOSED:
            self._breakers[notice.target] = broken

    # --- accounts and keys ------------------------------------------------------------------------------------

    def _ended(self, target: str, attempt: str) -> Member | None:
        """The target of an attempt that has ended; None where it is no longer the one that the attempt went to."""
        began = self._under_way.pop(attempt, None) if attempt else None
        member = self._members.get(target)
        if began is None or member is None:
            return member
        return member if member.is_still(began) else None

    def _marked(self, place: _Place, now_s: float) -> Out | None:
        mark = self._marks.get(place)
        if mark is None:
            return None
        if mark.until_s is None or (place[0] == "quota" and mark.until_s > now_s):
            return Out(mark.fault, mark.until_s)
        if mark.until_s > now_s:  # a wait: what is left of it
            return Out(replace(mark.fault, retry_after_s=mark.until_s - now_s), mark.until_s)
        del self._marks[place]
        return None

    def _mark(self, why: Why, member: Member, fault: Fault, until_s: float | None, now_s: float) -> None:
        if until_s is not None and until_s <= now_s:
            return
        self._marks[why, _group(why, member, fault)] = _Mark(fault, until_s, member)
        self._tell(Notice(why, member.target, member.identity, fault, until_s))

    def _limited(self, member: Member, fault: Fault, now_s: float) -> None:
        """The account cools down. Of a crowd refused together only the first makes an unnamed time grow."""
        mark = self._marks.get(("rate", member.account))
        cooling_until_s = mark.until_s if mark is not None and mark.until_s is not None else now_s
        if fault.retry_after_s is not None:
            until_s = now_s + min(fault.retry_after_s, LONGEST_RATE_S)
        elif cooling_until_s > now_s:
            return
        else:
            count = self._rates[member.account] = self._rates.get(member.account, 0) + 1
            until_s = now_s + _UNNAMED_RATES_S[min(count, len(_UNNAMED_RATES_S)) - 1]
        if until_s > cooling_until_s:
            self._mark("rate", member, fault, until_s, now_s)

    def _tell(self, notice: Notice) -> None:
        self._news[notice.place] = notice


def _group(why: Why, member: Member, fault: Fault) -> str:
    """Which targets a fault of this one takes out with it."""
    if why == "auth" and fault.status in (0, _KEY_REFUSED):
        return f"login {member.login}"
    return member.account if why in ("quota", "rate") else f"target {member.target}"


def _places(member: Member) -> tuple[_Place, ...]:
    """Where to look for what takes this target out, the gravest reason first."""
    groups: dict[Why, tuple[str, ...]] = {
        "auth": (f"login {member.login}", f"target {member.target}"),
        "quota": (member.account,),
        "breaker": ("",),
        "rate": (member.account,),
        "overload": (f"target {member.target}",),
    }
    return tuple((why, group) for why in WHYS for group in groups[why])
