"""From the journal into the ledger, beside the requests and never in their way.

A thread tails the journal of its own process and books in batches; now and then it looks for the journals of
dead processes and for leases that ran out. While the database is away the journal simply grows, and everything
is booked when it is back. The same thread deletes rows that are older than they have to be kept, a few at a time.
"""

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pricing.ledger.address import ledger_id
from pricing.ledger.adoption import adopt, clear_unfinished
from pricing.ledger.errors import StoreError
from pricing.ledger.journal import JournalWriter
from pricing.ledger.refusals import Refusals
from pricing.ledger.store import Store
from pricing.ledger.tail import Tail

_log: Final = logging.getLogger("pricing.ledger")
_BACKOFF_MAX_S: Final = 5.0
_DAY_S: Final = 86_400
_DELETED_AT_ONCE: Final = 500
_LOOK_AGAIN_S: Final = 60.0
_DAY_IS_OVER_S: Final = 3600
"""What began on a day has mostly ended an hour after it; what has not makes the day's sums void once more."""


def _wall_clock() -> float:
    """Unix seconds: leases are compared between processes, so no monotonic clock will do."""
    return datetime.now(UTC).timestamp()


class Drainer:
    """Drains one directory into one ledger.

    With `own`, the journal of this process, it creates or migrates the ledger; without it, it only adopts. Use
    either `drain_once` or, between `start` and `stop`, the thread; never both at once. Periods are seconds: a
    request is in the ledger `interval_s` after its end at the latest, and `open_after_s` after its beginning. Rows
    are deleted `retention_days` after their beginning, whole hours at a time; 0 keeps them.
    """

    def __init__(
        self,
        directory: Path,
        store_url: str,
        *,
        own: JournalWriter | None,
        interval_s: float = 0.2,
        lease_s: float = 60,
        adopt_s: float = 10,
        open_after_s: float = 1.0,
        retention_days: int = 0,
        clock: Callable[[], float] = _wall_clock,
    ) -> None:
        self._directory = directory
        self._url = store_url
        self._ledger_id = ledger_id(store_url)
        self._own = own
        self._tail = None if own is None else Tail(own, open_after_s=open_after_s, lease_s=lease_s)
        self._interval_s = interval_s
        self._lease_s = lease_s
        self._adopt_s = adopt_s
        self._retention_s = retention_days * _DAY_S
        self._clock = clock
        self._refusals = Refusals()
        self._store: Store | None = None
        self._renewed_at = clock()
        self._adopted_at = self._tidied_at = -float("inf")
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the ledger does not take records at present; None where it does."""
        return self._problem

    def refused(self, key: str, code: str) -> None:
        """Counts a request that was refused before it was planned, for the ledger. Never waits, never raises."""
        self._refusals.count(key, code, at_s=self._clock())

    def drain_once(self) -> int:
        """Books everything that is there and adopts what is left behind; says how many rows it wrote.

        Raises `StoreError`; what could not be booked is still in the journal.
        """
        return self._drain_own() + self._look_after_others()

    def start(self) -> None:
        """Starts the thread; at first it adopts what dead processes left."""
        self._thread = threading.Thread(target=self._run, name="ledger-drain", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Books what is there and ends the thread; says whether all of the own journal is in the ledger.

        What is not stays in the journal, and the next process adopts it. Blocks, beyond `timeout_s` where the
        database is slow: not for an event loop. Close the writer afterwards.
        """
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return False
        try:
            self._drain_own()
            self._count_refusals(self._opened())
            complete = self._tail is None or self._tail.finish(self._opened())
        except (StoreError, OSError) as err:
            _log.warning("the journal in %s is not all in the ledger yet: %s", self._directory, err)
            complete = False
        self.close()
        return complete

    def close(self) -> None:
        """Closes the files and the database; only where the thread does not run."""
        if self._tail is not None:
            self._tail.close()
        if self._store is not None:
            self._store.close()
            self._store = None

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping.wait(wait_s):
            try:
                self._drain_own()
                if self._clock() - self._adopted_at >= self._adopt_s:
                    self._look_after_others()
                self._tidy()
                self._recovered()
                wait_s = self._interval_s
            except (StoreError, OSError) as err:
                self._failed(str(err))
                wait_s = min(max(wait_s * 2, self._interval_s), _BACKOFF_MAX_S)
            except Exception:
                # The thread's last line of defence: without it, one surprise would end all booking silently.
                _log.exception("draining the journal failed; it is tried again")
                self._failed("an unexpected error; see the log")
                wait_s = _BACKOFF_MAX_S

    def _drain_own(self) -> int:
        if self._tail is None:
            return 0
        written = self._tail.drain(self._opened(), now=self._clock())
        if self._clock() - self._renewed_at >= self._lease_s / 3:
            self._renew(self._tail)
        return written

    def _renew(self, tail: Tail) -> None:
        now = self._clock()
        self._opened().renew(tail.owner, lease_until=now + self._lease_s)
        self._renewed_at = now

    def _look_after_others(self) -> int:
        store = self._opened()
        clear_unfinished(self._directory)
        written = adopt(self._directory, self._ledger_id, store)
        written += store.unsettle_expired(now=self._clock())
        if self._own is not None:
            self._own.refresh()
            self._count_refusals(store)
        self._adopted_at = self._clock()
        return written

    def _count_refusals(self, store: Store) -> None:
        counts = self._refusals.take()
        if not counts:
            return
        try:
            store.count_refusals(counts)
        except StoreError:
            self._refusals.give_back(counts)
            raise

    def _tidy(self) -> None:
        """Deletes a few old rows and sums up a day; the rest waits its turn behind what is to be booked."""
        now = self._clock()
        if self._own is None or now - self._tidied_at < _LOOK_AGAIN_S:
            return
        store = self._opened()
        has_more = store.sum_up_day(before=now - _DAY_IS_OVER_S)
        if self._retention_s:
            has_more |= store.delete_before(now - self._retention_s, limit=_DELETED_AT_ONCE) > 0
        if not has_more:
            self._tidied_at = now

    def _opened(self) -> Store:
        if self._store is None:
            durable = self._own is not None and self._own.fsync
            self._store = Store(self._url, create=self._own is not None, durable=durable)
        return self._store

    def _failed(self, reason: str) -> None:
        if self._problem is None:
            _log.warning("the ledger does not take records, the journal keeps them: %s", reason)
        self._problem = reason
        if self._tail is not None:
            self._tail.repeat_open()
        if self._store is not None:
            # Opened anew at the next try, which looks at the schema again: the database may be another one then.
            self._store.close()
            self._store = None

    def _recovered(self) -> None:
        if self._problem is not None:
            _log.warning("the ledger takes records again")
        self._problem = None
