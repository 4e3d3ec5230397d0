"""What has been read of a journal but is not yet settled in the ledger: pure, so that every order can be tested.

Records go in with their place in the journal; rows come out that are due in the ledger. The low-water mark is
the place before which nothing would be lost if the journal were cut off there: it is what the ledger remembers.
"""

from typing import TypeAlias

import msgspec

from pricing.ledger.records import Ended, RequestRecord, Settled, ToBook
from pricing.ledger.row import Bookable, LedgerRow

Place: TypeAlias = tuple[int, int]
"""Segment number and offset in bytes."""


class _Open(msgspec.Struct, gc=False):
    row: LedgerRow
    place: Place
    seen_s: float
    changed: bool = True
    due: bool = False
    in_ledger: bool = False


class Pending:
    """The requests of one journal that are under way, and the rows that await the next batch.

    `take` records, write `batch`, then `confirm` it; a batch that failed is simply asked for again. Times are
    seconds of any one clock.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._settled: dict[str, Bookable] = {}

    @property
    def has_settled(self) -> bool:
        """Whether a request ended that is not in the ledger yet."""
        return bool(self._settled)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way and nothing waits."""
        return not self._open and not self._settled

    def take(self, record: RequestRecord | ToBook, place: Place, *, now_s: float) -> None:
        """Takes one record in, in the order of the journal."""
        if type(record) is Ended or type(record) is Settled:
            self._open.pop(record.row.request_id, None)
            self._settled.setdefault(record.row.request_id, record.row)
            return
        row = record.row
        held = self._open.get(row.request_id)
        if held is not None:
            held.row = row
            held.changed = True
        elif row.request_id not in self._settled:
            self._open[row.request_id] = _Open(row, place, now_s)

    def batch(self, *, opened_before_s: float, owner: str, lease_until: float) -> list[Bookable]:
        """The rows that are due: all that ended, and those under way that were read before `opened_before_s`.

        Rows under way carry the owner and the end of its lease (Unix seconds).
        """
        rows = list(self._settled.values())
        for held in self._open.values():
            held.due = held.changed and held.seen_s <= opened_before_s
            if held.due:
                held.row.status = "open"
                held.row.owner = owner
                held.row.lease_until = lease_until
                rows.append(held.row)
        return rows

    def confirm(self) -> None:
        """The last batch is in the ledger."""
        self._settled.clear()
        for held in self._open.values():
            if held.due:
                held.due = held.changed = False
                held.in_ledger = True

    def repeat_open(self) -> None:
        """Makes every request under way due again: after an outage in which leases may have run out."""
        for held in self._open.values():
            held.changed = True

    def low_water(self, read_to: Place) -> Place:
        """The first place that will still be needed once the last batch is in the ledger.

        `read_to` is how far the journal is read.
        """
        needed = (held.place for held in self._open.values() if not (held.in_ledger or held.due))
        return min(needed, default=read_to)

    def abandon(self, *, owner: str) -> list[LedgerRow]:
        """The requests under way as unsettled rows: their process is dead."""
        rows = [held.row for held in self._open.values()]
        for row in rows:
            row.status = "unsettled"
            row.owner = owner
        self._open.clear()
        return rows
