"""Limits of keys: what is held counts as spent, nothing is admitted beyond a budget, buckets fill evenly."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_gateway.core.limit_book import LimitBook
from kimi_gateway.core.limits import (
    Claim,
    Limits,
    Period,
    Use,
    period_end_s,
    period_name,
    period_start_s,
)
from pricing.ledger.store.spend import Booked, BookedRow

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
DOLLAR = 1_000_000_000


def claim(name: str, nano: int = 0, *, tokens: int = 0, highspeed: bool = False, at_s: float = NOON) -> Claim:
    return Claim(name, "team", at_s, nano, highspeed, tokens)


def book() -> LimitBook:
    return LimitBook(lease_s=60)


def settle(
    made: LimitBook, name: str, nano: int, limits: Limits, *, tokens: int | None = None, at_s: float = NOON
) -> int:
    return made.settle(claim(name, at_s=at_s), limits, Use(nano, tokens), at_s)


def test_what_is_held_counts_as_spent_until_it_is_settled() -> None:
    made, limits = book(), Limits(budget_nano=10 * DOLLAR)
    assert made.admit(claim("a", 6 * DOLLAR), limits, NOON).admitted
    refused = made.admit(claim("b", 6 * DOLLAR), limits, NOON)
    assert (refused.refused_by, *refused.decided) == ("budget", 10 * DOLLAR, 4 * DOLLAR)
    assert settle(made, "a", DOLLAR, limits) == 0
    assert made.admit(claim("b", 6 * DOLLAR), limits, NOON).left_nano == 3 * DOLLAR
    assert made.reserved_nano("team") == 6 * DOLLAR


def test_the_last_nano_dollar_can_be_spent_and_not_one_more() -> None:
    made, limits = book(), Limits(budget_nano=100)
    assert made.admit(claim("a", 100), limits, NOON).left_nano == 0
    assert made.admit(claim("b", 1), limits, NOON).refused_by == "budget"
    assert made.admit(claim("c", 0), limits, NOON).admitted


def test_an_excess_is_booked_and_told() -> None:
    made, limits = book(), Limits(budget_nano=100)
    made.admit(claim("a", 40), limits, NOON)
    assert settle(made, "a", 130, limits) == 90
    assert made.standing("team", limits, NOON).left_nano == -30
    assert made.admit(claim("b", 1), limits, NOON).decided == (100, 0)


def test_a_reservation_is_settled_once() -> None:
    made, limits = book(), Limits(budget_nano=100)
    made.admit(claim("a", 40), limits, NOON)
    for _ in range(2):
        settle(made, "a", 10, limits)
    assert made.standing("team", limits, NOON).left_nano == 90


def test_highspeed_has_a_budget_of_its_own_inside_the_whole() -> None:
    made, limits = book(), Limits(budget_nano=100, highspeed_nano=30)
    assert made.admit(claim("a", 20, highspeed=True), limits, NOON).admitted
    assert made.admit(claim("b", 20, highspeed=True), limits, NOON).refused_by == "highspeed_budget"
    assert made.admit(claim("c", 80), limits, NOON).admitted
    assert made.admit(claim("d", 5, highspeed=True), limits, NOON).refused_by == "budget"


def test_a_request_is_booked_in_the_period_it_began_in() -> None:
    made, limits = book(), Limits(budget_nano=100, period="day")
    made.admit(claim("late", 100, at_s=NOON), limits, NOON)
    tomorrow = NOON + 86_400
    assert made.admit(claim("next", 100, at_s=tomorrow), limits, tomorrow).admitted
    settle(made, "late", 100, limits)
    assert made.standing("team", limits, tomorrow).left_nano == 0
    assert made.standing("team", limits, NOON).left_nano == 0


def test_what_the_ledger_had_booked_before_counts_once() -> None:
    made, limits = book(), Limits(budget_nano=100)
    made.admit(claim("early", 10), limits, NOON)
    for _ in range(2):
        assert made.install("team", "2026-11", Booked(60), frozenset({"early"}), NOON)
    assert made.standing("team", limits, NOON).left_nano == 30


@pytest.mark.parametrize(
    ("period", "name", "start", "end"),
    [
        ("day", "2026-11-30", "2026-11-30", "2026-12-01"),
        ("month", "2026-11", "2026-11-01", "2026-12-01"),
        ("total", "total", "1970-01-01", None),
    ],
)
def test_periods_are_calendar_periods_in_utc(period: Period, name: str, start: str, end: str | None) -> None:
    assert period_name(period, NOON) == name
    assert datetime.fromtimestamp(period_start_s(period, NOON), UTC).strftime("%Y-%m-%d") == start
    found = period_end_s(period, NOON)
    assert (datetime.fromtimestamp(found, UTC).strftime("%Y-%m-%d") if found is not None else None) == end
    assert period_end_s("month", datetime(2026, 12, 31, tzinfo=UTC).timestamp()) == (
        datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    )


def test_requests_per_minute_are_a_bucket_that_fills_evenly() -> None:
    made, limits = book(), Limits(rpm=60)
    for index in range(60):
        assert made.admit(claim(str(index)), limits, NOON).admitted
    refused = made.admit(claim("x"), limits, NOON)
    assert (refused.refused_by, round(refused.retry_after_s, 6)) == ("requests", 1.0)
    assert refused.requests is not None
    assert (refused.requests.limit, refused.requests.left) == (60, 0)
    assert made.admit(claim("x"), limits, NOON + 1).admitted
    assert not made.admit(claim("y"), limits, NOON + 1.5).admitted


def test_tokens_are_charged_at_the_bound_and_given_back() -> None:
    made, limits = book(), Limits(tpm=1000)
    made.admit(claim("a", tokens=800), limits, NOON)
    refused = made.admit(claim("b", tokens=800), limits, NOON)
    assert (refused.refused_by, round(refused.retry_after_s)) == ("tokens", 36)
    settle(made, "a", 0, limits, tokens=100)
    assert made.admit(claim("b", tokens=800), limits, NOON).admitted


def test_a_request_larger_than_a_minutes_tokens_goes_when_the_bucket_is_full() -> None:
    made, limits = book(), Limits(tpm=1000)
    assert made.admit(claim("a", tokens=5000), limits, NOON).admitted
    assert made.admit(claim("b", tokens=5000), limits, NOON + 59).refused_by == "tokens"
    settle(made, "a", 0, limits, tokens=5000)
    assert made.admit(claim("b", tokens=5000), limits, NOON + 400).admitted


def test_concurrency_counts_what_is_under_way() -> None:
    made, limits = book(), Limits(concurrency=2)
    assert [made.admit(claim(name), limits, NOON).admitted for name in "abc"] == [True, True, False]
    settle(made, "a", 0, limits)
    assert made.admit(claim("c"), limits, NOON).admitted


@settings(max_examples=100)
@given(
    steps=st.lists(
        st.tuples(st.booleans(), st.integers(0, 60), st.integers(0, 60), st.booleans()), min_size=1, max_size=60
    ),
    whole=st.integers(0, 200),
    fast=st.integers(0, 200),
)
def test_spend_never_exceeds_a_budget_where_bounds_hold(
    steps: list[tuple[bool, int, int, bool]], whole: int, fast: int
) -> None:
    made, limits = book(), Limits(budget_nano=whole, highspeed_nano=fast)
    open_claims: list[Claim] = []
    spent = spent_fast = 0
    for index, (opens, bound, used, highspeed) in enumerate(steps):
        if opens or not open_claims:
            asked = claim(str(index), bound, highspeed=highspeed)
            if made.admit(asked, limits, NOON).admitted:
                open_claims.append(asked)
        else:
            held = open_claims.pop(used % len(open_claims))
            cost = min(used, held.nano)
            assert made.settle(held, limits, Use(cost), NOON) == 0
            spent += cost
            spent_fast += cost if held.highspeed else 0
        reserved = sum(held.nano for held in open_claims)
        assert made.reserved_nano("team") == reserved
        assert made.standing("team", limits, NOON).left_nano == whole - spent - reserved >= 0
        assert spent_fast + sum(held.nano for held in open_claims if held.highspeed) <= fast


# --- the ledger and the book ----------------------------------------------------------------------------------

MONTH = "2026-11"
BUDGET = Limits(budget_nano=1000)


def left(made: LimitBook, limits: Limits = BUDGET) -> int | None:
    return made.standing("team", limits, NOON).left_nano


def test_what_the_ledger_has_of_a_request_under_way_counts_once() -> None:
    made = book()
    made.admit(claim("a", 100), BUDGET, NOON)
    booked = Booked(total_nano=530, rows={"a": BookedRow("open", 30)})
    assert made.install("team", MONTH, booked, frozenset({"a"}), NOON)
    assert left(made) == 1000 - 500 - 100
    settle(made, "a", 40, BUDGET)
    assert left(made) == 1000 - 500 - 40


@pytest.mark.parametrize(
    ("row", "spent"),
    [
        (None, 500 + 40),
        (BookedRow("open", 10), 490 + 40),
        (BookedRow("unsettled", 10, reserved_nano=70), 490 + 40),
        (BookedRow("settled", 40), 500),
        (BookedRow("settled", 45), 500),  # the ledger is the truth
    ],
)
def test_what_ended_counts_once_however_far_the_ledger_is(row: BookedRow | None, spent: int) -> None:
    made = book()
    made.admit(claim("a", 100), BUDGET, NOON)
    settle(made, "a", 40, BUDGET)
    booked = Booked(total_nano=500, rows={} if row is None else {"a": row})
    assert made.install("team", MONTH, booked, frozenset({"a"}), NOON)
    assert left(made) == 1000 - spent


def test_sums_that_may_lack_a_request_are_not_taken() -> None:
    made = book()
    made.admit(claim("a", 100), BUDGET, NOON)
    assert not made.install("team", MONTH, Booked(500), frozenset(), NOON)
    assert left(made) == 900


def test_what_nobody_here_began_is_held_at_its_bound_until_somebody_knows_its_end() -> None:
    made = book()
    booked = Booked(
        130,
        rows={
            "open": BookedRow("open", 10, reserved_nano=200),
            "dead": BookedRow("unsettled", 20, reserved_nano=300),
            "done": BookedRow("settled", 100),
        },
    )
    assert made.install("team", MONTH, booked, frozenset(), NOON)
    assert left(made) == 1000 - 200 - 300 - 100
    assert made.lapsed(NOON + 59) == []
    (late,) = made.lapsed(NOON + 61)
    assert (late.id, late.nano, late.late_s) == ("open", 200, 1)
    assert made.resolve("team", "open", 15, highspeed=False, now_s=NOON + 61)
    assert not made.resolve("team", "open", 15, highspeed=False, now_s=NOON + 61)
    assert left(made) == 1000 - 15 - 300 - 100
    settle(made, "dead", 25, BUDGET)
    assert left(made) == 1000 - 15 - 25 - 100


def test_a_lease_that_is_renewed_does_not_end() -> None:
    made = book()
    made.admit(claim("a", 100), BUDGET, NOON)
    assert made.renew("team", "a", NOON + 50)
    assert made.lapsed(NOON + 100) == []
    assert not made.resolve("team", "a", 0, highspeed=False, now_s=NOON + 100)
    assert not made.renew("team", "b", NOON)
    assert left(made) == 900


def test_a_lapsed_request_still_holds_its_money_and_no_place() -> None:
    made, limits = book(), Limits(budget_nano=1000, concurrency=1)
    made.admit(claim("a", 100), limits, NOON)
    later = NOON + 61
    assert made.admit(claim("b", 950), limits, later).refused_by == "budget"
    assert made.admit(claim("b", 900), limits, later).admitted
    assert made.admit(claim("c", 0), limits, later).refused_by == "concurrency"


def test_an_end_without_a_known_beginning_makes_the_sums_void() -> None:
    made = book()
    made.install("team", MONTH, Booked(500), frozenset(), NOON)
    settle(made, "stray", 40, BUDGET)
    assert not made.is_loaded("team", MONTH)
    assert made.install(
        "team", MONTH, Booked(540, rows={"stray": BookedRow("settled", 40)}), frozenset({"stray"}), NOON
    )
    assert left(made) == 460


def test_an_end_may_be_corrected() -> None:
    made = book()
    made.admit(claim("a", 100), BUDGET, NOON)
    settle(made, "a", 40, BUDGET)
    settle(made, "a", 60, BUDGET)
    assert left(made) == 940


def test_without_a_budget_no_money_is_counted() -> None:
    made, limits = book(), Limits(rpm=10)
    made.admit(claim("a", 100), limits, NOON)
    settle(made, "a", 100, limits)
    assert left(made) == 1000


def test_a_minute_limit_that_is_lowered_takes_what_was_left_above_it() -> None:
    made = book()
    made.admit(claim("a"), Limits(rpm=100), NOON)
    found = made.standing("team", Limits(rpm=10), NOON).requests
    assert found is not None
    assert (found.limit, found.left) == (10, 10)


def test_money_goes_where_the_tier_says_that_served() -> None:
    made, limits = book(), Limits(budget_nano=1000, highspeed_nano=500)
    made.admit(claim("a", 100, highspeed=True), limits, NOON)
    made.settle(claim("a", 100, highspeed=True), limits, Use(50, highspeed=False), NOON)
    found = made.standing("team", limits, NOON)
    assert (found.left_nano, found.highspeed_left_nano) == (950, 500)
