"""What follows a fault: one table, every kind."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.faults import Fault, FaultKind
from kimi_gateway.core.retry import Decision, RetryBudget, Standing, needs_budget, next_step, pause_s

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


@pytest.mark.parametrize("kind", list(FaultKind))
def test_moving_on_from_a_target_that_took_nothing_is_free(kind: FaultKind) -> None:
    free = kind in (FaultKind.CONNECT, FaultKind.TLS, FaultKind.QUOTA, FaultKind.AUTH)
    assert needs_budget(Fault(kind, "x"), Decision("next")) is not free
    assert needs_budget(Fault(kind, "x"), Decision("again", 1.0))
