"""The books on the local journal: each booking is one append; a thread brings it into the ledger.

What cannot be booked is not served (`on_full = "refuse"`), or served and named in the log (`serve`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from typing_extensions import override

from kimi_gateway.errors import LedgerUnavailable
from kimi_gateway.logs import Log
from kimi_gateway.ports import Books
from kimi_gateway.settings import Ledger, Timing
from pricing.ledger.drain import Drainer
from pricing.ledger.errors import JournalError, JournalFull
from pricing.ledger.journal import JournalWriter
from pricing.ledger.row import LedgerRow
from pricing.ledger.store import Store

_COMPLAIN_EVERY_S: Final = 10.0
_TRY_AGAIN_S: Final = 10.0
_CLIENT_MESSAGE: Final = "requests cannot be booked at present, so none is served; send it again shortly"


class JournalBooks(Books):
    """Books over one journal. `mono` is seconds; complaints go to the log at most every ten of them."""

    def __init__(
        self,
        journal: JournalWriter,
        drainer: Drainer,
        *,
        on_full: Literal["refuse", "serve"],
        log: Log,
        mono: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._drainer = drainer
        self._refuses = on_full == "refuse"
        self._log = log
        self._mono = mono
        self._complained_at = -_COMPLAIN_EVERY_S
        self._broken, self._broken_at = "", 0.0
        self.unbooked = 0
        """Requests served or ended without a record."""

    def problem(self) -> str:
        """Why the next request would not be served, "" where it would."""
        if not self._refuses:
            return ""
        if self._journal.full:
            return "the journal is full"
        # Only a request can find out whether it works again, so after a while one is asked for.
        return self._broken if self._mono() - self._broken_at < _TRY_AGAIN_S else ""

    @override
    def open(self, row: LedgerRow) -> None:
        try:
            self._journal.append_open(row)
        except JournalError as err:
            if not isinstance(err, JournalFull):
                self._broken, self._broken_at = "the journal cannot be written", self._mono()
            self._complain("request", err)
            if self._refuses:
                raise LedgerUnavailable(_CLIENT_MESSAGE) from err
            self.unbooked += 1
        else:
            self._broken = ""

    @override
    def progress(self, row: LedgerRow) -> None:
        try:
            self._journal.append_progress(row)
        except JournalError:
            return  # the next one, or the end, says more than this one

    @override
    def settled(self, row: LedgerRow) -> None:
        try:
            self._journal.append_settled(row)
        except JournalError as err:
            self.unbooked += 1
            self._complain(f"end of {row.request_id}", err)

    def _complain(self, what: str, err: JournalError) -> None:
        now = self._mono()
        if now - self._complained_at >= _COMPLAIN_EVERY_S:
            self._complained_at = now
            self._log.event(f"the {what} could not be booked: {err}", level="error", unbooked=self.unbooked)

    def close(self, timeout_s: float) -> bool:
        """Books what is there; says whether all of it is in the ledger. What is not stays in the journal."""
        complete = self._drainer.stop(timeout_s)
        self._journal.close()
        return complete


def open_books(ledger: Ledger, timing: Timing, *, log: Log, mono: Callable[[], float]) -> JournalBooks:
    """Books on the configured journal and ledger, draining. Raises `pricing.ledger.errors.LedgerError` where the
    journal cannot be written or the ledger is not one that this version can use."""
    Store(ledger.url, create=True).close()
    directory = Path(ledger.journal_dir)
    journal = JournalWriter(directory, ledger.url, max_bytes=ledger.max_journal_bytes, fsync=ledger.fsync)
    drainer = Drainer(directory, ledger.url, own=journal, lease_s=timing.lease_s, adopt_s=timing.adopt_s)
    drainer.start()
    return JournalBooks(journal, drainer, on_full=ledger.on_full, log=log, mono=mono)
