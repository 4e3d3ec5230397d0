"""Retention: old rows go, a few at a time and beside the booking; every sum and every budget stays."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pricing.ledger.drain import Drainer
from pricing.ledger.journal import JournalWriter
from pricing.ledger.store import Store
from support.ledger_rows import START, ledger_url, open_row, settled_row

HOUR = 3600
DAY = 86_400
NOON = START - 0.25


class Clock:
    """Unix seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A ledger with a row each hour, for ten days."""
    made = Store(ledger_url(tmp_path), create=True)
    made.upsert([settled_row(f"r{n}", started_at=START - n * HOUR, tags={"n": str(n % 2)}) for n in range(240)])
    yield made
    made.close()


def eventually(claim: Callable[[], bool], *, timeout_s: float = 10) -> None:
    """Waits until the claim holds."""
    end = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.01)


def drain(directory: Path, clock: Clock, *, retention_days: int) -> tuple[JournalWriter, Drainer]:
    """The drainer of one process, running."""
    url = ledger_url(directory)
    writer = JournalWriter(directory / "journal", url, max_bytes=1 << 20, fsync=False)
    made = Drainer(
        directory / "journal", url, own=writer, interval_s=0.01, retention_days=retention_days, clock=clock
    )
    made.start()
    return writer, made


def test_old_rows_go_and_no_sum_changes(store: Store, tmp_path: Path) -> None:
    before = {by: store.report(by) for by in [(), ("key",), ("day", "status"), ("hour",)]}
    assert store.kept_since() is None
    writer, drainer = drain(tmp_path, Clock(), retention_days=3)
    eventually(lambda: store.report((), from_rows=True)[0].requests <= 73)
    writer.append_settled(settled_row("new", key="team-b"))
    assert drainer.stop(10)
    writer.close()
    assert store.get("r71") is not None
    assert store.get("r100") is None
    assert store.kept_since() == NOON - 3 * DAY
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        assert connection.execute("SELECT count(*) FROM kimi_request_tags").fetchone()[0] <= 73
    connection.close()
    after = {by: store.report(by, where={"key": "team-a"}) for by in before}
    assert after == before  # what a budget of the period `total` is measured by is among them
    assert store.report(("key",))[-1].by == {"key": "team-b"}
    assert store.inconsistencies() == []


def test_a_restart_with_a_shorter_retention_goes_on_from_there(store: Store) -> None:
    assert store.delete_before(START - 5 * DAY, limit=1000) > 0
    kept = store.kept_since()
    assert kept is not None
    assert store.delete_before(START - 8 * DAY) == 0
    assert store.kept_since() == kept
    assert store.delete_before(START - 2 * DAY) > 0
    assert store.kept_since() == kept + 3 * DAY


def test_only_whole_hours_go_and_at_most_as_many_as_asked_for(store: Store) -> None:
    store.upsert([settled_row(f"same hour {n}", started_at=NOON - 9 * DAY + n) for n in (0, 1799, 3599)])
    assert store.delete_before(NOON - 9 * DAY + 1800, limit=10) == 10
    assert store.delete_before(NOON - 9 * DAY + 1800, limit=1000) < 20
    assert all(store.get(f"same hour {n}") is not None for n in (0, 1799, 3599))


def test_what_is_under_way_stays_until_it_has_ended(store: Store) -> None:
    store.upsert([open_row("long", started_at=START - 9.5 * DAY, owner="one", lease_until=9e9)])
    store.delete_before(START - 9 * DAY, limit=1000)
    store.upsert([settled_row("long", started_at=START - 9.5 * DAY)])
    (total,) = store.report(())
    assert (total.requests, total.open_requests, total.cost_nano) == (241, 0, 241 * 11_400)
    assert store.delete_before(START - 9 * DAY, limit=1000) == 1
    assert store.report(()) == [total]


def test_without_retention_nothing_goes(store: Store, tmp_path: Path) -> None:
    clock = Clock()
    clock.now += 1000 * DAY
    writer, drainer = drain(tmp_path, clock, retention_days=0)
    eventually(lambda: not store.sum_up_day(before=clock.now - HOUR))  # the drainer has tidied up
    assert drainer.stop(10)
    writer.close()
    assert store.report((), from_rows=True)[0].requests == 240


def test_days_that_are_over_are_summed_up_by_the_drainer(store: Store, tmp_path: Path) -> None:
    writer, drainer = drain(tmp_path, Clock(), retention_days=0)
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        days = "SELECT count(*) FROM kimi_summed_days"
        eventually(lambda: connection.execute(days).fetchone()[0] == 10)
    connection.close()
    assert drainer.stop(10)
    writer.close()
    assert store.report(("day", "key")) == store.report(("day", "key"), from_rows=True)
    assert store.inconsistencies() == []
