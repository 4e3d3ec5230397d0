"""Following the journal of the own process, segment by segment, into the ledger."""

import logging
from typing import Final

from pricing.ledger.framing import Damage
from pricing.ledger.journal import JournalWriter
from pricing.ledger.journal_files import Found, JournalFile, Reader, open_to_book
from pricing.ledger.pending import Pending
from pricing.ledger.records import ToBook
from pricing.ledger.store import Store

_log: Final = logging.getLogger("pricing.ledger")


class Tail:
    """Reads what the writer wrote, books it, and lets the writer drop segments that are in the ledger.

    It never reads ahead of what it has booked, so an outage of the database costs disk and not memory.
    """

    def __init__(self, writer: JournalWriter, *, open_after_s: float, lease_s: float) -> None:
        self.owner = writer.owner
        self._writer = writer
        self._open_after_s = open_after_s
        self._lease_s = lease_s
        self._pending = Pending()
        self._file: JournalFile | None = None
        self._reader: Reader[ToBook] | None = None
        self._damaged: set[int] = set()

    def drain(self, store: Store, *, now: float) -> int:
        """Books all that is there now (Unix seconds); says how many rows. Raises `StoreError`.

        After a failure the same rows are booked again at the next call, before anything else is read.
        """
        booked = self._pending.has_settled
        written = self._book(store, now) if booked else 0
        for file in self._writer.files():
            if self._file is not None and file.segment < self._file.segment:
                continue
            reader = self._reader_of(file)
            while reader is not None and (found := reader.read()):
                self._take(file, found, now)
                written += self._book(store, now)
                booked = True
                if reader.at_end:
                    break  # what came meanwhile is for the next time: chasing it would book ever smaller batches
        return written if booked else self._book(store, now)

    def finish(self, store: Store) -> bool:
        """Makes the files ready to be deleted by the writer; says whether everything is in the ledger."""
        files = self._writer.files()
        complete = self._pending.is_empty and self._file == files[-1]
        if complete:
            store.forget(file.name for file in files)
        return complete

    def repeat_open(self) -> None:
        """Books everything under way once more: its leases may have run out."""
        self._pending.repeat_open()

    def close(self) -> None:
        """Closes the file it reads."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _reader_of(self, file: JournalFile) -> Reader[ToBook] | None:
        if self._file == file:
            return self._reader
        self.close()
        self._file = file
        try:
            self._reader = open_to_book(file.path)
        except FileNotFoundError:
            _log.error("journal %s was deleted before it was in the ledger", file.path)
        return self._reader

    def _take(self, file: JournalFile, found: list[Found[ToBook]], now: float) -> None:
        for item in found:
            if type(item) is Damage:
                self._damaged.add(file.segment)
                _log.error("journal %s: bytes %d to %d are no record", file.path, item.start, item.end)
            else:
                self._pending.take(item.record, (file.segment, item.start), now_s=now)

    def _book(self, store: Store, now: float) -> int:
        if self._file is None:
            return 0
        rows = self._pending.batch(
            opened_before_s=now - self._open_after_s, owner=self.owner, lease_until=now + self._lease_s
        )
        position = 0 if self._reader is None else self._reader.position
        segment, offset_bytes = self._pending.low_water((self._file.segment, position))
        files = self._writer.files()
        if rows:
            store.book(rows, {file.name: offset_bytes for file in files if file.segment == segment})
            self._pending.confirm()
        self._drop([file for file in files if file.segment < segment], store)
        self._writer.note_drained(segment, offset_bytes)
        return len(rows)

    def _drop(self, files: list[JournalFile], store: Store) -> None:
        store.forget(file.name for file in files)
        for file in files:
            self._writer.drop(file.segment, damaged=file.segment in self._damaged)
            self._damaged.discard(file.segment)
