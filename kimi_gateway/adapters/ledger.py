"""The books on the local journal: each booking is one append; a thread brings it into the ledger.

What cannot be booked is not served (`on_full = "refuse"`), or served and named in the log (`serve`). The end of a
request that the journal does not take waits in memory, and is written before anything newer.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from typing_extensions import override

from kimi_gateway.adapters.unwritten import Unwritten
from kimi_gateway.errors import LedgerUnavailable
from kimi_gateway.logs import Log
from kimi_gateway.ports import Books
from kimi_gateway.settings import Ledger, Timing
from pricing.ledger.address import sqlite_path
from pricing.ledger.drain import Drainer
from pricing.ledger.errors import JournalError, JournalFull, LedgerDown
from pricing.ledger.journal import JournalWriter
from pricing.ledger.row import LedgerRow
from pricing.ledger.store import Store

_COMPLAIN_EVERY_S: Final = 10.0
_TRY_AGAIN_S: Final = 10.0
_RETRY_EVERY_S: Final = 0.5
_WRITE_FOR_S: Final = 0.005  # the event loop is not held up longer
_CLIENT_MESSAGE: Final = "requests cannot be booked at present, so none is served; send it again shortly"


class JournalBooks(Books):
    """Books over one journal. `mono` is seconds; complaints go to the log at most every ten of them.

    Belongs to one event loop; `close` may be called from a thread once nothing is booked any more.
    """

    def __init__(
        self,
        journal: JournalWriter,
        drainer: Drainer,
        *,
        on_full: Literal["refuse", "serve"],
        log: Log,
        mono: Callable[[], float],
        unwritten: Unwritten | None = None,
    ) -> None:
        self._journal = journal
        self._drainer = drainer
        self._refuses = on_full == "refuse"
        self._log = log
        self._mono = mono
        self._unwritten = Unwritten() if unwritten is None else unwritten
        self._closed = self._complete = False
        self._complained_at = -_COMPLAIN_EVERY_S
        self._broken, self._broken_at = "", 0.0
        self.lost = 0
        """Ends of requests that are in no record; where the beginning is in one, the row becomes unsettled."""

    def problem(self) -> str:
        """Why the next request would not be served, "" where it would."""
        if not self._refuses:
            return ""
        if self._journal.full:
            return "the journal is full"
        if not self._broken:
            return ""
        # Where nothing waits to be written, only a request can find out whether it works again: after a while one
        # is asked for.
        is_sure = self._unwritten or self._mono() - self._broken_at < _TRY_AGAIN_S
        return self._broken if is_sure else ""

    @override
    def open(self, row: LedgerRow) -> None:
        try:
            if self._unwritten:
                self._catch_up()
            self._append(self._journal.append_open, row)
        except JournalError as err:
            if self._refuses:
                self._complain(f"requests are refused, they could not be booked: {err}")
                raise LedgerUnavailable(_CLIENT_MESSAGE) from err
            self._complain(f"requests are served, though their beginning could not be booked: {err}")

    @override
    def progress(self, row: LedgerRow) -> None:
        try:
            self._journal.append_progress(row)
        except JournalError:
            return  # the next one, or the end, says more than this one

    @override
    def settled(self, row: LedgerRow) -> None:
        try:
            if self._unwritten:
                self._catch_up()
            self._append(self._journal.append_settled, row)
        except JournalError as err:
            if not self._closed and self._unwritten.keep(row):
                self._complain(f"the end of {row.request_id} could not be booked yet and waits in memory: {err}")
            else:
                self.lost += 1
                self._complain(f"the end of {row.request_id} is lost, it could not be booked: {err}")

    @override
    def refused(self, key: str, code: str) -> None:
        self._drainer.refused(key, code)

    async def keep_writing(self, *, every_s: float = _RETRY_EVERY_S) -> None:
        """Writes what waits in memory as soon as that works, beside the requests; for ever."""
        while True:
            await asyncio.sleep(every_s)
            while self._unwritten:
                try:
                    self._catch_up()
                except JournalError as err:
                    self._complain(f"the ends of requests could not be booked yet and wait in memory: {err}")
                    break
                await asyncio.sleep(0)

    def _catch_up(self) -> None:
        """Writes what waits, for a few milliseconds. Raises `JournalError` where it still does not work."""
        end = self._mono() + _WRITE_FOR_S
        self._write_waiting(lambda: self._mono() <= end)

    def _write_waiting(self, may_go_on: Callable[[], bool]) -> None:
        if not self._unwritten:
            return
        self._unwritten.write(lambda row: self._append(self._journal.append_settled, row), may_go_on)
        if not self._unwritten:
            self._log.event(
                "the journal takes records again, the ends that waited in memory are booked",
                level="warning",
                lost=self.lost,
            )

    def _append(self, append: Callable[[LedgerRow], None], row: LedgerRow) -> None:
        try:
            append(row)
        except JournalFull:
            raise
        except JournalError:
            self._broken, self._broken_at = "the journal cannot be written", self._mono()
            raise
        self._broken = ""

    def _complain(self, what: str) -> None:
        now = self._mono()
        if now - self._complained_at >= _COMPLAIN_EVERY_S:
            self._complained_at = now
            self._log.event(what, level="error", waiting=len(self._unwritten), lost=self.lost)

    def close(self, timeout_s: float) -> bool:
        """Books what is there; says whether all of it is in the ledger. What is not stays in the journal.

        Acts once.
        """
        if self._closed:
            return self._complete
        self._closed = True
        with suppress(JournalError):
            self._write_waiting(lambda: True)
        drained = self._drainer.stop(timeout_s)
        self._complete = drained and not self._unwritten
        self._write_last()
        self._journal.close()
        return self._complete

    def _write_last(self) -> None:
        """Tries once more, where draining may have made room; what is lost is said."""
        try:
            self._write_waiting(lambda: True)
        except JournalError as err:
            lost = self._unwritten.forget()
            self.lost += lost
            self._log.event(
                f"the ends of {lost} requests are lost, they could not be booked: {err}",
                level="error",
                lost=self.lost,
            )


def open_books(ledger: Ledger, timing: Timing, *, log: Log, mono: Callable[[], float]) -> JournalBooks:
    """Books on the configured journal and ledger, draining. Raises `pricing.ledger.errors.LedgerError` where the
    journal cannot be written or the ledger is not one that this version can use. A database server that is away
    stops nothing: the journal keeps the records until it is back."""
    try:
        Store(ledger.url, create=True).close()
    except LedgerDown as err:
        if sqlite_path(ledger.url) is not None:
            raise
        log.event(f"the journal keeps the records until the ledger is back: {err}", level="error")
    directory = Path(ledger.journal_dir)
    journal = JournalWriter(directory, ledger.url, max_bytes=ledger.max_journal_bytes, fsync=ledger.fsync)
    drainer = Drainer(
        directory,
        ledger.url,
        own=journal,
        lease_s=timing.lease_s,
        adopt_s=timing.adopt_s,
        retention_days=ledger.retention_days,
    )
    drainer.start()
    return JournalBooks(journal, drainer, on_full=ledger.on_full, log=log, mono=mono)
