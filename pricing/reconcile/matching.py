"""Lines of a bill against rows of the ledger, by the ids that answers carried."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from pricing.advice.tariffs import Tariff, usage_of
from pricing.cost import billed_rate
from pricing.ledger.row import AttemptRecord, LedgerRow
from pricing.money import usd
from pricing.reconcile.bills import Bill, BillLine
from pricing.reconcile.findings import Finding, Found, Kind, MeterDifference, dollars_text
from pricing.usage import METERS, Meter

RateSource = Callable[[LedgerRow], Tariff | None]
_WRITES: Final = frozenset({"write_5m", "write_1h"})


@dataclass(frozen=True, slots=True)
class _Nameless:
    """An attempt that may have been billed and whose answer's id never came. `nano` is what its row books for it,
    with its bound; 0 where it books nothing."""

    row: LedgerRow
    attempt: AttemptRecord
    nano: int
    bound_nano: int


class Matching:
    """Takes rows, one after another, and gives what was found at the end.

    `expects` says which rows should be on the bill at all; `rates_of` whose prices a row was booked at.
    """

    def __init__(self, bill: Bill, rates_of: RateSource, expects: Callable[[LedgerRow], bool]) -> None:
        self._step: Final = bill.step
        self._bill: Final = bill
        self._rates_of: Final = rates_of
        self._expects: Final = expects
        self._found: Final = Found()
        self._lines: Final[dict[str, BillLine]] = {}
        self._nameless: Final[list[_Nameless]] = []
        for line in bill.lines:
            if line.id in self._lines:
                self._only_billed(line, "unexplained", "the bill lists it more than once")
            elif not line.id:
                self._only_billed(line, "unexplained", "the line has no id to match it by")
            else:
                self._lines[line.id] = line

    def add(self, row: LedgerRow) -> None:
        """Takes a row."""
        for number, attempt in enumerate(row.attempts[:-1], 1):
            line = self._take(attempt)
            if line is not None:
                kind: Kind = "only_in_bill" if attempt.maybe_billed else "unexplained"
                word = "may have been" if attempt.maybe_billed else "should not have been"
                self._only_billed(line, kind, f"attempt {number} failed and {word} billed", row)
            elif attempt.maybe_billed and self._expects(row):
                self._note_nameless(row, attempt, 0, 0)
        line = self._lines.pop(row.request_id, None)
        if line is None and row.attempts:
            line = self._take(row.attempts[-1])
        if line is not None:
            self._found.add(self._compared(row, line))
        elif self._expects(row):
            self._missing(row)

    def result(self) -> Found:
        """What was found; call it once, after the last row."""
        for line in self._lines.values():
            self._leftover(line)
        for one in self._nameless:
            if one.nano:
                self._found.add(_unbilled(one.row))
            else:
                self._found.without_charge += one.attempt is one.row.attempts[-1]
        if self._bill.folded:
            reason = f"{self._bill.folded:,} older lines are only there as a sum; they cannot be matched"
            self._found.add(Finding("unexplained", reason, None, self._bill.folded_usd))
        return self._found

    def _take(self, attempt: AttemptRecord) -> BillLine | None:
        for name in (attempt.upstream_id, attempt.upstream_request_id):
            if name and name in self._lines:
                return self._lines.pop(name)
        return None

    def _only_billed(self, line: BillLine, kind: Kind, reason: str, row: LedgerRow | None = None) -> None:
        self._found.add(
            Finding(
                kind,
                reason,
                None,
                line.usd,
                request_id="" if row is None else row.request_id,
                bill_id=line.id,
                status="" if row is None else row.status,
                started_at=line.started_at if row is None else row.started_at,
            )
        )

    def _missing(self, row: LedgerRow) -> None:
        """A row that no line was found for."""
        last = row.attempts[-1] if row.attempts else None
        if row.status in ("open", "unsettled"):
            self._found.add(_finding("under_way", "not settled yet, and not on the bill", row, None))
        elif row.cost_nano is None:
            self._found.add(_finding("unpriced", "no known price, and not on the bill", row, None))
        elif last is not None and last.maybe_billed and last.upstream_id is None:
            self._note_nameless(row, last, row.cost_nano, row.estimate_bound_nano or 0)
        elif not row.cost_nano:
            self._found.without_charge += 1
        elif row.estimated:
            self._found.add(_unbilled(row))
        else:
            self._found.add(_finding("unexplained", "measured and booked, and not on the bill", row, None))

    def _note_nameless(self, row: LedgerRow, attempt: AttemptRecord, nano: int, bound_nano: int) -> None:
        if attempt.upstream_id is None:
            self._nameless.append(_Nameless(row, attempt, nano, bound_nano))

    def _leftover(self, line: BillLine) -> None:
        """A line whose id no row knows: it may belong to an attempt whose answer's id never came."""
        candidates = [one for one in self._nameless if _may_be(one, line)]
        if not candidates:
            self._only_billed(line, "unexplained", "no request of the ledger has its id")
            return
        best = min(candidates, key=lambda one: (not one.nano, abs(line.usd - usd(one.nano))))
        self._nameless.remove(best)
        if not best.nano:
            reason = "fits an attempt that failed and may have been billed"
            self._only_billed(line, "only_in_bill", reason, best.row)
            return
        reason = "estimate within its bound; matched by model and amount, as its answer's id never came"
        self._found.add(_finding("estimated", reason, best.row, line))

    def _compared(self, row: LedgerRow, line: BillLine) -> Finding:
        """A row and the line of its answer."""
        if row.status in ("open", "unsettled"):
            return _finding("under_way", "not settled yet", row, line)
        if row.cost_nano is None:
            return _finding("unpriced", "the ledger knows no price for it", row, line)
        off = line.usd - usd(row.cost_nano)
        if not off:
            return _finding("equal", "", row, line)
        if abs(off) < self._step:
            return _finding("rounding", f"less than {self._step:f}, the bill's last digit", row, line)
        if row.cost_source == "none":
            is_announced = bool(row.attempts) and row.attempts[-1].maybe_billed
            reason = "its attempt failed and may have been billed" if is_announced else "booked as not used"
            return _finding("only_in_bill" if is_announced else "unexplained", reason, row, line)
        if row.estimated:
            return self._against_estimate(row, line, off)
        meters = self._meters(row, line)
        if row.assumed and self._is_split(row, line, meters, off):
            return _finding("assumed", "the split of cache writes by TTL was the requested one", row, line, meters)
        return _finding("priced_differently", _why(line, meters, off), row, line, meters)

    def _against_estimate(self, row: LedgerRow, line: BillLine, off: Decimal) -> Finding:
        bound = row.estimate_bound_nano
        if bound is not None and abs(off) <= usd(bound):
            return _finding("estimated", "within the bound of its estimate", row, line)
        reason = "an estimate without a bound"
        if bound is not None:
            reason = f"beyond its estimate's bound of {usd(bound):f}"
        return _finding("unexplained", reason, row, line, self._meters(row, line))

    def _meters(self, row: LedgerRow, line: BillLine) -> list[MeterDifference]:
        """The meters that the bill states another count of."""
        usage, tariff = usage_of(row), self._rates_of(row)
        if usage is None or line.counts is None:
            return []
        found = []
        for meter in METERS:
            if meter in line.counts:
                ours, theirs = _ours(usage.count, line.counts, meter), line.counts[meter]
                if ours != theirs:
                    rate = None if tariff is None else _rate(tariff, meter)
                    nano = None if rate is None else (theirs - ours) * rate
                    found.append(MeterDifference(meter, ours, theirs, nano))
        return found

    def _is_split(self, row: LedgerRow, line: BillLine, meters: list[MeterDifference], off: Decimal) -> bool:
        """Whether the requested split of the writes, put right, is all that differs."""
        if line.counts is not None:
            within = {one.meter for one in meters} <= _WRITES
            return within and bool(meters) and abs(off - usd(_nano(meters))) < self._step
        tariff = self._rates_of(row)
        if tariff is None:
            return False
        rates = [_rate(tariff, "write_5m"), _rate(tariff, "write_1h")]
        known = [rate for rate in rates if rate is not None]
        written = (row.write_5m_tokens or 0) + (row.write_1h_tokens or 0)
        return len(known) == len(rates) and abs(off) <= usd(written * (max(known) - min(known)))


