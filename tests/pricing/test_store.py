"""The ledger in SQL, SQLite and PostgreSQL: a row only climbs, schemas are told apart, no reader creates one."""

import sqlite3
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from pricing.ledger.errors import LedgerDown, LedgerMissing, LedgerTooNew, StoreError
from pricing.ledger.records import Ended, Settled, decode_to_book, encode
from pricing.ledger.row import Bookable, LedgerRow
from pricing.ledger.store import Store
from pricing.ledger.store.tables import REVISIONS, metadata
from support.ledger_rows import START, ledger_url, open_row, settled_row
from support.postgres import Postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def store(tmp_path: Path, server: Postgres, request: pytest.FixtureRequest) -> Store:
    """A new ledger."""
    url = server.new_database() if request.param == "postgresql" else ledger_url(tmp_path)
    return Store(url, create=True)


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Store:
    """A new ledger in a file."""
    return Store(ledger_url(tmp_path), create=True)


def held(request_id: str, *, lease_until: float, owner: str = "one", **fields: object) -> LedgerRow:
    """An open row with its owner and lease."""
    return open_row(request_id, owner=owner, lease_until=lease_until, **fields)


def test_a_row_comes_back_whole(store: Store) -> None:
    row = settled_row("a", tags={"project": "x"}, raw_usage={"prompt_tokens": 7, "nested": {"n": [1, None]}})
    store.upsert([row])
    assert store.get("a") == row
    assert store.get("b") is None
    store.close()


def test_booking_twice_changes_nothing(store: Store) -> None:
    rows = [settled_row(f"r{number}", tags={"n": str(number % 3)}) for number in range(200)]
    store.upsert(rows)
    store.upsert(rows[::-1])
    (total,) = store.report(())
    assert (total.requests, total.cost_nano) == (200, 200 * 11_400)
    store.close()


def test_a_settled_row_is_never_overwritten(store: Store) -> None:
    store.upsert([settled_row("a")])
    store.upsert([held("a", lease_until=9e9)])
    store.upsert([open_row("a", status="unsettled")])
    store.upsert([settled_row("a", status="error", cost_nano=5)])
    row = store.get("a")
    assert row is not None
    assert (row.status, row.cost_nano) == ("ok", 11_400)
    store.close()


def test_older_progress_does_not_replace_newer(store: Store) -> None:
    store.upsert([held("a", lease_until=200, completion_tokens=9)])
    store.upsert([held("a", lease_until=100, completion_tokens=1)])
    row = store.get("a")
    assert row is not None
    assert (row.completion_tokens, row.lease_until) == (9, 200)
    store.upsert([held("a", lease_until=300, completion_tokens=12)])
    row = store.get("a")
    assert row is not None
    assert row.completion_tokens == 12
    store.close()


def test_only_a_living_owner_takes_an_unsettled_row_back(store: Store) -> None:
    store.upsert([held("a", lease_until=100)])
    assert store.unsettle_expired(now=101) == 1
    store.upsert([held("a", lease_until=100)])
    assert store.settled_state(["a", "b"]) == {"a": False}
    row = store.get("a")
    assert row is not None
    assert row.status == "unsettled"
    store.upsert([held("a", lease_until=160, owner="two")])
    row = store.get("a")
    assert row is not None
    assert row.status == "unsettled"
    store.upsert([held("a", lease_until=160)])
    row = store.get("a")
    assert row is not None
    assert row.status == "open"
    store.close()


def test_leases_are_renewed_and_run_out_by_owner(store: Store) -> None:
    store.upsert([held("a", lease_until=100), held("b", lease_until=100, owner="two"), settled_row("c")])
    store.renew("one", lease_until=200)
    assert store.unsettle_expired(now=150) == 1
    assert store.unsettle_owner("one") == 1
    statuses = [row.status for row in map(store.get, "abc") if row is not None]
    assert statuses == ["unsettled", "unsettled", "ok"]
    store.close()


def test_one_absurd_count_does_not_hold_up_the_rest(store: Store) -> None:
    store.upsert([settled_row("a", prompt_tokens=10**30, model="x\0y"), settled_row("b")])
    row = store.get("a")
    assert row is not None
    assert row.prompt_tokens == 10**30
    (total,) = store.report(())
    assert total.unknown["prompt_tokens"] == 1
    assert total.tokens["prompt_tokens"] == 7
    store.close()


def test_offsets_are_remembered_with_the_rows(store: Store) -> None:
    store.book([settled_row("a")], {"x.journal": 100})
    store.book([settled_row("b")], {"x.journal": 250})
    assert store.drained_bytes("x.journal") == 250
    assert store.drained_bytes("y.journal") == 0
    store.forget(["x.journal"])
    assert store.drained_bytes("x.journal") == 0
    store.close()


