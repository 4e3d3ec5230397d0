"""What follows a fault: one table, every kind."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.faults import Fault, FaultKind
from kimi_gateway.core import retry
from kimi_gateway.core.retry import Decision, RetryBudget, Standing, Step, next_step, pause_s

ALONE = Standing(retries_left=2, repeats=0, others=False, max_wait_s=30, draw=0.5)
WITH_OTHERS = replace(ALONE, others=True)

TABLE = {
    FaultKind.CONNECT: ("again", "next"),
    FaultKind.SERVER: ("again", "next"),
    FaultKind.OVERLOAD: ("again", "again"),
    FaultKind.RATE: ("again", "again"),
    FaultKind.TIMEOUT: ("stop", "next"),
    FaultKind.RESET: ("stop", "next"),
    FaultKind.INCOMPLETE: ("stop", "next"),
    FaultKind.QUOTA: ("stop", "next"),
    FaultKind.AUTH: ("stop", "next"),
    FaultKind.TLS: ("stop", "next"),
    FaultKind.CONTEXT: ("stop", "next"),
    FaultKind.FILTER: ("stop", "stop"),
    FaultKind.REQUEST: ("stop", "stop"),
}


@pytest.mark.parametrize("kind", list(FaultKind))
def test_each_kind_has_its_step(kind: FaultKind) -> None:
    alone, with_others = TABLE[kind]
    assert next_step(Fault(kind, "x"), ALONE).step == alone
    assert next_step(Fault(kind, "x"), WITH_OTHERS).step == with_others


AT_ONCE, PAUSE = 0.0, -1.0
"""What stands for the wait in the table below: none, or a pause of our own."""

BY_REPEATS: dict[FaultKind, tuple[tuple[Step, float], tuple[Step, float], tuple[Step, float]]] = {
    # kind: alone; others left and this its first fault; others left and it was given its time already
    FaultKind.CONNECT: (("again", PAUSE), ("next", AT_ONCE), ("next", AT_ONCE)),
    FaultKind.SERVER: (("again", PAUSE), ("next", AT_ONCE), ("next", AT_ONCE)),
    FaultKind.OVERLOAD: (("again", PAUSE), ("again", PAUSE), ("next", AT_ONCE)),
    FaultKind.RATE: (("again", PAUSE), ("again", PAUSE), ("next", AT_ONCE)),
    FaultKind.TIMEOUT: (("stop", AT_ONCE), ("next", AT_ONCE), ("next", AT_ONCE)),
    FaultKind.RESET: (("stop", AT_ONCE), ("next", AT_ONCE), ("next", AT_ONCE)),
    FaultKind.INCOMPLETE: (("stop", AT_ONCE), ("next", AT_ONCE), ("next", AT_ONCE)),
    FaultKind.QUOTA: (("stop", AT_ONCE), ("next", AT_ONCE), ("next", AT_ONCE)),
    FaultKind.AUTH: (("stop", AT_ONCE), ("next", AT_ONCE), ("next", AT_ONCE)),
    FaultKind.TLS: (("stop", AT_ONCE), ("next", AT_ONCE), ("next", AT_ONCE)),
    FaultKind.CONTEXT: (("stop", AT_ONCE), ("next", AT_ONCE), ("next", AT_ONCE)),
    FaultKind.FILTER: (("stop", AT_ONCE), ("stop", AT_ONCE), ("stop", AT_ONCE)),
    FaultKind.REQUEST: (("stop", AT_ONCE), ("stop", AT_ONCE), ("stop", AT_ONCE)),
}


@pytest.mark.parametrize("repeats", [0, 1, 2, 7])
@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("kind", list(FaultKind))
def test_the_table_says_what_follows_each_kind(kind: FaultKind, others: bool, repeats: int) -> None:
    alone, first, later = BY_REPEATS[kind]
    step, wait = alone if not others else (later if repeats else first)
    standing = Standing(retries_left=1, repeats=repeats, others=others, max_wait_s=30, draw=0.25)
    expected_s = pause_s(repeats, 0.25) if wait == PAUSE else 0.0
    assert next_step(Fault(kind, "x"), standing) == Decision(step, expected_s)


@pytest.mark.parametrize("kind", list(FaultKind))
def test_the_docstring_has_a_row_for_each_kind(kind: FaultKind) -> None:
    rows = [line for line in (retry.__doc__ or "").splitlines() if line.startswith("| ")]
    assert [row for row in rows if kind.value in row.split("|")[1].replace(",", " ").split()], kind


@pytest.mark.parametrize("kind", list(FaultKind))
def test_nothing_follows_when_the_retries_are_spent(kind: FaultKind) -> None:
    assert next_step(Fault(kind, "x"), replace(WITH_OTHERS, retries_left=0)).step == "stop"


@pytest.mark.parametrize("kind", [FaultKind.RATE, FaultKind.OVERLOAD])
def test_a_named_wait_is_kept_and_one_that_is_too_long_goes_elsewhere(kind: FaultKind) -> None:
    assert next_step(Fault(kind, "x", retry_after_s=7.5), ALONE) == Decision("again", 7.5)
    assert next_step(Fault(kind, "x", retry_after_s=31), ALONE).step == "stop"
    assert next_step(Fault(kind, "x", retry_after_s=31), WITH_OTHERS).step == "next"


def test_an_overload_that_a_wait_did_not_help_goes_elsewhere() -> None:
    overload = Fault(FaultKind.OVERLOAD, "x")
    assert next_step(overload, replace(WITH_OTHERS, repeats=1)).step == "next"
    assert next_step(overload, replace(ALONE, repeats=1)).step == "again"


@given(st.integers(0, 50), st.floats(0, 1, exclude_max=True))
def test_pauses_are_within_a_quarter_and_eight_seconds_and_grow(repeats: int, draw: float) -> None:
    assert 0.25 <= pause_s(repeats, draw) <= 8
    assert pause_s(repeats + 1, 0) >= pause_s(repeats, 0)
    if repeats < 3:
        assert pause_s(repeats + 1, 0) >= pause_s(repeats, draw)


def test_a_crowd_that_was_refused_together_is_spread_over_the_whole_window() -> None:
    assert [pause_s(repeats, 0) for repeats in range(6)] == [0.25, 1, 2, 4, 4, 4]
    assert [pause_s(repeats, 1) for repeats in range(6)] == [1, 2, 4, 8, 8, 8]


@pytest.mark.parametrize("kind", [FaultKind.RATE, FaultKind.OVERLOAD])
def test_a_named_wait_that_did_not_help_goes_elsewhere_and_alone_it_is_kept_again(kind: FaultKind) -> None:
    named = Fault(kind, "x", retry_after_s=3)
    assert next_step(named, replace(WITH_OTHERS, repeats=1)).step == "next"
    assert next_step(named, replace(ALONE, repeats=1)) == Decision("again", 3)
    assert next_step(Fault(kind, "x", retry_after_s=0), ALONE) == Decision("again", 0.25)
    assert next_step(Fault(kind, "x", retry_after_s=30), ALONE) == Decision("again", 30)


@given(st.lists(st.booleans(), max_size=400))
def test_retries_stay_within_the_ratio_and_the_reserve(moves: list[bool]) -> None:
    budget = RetryBudget(0.2)
    requests = taken = 0
    for is_request in moves:
        if is_request:
            budget.request()
            requests += 1
        else:
            taken += budget.take()
    assert taken <= 10 + 0.2 * requests + 1e-6
