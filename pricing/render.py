"""Output in three forms: tables for people, JSON and CSV for programs.

What came from outside (tags, model names, error messages) is shown without control characters, so that a ledger
cannot write to somebody's terminal. Colours appear on terminals only.
"""

import csv
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

UNKNOWN: Final = "–"
# Wider than any table: a line that a terminal breaks is ugly, a figure that is cut to fit would be wrong.
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
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in names])
    _write(text.getvalue())


def console() -> Console:
    """A console on standard output that never cuts a line."""
    return Console(file=sys.stdout, width=_WIDTH, highlight=False)


def complain(message: str) -> None:
    """One message to standard error."""
    sys.stderr.write(f"kimi-pricing: {plain(message)}\n")


def table(columns: Sequence[tuple[str, bool]]) -> Table:
    """An empty table with these columns; True for the ones that hold numbers."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, is_number in columns:
        made.add_column(plain(name), justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
    return made


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


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str() | int() | float() | Decimal():
            return str(value)
        case _:
            return _encoder.encode(value).decode()


def _write(output: str) -> None:
    sys.stdout.write(output)
