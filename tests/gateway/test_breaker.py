"""The circuit breaker: what opens and closes it; that a half-open one admits one probe, over random histories."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from backends.faults import Fault, FaultKind
from kimi_gateway.core.routing import breaker as breakers
from kimi_gateway.core.routing.breaker import CLOSED, Breaker, Rules, says

RULES = Rules(failures=3, open_s=30, probe_s=30)
BROKEN = Fault(FaultKind.SERVER, "broken", 500)
REFUSED = Fault(FaultKind.CONNECT, "connection refused")

SAYS = {
    FaultKind.CONNECT: "bad",
    FaultKind.TLS: "bad",
    FaultKind.TIMEOUT: "bad",
    FaultKind.RESET: "bad",
    FaultKind.SERVER: "bad",
    FaultKind.INCOMPLETE: "bad",
    FaultKind.OVERLOAD: "nothing",
    FaultKind.RATE: "well",
    FaultKind.QUOTA: "well",
    FaultKind.AUTH: "well",
    FaultKind.CONTEXT: "well",
    FaultKind.FILTER: "well",
    FaultKind.REQUEST: "well",
}


def after(*faults: Fault, at_s: float = 0.0) -> Breaker:
    broken = CLOSED
    for fault in faults:
        broken = breakers.failed(broken, RULES, at_s, fault, "early")
    return broken


def probing(at_s: float = 30.0, name: str = "probe") -> Breaker:
    broken, admitted = breakers.begin(after(*[BROKEN] * 3), RULES, at_s, name)
    assert admitted
    return broken


@pytest.mark.parametrize("kind", list(FaultKind))
def test_only_the_upstreams_own_faults_count(kind: FaultKind) -> None:
    assert says(kind) == SAYS[kind]
    fault = Fault(kind, "x")
    assert (after(fault, fault, fault).phase(0) == "open") == (SAYS[kind] == "bad")


@pytest.mark.parametrize("kind", list(FaultKind))
def test_what_says_that_a_target_works_ends_the_row_of_its_faults(kind: FaultKind) -> None:
    expected = {"bad": "open", "nothing": "open", "well": "closed"}[SAYS[kind]]
    assert after(BROKEN, BROKEN, Fault(kind, "x"), BROKEN).phase(0) == expected


def test_it_opens_after_so_many_faults_in_a_row_and_not_before() -> None:
    assert after(BROKEN, BROKEN).phase(0) == "closed"
    broken = after(BROKEN, BROKEN, REFUSED)
    assert (broken.fault, broken.until_s, broken.phase(29.9), broken.phase(30)) == (
        REFUSED,
        30,
        "open",
        "half_open",
    )
    with_success = breakers.succeeded(after(BROKEN, BROKEN), 0, "other")
    assert with_success == CLOSED


def test_an_open_one_admits_nothing_and_a_half_open_one_a_single_probe() -> None:
    broken = after(*[BROKEN] * 3)
    assert breakers.begin(broken, RULES, 29.9, "a") == (broken, False)
    broken, first = breakers.begin(broken, RULES, 30, "a")
    broken, second = breakers.begin(broken, RULES, 31, "b")
    assert (first, second, broken.probing(31)) == (True, False, True)


@pytest.mark.parametrize("kind", list(FaultKind))
def test_the_end_of_the_probe_decides(kind: FaultKind) -> None:
    broken = breakers.failed(probing(), RULES, 40, Fault(kind, "x"), "probe")
    match SAYS[kind]:
        case "bad":
            assert (broken.phase(69.9), broken.until_s) == ("open", 70)
        case "nothing":
            assert breakers.begin(broken, RULES, 40, "next")[1]
        case _:
            assert broken == CLOSED
    assert breakers.succeeded(probing(), 40, "probe") == CLOSED


def test_who_gives_the_probe_up_frees_its_place_without_a_verdict() -> None:
    broken = breakers.given_up(probing(), "probe")
    assert broken.phase(31) == "half_open"
    assert breakers.begin(broken, RULES, 31, "next")[1]


def test_requests_from_before_it_opened_decide_nothing() -> None:
    for at_s in (10, 30):
        opened = after(*[BROKEN] * 3)
        assert breakers.succeeded(opened, at_s, "early") == opened
        assert breakers.failed(opened, RULES, at_s, BROKEN, "early") == opened
    half = probing()
    assert breakers.succeeded(half, 31, "early") == half
    assert breakers.failed(half, RULES, 31, BROKEN, "early") == half
    assert breakers.given_up(half, "early") == half


def test_a_probe_that_never_ends_keeps_others_out_for_its_lease_only_and_may_still_close_it() -> None:
    half = probing()
    assert not breakers.begin(half, RULES, 59.9, "second")[1]
    half, admitted = breakers.begin(half, RULES, 60, "second")
    assert admitted
    assert not breakers.begin(half, RULES, 61, "third")[1]
    assert breakers.succeeded(half, 62, "probe") == CLOSED
    given_up = breakers.given_up(half, "probe")
    assert given_up.probing(62), "the second is still under way"
    assert not breakers.given_up(half, "second").probing(62)


def test_whoever_looks_may_open_it_and_end_that_before_its_time() -> None:
    gone = breakers.found_gone(CLOSED, RULES, 0, REFUSED)
    assert (gone.phase(29), gone.fault) == ("open", REFUSED)
    assert breakers.found_gone(gone, RULES, 2, REFUSED) == gone
    assert breakers.found_gone(gone, RULES, 16, REFUSED).until_s == 46
    assert breakers.found_there(gone, 4).phase(4) == "half_open"
    assert breakers.found_there(after(*[REFUSED] * 3), 4).phase(4) == "half_open"


def test_that_a_target_is_there_does_not_end_what_requests_suffered_for_another_cause() -> None:
    broken = after(*[BROKEN] * 3)
    assert breakers.found_there(broken, 4) == broken
    assert breakers.found_there(CLOSED, 4) == CLOSED


def test_another_processs_breaker_opens_this_one_and_its_closing_lets_one_try() -> None:
    opened = breakers.opened_elsewhere(CLOSED, 0, BROKEN, 20)
    assert (opened.phase(19.9), opened.phase(20), opened.fault) == ("open", "half_open", BROKEN)
    assert breakers.opened_elsewhere(opened, 0, BROKEN, 10) == opened
    assert breakers.opened_elsewhere(CLOSED, 30, BROKEN, 20) == CLOSED
    assert breakers.closed_elsewhere(opened, 5).phase(5) == "half_open"
    assert breakers.closed_elsewhere(CLOSED, 5) == CLOSED


@dataclass(slots=True)
class Sent:
    """An attempt under way, in the machine's own books."""

    name: str
    probe: bool


