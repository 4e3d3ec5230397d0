"""Reading a ledger's rows one after another."""

from pathlib import Path

from pricing.ledger.store import Store
from pricing.ledger.store.scan import scan_rows
from support.ledger_rows import START, ledger_url, open_row, settled_row


def test_rows_come_in_the_order_of_their_start_and_as_they_were_booked(tmp_path: Path) -> None:
    store = Store(ledger_url(tmp_path), create=True)
    rows = [settled_row(f"r{at:04}", started_at=START + (at * 7919) % 2500, prefix="p") for at in range(2500)]
    store.upsert(rows)
    found = list(scan_rows(store))
    assert [row.started_at for row in found] == [START + at for at in range(2500)]
    assert {row.request_id: row for row in found} == {row.request_id: row for row in rows}
    store.close()


def test_a_period_ends_before_its_end_and_ties_are_in_the_order_of_their_ids(tmp_path: Path) -> None:
    store = Store(ledger_url(tmp_path), create=True)
    store.upsert([settled_row("b"), settled_row("a"), settled_row("c", started_at=START + 60)])
    assert [row.request_id for row in scan_rows(store, since=START, until=START + 60)] == ["a", "b"]
    assert [row.request_id for row in scan_rows(store, since=START + 1)] == ["c"]
    store.close()


def test_what_became_of_an_open_row_is_its_status(tmp_path: Path) -> None:
    store = Store(ledger_url(tmp_path), create=True)
    store.upsert([open_row("a", owner="x", lease_until=1)])
    store.unsettle_owner("x")
    assert [row.status for row in scan_rows(store)] == ["unsettled"]
    store.close()
