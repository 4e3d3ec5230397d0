"""Shares of a target's time: even at each moment, whole over all, nobody's while it is idle."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_gateway.core.allocation import Allocation, allocated_nano


def test_who_is_alone_has_all_of_the_time() -> None:
    made = Allocation()
    mark = made.begin("a", 100.0)
    assert made.end("a", mark, 103.5) == 3.5


def test_two_at_once_share_and_idle_time_is_nobodys() -> None:
    made = Allocation()
    first = made.begin("a", 0.0)
    second = made.begin("a", 2.0)
    assert made.end("a", first, 6.0) == 2.0 + 4.0 / 2
    assert made.end("a", second, 7.0) == 4.0 / 2 + 1.0
    third = made.begin("a", 1000.0)
    assert made.end("a", third, 1001.0) == 1.0


def test_targets_do_not_share() -> None:
    made = Allocation()
    one, other = made.begin("a", 0.0), made.begin("b", 0.0)
    assert (made.end("a", one, 1.0), made.end("b", other, 1.0)) == (1.0, 1.0)


def test_a_share_costs_its_part_of_the_hour() -> None:
    assert allocated_nano(36.0, 20_000_000_000) == 200_000_000
    assert allocated_nano(0.0, 20_000_000_000) == 0


@settings(max_examples=100)
@given(st.lists(st.tuples(st.floats(0, 5), st.booleans()), min_size=1, max_size=40))
def test_all_shares_together_are_the_time_in_which_somebody_was_there(steps: list[tuple[float, bool]]) -> None:
    made, marks = Allocation(), list[float]()
    now = shares = busy = 0.0
    for passed, begins in steps:
        busy += passed if marks else 0.0
        now += passed
        if begins or not marks:
            marks.append(made.begin("a", now))
        else:
            shares += made.end("a", marks.pop(0), now)
    shares += sum(made.end("a", mark, now) for mark in marks)
    assert shares == pytest.approx(busy)
