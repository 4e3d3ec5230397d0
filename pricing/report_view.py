"""The report: sums of the ledger as a JSON object, CSV, or a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rich.text import Text

from pricing.cells import cell_text
from pricing.grid import Grid
from pricing.ledger.shown import instant_text, money_text
from pricing.ledger.store import ReportRow
from pricing.ledger.store.report import TOKEN_COLUMNS
from pricing.money import usd_text
from pricing.render import UNKNOWN, console, count_text, print_csv, print_json, print_note, table, text
from pricing.report_groups import Change, Previous, change, change_of

_HEADS: Final = ("prompt", "cached", "write 5m", "write 1h", "output", "reasoning")
_MONEY: Final = ("cost USD", "estimated", "assumed", "unpriced")
_BEFORE: Final = ("before USD", "difference", "percent")
_PREVIOUS_NAMES: Final = ("previous_requests", "previous_cost_usd", "difference_usd", "difference_percent")


@dataclass(frozen=True, slots=True)
class Report:
    """What was read: the groups, from which ledger, for which time, and when."""

    by: Sequence[str]
    rows: Sequence[ReportRow]
    ledger: str
    as_of: datetime
    since: datetime | None
    until: datetime | None
    previous: Previous | None = None
    others: int = 0  # how many groups the last one stands for; 0 where all are shown
    repriced: bool = False
    kept_since: datetime | None = None  # rows that began before may be deleted

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
        **_previous_object(report),
        "rows": row_objects(report),
    }


def _previous_object(report: Report) -> dict[str, object]:
    if report.previous is None:
        return {}
    before = sum(row.cost_nano or 0 for row in report.previous.rows)
    return {
        "previous": {
            "since": instant_text(report.previous.since.timestamp()),
            "until": instant_text(report.previous.until.timestamp()),
            "total_usd": usd_text(before),
            **_change_object(change_of(report.total_nano, before)),
        }
    }


def _change_object(found: Change) -> dict[str, object]:
    return {
        "difference_usd": money_text(found.nano),
        "difference_percent": None if found.percent is None else f"{found.percent:f}",
    }


def row_objects(report: Report) -> list[dict[str, object]]:
    """The groups; what stands for several says for how many, and beside each what it was before."""
    found = [row_object(row) for row in report.rows]
    if report.previous is not None:
        for shown, now, before in zip(found, report.rows, report.previous.rows, strict=True):
            shown["previous_requests"] = before.requests
            shown["previous_cost_usd"] = money_text(before.cost_nano)
            shown |= _change_object(change(now, before))
    if report.others:
        found[-1]["other_groups"] = report.others
    return found


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
        *(_PREVIOUS_NAMES if report.previous is not None else ()),
        *(("other_groups",) if report.others else ()),
    )
    texts = tuple(dict.fromkeys(report.by))
    rows = row_objects(report)
    for row in rows:
        row |= {name: cell_text(str(row[name])) for name in texts if row[name] is not None}
    print_csv(names, rows)


def print_report_table(report: Report, notes: Sequence[str]) -> None:
    """Prints the groups, the total, and what a reader must know to trust them."""
    screen = console()
    for at, grid in enumerate(_tables(report)):
        if at:
            screen.print()
        screen.print(grid)
    screen.print()
    for note in report_notes(report, notes):
        print_note(screen, note)


def report_notes(report: Report, notes: Sequence[str]) -> list[str]:
    """What a reader must know to trust the figures."""
    return [*_period(report), *_doubts(report), *notes]


def _tables(report: Report) -> list[Grid]:
    """One table, or, where the page is too narrow for it, one for the money and one or more for the tokens."""
    requests, *tokens = ["requests", *_HEADS]
    before = [] if report.previous is None else list(_BEFORE)
    whole = _table(report, [requests, *tokens, *_MONEY, *before])
    if whole.fits:
        return [whole]
    changes = [_table(report, ["cost USD", *before])] if before else []
    return [_table(report, [requests, *_MONEY]), *changes, *_split(report, tokens)]


def _split(report: Report, numbers: Sequence[str]) -> list[Grid]:
    """These figures in as many tables as it takes for each to fit."""
    grid, half = _table(report, numbers), len(numbers) // 2
    return [grid] if grid.fits or not half else [*_split(report, numbers[:half]), *_split(report, numbers[half:])]


def _table(report: Report, numbers: Sequence[str]) -> Grid:
    """The groups with these figures."""
    names = list(dict.fromkeys(report.by))
    grid = table([*((name, False) for name in names), *((name, True) for name in numbers)])
    for place, row in enumerate(report.rows):
        figures = {**_figures(row), **_change_figures(report, place)}
        grid.add_row(*(text(row.by[name]) for name in names), *(figures[name] for name in numbers))
    if len(report.rows) > 1:
        grid.add_section()
        total = [text("total", "bold"), *(Text() for _ in names[1:])] if names else []
        sums = {**_totals(report), **_change_totals(report)}
        grid.add_row(*total, *(sums[name] for name in numbers), style="bold")
    return grid


def _figures(row: ReportRow) -> dict[str, Text]:
    """A group's figures by the heads of their columns; empty where there is nothing to say."""
    tokens = [count_text(row.tokens[name], at_least=row.unknown[name] > 0) for name in TOKEN_COLUMNS]
    return {
        "requests": Text(f"{row.requests:,}"),
        **{head: Text(count) for head, count in zip(_HEADS, tokens, strict=True)},
        "cost USD": Text(money_text(row.cost_nano) or UNKNOWN),
        "estimated": Text(_or_blank(row.estimated_nano)),
        "assumed": Text(_or_blank(row.assumed_nano)),
        "unpriced": Text(f"{row.unpriced_requests:,}" if row.unpriced_requests else "", style="red"),
    }


