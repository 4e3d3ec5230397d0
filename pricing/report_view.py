"""The report: sums of the ledger as a JSON object, CSV, or a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rich.text import Text

from pricing.ledger.shown import instant_text, money_text
from pricing.ledger.store import ReportRow
from pricing.ledger.store.report import TOKEN_COLUMNS
from pricing.money import usd_text
from pricing.render import UNKNOWN, console, count_text, print_csv, print_json, table, text

_HEADS: Final = ("prompt", "cached", "write 5m", "write 1h", "output", "reasoning")


@dataclass(frozen=True, slots=True)
class Report:
    """What was read: the groups, from which ledger, for which time, and when."""

    by: Sequence[str]
    rows: Sequence[ReportRow]
    ledger: str
    as_of: datetime
    since: datetime | None
    until: datetime | None

    @property
    def total_nano(self) -> int:
        """All money booked, nano-dollars."""
        return sum(row.cost_nano or 0 for row in self.rows)

    @property
    def estimated_nano(self) -> int:
        """The part of it that no upstream reported tokens for."""
        return sum(row.estimated_nano for row in self.rows)

    @property
    def assumed_nano(self) -> int:
        """The part of the rest whose split by TTL was taken from the request."""
        return sum(row.assumed_nano for row in self.rows)

    @property
    def unpriced_requests(self) -> int:
        """Requests that no known price covers."""
        return sum(row.unpriced_requests for row in self.rows)


def report_object(report: Report) -> dict[str, object]:
    """The report as programs read it; measured, estimated and assumed add up to the total."""
    measured = report.total_nano - report.estimated_nano - report.assumed_nano
    return {
        "total_usd": usd_text(report.total_nano),
        "measured_usd": usd_text(measured),
        "estimated_usd": usd_text(report.estimated_nano),
        "assumed_usd": usd_text(report.assumed_nano),
        "unpriced_requests": report.unpriced_requests,
        "ledger": report.ledger,
        "as_of": instant_text(report.as_of.timestamp()),
        "rows": [row_object(row) for row in report.rows],
    }


def row_object(row: ReportRow) -> dict[str, object]:
    """One group. A sum that nobody reported a part of is null."""
    return {
        **row.by,
        "requests": row.requests,
        **row.tokens,
        "cost_usd": money_text(row.cost_nano),
        "estimated_usd": usd_text(row.estimated_nano),
        "assumed_usd": usd_text(row.assumed_nano),
        "unpriced_requests": row.unpriced_requests,
    }


def print_report_json(report: Report) -> None:
    """Prints the report object."""
    print_json(report_object(report))


def print_report_csv(report: Report) -> None:
    """Prints a line per group."""
    names = (
        *dict.fromkeys(report.by),
        "requests",
        *TOKEN_COLUMNS,
        "cost_usd",
        "estimated_usd",
        "assumed_usd",
        "unpriced_requests",
    )
    print_csv(names, [row_object(row) for row in report.rows])


def print_report_table(report: Report, notes: Sequence[str]) -> None:
    """Prints the groups, the total, and what a reader must know to trust them."""
    screen = console()
    names = list(dict.fromkeys(report.by))
    numbers = ["requests", *_HEADS, "cost USD", "estimated", "assumed", "unpriced"]
    grid = table([*((name, False) for name in names), *((name, True) for name in numbers)])
    for row in report.rows:
        grid.add_row(*(text(row.by[name]) for name in names), *_numbers(row))
    if len(report.rows) > 1:
        grid.add_section()
        total = [text("total", "bold"), *(Text() for _ in names[1:])] if names else []
        grid.add_row(*total, *_totals(report), style="bold")
    screen.print(grid)
    screen.print()
    for note in (*_period(report), *_doubts(report), *notes):
        screen.print(text(note, "dim"))


def _numbers(row: ReportRow) -> list[Text]:
    tokens = [count_text(row.tokens[name], at_least=row.unknown[name] > 0) for name in TOKEN_COLUMNS]
    cost = money_text(row.cost_nano) or UNKNOWN
    return [
        Text(f"{row.requests:,}"),
        *(Text(count) for count in tokens),
        Text(cost),
        Text(_or_blank(row.estimated_nano)),
        Text(_or_blank(row.assumed_nano)),
        Text(f"{row.unpriced_requests:,}" if row.unpriced_requests else "", style="red"),
    ]


def _totals(report: Report) -> list[Text]:
    sums = []
    for name in TOKEN_COLUMNS:
        known = [row.tokens[name] for row in report.rows if row.tokens[name] is not None]
        total = sum(count for count in known if count is not None) if known else None
        sums.append(count_text(total, at_least=any(row.unknown[name] for row in report.rows)))
    return [
        Text(f"{sum(row.requests for row in report.rows):,}"),
        *(Text(count) for count in sums),
        Text(usd_text(report.total_nano)),
        Text(_or_blank(report.estimated_nano)),
        Text(_or_blank(report.assumed_nano)),
        Text(f"{report.unpriced_requests:,}" if report.unpriced_requests else "", style="red"),
    ]


def _or_blank(nano: int) -> str:
    return usd_text(nano) if nano else ""


def _period(report: Report) -> list[str]:
    since = "the beginning" if report.since is None else instant_text(report.since.timestamp())
    until = "now" if report.until is None else f"{instant_text(report.until.timestamp())} (not included)"
    if not report.rows:
        return [f"no requests from {since} to {until}, by start, UTC"]
    return [f"requests from {since} to {until}, by start, UTC"]


def _doubts(report: Report) -> list[str]:
    doubts = []
    if any(0 < row.unknown[name] < row.requests for row in report.rows for name in TOKEN_COLUMNS):
        doubts.append("≥: some upstreams did not report this count; –: none did")
    if report.unpriced_requests:
        doubts.append(f"{report.unpriced_requests:,} unpriced: no known price covers them; they are in no sum")
    open_requests = sum(row.open_requests for row in report.rows)
    unsettled = sum(row.unsettled_requests for row in report.rows)
    if open_requests:
        doubts.append(f"{open_requests:,} still under way: their cost so far may be missing")
    if unsettled:
        doubts.append(f"{unsettled:,} unsettled: their process died before they ended; their cost may be missing")
    return doubts
