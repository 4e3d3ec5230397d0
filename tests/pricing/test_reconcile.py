"""The ledger against bills: every difference stands in the class that it belongs to, and in one only."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pricing.advice.tariffs import Tariffs
from pricing.cards import load_cards
from pricing.ledger.row import AttemptRecord, LedgerRow, LineRecord
from pricing.money import usd
from pricing.reconcile.bills import Bill, BillLine, Interval
from pricing.reconcile.findings import EXPLAINED, KINDS, Finding, Found
from pricing.reconcile.intervals import Intervals
from pricing.reconcile.matching import Matching
from support.ledger_rows import START, open_row, settled_row

TARIFFS = Tariffs(load_cards(), {})
EXACT = Decimal("0.0000114")
"""What `settled_row` books."""


def line(name: str, amount: Decimal | str = EXACT, **fields: Any) -> BillLine:
    return BillLine(f"chatcmpl-{name}", Decimal(amount), **fields)


def matched(rows: list[LedgerRow], lines: list[BillLine], **bill: Any) -> Found:
    """What is found where all of these rows are expected on the bill."""
    matching = Matching(Bill(lines, **bill), TARIFFS.of_row, lambda row: True)
    for row in rows:
        matching.add(row)
    return matching.result()


def only(found: Found) -> Finding:
    """The one finding that is not equal."""
    (finding,) = found.rows
    return finding


def classes(found: Found) -> dict[str, int]:
    return {kind: sums.findings for kind, sums in found.by_kind.items() if sums.findings}


def attempt(upstream_id: str | None, *, maybe_billed: bool = False, **fields: Any) -> AttemptRecord:
    values: dict[str, Any] = {"target": "moonshot", "dialect": "moonshot", "model": "kimi-k3.1-pro", "start_ms": 0}
    return AttemptRecord(upstream_id=upstream_id, maybe_billed=maybe_billed, **(values | fields))


def estimated(name: str, nano: int, bound_nano: int | None, **fields: Any) -> LedgerRow:
    values: dict[str, Any] = {"status": "client_disconnected", "cost_nano": nano, "estimated": True}
    return settled_row(name, estimate_bound_nano=bound_nano, **(values | fields))


def test_equal_amounts_are_equal_and_counted() -> None:
    found = matched([settled_row("a"), settled_row("b")], [line("b"), line("a")])
    assert classes(found) == {"equal": 2}
    assert (len(found.rows), found.total.difference) == (0, Decimal(0))
    assert found.is_explained(Decimal(0))


def test_an_answer_is_also_known_by_our_id_and_by_the_upstreams_request_id() -> None:
    by_header = settled_row("h", attempts=[attempt(None, upstream_request_id="gen-1")])
    found = matched([settled_row("kr_1"), by_header], [BillLine("kr_1", EXACT), BillLine("gen-1", EXACT)])
    assert classes(found) == {"equal": 2}


@pytest.mark.parametrize(
    ("amount", "step", "kind"),
    [
        ("0.00001", "0.00001", "rounding"),
        ("0.00002", "0.00001", "rounding"),
        ("0.00003", "0.00001", "priced_differently"),
    ],
)
def test_less_than_the_bills_last_digit_is_rounding(amount: str, step: str, kind: str) -> None:
    found = matched([settled_row("a")], [line("a", amount)], step=Decimal(step))
    assert only(found).kind == kind


def test_other_prices_are_told_from_other_tokens_by_meter() -> None:
    same = {"input": 0, "cache_read": 7, "output": 1}
    dearer = only(matched([settled_row("a")], [line("a", "0.00002", counts=same)]))
    assert (dearer.kind, dearer.reason, dearer.meters) == (
        "priced_differently",
        "the same tokens at other prices",
        (),
    )
    more = only(matched([settled_row("a")], [line("a", "0.0000314", counts={**same, "output": 3})]))
    assert (more.kind, more.reason) == ("priced_differently", "other tokens")
    (output,) = more.meters
    assert (output.meter, output.ledger, output.bill, output.nano) == ("output", 1, 3, 20_000)
    both = only(matched([settled_row("a")], [line("a", "0.0000414", counts={**same, "output": 3})]))
    assert both.reason == "other tokens, and 0.00001 USD by other prices"
    assert not matched([settled_row("a")], [line("a", "1")]).is_explained(Decimal(0))


@pytest.mark.parametrize(
    ("amount", "bound_nano", "kind"),
    [
        ("0.015", 5_000_000, "estimated"),
        ("0.005", 5_000_000, "estimated"),
        ("0.015000001", 5_000_000, "unexplained"),
        ("0.011", None, "unexplained"),
    ],
)
def test_an_estimate_is_explained_up_to_its_own_bound(amount: str, bound_nano: int | None, kind: str) -> None:
    assert only(matched([estimated("e", 10_000_000, bound_nano)], [line("e", amount)])).kind == kind


def written(ttl: str) -> LedgerRow:
    """A thousand tokens written at a TTL that was only asked for."""
    count, rate = 1000, 4000 if ttl == "1h" else 2000
    return settled_row(
        "w",
        prompt_tokens=count,
        cached_tokens=0,
        write_5m_tokens=None if ttl == "1h" else count,
        write_1h_tokens=count if ttl == "1h" else None,
        completion_tokens=0,
        lines=[LineRecord("write_1h" if ttl == "1h" else "write_5m", count, rate, count * rate)],
        cost_nano=count * rate,
        assumed=True,
    )


@pytest.mark.parametrize("has_counts", [True, False], ids=["with counts", "without"])
def test_an_assumed_split_that_was_another_is_explained(has_counts: bool) -> None:
    counts: Any = (
        {"input": 0, "cache_read": 0, "write_5m": 1000, "write_1h": 0, "output": 0} if has_counts else None
    )
    finding = only(matched([written("1h")], [line("w", "0.002", counts=counts)]))
    assert finding.kind == "assumed"
    beyond = only(matched([written("1h")], [line("w", "0.0019", counts=counts)]))
    assert beyond.kind == "priced_differently"


def test_a_bill_without_writes_has_them_in_its_input() -> None:
    row = replace_row(written("5m"), assumed=False)
    counts: Any = {"input": 1000, "cache_read": 0, "output": 0}
    finding = only(matched([row], [line("w", "0.003", counts=counts)]))
    assert (finding.reason, finding.meters) == ("the same tokens at other prices", ())


def replace_row(row: LedgerRow, **fields: Any) -> LedgerRow:
    return LedgerRow(**({name: getattr(row, name) for name in row.__struct_fields__} | fields))


def test_a_failed_attempt_on_the_bill_is_explained_only_where_the_ledger_saw_it_coming() -> None:
    row = settled_row("a", attempts=[attempt("x1", maybe_billed=True), attempt("chatcmpl-a")])
    found = matched([row], [line("a"), BillLine("x1", Decimal("0.5"))])
    assert classes(found) == {"equal": 1, "only_in_bill": 1}
    assert only(found).request_id == "a"
    assert found.is_explained(Decimal(0))
    row = settled_row("a", attempts=[attempt("x1"), attempt("chatcmpl-a")])
    found = matched([row], [line("a"), BillLine("x1", Decimal("0.5"))])
    assert only(found).kind == "unexplained"


def test_a_request_that_booked_nothing_and_was_billed_is_explained_only_if_announced() -> None:
    for maybe_billed, kind in ((True, "only_in_bill"), (False, "unexplained")):
        row = open_row("n", status="error", cost_nano=0, attempts=[attempt("x", maybe_billed=maybe_billed)])
        assert only(matched([row], [BillLine("x", Decimal("0.1"))])).kind == kind


def test_what_is_booked_and_not_billed_is_explained_only_as_an_estimate() -> None:
    assert only(matched([estimated("e", 5, 1)], [])).kind == "only_in_ledger"
    measured = only(matched([settled_row("a")], []))
    assert (measured.kind, measured.reason) == ("unexplained", "measured and booked, and not on the bill")
    found = matched([open_row("n", status="error", cost_nano=0)], [])
    assert (found.rows, found.without_charge) == ([], 1)


def test_what_has_no_price_or_no_end_is_named_so() -> None:
    unpriced = settled_row("u", cost_nano=None, cost_source="unpriced")
    running = open_row("o", attempts=[attempt("chatcmpl-o")])
    found = matched([unpriced, running], [line("u", "1"), line("o", "2")])
    assert classes(found) == {"unpriced": 1, "under_way": 1}
    assert found.by_kind["unpriced"].difference == 1
    assert classes(matched([unpriced, running], [])) == {"unpriced": 1, "under_way": 1}


def test_a_line_nobody_knows_is_unexplained_and_so_is_one_listed_twice() -> None:
    found = matched([settled_row("a")], [line("a"), line("a"), line("z"), BillLine("", Decimal(1))])
    assert sorted(row.reason for row in found.rows) == [
        "no request of the ledger has its id",
        "the bill lists it more than once",
        "the line has no id to match it by",
    ]
    assert {row.kind for row in found.rows} == {"unexplained"}


def test_a_charge_whose_id_never_came_fits_the_attempt_that_may_have_been_billed() -> None:
    row = settled_row("a", attempts=[attempt(None, maybe_billed=True), attempt("chatcmpl-a")])
    other_model = BillLine("y", Decimal("0.5"), model="kimi-k3.1-pro-highspeed")
    found = matched([row], [line("a"), BillLine("x", Decimal("0.5"), model="kimi-k3.1-pro"), other_model])
    assert classes(found) == {"equal": 1, "only_in_bill": 1, "unexplained": 1}
    one_attempt_for_two = [BillLine(name, Decimal("0.5"), model="kimi-k3.1-pro") for name in "xy"]
    assert classes(matched([row], [line("a"), *one_attempt_for_two])) == {
        "equal": 1,
        "only_in_bill": 1,
        "unexplained": 1,
    }


def test_an_estimate_whose_id_never_came_takes_the_line_that_fits_it_best() -> None:
    rows = [
        estimated(name, nano, 3, attempts=[attempt(None, maybe_billed=True)])
        for name, nano in (("a", 5), ("b", 9))
    ]
    found = matched(rows, [BillLine("x", usd(8)), BillLine("y", usd(4))])
    assert {row.request_id: row.bill_usd for row in found.rows} == {"a": usd(4), "b": usd(8)}
    assert classes(found) == {"estimated": 2}
    assert classes(matched(rows, [BillLine("x", usd(90))])) == {"only_in_ledger": 2, "unexplained": 1}


def test_times_keep_a_line_from_a_request_that_was_over_or_not_begun() -> None:
    row = estimated("a", 5, 3, total_ms=1000, attempts=[attempt(None, maybe_billed=True)])
    inside = matched([row], [BillLine("x", usd(5), started_at=START + 0.5)])
    assert classes(inside) == {"estimated": 1}
    after = matched([row], [BillLine("x", usd(5), started_at=START + 60)])
    assert classes(after) == {"only_in_ledger": 1, "unexplained": 1}


def test_rows_that_are_not_expected_are_not_missed_but_are_matched() -> None:
    matching = Matching(Bill([line("b")]), TARIFFS.of_row, lambda row: False)
    for name in ("a", "b"):
        matching.add(settled_row(name))
    assert classes(matching.result()) == {"equal": 1}


def test_folded_lines_are_not_passed_over() -> None:
    found = matched([], [], folded=3, folded_usd=Decimal("1.5"))
    assert (only(found).kind, only(found).bill_usd) == ("unexplained", Decimal("1.5"))


def test_some_dollars_may_stay_unexplained_if_one_says_so() -> None:
    found = matched([settled_row("a")], [line("a", "0.0100114")])
    assert not found.is_explained(Decimal("0.009"))
    assert found.is_explained(Decimal("0.01"))


ROWS = st.one_of(
    st.builds(lambda nano: settled_row("r", cost_nano=nano), st.integers(0, 10**12)),
    st.builds(lambda nano, bound: estimated("r", nano, bound), st.integers(0, 10**9), st.integers(0, 10**9)),
    st.just(settled_row("r", cost_nano=None, cost_source="unpriced")),
    st.just(open_row("r", attempts=[attempt("chatcmpl-r")])),
    st.builds(
        lambda nano: settled_row("r", cost_nano=nano, attempts=[attempt(None, maybe_billed=True)]),
        st.integers(0, 10**9),
    ),
)
AMOUNTS = st.decimals(min_value=0, max_value=1000, places=12, allow_nan=False, allow_infinity=False)


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(ROWS, st.integers(0, 9)), max_size=6),
    amounts=st.dictionaries(st.integers(0, 9), AMOUNTS, max_size=6),
)
def test_every_dollar_of_both_sides_stands_in_exactly_one_class(
    rows: list[tuple[LedgerRow, int]], amounts: dict[int, Decimal]
) -> None:
    named = {number: renamed(row, f"r{number}") for row, number in rows}
    found = matched(list(named.values()), [line(f"r{number}", amount) for number, amount in amounts.items()])
    assert found.total.bill == sum(amounts.values())
    assert found.total.ledger_nano == sum(row.cost_nano or 0 for row in named.values())
    assert set(found.by_kind) == set(KINDS)
    counted = sum(sums.findings for sums in found.by_kind.values())
    assert len(found.rows) == counted - found.by_kind["equal"].findings
    assert max(len(named), len(amounts)) - found.without_charge <= counted <= len(named) + len(amounts)


def renamed(row: LedgerRow, name: str) -> LedgerRow:
    attempts = [
        attempt(None if one.upstream_id is None else f"chatcmpl-{name}", maybe_billed=one.maybe_billed)
        for one in row.attempts
    ]
    return replace_row(row, request_id=name, attempts=attempts)


def of_intervals(rows: list[LedgerRow], *charged: str, step: str = "0.00001") -> Found:
    """What is found where these were charged in intervals of a minute from START on."""
    intervals = [
        Interval(START + 60 * at, START + 60 * at + 60, Decimal(amount), Decimal(step))
        for at, amount in enumerate(charged)
    ]
    check = Intervals(intervals, lambda row: True)
    for row in rows:
        check.add(row)
    return check.result()


def at(offset_s: float, nano: int, **fields: Any) -> LedgerRow:
    return settled_row(f"r{offset_s}", started_at=START + offset_s, cost_nano=nano, total_ms=1000, **fields)


def test_what_a_balance_fell_by_is_what_is_booked_in_between() -> None:
    found = of_intervals([at(1, 10**9), at(30, 2 * 10**9), at(70, 10**9), at(300, 10**9)], "3", "1")
    assert classes(found) == {"equal": 2}
    rounded = only(of_intervals([at(1, 1_234_567)], "0.00123"))
    assert (rounded.kind, rounded.difference) == ("rounding", Decimal("-0.000004567"))
    assert only(of_intervals([at(1, 10**9)], "1.5")).kind == "unexplained"
    assert only(of_intervals([at(1, 10**9)], "0.5")).kind == "unexplained"


def test_a_request_under_way_at_a_reading_may_be_charged_on_either_side_and_not_twice_as_much() -> None:
    astride = at(59.5, 10**9)
    assert {row.kind for row in of_intervals([astride], "0", "1").rows} == {"under_way"}
    assert classes(of_intervals([astride], "1", "0")) == {"equal": 2}
    assert only(of_intervals([astride], "1", "1.1")).kind == "unexplained"


def test_estimates_widen_a_balance_by_their_bounds() -> None:
    rows = [at(1, 10**9), at(2, 10**9, estimated=True, estimate_bound_nano=5 * 10**8)]
    for charged, kind in (
        ("1", "estimated"),
        ("2.5", "estimated"),
        ("2.6", "unexplained"),
        ("0.9", "unexplained"),
    ):
        assert only(of_intervals(rows, charged)).kind == kind


def test_what_cannot_be_put_into_figures_is_named_and_stays_unexplained() -> None:
    rows = [
        at(1, 0, attempts=[attempt(None, maybe_billed=True), attempt("x")]),
        replace_row(at(2, 0), cost_nano=None, cost_source="unpriced"),
    ]
    finding = only(of_intervals(rows, "1"))
    assert finding.kind == "unexplained"
    assert finding.reason == (
        "there are 1 requests without a known price; there are 1 failed attempts that may have been billed"
    )
    assert "topped_up" in only(of_intervals([at(1, 1)], "-5")).reason


def test_the_classes_that_explain_are_all_but_two() -> None:
    assert set(KINDS) - EXPLAINED == {"priced_differently", "unexplained"}
    assert replace(Finding("equal", "", 5, None)).difference == usd(-5)
