"""Output in three forms: tables for people, JSON and CSV for programs.

What came from outside (tags, model names, error messages) is shown without control characters, so that a ledger
cannot write to somebody's terminal. Colours appear on terminals only. Tables are as wide as the terminal at most,
elsewhere 80 columns; a figure is never cut to make one fit.
"""

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from pricing.cells import csv_line
from pricing.grid import Grid

UNKNOWN: Final = "–"
_USUAL_COLUMNS: Final = 80
_FEWEST_COLUMNS: Final = 40  # in less nothing can be laid out
# Wider than any line: what fits is decided here, and a console cuts what it thinks too long.
_WIDTH: Final = 10_000

_encoder: Final = msgspec.json.Encoder(decimal_format="number")


class Format(StrEnum):
    """How to print."""

    table = "table"
    json = "json"
    csv = "csv"


def print_json(value: object) -> None:
    """Prints the value as JSON, indented; `Decimal` as a number with its own digits."""
    _write(msgspec.json.format(_encoder.encode(value), indent=2).decode() + "\n")


def print_csv(names: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Prints a head line and a line per row. Unknown is empty; objects and lists are JSON in their cell."""
    _write(csv_line(names) + "".join(csv_line(csv_cell(row.get(name)) for name in names) for row in rows))


def console() -> Console:
    """A console on standard output that never cuts a line."""
    return Console(file=sys.stdout, width=_WIDTH, highlight=False)


def page_columns() -> int:
    """The columns there are for output: the terminal's (or what COLUMNS says), 80 where there is none."""
    return max(_FEWEST_COLUMNS, shutil.get_terminal_size((_USUAL_COLUMNS, 24)).columns)


def print_note(screen: Console, words: str, *, indent: int = 0) -> None:
    """Prints a remark, indented by so many blanks; on a terminal it is broken between words, elsewhere it is one
    line, so that it can be searched for."""
    lines = [Text(plain(words))]
    if screen.is_terminal:
        lines = list(lines[0].wrap(screen, page_columns() - indent))
    for line in lines:
        line.rstrip()
        screen.print(Text.assemble(" " * indent, line, style="dim"))


def complain(message: str) -> None:
    """One message to standard error."""
    sys.stderr.write(f"kimi-pricing: {plain(message)}\n")


def table(columns: Sequence[tuple[str, bool]], *, width: int | None = None) -> Grid:
    """An empty table with these columns; True for the ones that hold numbers. It fits `width` columns, by default
    those of the page. Number columns in which nothing stands are left out."""
    return Grid(
        [(plain(name), is_number) for name, is_number in columns],
        width=page_columns() if width is None else width,
        nothing=UNKNOWN,
    )


def text(value: object, style: str = "") -> Text:
    """The value as text that holds no markup and no control characters; None and "" as unknown."""
    return Text(plain(str(value)) if value not in (None, "") else UNKNOWN, style=style)


def plain(value: str) -> str:
    """The text with every character that is not printable replaced."""
    return "".join(char if char.isprintable() else "\ufffd" for char in value)


def count_text(count: int | None, *, at_least: bool = False) -> str:
    """A count with thousands separated, `≥` where some of it is unknown, a dash where all of it is."""
    if count is None:
        return UNKNOWN
    return f"{'≥ ' if at_least else ''}{count:,}"


def price_text(price: Decimal) -> str:
    """The price with its cents, and with more digits where it has them."""
    return f"{price:.2f}" if price == round(price, 2) else f"{price:f}"


def csv_cell(value: object) -> str:
    """A value as the text of a cell: unknown is empty, objects and lists are JSON."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str() | int() | float() | Decimal():
            return str(value)
        case _:
            return json_text(value)


def json_text(value: object) -> str:
    """The value as JSON on one line; `Decimal` as a number with its own digits."""
    return _encoder.encode(value).decode()


def _write(output: str) -> None:
    sys.stdout.write(output)
