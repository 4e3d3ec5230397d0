"""The clocks of one answer: limits, keep-alives, grace; pure, with the time as an argument."""

from hypothesis import given
from hypothesis import strategies as st

from kimi_gateway.relay.pace import Limits, Pace, keepalives

LIMITS = Limits(first_byte_s=600, idle_s=300, keepalive_s=15, first_keepalive_s=15, grace_s=2, progress_s=5)


def test_the_first_byte_ends_the_first_limit_and_starts_the_idle_one() -> None:
    pace = Pace.begin(LIMITS, 0)
    assert not pace.is_silent(599)
    assert pace.is_silent(600)
    pace.last_byte = 500
    assert not pace.is_silent(799)
    assert pace.is_silent(800)


def test_grace_begins_with_the_last_finish_reason() -> None:
    pace = Pace.begin(LIMITS, 0)
    assert not pace.grace_over(1e9)
    pace.finished = 10
    assert not pace.grace_over(11.9)
    assert pace.grace_over(12)


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_after_the_wait_something_is_due(started: float, passed: float) -> None:
    pace = Pace.begin(LIMITS, started)
    now = started + passed
    due = now + pace.wait_s(now) + 1e-6
    assert pace.keepalive_due(due) or pace.progress_due(due) or pace.is_silent(due)


def test_streams_have_keepalives_at_half_a_short_patience() -> None:
    assert keepalives(streams=True, interval_s=15, read_timeout_s=None) == (15, 15)
    assert keepalives(streams=True, interval_s=15, read_timeout_s=600) == (15, 15)
    assert keepalives(streams=True, interval_s=15, read_timeout_s=5) == (2.5, 2.5)
    assert keepalives(streams=True, interval_s=None, read_timeout_s=5) == (None, 0)


def test_a_folded_answer_starts_late_and_only_where_the_client_announced_its_patience() -> None:
    assert keepalives(streams=False, interval_s=15, read_timeout_s=None) == (None, 0)
    assert keepalives(streams=False, interval_s=15, read_timeout_s=5) == (2.5, 4)
    assert keepalives(streams=False, interval_s=15, read_timeout_s=600) == (15, 480)
    pace = Pace.begin(
        Limits(first_byte_s=600, idle_s=300, keepalive_s=2.5, first_keepalive_s=4, grace_s=2, progress_s=50), 100
    )
    assert not pace.keepalive_due(103.9)
    assert pace.keepalive_due(104)


@given(st.floats(0, 1, exclude_max=True))
def test_streams_that_began_together_are_booked_at_different_moments(spread: float) -> None:
    pace = Pace.begin(LIMITS, 100, spread)
    due_s = 105 - spread * 2.5
    assert pace.progress_due(due_s + 1e-6)
    assert not pace.progress_due(due_s - 1e-6)
    pace.last_progress = due_s
    assert not pace.progress_due(due_s + 4.999), "after the first one at most every five seconds"
