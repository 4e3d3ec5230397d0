"""The command `kimi-pricing`: money questions, answered from the ledger and the rate cards.

Exit codes: 0 answered, 1 no such request or a bill that the ledger does not explain, 2 wrong use, no ledger, or a
ledger that cannot be read.
"""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Final

import typer

from pricing.cards import CardError, load_cards
from pricing.cli_advise import add_advise_ttl
from pricing.cli_compare import add_compare
from pricing.cli_estimate import add_estimate
from pricing.cli_export import add_export
from pricing.cli_ledger import MissingLedger, OpenLedger, open_ledger
from pricing.cli_reconcile import add_reconcile
from pricing.cli_report import add_report
from pricing.cli_reprice import add_reprice
from pricing.cli_settings import ConfigError, Given, Places, find_places
from pricing.cli_tokenizer import tokenizer_app
from pricing.ledger.errors import LedgerError
from pricing.ledger.row import LedgerRow
from pricing.rates_view import print_cards_csv, print_cards_json, print_cards_table
from pricing.render import Format, complain
from pricing.show_view import print_row_csv, print_row_json, print_row_table

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
add_estimate(app)
add_compare(app)
add_advise_ttl(app)
add_report(app)
add_reprice(app)
add_export(app)
add_reconcile(app)

_CONFIG_HELP: Final = "The gateway's configuration. Default: ./kimi-gateway.toml if it is there."
_LEDGER_HELP: Final = "URL of the ledger. Default: [ledger] url, else sqlite:///kimi-ledger.db."
_JOURNAL_HELP: Final = "Directory of the journal. Default: [ledger] journal_dir, else .kimi-journal."

# Each command takes these three as well as the command line before it; only there do the variables count, so
# that a flag in either place comes before a variable.
Config = Annotated[Path | None, typer.Option("--config", help=_CONFIG_HELP)]
Ledger = Annotated[str | None, typer.Option("--ledger", help=_LEDGER_HELP)]
Journal = Annotated[Path | None, typer.Option("--journal", help=_JOURNAL_HELP)]
Output = Annotated[Format, typer.Option("--format", help="How to print.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            found = version("kimi-gateway")
        except PackageNotFoundError:
            found = "(not installed)"
        typer.echo(f"kimi-pricing {found}")
        raise typer.Exit


@app.callback()
def common(
    ctx: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version),
    ] = False,
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
  kimi-pricing show kr_01JD9QK6Z3V8X2M4N5P7R9T1W0
  kimi-pricing show kr_01JD9QK6Z3V8X2M4N5P7R9T1W0 --format json""",
)
def show(
    ctx: typer.Context,
    request_id: Annotated[
        str, typer.Argument(help="The x-kimi-request-id of the answer, in capitals or not.", metavar="REQUEST_ID")
    ],
    output: Output = Format.table,
    config: Config = None,
    ledger: Ledger = None,
    journal: Journal = None,
) -> None:
    """One request: timeline, attempts, meters with rates, cost, adjustments, thinking."""
    with _complaints():
        with open_ledger(_places(ctx, Given(config, ledger, journal))) as books:
            row = _row(books, request_id.strip())
            repricing = None if row is None else books.store.repricings.get(row.request_id)
            notes = books.notes
        if row is None:
            complain(f"no request {request_id}; {notes[0]}")
            raise typer.Exit(_NOT_FOUND)
        match output:
            case Format.json:
                print_row_json(row, repricing)
            case Format.csv:
                print_row_csv(row, repricing)
            case Format.table:
                print_row_table(row, notes, repricing)


def _row(books: OpenLedger, request_id: str) -> LedgerRow | None:
    """The row of a request; its id may come in the wrong case, as a terminal or a ticket may have made it."""
    head, mark, rest = request_id.partition("_")
    for name in (request_id, f"{head.lower()}{mark}{rest.upper()}"):
        row = books.missing.rows.get(name) or books.store.get(name)
        if row is not None:
            return row
    return None


@contextlib.contextmanager
def _complaints() -> Iterator[None]:
    """Turns what a user can set right into one message and exit code 2."""
    try:
        yield
    except (ConfigError, MissingLedger, LedgerError, CardError) as err:
        complain(str(err))
        raise typer.Exit(_USAGE) from err


def _places(ctx: typer.Context, given: Given) -> Places:
    common_given = ctx.obj if isinstance(ctx.obj, Given) else Given()
    return find_places(given.over(common_given))


def _now() -> datetime:
    return datetime.now(UTC)
