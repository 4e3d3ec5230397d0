"""The ledger on PostgreSQL: several replicas, outages, and what is never said aloud."""

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from pricing.ledger.address import redacted
from pricing.ledger.drain import Drainer
from pricing.ledger.errors import LedgerDown, LedgerMissing, LedgerTooNew, StoreError
from pricing.ledger.journal import JournalWriter
from pricing.ledger.store import Store
from pricing.ledger.store.tables import REVISIONS, metadata
from support.ledger_rows import START, open_row, settled_row
from support.postgres import Postgres


@pytest.fixture
def url(server: Postgres) -> str:
    """An empty database."""
    return server.new_database()


def eventually(claim: Callable[[], bool], *, timeout_s: float = 10) -> None:
    """Waits until the claim holds."""
    end = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.01)


def booked(url: str, request_id: str) -> bool:
    """Whether a ledger is there and has the request."""
    try:
        store = Store(url)
    except LedgerMissing:
        return False
    found = store.get(request_id)
    store.close()
    return found is not None


def test_of_many_that_start_at_once_one_makes_the_schema_and_none_fails(url: str) -> None:
    def start(number: int) -> None:
        store = Store(url, create=True)
        store.upsert([settled_row(f"r{number}")])
        store.close()

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(start, number) for number in range(6)]:
            future.result(30)
    store = Store(url)
    assert store.report(())[0].requests == 6
    store.close()


def test_a_migration_under_way_is_waited_for(server: Postgres, url: str) -> None:
    made: list[Store] = []
    with server.connect(url) as other:
        other.autocommit = False
        other.execute("SELECT pg_advisory_xact_lock(x'6b696d69'::bigint)")
        thread = threading.Thread(target=lambda: made.append(Store(url, create=True, busy_timeout_ms=50)))
        thread.start()
        time.sleep(0.4)  # longer than a write would wait
        assert made == []
        other.commit()
    thread.join(20)
    assert len(made) == 1
    made[0].close()


def test_a_write_waits_for_its_turn_and_not_for_ever(server: Postgres, url: str) -> None:
    store = Store(url, create=True, busy_timeout_ms=50)
    with server.connect(url) as other:
        other.autocommit = False
        other.execute("SELECT pg_advisory_xact_lock(x'6b696d69'::bigint)")
        with pytest.raises(LedgerDown, match="lock timeout"):
            store.upsert([settled_row("a")])
        assert store.get("a") is None  # reading waits for nobody
        other.commit()
    store.upsert([settled_row("a")])
    assert store.get("a") is not None
    store.close()


def test_a_newer_schema_is_refused_by_name_and_an_absent_ledger_is_told(server: Postgres, url: str) -> None:
    with pytest.raises(LedgerMissing, match="holds no ledger"):
        Store(url)
    Store(url, create=True).close()
    server.execute("UPDATE kimi_ledger_version SET version_num = '0099'", url)
    for create in (False, True):
        with pytest.raises(LedgerTooNew, match=f"schema 0099, this version knows up to {REVISIONS[-1]}; use the"):
            Store(url, create=create)


def test_the_migrations_make_the_tables_the_code_uses(url: str) -> None:
    Store(url, create=True).close()
    engine = create_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "kimi_ledger_version"})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_replicas_that_book_the_same_groups_in_any_order_neither_fail_nor_miscount(url: str) -> None:
    Store(url, create=True).close()

    def book(replica: int) -> None:
        store = Store(url)
        for batch in range(10):
            rows = [
                settled_row(f"{replica}-{batch}-{number}", key=f"key-{number % 7}", cost_nano=10**12 + number)
                for number in range(40)
            ]
            store.upsert(rows if replica % 2 else rows[::-1])
        store.close()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(book, replica) for replica in range(4)]:
            future.result(60)
    store = Store(url)
    (total,) = store.report(())
    assert (total.requests, total.cost_nano) == (1600, 40 * (40 * 10**12 + sum(range(40))))
    assert store.report(("key",)) == store.report(("key",), from_rows=True)
    assert store.inconsistencies() == []
    store.close()


def test_the_replica_that_settles_wins_whoever_comes_first(url: str) -> None:
    one, two = Store(url, create=True), Store(url)
    two.upsert([settled_row("a")])
    one.upsert([open_row("a", owner="one", lease_until=9e9)])
    one.upsert([open_row("b", owner="one", lease_until=100)])
    assert two.unsettle_expired(now=101) == 1
    one.upsert([settled_row("b")])
    two.upsert([open_row("b", status="unsettled")])
    rows = [one.get(request_id) for request_id in "ab"]
    assert [row.status for row in rows if row is not None] == ["ok", "ok"]
    assert one.report(())[0].requests == 2
    one.close()
    two.close()


