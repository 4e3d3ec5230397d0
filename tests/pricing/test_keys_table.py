"""Keys in the ledger's database: names that stay, secrets that come and go, spend as a budget needs it."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pricing.ledger.errors import LedgerMissing
from pricing.ledger.row import LedgerRow
from pricing.ledger.store import Store
from pricing.ledger.store.keys import KeyNameTaken, KeyTable, NoSuchKey
from pricing.ledger.store.spend import AlertName, Booked, BookedRow, Spending
from support.ledger_rows import START, ledger_url, open_row, settled_row
from support.postgres import Postgres

A, B, C = ("a" * 64, "b" * 64, "c" * 64)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place for a ledger."""
    if request.param == "sqlite":
        return ledger_url(tmp_path)
    server: Postgres = request.getfixturevalue("server")
    return server.new_database()


@pytest.fixture
def keys(url: str) -> Iterator[KeyTable]:
    table = KeyTable(url, create=True)
    yield table
    table.close()


def secrets(table: KeyTable, at_s: float) -> list[str]:
    (key,) = table.all()
    return [one.sha256[0] for one in key.secrets if one.works_at(at_s)]


def test_a_key_is_found_as_it_was_made(keys: KeyTable) -> None:
    keys.create("team-b", '{"version":1}', B, at_s=2.5)
    keys.create("team-a", "{}", A, at_s=1.0)
    first, second = keys.all()
    assert (first.name, first.policy, first.created_at, first.revoked_at) == ("team-a", "{}", 1.0, None)
    assert [(one.sha256, one.created_at, one.expires_at) for one in second.secrets] == [(B, 2.5, None)]


def test_a_name_is_given_once_for_all_time(keys: KeyTable) -> None:
    keys.create("team-a", "{}", A, at_s=1)
    with pytest.raises(KeyNameTaken, match=r"there is a key team-a already.* keys rotate team-a"):
        keys.create("team-a", "{}", B, at_s=2)
    keys.revoke("team-a", at_s=3)
    with pytest.raises(KeyNameTaken, match="there was a key team-a"):
        keys.create("team-a", "{}", B, at_s=4)
    (key,) = keys.all()
    assert key.revoked_at == 3


def test_both_secrets_work_during_the_overlap_and_the_policy_stays(keys: KeyTable) -> None:
    keys.create("team-a", '{"rpm":5}', A, at_s=0)
    assert keys.rotate("team-a", B, at_s=100, overlap_s=50) == 1
    assert [secrets(keys, at_s) for at_s in (120, 149.9, 150)] == [["b", "a"], ["b", "a"], ["b"]]
    (key,) = keys.all()
    assert key.policy == '{"rpm":5}'


def test_a_second_rotation_lets_no_older_secret_live_longer(keys: KeyTable) -> None:
    keys.create("team-a", "{}", A, at_s=0)
    keys.rotate("team-a", B, at_s=100, overlap_s=50)
    assert keys.rotate("team-a", C, at_s=120, overlap_s=1000) == 2
    assert [secrets(keys, at_s) for at_s in (130, 151, 1119, 1120)] == [
        ["c", "b", "a"],
        ["c", "b"],
        ["c", "b"],
        ["c"],
    ]


def test_without_an_overlap_the_old_secret_ends_at_once(keys: KeyTable) -> None:
    keys.create("team-a", "{}", A, at_s=0)
    assert keys.rotate("team-a", B, at_s=100, overlap_s=0) == 0
    assert secrets(keys, 100) == ["b"]


@pytest.mark.parametrize("name", ["team-a", "nobody"])
def test_what_is_no_working_key_is_neither_revoked_nor_rotated(keys: KeyTable, name: str) -> None:
    keys.create("team-a", "{}", A, at_s=0)
    keys.revoke("team-a", at_s=1)
    with pytest.raises(NoSuchKey):
        keys.revoke(name, at_s=2)
    with pytest.raises(NoSuchKey):
        keys.rotate(name, B, at_s=2, overlap_s=1)


def test_a_table_that_is_only_read_makes_no_ledger(url: str) -> None:
    with pytest.raises(LedgerMissing):
        KeyTable(url)


