"""`kimi-pricing report`: what was used and what it cost."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

import typer

from pricing.cli_common import (
    Config,
    Journal,
    Ledger,
    Misuse,
    Since,
    Until,
    complaints,
    given_places,
    instant,
    names,
    now,
)
from pricing.cli_ledger import open_ledger
from pricing.cli_settings import Given
from pricing.html_view import print_report_html
from pricing.ledger.store import ReportRow, Store
from pricing.ledger.store.report import DIMENSIONS
from pricing.render import complain
from pricing.report_groups import Previous, cut, dearest, joined
from pricing.report_view import Report, print_report_csv, print_report_json, print_report_table

_EXAMPLES: Final = """Examples:

\b
  kimi-pricing report
  kimi-pricing report --by day,model --since 7d
  kimi-pricing report --by key --since 2026-11-01 --until 2026-12-01
  kimi-pricing report --by key --since 7d --compare-previous --top 5
  kimi-pricing report --by tag:project,tier --format csv
  kimi-pricing report --by hour --since 24h --format json
  kimi-pricing report --by day,model --since 30d --format html"""


class ReportFormat(StrEnum):
    """How to print."""

    table = "table"
    json = "json"
    csv = "csv"
    html = "html"


def add_report(app: typer.Typer) -> None:
    """Gives the program this command."""
    app.command("report", epilog=_EXAMPLES)(report)


def report(
    ctx: typer.Context,
    by: Annotated[
        str, typer.Option(help=f"Group by these, comma-separated: {', '.join(DIMENSIONS)}, tag:KEY.")
    ] = "model",
    since: Since = None,
    until: Until = None,
    compare_previous: Annotated[
        bool,
        typer.Option(
            "--compare-previous", help="Beside each group its cost in the period of equal length before."
        ),
    ] = False,
    top: Annotated[
        int | None, typer.Option(help="Only the dearest N groups; the others summed up.", min=1)
    ] = None,
    repriced: Annotated[
        bool, typer.Option("--repriced", help="Costs that `reprice --apply` kept, in place of the booked ones.")
    ] = False,
    output: Annotated[ReportFormat, typer.Option("--format", help="How to print.")] = ReportFormat.table,
    config: Config = None,
    ledger: Ledger = None,
    journal: Journal = None,
) -> None:
    """What was used and what it cost, by day, model, target, key and so on.

    Requests count by their start. Costs are exact; measured, estimated (no tokens were reported) and assumed
    (the split of cache writes by TTL is the requested one) are told apart. As html it is one page that needs
    nothing else.
    """
    with complaints():
        at = now()
        first, end = instant(since, "--since", at), instant(until, "--until", at)
        wanted = names(by, "--by")
        before = _before(first, end or at) if compare_previous else None
        _, places = given_places(ctx, Given(config, ledger, journal))
        with open_ledger(places) as books:
            groups = _groups(books.store, wanted, first, end, repriced=repriced)
            earlier = None if before is None else _groups(books.store, wanted, *before, repriced=repriced)
            kept_s = books.store.kept_since()
            notes, warnings, name = books.notes, books.warnings, books.store.name
        kept = None if kept_s is None else datetime.fromtimestamp(kept_s, UTC)
        found = Report(wanted, groups, name, at, first, end, repriced=repriced, kept_since=kept)
        if before is not None and earlier is not None:
            found = _compared(found, earlier, *before)
        _print(found if top is None else _cut(found, top), output, notes, warnings)


def _print(found: Report, output: ReportFormat, notes: Sequence[str], warnings: Sequence[str]) -> None:
    match output:
        case ReportFormat.json:
            print_report_json(found)
        case ReportFormat.csv:
            print_report_csv(found)
        case ReportFormat.html:
            print_report_html(found, notes)
        case ReportFormat.table:
            print_report_table(found, notes)
            return
    for warning in warnings:
        complain(warning)


def _before(since: datetime | None, until: datetime) -> tuple[datetime, datetime]:
    """The period of equal length before. Raises `Misuse`."""
    if since is None:
        raise Misuse("--compare-previous needs --since: without it the period has no length; try --since 7d")
    if until <= since:
        raise Misuse("--compare-previous needs a period that ends after it begins; look at --since and --until")
    try:
        return since - (until - since), since
    except OverflowError as err:
        raise Misuse("--compare-previous: there is no period of that length before; use a later --since") from err


def _compared(found: Report, earlier: list[ReportRow], since: datetime, until: datetime) -> Report:
    try:
        rows, before = joined(found.rows, earlier, until - since)
    except ValueError as err:
        raise Misuse(f"--compare-previous: {err}") from err
    return replace(found, rows=rows, previous=Previous(since, until, before))


def _cut(found: Report, top: int) -> Report:
    kept, others = dearest(found.rows, top)
    if not others:
        return found
    previous = found.previous
    if previous is not None:
        previous = replace(previous, rows=cut(previous.rows, kept, others))
    return replace(found, rows=cut(found.rows, kept, others), previous=previous, others=len(others))


def _groups(
    store: Store, by: list[str], since: datetime | None, until: datetime | None, *, repriced: bool
) -> list[ReportRow]:
    first = None if since is None else since.timestamp()
    end = None if until is None else until.timestamp()
    try:
        return store.report(by, since=first, until=end, repriced=repriced)
    except ValueError as err:
        raise Misuse(f"--by: {err}") from err
