"""Hourly sums: kept with every change of a row, and equal to the sums of the rows to the nano-dollar."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine

from pricing.ledger.drain import Drainer
from pricing.ledger.errors import LedgerDown
from pricing.ledger.journal import JournalWriter
from pricing.ledger.row import LedgerRow
from pricing.ledger.store import RefusedCount, ReportRow, Store
from pricing.ledger.store.report import DIMENSIONS
from support.ledger_rows import START, ledger_url, open_row, settled_row
from support.postgres import Postgres

HOUR = 3600
NOON = START - 0.25


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, server: Postgres) -> Iterator[list[Store]]:
    """One ledger of each kind, for all examples."""
    made = [
        Store(ledger_url(tmp_path_factory.mktemp("rollups")), create=True),
        Store(server.new_database(), create=True),
    ]
    yield made
    for store in made:
        store.close()


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happens to a ledger: rows are booked, leases run out, days are summed up."""

    kind: str
    rows: list[LedgerRow]
    now: float = 0.0


TOKENS = st.none() | st.integers(0, 10**6)
COSTS = st.none() | st.integers(0, 10**12)


@st.composite
def versions(draw: st.DrawFn, request_id: str) -> list[tuple[str, LedgerRow]]:
    """What the life of one request can look like, each version as its step would book it."""
    same: dict[str, Any] = {
        "started_at": NOON + draw(st.integers(0, 40 * HOUR)) + draw(st.sampled_from((0.0, 0.25, 0.999999))),
        "key": draw(st.sampled_from(("a", "b"))),
        "tags": {"project": draw(st.sampled_from("xy"))},
    }

    def changing() -> dict[str, Any]:
        return {
            "target": draw(st.sampled_from(("moonshot", "vllm-a"))),
            "effort": draw(st.sampled_from(("low", "max"))),
            "cost_nano": draw(COSTS),
            "cost_source": draw(st.sampled_from(("card", "unpriced", "none", "upstream"))),
            "estimated": draw(st.booleans()),
            "assumed": draw(st.booleans()),
            "cached_tokens": draw(TOKENS),
            "prompt_tokens": draw(TOKENS),
            "cache_loss": draw(st.sampled_from(("", "expired"))),
        }

    lived = [
        ("book", open_row(request_id, owner="one", lease_until=float(until), **same, **changing()))
        for until in range(100, 100 + draw(st.integers(0, 3)))
    ]
    for _ in range(draw(st.integers(0, 2))):
        status = draw(st.sampled_from(("ok", "error", "incomplete")))
        lived.append(("book", settled_row(request_id, status=status, **same, **changing())))
    return lived


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Any order of any versions of a few requests, some of them twice, and leases that run out in between."""
    lived = [version for number in range(draw(st.integers(1, 5))) for version in draw(versions(f"r{number}"))]
    again = draw(st.lists(st.sampled_from(lived), max_size=4)) if lived else []
    steps = [Step(kind, [row]) for kind, row in draw(st.permutations([*lived, *again]))]
    for _ in range(draw(st.integers(0, 2))):
        steps.insert(draw(st.integers(0, len(steps))), Step("unsettle", [], float(draw(st.integers(99, 104)))))
    for _ in range(draw(st.integers(0, 2))):
        steps.insert(draw(st.integers(0, len(steps))), Step("sum up", []))
    return steps


EXAMPLES = count()


def replayed(store: Store, steps: list[Step], route: str) -> None:
    """Lets it happen, to requests of that route."""
    for step in steps:
        rows = [
            LedgerRow(
                **{name: getattr(row, name) for name in row.__struct_fields__}
                | {"request_id": f"{route}-{row.request_id}", "route": route}
            )
            for row in step.rows
        ]
        match step.kind:
            case "book":
                store.upsert(rows)
            case "sum up":
                while store.sum_up_day(before=NOON + 96 * HOUR):
                    pass
            case _:
                store.unsettle_expired(now=step.now)


PERIODS = st.none() | st.integers(-HOUR, 50 * HOUR) | st.sampled_from([12 * HOUR, 36 * HOUR])


@st.composite
def questions(draw: st.DrawFn) -> dict[str, Any]:
    """What a report can be asked."""
    since, until = draw(PERIODS), draw(PERIODS)
    return {
        "by": draw(st.lists(st.sampled_from(DIMENSIONS), max_size=4, unique=True)),
        "since": None if since is None else NOON + since,
        "until": None if until is None else NOON + until,
    }


def agree(store: Store, steps: list[Step], question: dict[str, Any]) -> None:
    """The sums that are kept are those of the rows."""
    route = f"example-{next(EXAMPLES)}"
    replayed(store, steps, route)
    kept = store.report(**question, where={"route": route})
    assert kept == store.report(**question, where={"route": route}, from_rows=True)


@settings(max_examples=60)
@given(histories(), questions())
def test_sums_and_rows_agree_whatever_happened(
    stores: list[Store], steps: list[Step], question: dict[str, Any]
) -> None:
    agree(stores[0], steps, question)


@settings(max_examples=10)
@given(histories(), questions())
def test_sums_and_rows_agree_on_postgresql(
    stores: list[Store], steps: list[Step], question: dict[str, Any]
) -> None:
    agree(stores[1], steps, question)


def test_the_check_finds_nothing_in_ledgers_that_were_only_booked_into(stores: list[Store]) -> None:
    for store in stores:
        store.upsert([settled_row(f"check {n}", started_at=NOON + n * 1000, cost_nano=n) for n in range(50)])
        store.upsert([open_row("check open", owner="one", lease_until=9e9), settled_row("check 7")])
        assert store.inconsistencies() == []


def test_what_a_row_was_counted_as_is_taken_back_when_it_changes(stores: list[Store]) -> None:
    unpriced: dict[str, Any] = {"cost_nano": None, "cost_source": "unpriced", "cached_tokens": None}
    seen: list[dict[str, Any]] = [{"target": "", "effort": "low"}, {"cost_nano": 5, "estimated": True}]
    for store in stores:
        for until, progress in enumerate(seen):
            store.upsert([open_row("changed", route="changes", owner="one", lease_until=until, **progress)])
        (row,) = store.report(("target", "effort"), where={"route": "changes"})
        assert (row.by["target"], row.by["effort"]) == ("moonshot", "high")
        assert (row.cost_nano, row.estimated_nano, row.open_requests) == (5, 5, 1)
        store.upsert([settled_row("changed", route="changes", **unpriced)])
        (row,) = store.report(("status",), where={"route": "changes"})
        assert (row.requests, row.by["status"], row.cost_nano, row.estimated_nano) == (1, "ok", None, 0)
        assert (row.unpriced_requests, row.open_requests, row.tokens["cached_tokens"]) == (1, 0, None)


def test_a_row_that_is_corrected_by_hand_is_corrected_in_the_sums(tmp_path: Path) -> None:
    store = Store(ledger_url(tmp_path), create=True)
    store.upsert([settled_row("a"), settled_row("b")])
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE kimi_requests SET cost_nano = 7, key = 'team-b' WHERE request_id = 'a'")
    connection.close()
    assert {row.by["key"]: row.cost_nano for row in store.report(("key",))} == {"team-a": 11_400, "team-b": 7}
    assert store.inconsistencies() == []
    store.close()


def test_a_sum_that_was_tampered_with_is_found(tmp_path: Path) -> None:
    store = Store(ledger_url(tmp_path), create=True)
    store.upsert([settled_row("a"), settled_row("b", key="team-b"), settled_row("c", started_at=START + HOUR)])
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE kimi_rollups SET cost_nano = cost_nano + 1 WHERE key = 'team-b'")
        connection.execute(f"DELETE FROM kimi_rollups WHERE hour = {int(START // HOUR) + 1}")
    connection.close()
    wrong, absent = store.inconsistencies()
    assert (wrong.group["key"], wrong.true["cost_nano"], wrong.kept["cost_nano"]) == ("team-b", 11_400, 11_401)
    assert (absent.true["requests"], absent.kept) == (1, {})
    assert store.inconsistencies(since=NOON + HOUR) == [absent]
    store.close()


def test_daily_sums_count_until_a_row_of_the_day_changes(tmp_path: Path) -> None:
    store = Store(ledger_url(tmp_path), create=True)
    days = 3
    store.upsert([settled_row(f"r{n}", started_at=START + n * 8 * HOUR) for n in range(3 * days)])
    store.upsert([settled_row("long ago", started_at=1.5)])
    summed = 0
    while store.sum_up_day(before=NOON + 36 * HOUR):
        summed += 1
    assert summed == 3  # the day of long ago, and two that are over
    assert store.inconsistencies() == []
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute(f"UPDATE kimi_daily_rollups SET cost_nano = 5 WHERE day = {int(START // (24 * HOUR))}")
    connection.close()
    assert store.report((), since=NOON - 12 * HOUR, until=NOON + 12 * HOUR)[0].cost_nano == 5  # it is read
    (wrong,) = store.inconsistencies()
    assert (wrong.group["day"], wrong.kept["cost_nano"]) == (int(START // (24 * HOUR)), 5)
    store.upsert([settled_row("late", started_at=START + 1)])
    assert store.report((), since=NOON - 12 * HOUR, until=NOON + 12 * HOUR)[0].cost_nano == 3 * 11_400
    assert store.inconsistencies() == []
    assert store.sum_up_day(before=NOON + 36 * HOUR)
    assert not store.sum_up_day(before=NOON + 36 * HOUR)
    assert store.inconsistencies() == []
    store.close()


def test_many_days_that_lost_their_sums_are_read_by_the_hour(tmp_path: Path) -> None:
    store = Store(ledger_url(tmp_path), create=True)
    days = range(40)
    store.upsert([settled_row(f"r{n}", started_at=START + n * 24 * HOUR, cost_nano=n) for n in days])
    while store.sum_up_day(before=NOON + 60 * 24 * HOUR):
        pass
    store.upsert([settled_row(f"late {n}", started_at=START + n * 24 * HOUR, cost_nano=n) for n in days[::2]])
    for since, until, groups in ((None, None, 40), (START + HOUR, START + 30.3 * 24 * HOUR, 30)):
        found = store.report(("day",), since=since, until=until)
        assert found == store.report(("day",), since=since, until=until, from_rows=True)
        assert len(found) == groups
    store.close()


def test_absurd_costs_are_unknown_and_hold_up_nothing(stores: list[Store]) -> None:
    for store in stores:
        absurd = [
            settled_row(f"absurd {n}", route="absurd", cost_nano=2**62, prompt_tokens=2**62) for n in range(4)
        ]
        store.upsert([*absurd, settled_row("sane", route="absurd")])
        (row,) = store.report((), where={"route": "absurd"})
        assert (row.requests, row.cost_nano, row.unknown["prompt_tokens"]) == (5, 11_400, 4)


def at_revision(directory: Path, revision: str) -> None:
    """A ledger as an older version left it."""
    engine = create_engine(ledger_url(directory))
    config = Config()
    config.set_main_option("script_location", "pricing.ledger:migrations")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()
    with sqlite3.connect(directory / "ledger.db") as raw:
        raw.execute("PRAGMA journal_mode = WAL")
    raw.close()


OLD_ROW = """
INSERT INTO kimi_requests (request_id, started_at, hour, key, route, target, model, tier, effort, ttl, status,
  rank, owner, lease_until, prompt_tokens, cost_nano, cost_source, estimated, assumed, prefix, data)
