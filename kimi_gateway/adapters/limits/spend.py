"""What keys have spent, from the ledger, once the journals that dead processes left beside it are in."""

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from pricing.ledger.drain import Drainer
from pricing.ledger.store.spend import AlertName, Booked, BookedRow, Spending


class SpendSource(Protocol):
    """Spend by key. Every call blocks, from any thread, and raises `pricing.ledger.errors.LedgerError`."""

    def booked(self, key: str, *, since: float, until: float | None, ids: Iterable[str] = ()) -> Booked:
        """A key's spend in [since, until), Unix seconds, and these requests' rows."""
        ...

    def rows(self, ids: Sequence[str]) -> dict[str, BookedRow]:
        """Of these requests the ones in the ledger."""
        ...

    def take_alert(self, alert: AlertName, *, at_s: float) -> bool:
        """Takes on an alert; false where somebody has before."""
        ...

    def close(self) -> None:
        """Closes every connection."""
        ...


class LedgerSpend(SpendSource):
    """The spend of one ledger. Before the first look it runs `settle`, once."""

    def __init__(self, url: str, settle: Callable[[], None] | None = None) -> None:
        self._spending = Spending(url)
        self._settle = settle
        self._lock = threading.Lock()

    @override
    def booked(self, key: str, *, since: float, until: float | None, ids: Iterable[str] = ()) -> Booked:
        with self._lock:
            if self._settle is not None:
                self._settle()
                self._settle = None
        return self._spending.booked(key, since=since, until=until, ids=ids)

    @override
    def rows(self, ids: Sequence[str]) -> dict[str, BookedRow]:
        return self._spending.rows(ids)

    @override
    def take_alert(self, alert: AlertName, *, at_s: float) -> bool:
        return self._spending.take_alert(alert, at_s=at_s)

    @override
    def close(self) -> None:
        self._spending.close()


def spend_of(url: str, journal_dir: Path) -> LedgerSpend:
    """The spend of a ledger; what dead processes left in this directory is brought there first."""

    def settle() -> None:
        drainer = Drainer(journal_dir, url, own=None)
        try:
            drainer.drain_once()
        finally:
            drainer.close()

    return LedgerSpend(url, settle)
