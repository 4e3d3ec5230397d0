"""What reconciling found, as a table, JSON or CSV. Money is exact, as decimal strings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from pricing.ledger.shown import instant_text, money_text
from pricing.money import usd_text
from pricing.reconcile.findings import EXPLAINED, KINDS, Finding, Found, KindSums, MeterDifference, dollars_text
from pricing.render import UNKNOWN, console, plain, print_csv, print_json, print_note, table, text

_ROW_NAMES: Final = (
    "class",
    "reason",
    "request_id",
    "bill_id",
    "status",
    "started_at",
    "ledger_usd",
    "bill_usd",
    "difference_usd",
    "bound_usd",
    "meters",
)


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What was found, against what, in which ledger, for which time; `within` is what may stay unexplained."""

    found: Found
    against: str
    within: Decimal
    ledger: str
    as_of: datetime
    since: datetime | None
    until: datetime | None

    @property
    def is_explained(self) -> bool:
        """Whether nothing is left to look into."""
        return self.found.is_explained(self.within)


def reconciled_object(result: Reconciled) -> dict[str, object]:
    """The result as programs read it; `rows` has everything that is not equal."""
    total = result.found.total
    return {
        "explained": result.is_explained,
        "against": result.against,
        "ledger": result.ledger,
        "as_of": instant_text(result.as_of.timestamp()),
        "since": _time(result.since),
        "until": _time(result.until),
        "within_usd": dollars_text(result.within),
        "not_explained_usd": dollars_text(result.found.not_explained),
        **_sums_object(total),
        "without_charge": result.found.without_charge,
        "classes": [
            {"class": kind, "explained": kind in EXPLAINED, **_sums_object(result.found.by_kind[kind])}
            for kind in KINDS
        ],
        "rows": [_row_object(row) for row in result.found.rows],
    }


def _sums_object(sums: KindSums) -> dict[str, object]:
    return {
        "findings": sums.findings,
        "ledger_usd": usd_text(sums.ledger_nano),
        "bill_usd": dollars_text(sums.bill),
        "difference_usd": dollars_text(sums.difference),
    }


def _row_object(row: Finding) -> dict[str, object]:
    return {
        "class": row.kind,
        "reason": row.reason,
        "request_id": row.request_id or None,
        "bill_id": row.bill_id or None,
        "status": row.status or None,
        "started_at": None if row.started_at is None else instant_text(row.started_at),
        "ledger_usd": money_text(row.ledger_nano),
        "bill_usd": None if row.bill_usd is None else dollars_text(row.bill_usd),
        "difference_usd": dollars_text(row.difference),
        "bound_usd": money_text(row.bound_nano),
        "meters": [_meter_object(one) for one in row.meters],
    }


def _meter_object(one: MeterDifference) -> Mapping[str, object]:
    return {"meter": one.meter, "ledger": one.ledger, "bill": one.bill, "usd": money_text(one.nano)}


def print_reconciled_json(result: Reconciled) -> None:
    """Prints the result object."""
    print_json(reconciled_object(result))


def print_reconciled_csv(result: Reconciled) -> None:
    """Prints a line for everything that is not equal."""
    print_csv(_ROW_NAMES, [_row_object(row) for row in result.found.rows])


def print_reconciled_table(result: Reconciled, notes: Sequence[str]) -> None:
    """Prints the classes, every row of those that nothing explains, and what a reader must know."""
    screen = console()
    columns = ("findings", "ledger USD", "bill USD", "difference")
    grid = table([("class", False), *((name, True) for name in columns)])
    for kind in KINDS:
        sums = result.found.by_kind[kind]
        if sums.findings:
            style = "" if kind in EXPLAINED else "red"
            grid.add_row(text(kind.replace("_", " "), style), *_figures(sums))
    grid.add_row(text("total", "bold"), *_figures(result.found.total), style="bold")
    screen.print(grid)
    screen.print()
    for row in result.found.rows:
        if row.kind not in EXPLAINED:
            for line in _lines(row):
                screen.print(text(line))
    for note in (*_notes(result), *notes):
        print_note(screen, note)


def _figures(sums: KindSums) -> tuple[str, ...]:
    return f"{sums.findings:,}", usd_text(sums.ledger_nano), dollars_text(sums.bill), signed(sums.difference)


def _lines(row: Finding) -> Iterator[str]:
    name = row.request_id or f"bill {row.bill_id or UNKNOWN}"
    status = f" ({row.status})" if row.status else ""
    yield f"{row.kind.replace('_', ' ')}: {name}{status}"
    if row.request_id and row.bill_id:
        yield f"  bill {row.bill_id}"
    billed = UNKNOWN if row.bill_usd is None else dollars_text(row.bill_usd)
    booked = money_text(row.ledger_nano) or UNKNOWN
    yield f"  ledger {booked}, bill {billed}, difference {signed(row.difference)} USD"
    for one in row.meters:
        cost = "" if one.nano is None else f": {usd_text(one.nano)} USD"
        yield f"  {one.meter}: ledger {one.ledger:,}, bill {one.bill:,} tokens{cost}"
    yield f"  {plain(row.reason)}"


def _notes(result: Reconciled) -> Iterator[str]:
    since = "the beginning" if result.since is None else instant_text(result.since.timestamp())
    until = "now" if result.until is None else f"{instant_text(result.until.timestamp())} (not included)"
    yield f"{result.against}; requests from {since} to {until}, by start, UTC; difference: bill less ledger"
    if result.found.without_charge:
        yield f"{result.found.without_charge:,} requests cost nothing and are not on the bill"
    if result.is_explained:
        left = result.found.not_explained
        yield (
            f"explained, but for {dollars_text(left)} USD, within {dollars_text(result.within)}"
            if left
            else "explained"
        )
    else:
        yield f"not explained: {dollars_text(result.found.not_explained)} USD, signs left out"


def signed(dollars: Decimal) -> str:
    """Money with its sign, so that more and less can be told apart."""
    return f"+{dollars_text(dollars)}" if dollars > 0 else dollars_text(dollars)


def _time(at: datetime | None) -> str | None:
    return None if at is None else instant_text(at.timestamp())