VALUES (?, ?, ?, 'k', 'r', 't', 'm', 'standard', 'high', '', 'ok', 2, '', 0, 10, ?, 'card', 0, 0, '',
  '{"request_id":"old","started_at":1.5,"status":"ok"}')
"""


def test_rows_of_the_first_schema_are_in_the_sums_after_the_migration(tmp_path: Path) -> None:
    at_revision(tmp_path, "0001")
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        for number in range(50):
            values = (f"r{number}", START + number * 600, int((START + number * 600) // HOUR), 10**12 + number)
            connection.execute(OLD_ROW, values)
    connection.close()
    store = Store(ledger_url(tmp_path), create=True)
    (total,) = store.report(())
    assert (total.requests, total.cost_nano) == (50, 50 * 10**12 + sum(range(50)))
    assert store.report(("hour",)) == store.report(("hour",), from_rows=True)
    assert store.inconsistencies() == []
    row = store.get("r0")
    assert row is not None
    assert row.cache_loss == ""
    # An older gateway, which runs on beside, writes what it knows of a row; the sums follow all the same.
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute(OLD_ROW, ("late", START, int(START // HOUR), 5))
    connection.close()
    assert store.report(())[0].requests == 51
    assert store.inconsistencies() == []
    store.close()


def test_a_migration_waits_longer_for_its_turn_than_a_write(tmp_path: Path) -> None:
    at_revision(tmp_path, "0001")
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute(OLD_ROW, ("other", START, int(START // HOUR), 5))
    made: list[Store] = []
    url = ledger_url(tmp_path)
    thread = threading.Thread(target=lambda: made.append(Store(url, create=True, busy_timeout_ms=50)))
    thread.start()
    time.sleep(0.3)
    assert made == []
    other.execute("COMMIT")
    thread.join(20)
    (store,) = made
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerDown, match="locked"):
        store.upsert([settled_row("a")])
    other.execute("ROLLBACK")
    other.close()
    assert store.report(())[0].cost_nano == 5
    store.close()


def test_refusals_are_counted_by_the_hour(tmp_path: Path) -> None:
    now = [NOON]
    writer = JournalWriter(tmp_path / "journal", ledger_url(tmp_path), max_bytes=1 << 20, fsync=False)
    drainer = Drainer(tmp_path / "journal", ledger_url(tmp_path), own=writer, clock=lambda: now[0])
    for _ in range(3):
        drainer.refused("", "invalid_api_key")
    now[0] += HOUR
    drainer.refused("team-a", "model_not_found")
    assert drainer.stop(10)
    writer.close()
    store = Store(ledger_url(tmp_path))
    assert store.refused() == [
        RefusedCount("", "invalid_api_key", 3),
        RefusedCount("team-a", "model_not_found", 1),
    ]
    assert store.refused(since=NOON + HOUR) == [RefusedCount("team-a", "model_not_found", 1)]
    assert store.refused(until=NOON + HOUR) == [RefusedCount("", "invalid_api_key", 3)]
    assert store.report(()) == []
    store.close()


def test_refusals_wait_for_a_ledger_that_is_away(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").mkdir()
    writer = JournalWriter(tmp_path / "journal", ledger_url(tmp_path), max_bytes=1 << 20, fsync=False)
    drainer = Drainer(tmp_path / "journal", ledger_url(tmp_path), own=writer, interval_s=0.01)
    drainer.start()
    drainer.refused("team-a", "budget_exceeded")
    (tmp_path / "ledger.db").rmdir()
    assert drainer.stop(10)
    writer.close()
    store = Store(ledger_url(tmp_path))
    assert store.refused() == [RefusedCount("team-a", "budget_exceeded", 1)]
    store.close()


def rows_by(store: Store, name: str) -> dict[str | None, ReportRow]:
    """Groups by one name."""
    return {row.by[name]: row for row in store.report((name,))}


def test_why_caches_were_lost_is_a_dimension(tmp_path: Path) -> None:
    store = Store(ledger_url(tmp_path), create=True)
    store.upsert(
        [settled_row("a"), settled_row("b", cache_loss="expired"), settled_row("c", cache_loss="expired")]
    )
    assert {why: row.requests for why, row in rows_by(store, "cache_loss").items()} == {"": 1, "expired": 2}
    store.close()