def _totals(report: Report) -> dict[str, Text]:
    sums = []
    for name in TOKEN_COLUMNS:
        known = [row.tokens[name] for row in report.rows if row.tokens[name] is not None]
        total = sum(count for count in known if count is not None) if known else None
        sums.append(count_text(total, at_least=any(row.unknown[name] for row in report.rows)))
    return {
        "requests": Text(f"{sum(row.requests for row in report.rows):,}"),
        **{head: Text(count) for head, count in zip(_HEADS, sums, strict=True)},
        "cost USD": Text(usd_text(report.total_nano)),
        "estimated": Text(_or_blank(report.estimated_nano)),
        "assumed": Text(_or_blank(report.assumed_nano)),
        "unpriced": Text(f"{report.unpriced_requests:,}" if report.unpriced_requests else "", style="red"),
    }


def _change_figures(report: Report, place: int) -> dict[str, Text]:
    if report.previous is None:
        return {}
    before = report.previous.rows[place]
    return _changed(before.cost_nano, change(report.rows[place], before))


def _change_totals(report: Report) -> dict[str, Text]:
    if report.previous is None:
        return {}
    before = sum(row.cost_nano or 0 for row in report.previous.rows)
    return _changed(before, change_of(report.total_nano, before))


def _changed(before_nano: int | None, found: Change) -> dict[str, Text]:
    sign = "+" if found.nano is not None and found.nano > 0 else ""
    figures = (
        money_text(before_nano),
        None if found.nano is None else f"{sign}{usd_text(found.nano)}",
        None if found.percent is None else f"{sign}{found.percent:f}",
    )
    return {head: Text(figure or UNKNOWN) for head, figure in zip(_BEFORE, figures, strict=True)}


def _or_blank(nano: int) -> str:
    return usd_text(nano) if nano else ""


def _period(report: Report) -> list[str]:
    since = "the beginning" if report.since is None else instant_text(report.since.timestamp())
    until = "now" if report.until is None else f"{instant_text(report.until.timestamp())} (not included)"
    if not report.rows:
        return [f"no requests from {since} to {until}, by start, UTC"]
    found = [f"requests from {since} to {until}, by start, UTC"]
    if report.previous is not None:
        first, end = (
            instant_text(report.previous.since.timestamp()),
            instant_text(report.previous.until.timestamp()),
        )
        found.append(f"before: requests from {first} to {end} (not included)")
    return found


def _is_unreported(report: Report, name: str) -> bool:
    """Whether the column of this count is left out because nobody reported it."""
    return bool(report.rows) and all(row.tokens[name] is None for row in report.rows)


def _doubts(report: Report) -> list[str]:
    doubts = []
    if report.others:
        doubts.append(f"other: the {report.others:,} groups that are not among the dearest, summed up")
    if report.repriced:
        doubts.append("repriced costs stand in place of the booked ones where `reprice --apply` kept some")
    if report.kept_since is not None and (report.since is None or report.since < report.kept_since):
        kept = instant_text(report.kept_since.timestamp())
        doubts.append(
            f"rows that began before {kept} may be deleted (retention_days): "
            "no tags, parts of hours and repriced costs of theirs are in here"
        )
    if any(0 < row.unknown[name] < row.requests for row in report.rows for name in TOKEN_COLUMNS):
        doubts.append("≥: some upstreams did not report this count; –: none did")
    unreported = [head for head, name in zip(_HEADS, TOKEN_COLUMNS, strict=True) if _is_unreported(report, name)]
    if unreported:
        doubts.append(f"reported by no upstream: {', '.join(unreported)}")
    if report.unpriced_requests:
        doubts.append(f"{report.unpriced_requests:,} unpriced: no known price covers them; they are in no sum")
    open_requests = sum(row.open_requests for row in report.rows)
    unsettled = sum(row.unsettled_requests for row in report.rows)
    if open_requests:
        doubts.append(f"{open_requests:,} still under way: their cost so far may be missing")
    if unsettled:
        doubts.append(f"{unsettled:,} unsettled: their process died before they ended; their cost may be missing")
    return doubts
