"""The command `kimi-pricing`: money questions, answered from the ledger and the rate cards.

Exit codes: 0 answered, 1 no such request, 2 wrong use, no ledger, or a ledger that cannot be read.
"""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from pricing.cards import CardError, load_cards
from pricing.cli_ledger import MissingLedger, open_ledger
from pricing.cli_settings import ConfigError, Given, Places, find_places
from pricing.cli_tokenizer import tokenizer_app
from pricing.ledger.errors import LedgerError
from pricing.ledger.store import ReportRow, Store
from pricing.ledger.store.report import DIMENSIONS
from pricing.rates_view import print_cards_csv, print_cards_json, print_cards_table
from pricing.render import Format, complain
from pricing.report_view import Report, print_report_csv, print_report_json, print_report_table
from pricing.show_view import print_row_csv, print_row_json, print_row_table
from pricing.timespan import EXPECTED, parse_instant

_NOT_FOUND: Final = 1
_USAGE: Final = 2

app = typer.Typer(
    name="kimi-pricing",
    help="What Kimi cost: from the gateway's ledger, exact to the nano-dollar.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(tokenizer_app)

_CONFIG_HELP: Final = "The gateway's configuration. Default: ./kimi-gateway.toml if it is there."
_LEDGER_HELP: Final = "URL of the ledger. Default: [ledger] url, else sqlite:///kimi-ledger.db."
_JOURNAL_HELP: Final = "Directory of the journal. Default: [ledger] journal_dir, else .kimi-journal."

# Each command takes these three as well as the command line before it; only there do the variables count, so
# that a flag in either place comes before a variable.
Config = Annotated[Path | None, typer.Option("--config", help=_CONFIG_HELP)]
Ledger = Annotated[str | None, typer.Option("--ledger", help=_LEDGER_HELP)]
Journal = Annotated[Path | None, typer.Option("--journal", help=_JOURNAL_HELP)]
Output = Annotated[Format, typer.Option("--format", help="How to print.")]


@app.callback()
def common(
    ctx: typer.Context,
    config: Annotated[Path | None, typer.Option(envvar="KIMI_GATEWAY_CONFIG", help=_CONFIG_HELP)] = None,
    ledger: Annotated[str | None, typer.Option(envvar="KIMI_LEDGER_URL", help=_LEDGER_HELP)] = None,
    journal: Annotated[Path | None, typer.Option(help=_JOURNAL_HELP)] = None,
) -> None:
    """Takes what holds for every command."""
    ctx.obj = Given(config, ledger, journal)


@app.command(
    epilog="""Examples:

\b
  kimi-pricing rates
  kimi-pricing rates --all --format json""",
)
def rates(
    ctx: typer.Context,
    all_cards: Annotated[bool, typer.Option("--all", help="Also cards that are over or not begun yet.")] = False,
    output: Output = Format.table,
    config: Config = None,
) -> None:
    """The rate cards in force today (UTC): prices, validity, write rule, and the source of each price."""
    with _complaints():
        book = load_cards(_places(ctx, Given(config)).cards_dir)
        cards = book.cards if all_cards else book.in_force(_now().date())
        match output:
            case Format.json:
                print_cards_json(cards)
            case Format.csv:
                print_cards_csv(cards)
            case Format.table:
                print_cards_table(cards)


@app.command(
    epilog="""Examples:

\b
  kimi-pricing report
  kimi-pricing report --by day,model --since 7d
  kimi-pricing report --by key --since 2026-11-01 --until 2026-12-01
  kimi-pricing report --by tag:project,tier --format csv
  kimi-pricing report --by hour --since 24h --format json""",
)
def report(
    ctx: typer.Context,
    by: Annotated[
        str, typer.Option(help=f"Group by these, comma-separated: {', '.join(DIMENSIONS)}, tag:KEY.")
    ] = "model",
    since: Annotated[str | None, typer.Option(help=f"From then on: {EXPECTED}. UTC.")] = None,
    until: Annotated[str | None, typer.Option(help="Up to then, not included; written like --since.")] = None,
    output: Output = Format.table,
    config: Config = None,
    ledger: Ledger = None,
    journal: Journal = None,
) -> None:
    """What was used and what it cost, by day, model, target, key and so on.

    Requests count by their start. Costs are exact; measured, estimated (no tokens were reported) and assumed
    (the split of cache writes by TTL is the requested one) are told apart.
    """
    with _complaints():
        now = _now()
        first, end = _instant(since, "--since", now), _instant(until, "--until", now)
        names = [name.strip() for name in by.split(",") if name.strip()]
        with open_ledger(_places(ctx, Given(config, ledger, journal))) as books:
            rows = _groups(books.store, names, first, end)
            found = Report(names, rows, books.store.name, now, first, end)
            notes, warnings = books.notes, books.warnings
        match output:
            case Format.json:
                print_report_json(found)
            case Format.csv:
                print_report_csv(found)
            case Format.table:
                print_report_table(found, notes)
                return
        for warning in warnings:
            complain(warning)


@app.command(
    epilog="""Examples:

\b
  kimi-pricing show kr_01jd9qk6z3v8x2m4n5p7r9t1w0
  kimi-pricing show kr_01jd9qk6z3v8x2m4n5p7r9t1w0 --format json""",
)
def show(
    ctx: typer.Context,
    request_id: Annotated[str, typer.Argument(help="The x-kimi-request-id of the answer.")],
    output: Output = Format.table,
    config: Config = None,
    ledger: Ledger = None,
    journal: Journal = None,
) -> None:
    """One request: timeline, attempts, meters with rates, cost, adjustments, thinking."""
    with _complaints():
        with open_ledger(_places(ctx, Given(config, ledger, journal))) as books:
            row = books.missing.rows.get(request_id) or books.store.get(request_id)
            notes = books.notes
        if row is None:
            complain(f"no request {request_id}; {notes[0]}")
            raise typer.Exit(_NOT_FOUND)
        match output:
            case Format.json:
                print_row_json(row)
            case Format.csv:
                print_row_csv(row)
            case Format.table:
                print_row_table(row, notes)


class _Misuse(Exception):
    """A value on the command line that makes no sense."""


@contextlib.contextmanager
def _complaints() -> Iterator[None]:
    """Turns what a user can set right into one message and exit code 2."""
    try:
        yield
    except (_Misuse, ConfigError, MissingLedger, LedgerError, CardError) as err:
        complain(str(err))
        raise typer.Exit(_USAGE) from err


def _places(ctx: typer.Context, given: Given) -> Places:
    common_given = ctx.obj if isinstance(ctx.obj, Given) else Given()
    return find_places(given.over(common_given))


def _now() -> datetime:
    return datetime.now(UTC)


def _instant(text: str | None, option: str, now: datetime) -> datetime | None:
    if text is None:
        return None
    try:
        return parse_instant(text, now=now)
    except ValueError as err:
        raise _Misuse(f"{option}: {err}") from err


def _groups(store: Store, by: list[str], since: datetime | None, until: datetime | None) -> list[ReportRow]:
    first = None if since is None else since.timestamp()
    end = None if until is None else until.timestamp()
    try:
        return store.report(by, since=first, until=end)
    except ValueError as err:
        raise _Misuse(f"--by: {err}") from err
