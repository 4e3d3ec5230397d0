"""Ends of requests that the journal would not take, in memory until it does: bounded, oldest first."""

from collections import deque
from collections.abc import Callable
from typing import Final

from pricing.ledger.records import encode
from pricing.ledger.row import LedgerRow

MAX_ROWS: Final = 10_000
MAX_BYTES: Final = 64 << 20


class Unwritten:
    """At most `max_rows` rows, which take at most `max_bytes` in the journal."""

    def __init__(self, *, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES) -> None:
        self._rows: deque[tuple[LedgerRow, int]] = deque()
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def keep(self, row: LedgerRow) -> bool:
        """Takes a row in; false where there is no room for it."""
        size_bytes = len(encode(row))
        if len(self._rows) >= self._max_rows or self._bytes + size_bytes > self._max_bytes:
            return False
        self._rows.append((row, size_bytes))
        self._bytes += size_bytes
        return True

    def write(self, append: Callable[[LedgerRow], None], may_go_on: Callable[[], bool]) -> None:
        """Hands rows to `append`, the oldest first, as long as it may; where that raises, the row stays here."""
        while self._rows and may_go_on():
            row, size_bytes = self._rows[0]
            append(row)
            self._rows.popleft()
            self._bytes -= size_bytes

    def forget(self) -> int:
        """Gives up; says how many rows that are."""
        count = len(self._rows)
        self._rows.clear()
        self._bytes = 0
        return count