@dataclass(slots=True)
class Model:
    """What must hold, counted without the code under test."""

    failures: int = 0
    open_until_s: float | None = None
    probe_s: float | None = None  # when the last probe was admitted that has not been given up
    probes: list[str] = field(default_factory=list)


class Histories(RuleBasedStateMachine):
    """Attempts begin and end in any order while time goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.breaker = CLOSED
        self.model = Model()
        self.under_way: list[Sent] = []
        self.number = 0

    @property
    def is_open(self) -> bool:
        return self.model.open_until_s is not None and self.now_s < self.model.open_until_s

    @property
    def is_closed(self) -> bool:
        return self.model.open_until_s is None

    @rule(seconds=st.sampled_from([0.0, 1.0, 7.5, 29.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def begin(self) -> None:
        self.number += 1
        name = f"a{self.number}"
        self.breaker, admitted = breakers.begin(self.breaker, RULES, self.now_s, name)
        taken = self.model.probe_s is not None and self.now_s < self.model.probe_s + RULES.probe_s
        assert admitted == (self.is_closed or (not self.is_open and not taken))
        if admitted:
            self.under_way.append(Sent(name, not self.is_closed))
            if not self.is_closed:
                self.model.probe_s = self.now_s
                self.model.probes.append(name)

    @rule(at=st.integers(0, 50), kind=st.sampled_from(list(FaultKind)))
    def fail(self, at: int, kind: FaultKind) -> None:
        if not self.under_way:
            return
        sent = self.under_way.pop(at % len(self.under_way))
        self.breaker = breakers.failed(self.breaker, RULES, self.now_s, Fault(kind, "x"), sent.name)
        match SAYS[kind]:
            case "bad":
                self.count_bad(sent)
            case "nothing":
                self.count_nothing(sent)
            case _:
                self.count_well(sent)

    @rule(at=st.integers(0, 50))
    def succeed(self, at: int) -> None:
        if self.under_way:
            sent = self.under_way.pop(at % len(self.under_way))
            self.breaker = breakers.succeeded(self.breaker, self.now_s, sent.name)
            self.count_well(sent)

    @rule(at=st.integers(0, 50))
    def give_up(self, at: int) -> None:
        if self.under_way:
            sent = self.under_way.pop(at % len(self.under_way))
            self.breaker = breakers.given_up(self.breaker, sent.name)
            self.count_nothing(sent)

    @rule()
    def look(self) -> None:
        self.breaker = breakers.found_there(self.breaker, self.now_s)
        if self.is_open and self.model.open_until_s is not None and self.breaker.gone:
            self.model.open_until_s = self.now_s

    def count_bad(self, sent: Sent) -> None:
        if self.is_closed:
            self.model.failures += 1
            if self.model.failures == RULES.failures:
                self.model = Model(open_until_s=self.now_s + RULES.open_s)
        elif not self.is_open and sent.name in self.model.probes:
            self.model = Model(open_until_s=self.now_s + RULES.open_s)

    def count_well(self, sent: Sent) -> None:
        if self.is_closed or (not self.is_open and sent.name in self.model.probes):
            self.model = Model()

    def count_nothing(self, sent: Sent) -> None:
        if sent.name in self.model.probes:
            if sent.name == self.model.probes[-1]:
                self.model.probe_s = None
            self.model.probes.remove(sent.name)

    @invariant()
    def stands_as_counted(self) -> None:
        phase = "closed" if self.is_closed else ("open" if self.is_open else "half_open")
        assert self.breaker.phase(self.now_s) == phase
        assert (self.breaker.fault is not None) == (phase != "closed")
        if phase == "closed":
            assert self.breaker.failures == self.model.failures < RULES.failures


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