def test_a_connection_that_the_server_ends_is_made_anew(server: Postgres, url: str) -> None:
    store = Store(url, create=True)
    store.upsert([settled_row("a")])
    server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'kimi' "
        f"AND datname = '{url.rpartition('/')[2]}'"
    )
    store.upsert([settled_row("b")])
    assert store.report(())[0].requests == 2
    store.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_while_the_server_is_away_the_journal_keeps_everything(
    server: Postgres, url: str, tmp_path: Path, how: signal.Signals
) -> None:
    writer = JournalWriter(tmp_path, url, max_bytes=1 << 24, fsync=False, segment_bytes=20_000)
    drainer = Drainer(tmp_path, url, own=writer, interval_s=0.01)
    drainer.start()
    numbers = count()

    def book(requests: int) -> None:
        for number in (next(numbers) for _ in range(requests)):
            writer.append_open(open_row(f"r{number}"))
            writer.append_settled(settled_row(f"r{number}"))

    book(200)
    eventually(lambda: drainer.problem is None and len(writer.files()) == 1)
    book(50)  # some of it may be on its way
    server.stop(how)
    book(100)
    eventually(lambda: drainer.problem is not None)
    assert "pelican" not in str(drainer.problem)
    book(100)
    server.start()
    eventually(lambda: drainer.problem is None)
    book(50)
    assert drainer.stop(timeout_s=20)
    writer.close()
    assert list(tmp_path.iterdir()) == []
    store = Store(url)
    (total,) = store.report(())
    assert (total.requests, total.cost_nano, total.unsettled_requests) == (500, 500 * 11_400, 0)
    assert store.inconsistencies() == []
    store.close()


def test_a_database_that_is_made_anew_gets_its_schema(server: Postgres, url: str, tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, url, max_bytes=1 << 20, fsync=False)
    drainer = Drainer(tmp_path, url, own=writer, interval_s=0.01)
    drainer.start()
    writer.append_settled(settled_row("before"))
    eventually(lambda: booked(url, "before"))
    server.execute("DROP SCHEMA public CASCADE", url)
    server.execute("CREATE SCHEMA public", url)
    writer.append_settled(settled_row("after"))
    eventually(lambda: booked(url, "after"))
    assert drainer.stop(timeout_s=20)
    writer.close()
    store = Store(url)
    assert store.get("after") is not None
    store.close()


def test_retention_deletes_rows_with_their_tags_and_keeps_the_sums(server: Postgres, url: str) -> None:
    store = Store(url, create=True)
    store.upsert([settled_row(f"r{n}", started_at=START + n * 3600, tags={"n": str(n)}) for n in range(10)])
    assert store.delete_before(START + 5 * 3600, limit=3) == 3
    assert store.delete_before(START + 5 * 3600, limit=3) == 2
    assert store.delete_before(START + 5 * 3600, limit=3) == 0
    assert (store.report(())[0].requests, store.report((), from_rows=True)[0].requests) == (10, 5)
    with server.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM kimi_request_tags").fetchall() == [(5,)]
    assert store.inconsistencies() == []
    store.close()


def test_no_message_holds_a_password(server: Postgres) -> None:
    urls = [
        server.url("nowhere"),
        "postgresql+psycopg://kimi:pelican@127.0.0.1:1/books",
        "postgresql+psycopg://kimi:pel/ican@127.0.0.1:1/books",
        "postgresql+psycopg://kimi:pel?ican@127.0.0.1:1/books",
        "postgresql+psycopg://kimi:pel#ican@127.0.0.1:1/books",
        "postgresql+psycopg://kimi:pelican@/books?host=/nowhere&password=pelican",
        "postgresql+psycopg://kimi:pelican/books",
        "postgres://kimi:pel@ican@127.0.0.1:1/books",
        "postgresql+psycopg://kimi:pelican@127.0.0.1:port/books",
    ]
    for url in urls:
        with pytest.raises(StoreError) as caught:
            Store(url, create=True)
        for said in (str(caught.value), redacted(url)):
            assert "pel" not in said, said
            assert "ican" not in said, said


def test_a_server_that_is_not_there_is_down_and_named(server: Postgres) -> None:
    with pytest.raises(
        LedgerDown, match=r"postgresql\+psycopg://kimi@127.0.0.1:1/books does not answer: .*refused"
    ):
        Store("postgresql+psycopg://kimi:pelican@127.0.0.1:1/books")
    with pytest.raises(LedgerDown, match='database "nowhere" does not exist'):
        Store(server.url("nowhere"))


def test_a_plain_postgresql_url_means_the_same_driver(url: str) -> None:
    Store(url.replace("postgresql+psycopg", "postgresql"), create=True).close()
    Store(url.replace("postgresql+psycopg", "postgres")).close()
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        assert connection.execute("SELECT version_num FROM kimi_ledger_version").fetchall() == [(REVISIONS[-1],)]
