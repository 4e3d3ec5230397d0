"""What stands in journals and not in the ledger yet: so that a report can say what it does not know."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pricing.ledger.framing import Damage
from pricing.ledger.journal_files import DAMAGED_SUFFIX, Located, NewerFormat, list_journals, open_reader
from pricing.ledger.records import RequestRecord, Settled
from pricing.ledger.row import LedgerRow
from pricing.ledger.store import Store


@dataclass(frozen=True, slots=True)
class Undrained:
    """How many records are missing from the ledger, and the newest state of each request they are about.

    `damaged_files` are journals set aside because some of their bytes are no record.
    """

    records: int
    rows: dict[str, LedgerRow]
    damaged_files: int


def undrained(directory: Path, ledger_id: str, store: Store) -> Undrained:
    """Reads the journals of one ledger from where they are drained. Changes nothing. Raises `StoreError`."""
    located = [item.record for item in _after_drained(directory, ledger_id, store)]
    states = store.settled_state(list({record.row.request_id for record in located}))
    count = 0
    rows: dict[str, LedgerRow] = {}
    for record in located:
        request_id = record.row.request_id
        in_ledger = request_id in states and (states[request_id] or not isinstance(record, Settled))
        if not in_ledger:
            count += 1
            rows[request_id] = record.row
    damaged = sum(1 for _ in directory.glob(f"{ledger_id}.*{DAMAGED_SUFFIX}"))
    return Undrained(count, rows, damaged)


def _after_drained(directory: Path, ledger_id: str, store: Store) -> Iterator[Located[RequestRecord]]:
    for file in list_journals(directory, ledger_id):
        try:
            reader = open_reader(file.path, store.drained_bytes(file.name))
        except (FileNotFoundError, NewerFormat):
            continue  # drained and deleted in this instant, or not ours to read
        try:
            while found := reader.read():
                yield from (item for item in found if not isinstance(item, Damage))
        finally:
            reader.close()
