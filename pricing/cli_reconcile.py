"""`kimi-pricing reconcile`: the ledger against a bill, a balance or an invoice, every difference in a class."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Final

import typer

from pricing.advice.tariffs import Tariffs
from pricing.cards import load_cards
from pricing.cli_common import (
    Config,
    Journal,
    Ledger,
    Misuse,
    Output,
    Since,
    Until,
    complaints,
    counted_rows,
    given_places,
    instant,
    names,
    now,
)
from pricing.cli_ledger import open_ledger
from pricing.cli_settings import Given
from pricing.cli_targets import read_targets, target_rates
from pricing.ledger.row import LedgerRow
from pricing.reconcile.bills import (
    MAPPED,
    Bill,
    BillError,
    Interval,
    days,
    read_csv,
    read_generations,
    read_invoice,
    read_mapping,
    read_readings,
)
from pricing.reconcile.intervals import Intervals
from pricing.reconcile.matching import Matching, RateSource
from pricing.reconcile_source import read_source
from pricing.reconcile_view import (
    Reconciled,
    print_reconciled_csv,
    print_reconciled_json,
    print_reconciled_table,
)
from pricing.render import Format, complain

_NOT_EXPLAINED: Final = 1
_EXAMPLES: Final = """Examples:

\b
  kimi-pricing reconcile --invoice invoice.json
  kimi-pricing reconcile --openrouter generations.jsonl --format json
  kimi-pricing reconcile --csv bill.csv --map request_id=id,cost=amount
  kimi-pricing reconcile --csv days.csv --map cost=total,started_at=day
  kimi-pricing reconcile --balance readings.jsonl --target moonshot"""

Expects = Callable[[LedgerRow], bool]


def add_reconcile(app: typer.Typer) -> None:
    """Gives the program this command."""
    app.command("reconcile", epilog=_EXAMPLES)(reconcile)


def reconcile(
    ctx: typer.Context,
    balance: Annotated[
        list[str] | None,
        typer.Option(
            help="Readings of Moonshot's /v1/users/me/balance, one a line; or twice, one reading a file."
        ),
    ] = None,
    openrouter: Annotated[str, typer.Option(help="Answers of OpenRouter's /api/v1/generation, one a line.")] = "",
    csv: Annotated[str, typer.Option(help="A bill as CSV; --map says what its columns are.")] = "",
    invoice: Annotated[
        str, typer.Option(help="The emulator's GET /emulator/invoice: a file, or http://127.0.0.1:PORT/….")
    ] = "",
    mapping: Annotated[
        str, typer.Option("--map", help=f"NAME=COLUMN with commas; NAME is one of {', '.join(MAPPED)}.")
    ] = "",
    target: Annotated[
        str, typer.Option(help="Only requests of these targets are expected there, with commas.")
    ] = "",
    within: Annotated[str, typer.Option(help="US dollars that may stay unexplained.")] = "0",
    since: Since = None,
    until: Until = None,
    output: Output = Format.table,
    config: Config = None,
    ledger: Ledger = None,
    journal: Journal = None,
) -> None:
    """The ledger against what was charged: every difference in a class, none of them hidden.

    Give one of --balance, --openrouter, --csv, --invoice. Exit code 0: all is explained, by rounding, estimates
    within their bounds, assumed splits, attempts that may have been billed, requests without a price or under
    way. 1: it is not, and each such row is shown.
    """
    with complaints(), _bill_complaints():
        at = now()
        first, end = instant(since, "--since", at), instant(until, "--until", at)
        given, places = given_places(ctx, Given(config, ledger, journal))
        source = _source(balance or [], openrouter, csv, invoice, mapping, (first, end))
        tariffs = Tariffs(load_cards(places.cards_dir), target_rates(read_targets(given.config)))
        allowed = _within(within)
        with open_ledger(places) as books:
            expects = _expects(source, names(target, "--target"), first, end)
            check = source.check(expects, tariffs.of_row)
            for row in counted_rows(books.store, None, None):
                check.add(row)
            notes, warnings, name = books.notes, books.warnings, books.store.name
        result = Reconciled(check.result(), source.label, allowed, name, at, first, end)
    _print(result, output, notes, warnings)
    if not result.is_explained:
        raise typer.Exit(_NOT_EXPLAINED)


def _print(result: Reconciled, output: Format, notes: Sequence[str], warnings: Sequence[str]) -> None:
    match output:
        case Format.json:
            print_reconciled_json(result)
        case Format.csv:
            print_reconciled_csv(result)
        case Format.table:
            print_reconciled_table(result, notes)
            return
    for warning in warnings:
        complain(warning)


@dataclass(frozen=True, slots=True)
class _Source:
    """What to hold the ledger against: a bill line by line, or intervals. `dialect` is whose requests are expected
    on it, empty where any are."""

    label: str
    dialect: str
    bill: Bill | None = None
    intervals: Sequence[Interval] = ()

    def check(self, expects: Expects, rates_of: RateSource) -> Matching | Intervals:
        """What takes the rows."""
        if self.bill is not None:
            return Matching(self.bill, rates_of, expects)
        return Intervals(self.intervals, expects)


def _source(
    balance: Sequence[str],
    openrouter: str,
    csv: str,
    invoice: str,
    mapping: str,
    period: tuple[datetime | None, datetime | None],
) -> _Source:
    """The one source that was given. Raises `Misuse`, `BillError`."""
    if sum(map(bool, (balance, openrouter, csv, invoice))) != 1:
        raise Misuse("give exactly one of --balance, --openrouter, --csv and --invoice")
    if bool(mapping) != bool(csv):
        raise Misuse("--csv needs --map, and --map is only for --csv; for example --map request_id=id,cost=amount")
    if openrouter:
        bill = _within_period(read_generations(read_source(openrouter)), period)
        return _Source(f"{len(bill.lines):,} generations of {openrouter}", "openrouter", bill)
    if invoice:
        bill = read_invoice(read_source(invoice))
        return _Source(f"{len(bill.lines):,} lines of {invoice}", "", bill)
    if csv:
        columns = read_mapping(mapping)
        bill = _within_period(read_csv(read_source(csv), columns), period)
        if "request_id" in columns:
            return _Source(f"{len(bill.lines):,} lines of {csv}", "", bill)
        return _Source(f"the days of {csv}", "", intervals=days(bill))
    first, end = (None if at is None else at.timestamp() for at in period)
    intervals = read_readings([read_source(one) for one in balance], (first, end))
    return _Source(f"{len(intervals) + 1:,} readings of {', '.join(balance)}", "moonshot", intervals=intervals)


def _within_period(bill: Bill, period: tuple[datetime | None, datetime | None]) -> Bill:
    """The lines that began in the period, and those without a time."""
    since, until = (None if at is None else at.timestamp() for at in period)
    kept = [line for line in bill.lines if line.started_at is None or _is_in(line.started_at, since, until)]
    return replace(bill, lines=kept)


def _is_in(at_s: float, since: float | None, until: float | None) -> bool:
    return (since is None or at_s >= since) and (until is None or at_s < until)


def _expects(source: _Source, targets: Sequence[str], since: datetime | None, until: datetime | None) -> Expects:
    """Which requests should be on the bill: those of the targets, or of the dialect, that began in the period.

    Without a period it is the time that the bill is about, as far as its lines say.
    """
    times = [line.started_at for line in source.bill.lines if line.started_at is not None] if source.bill else []
    first = since.timestamp() if since is not None else min(times, default=None)
    end = until.timestamp() if until is not None else None
    last = max(times, default=None) if end is None else None

    def expects(row: LedgerRow) -> bool:
        if not _is_in(row.started_at, first, end) or (last is not None and row.started_at > last):
            return False
        if targets:
            return row.target in targets
        return not source.dialect or (bool(row.attempts) and row.attempts[-1].dialect == source.dialect)

    return expects


def _within(text: str) -> Decimal:
    try:
        dollars = Decimal(text)
    except InvalidOperation as err:
        raise Misuse(f"--within: {text!r} is no amount; write US dollars such as 0.05") from err
    if not dollars.is_finite() or dollars < 0:
        raise Misuse(f"--within: an amount of 0 or more was expected, not {text}")
    return dollars


@contextlib.contextmanager
def _bill_complaints() -> Iterator[None]:
    """Turns a bill that cannot be read into a message and exit code 2."""
    try:
        yield
    except BillError as err:
        raise Misuse(str(err)) from err