# --- spend ----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store(url, create=True)
    yield store
    store.close()


@pytest.fixture
def spending(url: str, store: Store) -> Iterator[Spending]:
    spending = Spending(url)
    yield spending
    spending.close()


def reserving(row: LedgerRow, nano: int) -> LedgerRow:
    return msgspec.structs.replace(row, reserved_nano=nano)


def test_spend_is_what_began_in_the_period_by_key_and_tier(store: Store, spending: Spending) -> None:
    day = START - START % 86_400
    store.upsert(
        [
            settled_row("in", cost_nano=5),
            settled_row("fast", cost_nano=70, tier="highspeed"),
            settled_row("first", cost_nano=300, started_at=day),
            settled_row("unpriced", cost_nano=None, cost_source="unpriced"),
            settled_row("before", cost_nano=1000, started_at=day - 0.001),
            settled_row("after", cost_nano=1000, started_at=day + 86_400),
            settled_row("theirs", cost_nano=1000, key="team-b"),
        ]
    )
    assert spending.booked("team-a", since=day, until=day + 86_400) == Booked(375, 70, {})
    assert spending.booked("team-a", since=0.0, until=None).total_nano == 2375
    assert spending.booked("team-c", since=0.0, until=None) == Booked()


def test_what_has_no_known_end_comes_with_its_bound(store: Store, spending: Spending) -> None:
    store.upsert(
        [
            reserving(open_row("open", cost_nano=3), 50),
            reserving(open_row("dead", status="unsettled", cost_nano=90, tier="highspeed"), 80),
            open_row("theirs", key="team-b"),
            settled_row("asked", cost_nano=7),
            settled_row("not asked", cost_nano=11),
        ]
    )
    booked = spending.booked("team-a", since=0.0, until=None, ids=["asked", "absent"])
    assert booked.rows == {
        "open": BookedRow("open", 3, reserved_nano=50),
        "dead": BookedRow("unsettled", 90, highspeed=True, reserved_nano=80),
        "asked": BookedRow("settled", 7),
    }
    assert {name: row.bound_nano for name, row in booked.rows.items()} == {"open": 50, "dead": 90, "asked": 7}
    assert booked.total_nano == 3 + 90 + 7 + 11


def test_an_answer_without_a_price_counts_what_was_reserved_for_it(store: Store, spending: Spending) -> None:
    unpriced = {"cost_nano": None, "cost_source": "unpriced"}
    store.upsert(
        [
            settled_row("known", cost_nano=7),
            reserving(settled_row("unknown", **unpriced), 50),
            reserving(settled_row("fast", tier="highspeed", **unpriced), 80),
            reserving(settled_row("theirs", key="team-b", **unpriced), 1000),
        ]
    )
    booked = spending.booked("team-a", since=0.0, until=None, ids=["unknown"])
    assert booked == Booked(137, 80, {"unknown": BookedRow("settled", 50)})
    assert spending.booked("team-a", since=0.0, until=START).total_nano == 0


def test_rows_are_found_by_id_however_many(store: Store, spending: Spending) -> None:
    store.upsert([settled_row(f"r{n}", cost_nano=n) for n in range(1200)])
    found = spending.rows([f"r{n}" for n in range(0, 1300)])
    assert len(found) == 1200
    assert found["r1199"] == BookedRow("settled", 1199)
    assert spending.rows([]) == {}


def test_an_alert_is_taken_on_once(store: Store, spending: Spending) -> None:
    alert = AlertName("team-a", "2026-11", "budget", 25, 80)
    assert [spending.take_alert(alert, at_s=START) for _ in range(2)] == [True, False]
    raised = AlertName("team-a", "2026-11", "budget", 50, 80)
    assert spending.take_alert(raised, at_s=START)


def test_spend_is_read_once_the_ledger_is_there(tmp_path: Path) -> None:
    spending = Spending(ledger_url(tmp_path))
    with pytest.raises(LedgerMissing):
        spending.booked("team-a", since=0.0, until=None)
    Store(ledger_url(tmp_path), create=True).close()
    assert spending.booked("team-a", since=0.0, until=None) == Booked()
    spending.close()
