"""`kimi-pricing report` beyond plain sums: against the period before, and cut to the dearest."""

import csv
import io
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pricing.ledger.row import LedgerRow
from pricing.ledger.store import ReportRow
from pricing.ledger.store.report import TOKEN_COLUMNS
from pricing.report_groups import change_of, cut, dearest, joined, summed
from support.ledger_rows import START, USD, settled_row
from support.pricing_cli import book_rows, help_examples, pricing_json, run_pricing, too_wide

DAY_S = 86_400
WEEK = ("--since", "2026-11-24", "--until", "2026-12-01")
"""Seven days, START among them."""


def spent(request_id: str, usd: int, *, days_ago: int = 0, **fields: Any) -> LedgerRow:
    """A request that cost so many whole dollars."""
    return settled_row(request_id, started_at=START - days_ago * DAY_S, cost_nano=usd * USD, **fields)


def two_weeks() -> list[LedgerRow]:
    """Key a doubles, b is new, c is gone, d has no known price."""
    return [
        spent("a1", 3, key="a", days_ago=8),
        spent("a2", 6, key="a"),
        spent("b2", 1, key="b"),
        spent("c1", 2, key="c", days_ago=9),
        spent("old", 50, key="a", days_ago=20),
        settled_row("d2", key="d", cost_nano=None, cost_source="unpriced"),
    ]


def test_each_group_stands_beside_the_period_of_equal_length_before(tmp_path: Path) -> None:
    book_rows(tmp_path, two_weeks())
    found = pricing_json(tmp_path, "report", "--by", "key", *WEEK, "--compare-previous")
    names = ("previous_requests", "previous_cost_usd", "difference_usd", "difference_percent")
    assert {row["key"]: tuple(row[name] for name in names) for row in found["rows"]} == {
        "a": (1, "3", "3", "100.0"),
        "b": (0, "0", "1", None),
        "c": (1, "2", "-2", "-100.0"),
        "d": (0, "0", None, None),
    }
    assert found["previous"] == {
        "since": "2026-11-17T00:00:00.000Z",
        "until": "2026-11-24T00:00:00.000Z",
        "total_usd": "5",
        "difference_usd": "2",
        "difference_percent": "40.0",
    }
    assert found["total_usd"] == "7"
    gone = found["rows"][-1]
    assert (gone["key"], gone["requests"], gone["cost_usd"], gone["prompt_tokens"]) == ("c", 0, "0", 0)


def test_days_and_hours_meet_those_of_the_period_before(tmp_path: Path) -> None:
    book_rows(tmp_path, two_weeks())
    rows = pricing_json(tmp_path, "report", "--by", "day,key", *WEEK, "--compare-previous")["rows"]
    pairs = {(row["day"], row["key"]): (row["cost_usd"], row["previous_cost_usd"]) for row in rows}
    assert pairs[("2026-11-30", "a")] == ("6", "0")
    assert pairs[("2026-11-29", "a")] == ("0", "3")  # 8 days before START, and 7 days later
    assert pairs[("2026-11-28", "c")] == ("0", "2")
    by_hour = pricing_json(
        tmp_path,
        "report",
        "--by",
        "hour",
        "--since",
        "2026-11-30T06:00",
        "--until",
        "2026-11-30T13:00",
        "--compare-previous",
    )
    assert [row["hour"] for row in by_hour["rows"]] == ["2026-11-30T12:00Z"]


def test_a_day_that_cannot_meet_another_is_refused_with_the_reason(tmp_path: Path) -> None:
    book_rows(tmp_path, two_weeks())
    words = ("report", "--by", "day", "--since", "2026-11-22T12:00", "--until", "2026-12-01", "--compare-previous")
    stderr = run_pricing(tmp_path, *words, expect=2).stderr
    assert "with day in --by the period has to be whole days long" in stderr
    assert "it is 8 days, 12:00:00" in stderr


def test_without_a_beginning_or_with_an_early_end_there_is_no_period_before(tmp_path: Path) -> None:
    book_rows(tmp_path, [])
    assert "needs --since" in run_pricing(tmp_path, "report", "--compare-previous", expect=2).stderr
    words = ("report", "--compare-previous", "--since", "2026-11-02", "--until", "2026-11-01")
    assert "ends after it begins" in run_pricing(tmp_path, *words, expect=2).stderr
    words = ("report", "--compare-previous", "--since", "0002-01-01", "--until", "2026-11-01")
    assert "use a later --since" in run_pricing(tmp_path, *words, expect=2).stderr


def test_the_dearest_are_shown_and_the_others_summed_so_that_totals_hold(tmp_path: Path) -> None:
    keys = {"a": 5, "b": 4, "c": 3, "d": 2, "e": 1}
    rows = [spent(key, usd, key=key, estimated=key == "d") for key, usd in keys.items()]
    book_rows(tmp_path, [*rows, settled_row("u", key="u", cost_nano=None, cost_source="unpriced")])
    whole = pricing_json(tmp_path, "report", "--by", "key,model")
    found = pricing_json(tmp_path, "report", "--by", "key,model", "--top", "2")
    assert [row["key"] for row in found["rows"]] == ["a", "b", "other"]
    other = found["rows"][-1]
    assert (other["model"], other["requests"], other["cost_usd"], other["estimated_usd"]) == (None, 4, "6", "2")
    assert (other["other_groups"], other["unpriced_requests"]) == (4, 1)
    totals = ("total_usd", "measured_usd", "estimated_usd", "unpriced_requests")
    assert [found[name] for name in totals] == [whole[name] for name in totals]
    all_of_them = pricing_json(tmp_path, "report", "--by", "key", "--top", "6")["rows"]
    assert len(all_of_them) == 6
    assert all("other_groups" not in row for row in all_of_them)


