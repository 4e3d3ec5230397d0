"""Reports: exact sums by any dimension, unknown never shown as zero."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pricing.ledger.row import LedgerRow
from pricing.ledger.store import ReportRow, Store
from pricing.money import usd_text
from support.ledger_rows import START, USD, ledger_url, open_row, settled_row

DAY = 86_400


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A new ledger."""
    made = Store(ledger_url(tmp_path), create=True)
    yield made
    made.close()


def keyed(rows: list[ReportRow]) -> dict[tuple[str | None, ...], ReportRow]:
    """Groups by their values."""
    return {tuple(row.by.values()): row for row in rows}


def test_a_thousand_small_costs_add_up_to_the_last_digit(store: Store) -> None:
    store.upsert([settled_row(f"r{number}") for number in range(1000)])
    (total,) = store.report(())
    assert usd_text(11_400) == "0.0000114"
    assert usd_text(total.cost_nano or 0) == "0.0114"


def test_groups_are_by_time_first_and_then_the_dearest(store: Store) -> None:
    store.upsert(
        [
            settled_row("a", started_at=START - DAY, model="kimi-k3.1-pro", cost_nano=1),
            settled_row("b", started_at=START, model="kimi-k3.1-pro", cost_nano=5),
            settled_row("c", started_at=START + 3600, model="kimi-k3.1-pro-highspeed", cost_nano=7),
        ]
    )
    assert [dict(row.by) for row in store.report(("day", "model"))] == [
        {"day": "2026-11-29", "model": "kimi-k3.1-pro"},
        {"day": "2026-11-30", "model": "kimi-k3.1-pro-highspeed"},
        {"day": "2026-11-30", "model": "kimi-k3.1-pro"},
    ]
    assert [row.by["hour"] for row in store.report(("hour",), since=START)] == [
        "2026-11-30T12:00Z",
        "2026-11-30T13:00Z",
    ]


@pytest.mark.parametrize("name", ["model", "target", "key", "tier", "effort", "route", "status"])
def test_every_dimension_groups(store: Store, name: str) -> None:
    store.upsert([settled_row("a"), settled_row("b"), settled_row("c", **{name: "error"})])
    assert sorted(row.requests for row in store.report((name,))) == [1, 2]


def test_tags_group_and_their_absence_is_told(store: Store) -> None:
    store.upsert(
        [
            settled_row("a", tags={"project": "x", "user": "u"}),
            settled_row("b", tags={"project": "x"}),
            settled_row("c"),
        ]
    )
    groups = keyed(store.report(("tag:project", "tag:user")))
    assert {values: row.requests for values, row in groups.items()} == {
        ("x", "u"): 1,
        ("x", None): 1,
        (None, None): 1,
    }
    assert keyed(store.report(("key",), where={"tag:project": "x"}))[("team-a",)].requests == 2


def test_an_unknown_dimension_is_refused_with_the_known_ones(store: Store) -> None:
    for name in ("colour", "tag:", "data"):
        with pytest.raises(ValueError, match=r"expected day, hour, model.*tag:KEY"):
            store.report((name,))


def test_a_cost_stands_in_one_class_estimated_before_assumed(store: Store) -> None:
    store.upsert(
        [
            settled_row("a", cost_nano=1),
            settled_row("b", cost_nano=10, assumed=True),
            settled_row("c", cost_nano=100, estimated=True),
            settled_row("d", cost_nano=1000, estimated=True, assumed=True),
        ]
    )
    (total,) = store.report(())
    assert (total.cost_nano, total.estimated_nano, total.assumed_nano) == (1111, 1100, 10)


def test_unknown_counts_are_unknown_and_not_zero(store: Store) -> None:
    store.upsert(
        [
            settled_row("a", target="vllm-a", cached_tokens=None),
            settled_row("b", target="moonshot", cached_tokens=0),
            settled_row("c", target="moonshot", cached_tokens=None),
        ]
    )
    groups = keyed(store.report(("target",)))
    assert groups[("vllm-a",)].tokens["cached_tokens"] is None
    assert groups[("moonshot",)].tokens["cached_tokens"] == 0
    assert groups[("moonshot",)].unknown["cached_tokens"] == 1


def test_unpriced_rows_are_counted_and_their_cost_is_unknown(store: Store) -> None:
    unpriced = {"cost_nano": None, "cost_source": "unpriced"}
    store.upsert(
        [
            settled_row("a", target="vllm-a", **unpriced),
            settled_row("b", target="moonshot"),
            settled_row("c", target="moonshot", **unpriced),
        ]
    )
    groups = keyed(store.report(("target",)))
    assert (groups[("vllm-a",)].cost_nano, groups[("vllm-a",)].unpriced_requests) == (None, 1)
    assert (groups[("moonshot",)].cost_nano, groups[("moonshot",)].unpriced_requests) == (11_400, 1)


def test_requests_that_used_nothing_cost_nothing(store: Store) -> None:
    store.upsert([settled_row("a", status="error", cost_nano=None, cost_source="none")])
    assert store.report(())[0].cost_nano == 0


def test_open_and_unsettled_requests_are_told(store: Store) -> None:
    store.upsert([open_row("a", owner="x", lease_until=1), open_row("b", status="unsettled"), settled_row("c")])
    (total,) = store.report(())
    assert (total.requests, total.open_requests, total.unsettled_requests) == (3, 1, 1)
    assert total.cost_nano == 11_400


def test_the_end_of_a_period_is_not_in_it(store: Store) -> None:
    store.upsert([settled_row("a", started_at=START), settled_row("b", started_at=START + DAY)])
    assert store.report((), since=START, until=START + DAY)[0].requests == 1
    assert store.report((), since=START + 0.001)[0].requests == 1
    assert store.report((), until=START) == []


def test_sums_far_beyond_a_float_are_exact(store: Store) -> None:
    store.upsert([settled_row(f"r{number}", cost_nano=9_000_000 * USD + 1) for number in range(100)])
    assert store.report(())[0].cost_nano == 900_000_000 * USD + 100


@st.composite
def priced_rows(draw: st.DrawFn) -> list[LedgerRow]:
    """Rows of any cost, class and group, in any order."""
    rows = [
        settled_row(
            f"r{number}",
            cost_nano=draw(st.none() | st.integers(0, 10**12)),
            cost_source="card",
            estimated=draw(st.booleans()),
            assumed=draw(st.booleans()),
            key=draw(st.sampled_from(("a", "b", "c"))),
            started_at=START + draw(st.integers(0, 3 * DAY)),
        )
        for number in range(draw(st.integers(1, 12)))
    ]
    return draw(st.permutations(rows))


EXAMPLES = count()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(priced_rows())
def test_groups_and_classes_add_up_to_the_rows(store: Store, rows: list[LedgerRow]) -> None:
    route = f"example-{next(EXAMPLES)}"  # one ledger for all examples, each under a route of its own
    for row in rows:
        row.request_id, row.route = f"{route}-{row.request_id}", route
    store.upsert(rows)
    groups = store.report(("day", "key"), where={"route": route})
    costs = [row.cost_nano or 0 for row in rows]
    assert sum(group.cost_nano or 0 for group in groups) == sum(costs)
    assert sum(group.estimated_nano for group in groups) == sum(
        cost for row, cost in zip(rows, costs, strict=True) if row.estimated
    )
    assert sum(group.assumed_nano for group in groups) == sum(
        cost for row, cost in zip(rows, costs, strict=True) if row.assumed and not row.estimated
    )
    assert sum(group.requests for group in groups) == len(rows)
