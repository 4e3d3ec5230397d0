"""`kimi-pricing export`: every row of the ledger with every field, for other programs."""

import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Final

import typer

from pricing.atomic_file import replacing
from pricing.cli_common import (
    Config,
    Journal,
    Ledger,
    Misuse,
    Since,
    Until,
    complaints,
    counted_rows,
    given_places,
    instant,
    now,
)
from pricing.cli_ledger import open_ledger
from pricing.cli_settings import Given
from pricing.export_csv import write_csv
from pricing.ledger.row import LedgerRow
from pricing.render import complain

Write = Callable[[Iterable[LedgerRow], IO[bytes]], int]

_STDOUT: Final = Path("-")
_INSTALL: Final = "pip install 'kimi-gateway[parquet]'"
_EXAMPLES: Final = """Examples:

\b
  kimi-pricing export
  kimi-pricing export --since 2026-11-01 --until 2026-12-01 --output november.csv
  kimi-pricing export --format parquet --output requests.parquet
  kimi-pricing export --since 7d --verbatim"""


class ExportFormat(StrEnum):
    """The kind of file."""

    csv = "csv"
    parquet = "parquet"


def add_export(app: typer.Typer) -> None:
    """Gives the program this command."""
    app.command("export", epilog=_EXAMPLES)(export)


def export(
    ctx: typer.Context,
    since: Since = None,
    until: Until = None,
    target: Annotated[
        Path, typer.Option("--output", "-o", help="File to write or replace; - is standard output.")
    ] = _STDOUT,
    kind: Annotated[ExportFormat, typer.Option("--format", help="The kind of file.")] = ExportFormat.csv,
    verbatim: Annotated[
        bool, typer.Option("--verbatim", help="CSV: texts as they are, also those that look like formulas.")
    ] = False,
    config: Config = None,
    ledger: Ledger = None,
    journal: Journal = None,
) -> None:
    """Every request with every field, in the order of their start.

    Money is exact: decimal strings in CSV, decimal128(38, 9) in Parquet. A file is replaced once it is whole.
    In CSV a text from outside that begins like a formula (= + - @) gets an apostrophe before it.
    """
    with complaints():
        at = now()
        first, end = instant(since, "--since", at), instant(until, "--until", at)
        write = _writer(kind, verbatim=verbatim)
        if kind is ExportFormat.parquet and target == _STDOUT and sys.stdout.isatty():
            raise Misuse("--output: a Parquet file is no text for a terminal; name a file")
        _, places = given_places(ctx, Given(config, ledger, journal))
        with open_ledger(places) as books:
            count = _write(write, counted_rows(books.store, first, end), target)
            notes, warnings = books.notes, books.warnings
    if target == _STDOUT:
        for warning in warnings:
            complain(warning)
    else:
        for note in (f"{count:,} requests written to {target}", *notes):
            complain(note)


def _writer(kind: ExportFormat, *, verbatim: bool) -> Write:
    if kind is ExportFormat.csv:
        return partial(write_csv, verbatim=verbatim)
    try:
        # An extra of its own, and large: loaded only where it is needed.
        from pricing.export_parquet import write_parquet
    except ModuleNotFoundError as err:
        if (err.name or "").partition(".")[0] != "pyarrow":
            raise
        raise Misuse(f"--format parquet needs pyarrow; install it with: {_INSTALL}") from err
    return write_parquet


def _write(write: Write, rows: Iterable[LedgerRow], target: Path) -> int:
    if target == _STDOUT:
        count = write(rows, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return count
    try:
        with replacing(target) as file:
            return write(rows, file)
    except OSError as err:
        raise Misuse(f"--output: {target} cannot be written: {err.strerror or err}") from err