def test_a_reader_never_creates_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerMissing, match=r"no ledger at sqlite:///.*ledger\.db"):
        Store(ledger_url(tmp_path))
    assert list(tmp_path.iterdir()) == []
    sqlite3.connect(tmp_path / "ledger.db").close()
    with pytest.raises(LedgerMissing):
        Store(ledger_url(tmp_path))


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    Store(ledger_url(tmp_path), create=True).close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE kimi_ledger_version SET version_num = '0099'")
    connection.close()
    for create in (False, True):
        with pytest.raises(LedgerTooNew, match=f"schema 0099, this version knows up to {REVISIONS[-1]}"):
            Store(ledger_url(tmp_path), create=create)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("this is not a database at all, however long it may be" * 20)
    with pytest.raises(StoreError, match="not a database"):
        Store(ledger_url(tmp_path))


def test_a_directory_in_the_ledgers_place_is_down(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").mkdir()
    with pytest.raises(LedgerDown, match="does not answer"):
        Store(ledger_url(tmp_path), create=True)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite://", "a ledger in memory would vanish"),
        ("nonsense", "cannot be read"),
        ("oracledb://x/y", "unknown kind"),
        ("mysql+mysqldb://user:pw@host/db", "mysql"),
    ],
)
def test_urls_that_cannot_work_say_why(url: str, expected: str) -> None:
    with pytest.raises(StoreError, match=expected) as caught:
        Store(url)
    assert "pw" not in str(caught.value)


def test_a_ledger_deleted_under_a_gateway_is_made_anew(sqlite_store: Store, tmp_path: Path) -> None:
    sqlite_store.upsert([settled_row("a")])
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    sqlite_store.upsert([settled_row("b")])
    sqlite_store.close()
    again = Store(ledger_url(tmp_path))
    assert again.get("b") is not None
    again.close()


def test_many_may_create_it_at_once(tmp_path: Path) -> None:
    failures: list[Exception] = []

    def create(number: int) -> None:
        try:
            store = Store(ledger_url(tmp_path), create=True)
            store.upsert([settled_row(f"r{number}")])
            store.close()
        except StoreError as err:
            failures.append(err)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    store = Store(ledger_url(tmp_path))
    assert store.report(())[0].requests == 6
    store.close()


def test_a_busy_database_is_down_and_not_broken(sqlite_store: Store, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    impatient = Store(ledger_url(tmp_path), busy_timeout_ms=50)
    with pytest.raises(LedgerDown, match="locked"):
        impatient.upsert([settled_row("a")])
    other.execute("ROLLBACK")
    other.close()
    impatient.upsert([settled_row("a")])
    impatient.close()
    sqlite_store.close()


def test_the_migrations_make_the_tables_the_code_uses(sqlite_store: Store, tmp_path: Path) -> None:
    sqlite_store.close()
    engine = create_engine(ledger_url(tmp_path))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "kimi_ledger_version"})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_the_code_knows_every_migration() -> None:
    config = Config()
    config.set_main_option("script_location", "pricing.ledger:migrations")
    scripts = ScriptDirectory.from_config(config)
    assert tuple(script.revision for script in scripts.walk_revisions())[::-1] == REVISIONS


def test_the_start_is_kept_to_the_digit(store: Store) -> None:
    store.upsert([open_row("a", started_at=START + 0.123456, owner="one", lease_until=1.5)])
    row = store.get("a")
    assert row is not None
    assert row.started_at == START + 0.123456
    store.close()


def read_to_book(row: LedgerRow) -> Bookable:
    """The row, by way of a journal."""
    record = decode_to_book(encode(Settled(row)))
    assert isinstance(record, Ended)
    return record.row


def test_any_number_of_rows_is_booked_with_tags_and_sums(store: Store) -> None:
    for count in (1, 7, 8, 63, 64, 137):
        key = f"key-{count}"
        rows = [
            settled_row(f"{count}-{number}", key=key, tags={"n": str(number), "key": key})
            for number in range(count)
        ]
        store.upsert([open_row(f"{count}-0", key=key, owner="one", lease_until=9.0)])
        for _ in range(2):
            store.upsert([read_to_book(row) for row in rows])
        assert [store.get(row.request_id) for row in rows] == rows
        (total,) = store.report((), where={"key": key})
        assert (total.requests, total.open_requests, total.tokens["prompt_tokens"]) == (count, 0, 7 * count)
        assert {line.by["tag:key"]: line.requests for line in store.report(["tag:key"])}[key] == count
    assert store.inconsistencies() == []
    store.close()


def test_what_a_database_cannot_hold_is_replaced_on_the_way_from_the_journal(store: Store) -> None:
    store.upsert([read_to_book(settled_row("a", model="k\0", tags={"t\0": "\0v"}, prompt_tokens=10**15))])
    (line,) = store.report(["model"], from_rows=True)
    assert (line.by["model"], line.unknown["prompt_tokens"]) == ("k\ufffd", 1)
    row = store.get("a")
    assert row is not None
    assert (row.model, row.prompt_tokens) == ("k\0", 10**15)
    store.close()
