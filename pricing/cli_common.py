"""What the commands of `kimi-pricing` share: their options, their complaints, progress on a terminal."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from pricing.cards import CardError
from pricing.cli_ledger import MissingLedger
from pricing.cli_settings import ConfigError, Given, Places, find_places
from pricing.ledger.errors import LedgerError
from pricing.ledger.row import LedgerRow
from pricing.ledger.store import Store
from pricing.ledger.store.scan import scan_rows
from pricing.render import Format, complain
from pricing.timespan import EXPECTED, parse_instant
from pricing.tokens import TokenizerError

USAGE: Final = 2

_SHOWN_EVERY: Final = 256

# Each command takes these as well as the command line before it; see `pricing.cli`.
Config = Annotated[
    Path | None,
    typer.Option("--config", help="The gateway's configuration. Default: ./kimi-gateway.toml if it is there."),
]
Ledger = Annotated[
    str | None,
    typer.Option("--ledger", help="URL of the ledger. Default: [ledger] url, else sqlite:///kimi-ledger.db."),
]
Journal = Annotated[
    Path | None,
    typer.Option("--journal", help="Directory of the journal. Default: [ledger] journal_dir, else .kimi-journal."),
]
Since = Annotated[str | None, typer.Option("--since", help=f"From then on: {EXPECTED}. UTC.")]
Until = Annotated[str | None, typer.Option("--until", help="Up to then, not included; written like --since.")]
Output = Annotated[Format, typer.Option("--format", help="How to print.")]


class Misuse(Exception):
    """A value on the command line that makes no sense; the message says what was expected."""


@contextlib.contextmanager
def complaints() -> Iterator[None]:
    """Turns what a user can set right into one message and exit code 2."""
    try:
        yield
    except (Misuse, ConfigError, MissingLedger, LedgerError, CardError, TokenizerError) as err:
        complain(str(err))
        raise typer.Exit(USAGE) from err


def given_places(ctx: typer.Context, given: Given) -> tuple[Given, Places]:
    """What flags and variables say in either place, and the places that follow from it. Raises `ConfigError`."""
    both = given.over(ctx.obj if isinstance(ctx.obj, Given) else Given())
    return both, find_places(both)


def now() -> datetime:
    """This moment, UTC."""
    return datetime.now(UTC)


def instant(text: str | None, option: str, at: datetime) -> datetime | None:
    """The instant that an option names, None where it was not given. Raises `Misuse`."""
    if text is None:
        return None
    try:
        return parse_instant(text, now=at)
    except ValueError as err:
        raise Misuse(f"{option}: {err}") from err


def names(text: str, option: str, allowed: Sequence[str] = ()) -> list[str]:
    """The names in a list with commas, each once. Raises `Misuse` for one that is not allowed."""
    found = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in found:
        if allowed and name not in allowed:
            raise Misuse(f"{option}: {name!r} is none of {', '.join(allowed)}")
    return found


@contextlib.contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Gives a function that takes how much is done. It draws a bar where standard error is a terminal."""
    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=total is None),
        console=Console(file=sys.stderr),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with shown:
        task = shown.add_task(label, total=total)
        calls = 0

        def done(amount: int) -> None:
            nonlocal calls
            calls += 1
            if calls % _SHOWN_EVERY == 1:
                shown.update(task, completed=amount)

        yield done


def counted_rows(store: Store, since: datetime | None, until: datetime | None) -> Iterator[LedgerRow]:
    """The rows of a period in the order of their start, with their number shown on a terminal meanwhile."""
    first = None if since is None else since.timestamp()
    end = None if until is None else until.timestamp()
    with progress("reading the ledger") as done:
        for number, row in enumerate(scan_rows(store, since=first, until=end), 1):
            done(number)
            yield row