def test_the_cut_keeps_the_order_of_time(tmp_path: Path) -> None:
    book_rows(tmp_path, [spent("x", 1, days_ago=3), spent("y", 9, days_ago=2), spent("z", 5, days_ago=1)])
    found = pricing_json(tmp_path, "report", "--by", "day", "--top", "2")
    assert [row["day"] for row in found["rows"]] == ["2026-11-28", "2026-11-29", "other"]


def test_table_and_csv_have_comparison_and_cut_together_and_fit_the_page(tmp_path: Path) -> None:
    book_rows(tmp_path, two_weeks())
    words = ("report", "--by", "key", *WEEK, "--compare-previous", "--top", "1")
    printed = run_pricing(tmp_path, *words).stdout
    assert too_wide(printed) == []
    changes = [line.split() for line in printed.splitlines() if line.startswith(("a ", "other ", "total "))]
    assert ["a", "6", "3", "+3", "+100.0"] in changes
    assert ["other", "1", "2", "-1", "-50.0"] in changes
    assert ["total", "7", "5", "+2", "+40.0"] in changes
    assert "before: requests from 2026-11-17T00:00:00.000Z" in printed
    assert "other: the 3 groups that are not among the dearest" in printed
    rows = list(csv.DictReader(io.StringIO(run_pricing(tmp_path, *words, "--format", "csv").stdout)))
    assert [(row["key"], row["difference_usd"], row["other_groups"]) for row in rows] == [
        ("a", "3", ""),
        ("other", "-1", "3"),
    ]


def test_a_report_by_tag_names_the_requests_without_it(tmp_path: Path) -> None:
    book_rows(tmp_path, [spent("a", 2, tags={"project": "x"}), spent("b", 1)])
    found = pricing_json(tmp_path, "report", "--by", "tag:project", "--top", "5")
    assert [(row["tag:project"], row["cost_usd"]) for row in found["rows"]] == [("x", "2"), (None, "1")]


def test_rows_that_retention_deleted_are_said_to_be_missing(tmp_path: Path) -> None:
    from pricing.ledger.store import Store

    book_rows(tmp_path, two_weeks())
    store = Store(f"sqlite:///{tmp_path / 'kimi-ledger.db'}")
    store.delete_before(START - 5 * DAY_S)
    store.close()
    assert "may be deleted (retention_days)" in run_pricing(tmp_path, "report", "--by", "tag:x").stdout
    recent = run_pricing(tmp_path, "report", "--since", "2026-11-30").stdout
    assert "retention_days" not in recent


def test_every_example_of_its_help_runs(tmp_path: Path) -> None:
    book_rows(tmp_path, two_weeks())
    examples = list(help_examples(tmp_path, "report"))
    assert len(examples) >= 7
    for words in examples:
        assert run_pricing(tmp_path, *words).stdout


ROWS = st.builds(
    lambda key, requests, tokens, cost, unpriced: ReportRow(
        by={"key": key, "tier": "standard"},
        requests=requests,
        tokens=dict.fromkeys(TOKEN_COLUMNS, tokens),
        unknown=dict.fromkeys(TOKEN_COLUMNS, 0 if tokens is not None else requests),
        cost_nano=cost,
        estimated_nano=0,
        assumed_nano=0,
        unpriced_requests=unpriced,
        open_requests=0,
        unsettled_requests=0,
    ),
    st.sampled_from("abcdefgh"),
    st.integers(1, 9),
    st.none() | st.integers(0, 10**9),
    st.none() | st.integers(0, 10**15),
    st.integers(0, 9),
)
REPORTS = st.lists(ROWS, max_size=8, unique_by=lambda row: row.by["key"])


@settings(max_examples=100, deadline=None)
@given(now=REPORTS, before=REPORTS, top=st.integers(1, 9))
def test_no_sum_changes_by_comparing_and_cutting(now: list[ReportRow], before: list[ReportRow], top: int) -> None:
    rows, earlier = joined(now, before, timedelta(days=7))
    assert [row.by for row in rows] == [row.by for row in earlier]
    kept, others = dearest(rows, top)
    assert summed({}, cut(rows, kept, others)) == summed({}, rows)
    assert summed({}, cut(earlier, kept, others)) == summed({}, earlier)
    for left, right in ((rows, now), (earlier, before)):
        assert sum(row.cost_nano or 0 for row in left) == sum(row.cost_nano or 0 for row in right)
        assert sum(row.requests for row in left) == sum(row.requests for row in right)
    if others:
        assert min((rows[place].cost_nano or 0) for place in kept) >= max(
            (rows[place].cost_nano or 0) for place in others
        )


def test_a_change_is_exact_and_its_percentage_rounded_to_a_tenth() -> None:
    assert change_of(2_000_000_000_000_000_001, 3).nano == 1_999_999_999_999_999_998
    assert change_of(4, 3).percent == Decimal("33.3")
    assert change_of(0, 3).percent == Decimal("-100.0")
    assert (change_of(None, 3).nano, change_of(3, 0).percent) == (None, None)
