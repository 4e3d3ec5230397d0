"""What was charged between two instants against what the ledger books then: for balances, and bills by the day.

Nothing here says which request was charged what. So the booked sum has a range: requests under way at an end may
be charged on either side of it, and an estimate is anything from not charged to its upper bound.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from pricing.ledger.row import LedgerRow
from pricing.money import usd
from pricing.reconcile.bills import Interval
from pricing.reconcile.findings import Finding, Found, Kind


class Intervals:
    """Takes rows in the order of their start, and gives a finding for each interval at the end."""

    def __init__(self, intervals: Sequence[Interval], expects: Callable[[LedgerRow], bool]) -> None:
        self._sums: Final = [_Sums(interval) for interval in intervals]
        self._expects: Final = expects

    def add(self, row: LedgerRow) -> None:
        """Takes a row."""
        if row.attempts and self._expects(row):
            for sums in self._sums:
                sums.add(row)

    def result(self) -> Found:
        """One finding for each interval."""
        found = Found()
        for sums in self._sums:
            found.add(sums.finding())
        return found


class _Sums:
    """What the ledger has of one interval, nano-dollars. `low` and `high` is the range of what may be charged."""

    def __init__(self, interval: Interval) -> None:
        self._interval: Final = interval
        self._booked = self._low = self._high = 0
        self._estimated = self._astride = self._unpriced = self._under_way = self._maybe_billed = 0

    def add(self, row: LedgerRow) -> None:
        start, end = row.started_at, row.started_at + (row.total_ms or 0) / 1000
        first, last = self._interval.since, self._interval.until
        if start >= last or end < first:
            return
        self._maybe_billed += sum(attempt.maybe_billed for attempt in row.attempts[:-1])
        self._maybe_billed += row.attempts[-1].maybe_billed and not row.estimated
        if row.status in ("open", "unsettled"):
            self._under_way += 1
            return
        if row.cost_nano is None:
            self._unpriced += 1
            return
        is_inside = start >= first and end < last
        self._astride += not is_inside
        self._booked += row.cost_nano if start >= first else 0
        self._estimated += row.estimated
        self._low += row.cost_nano if is_inside and not row.estimated else 0
        self._high += row.cost_nano + (row.estimate_bound_nano or 0 if row.estimated else 0)

    def finding(self) -> Finding:
        interval = self._interval
        kind, reason = self._judged()
        return Finding(
            kind,
            reason,
            self._booked,
            interval.charged,
            bill_id=f"{_time(interval.since)}/{_time(interval.until)}",
            started_at=interval.since,
            bound_nano=max(self._high - self._booked, self._booked - self._low),
        )

    def _judged(self) -> tuple[Kind, str]:
        charged, step = self._interval.charged, self._interval.step
        off = charged - usd(self._booked)
        if not off:
            return "equal", ""
        if charged < 0:
            return "unexplained", "the balance rose: a top-up goes into the later reading as topped_up"
        if abs(off) < step:
            return "rounding", f"less than {step:f}, as far as the amounts are rounded"
        if usd(self._low) - step < charged < usd(self._high) + step:
            if self._estimated:
                return "estimated", f"within the bounds of {self._estimated:,} estimates{self._of_ends()}"
            return "under_way", f"within what {self._astride:,} requests cost that were under way at an end"
        return "unexplained", "; ".join(self._doubts(charged)) or "more or less was charged than is booked"

    def _of_ends(self) -> str:
        return f" and {self._astride:,} requests under way at an end" if self._astride else ""

    def _doubts(self, charged: Decimal) -> list[str]:
        """What may be behind a charge that is out of range, and cannot be put into figures."""
        found = []
        if charged > usd(self._high):
            for count, words in (
                (self._unpriced, "requests without a known price"),
                (self._under_way, "requests not settled"),
                (self._maybe_billed, "failed attempts that may have been billed"),
            ):
                if count:
                    found.append(f"there are {count:,} {words}")
        return found


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