def _rate(tariff: Tariff, meter: Meter) -> int | None:
    return billed_rate(tariff.rates, meter, write_rule=tariff.write_rule)


def _ours(count: Callable[[Meter], int], stated: Mapping[Meter, int], meter: Meter) -> int:
    """The ledger's count of a meter; a bill that states no writes has them in its input."""
    if meter == "input" and not _WRITES & stated.keys():
        return count("input") + count("write_5m") + count("write_1h")
    return count(meter)


def _nano(meters: list[MeterDifference]) -> int:
    return sum(one.nano or 0 for one in meters)


def _why(line: BillLine, meters: list[MeterDifference], off: Decimal) -> str:
    if line.counts is None:
        return "the bill states no tokens"
    if not meters:
        return "the same tokens at other prices"
    rest = off - usd(_nano(meters))
    if any(one.nano is None for one in meters):
        return "other tokens, and no known price for some of them"
    return "other tokens" if not rest else f"other tokens, and {dollars_text(rest)} USD by other prices"


def _may_be(one: _Nameless, line: BillLine) -> bool:
    """Whether a line can be that attempt's: its model, its time where known, its amount where one is booked."""
    row, attempt = one.row, one.attempt
    if line.model and line.model not in (attempt.model, row.model, row.upstream_model):
        return False
    if line.started_at is not None:
        end_s = row.started_at + (row.total_ms or 0) / 1000
        if not row.started_at - 1 <= line.started_at <= end_s + 1:
            return False
    return not one.nano or abs(line.usd - usd(one.nano)) <= usd(one.bound_nano)


def _unbilled(row: LedgerRow) -> Finding:
    """A row that booked an estimate which nobody charged."""
    return _finding("only_in_ledger", f"booked as an estimate ({row.status}), and not billed", row, None)


def _finding(
    kind: Kind, reason: str, row: LedgerRow, line: BillLine | None, meters: list[MeterDifference] | None = None
) -> Finding:
    return Finding(
        kind,
        reason,
        row.cost_nano,
        None if line is None else line.usd,
        request_id=row.request_id,
        bill_id="" if line is None else line.id,
        status=row.status,
        started_at=row.started_at,
        bound_nano=row.estimate_bound_nano,
        meters=meters or (),
    )
