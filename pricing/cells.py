"""Lines of CSV, and texts that came from outside as cells that a spreadsheet may open."""

import csv
import io
from collections.abc import Iterable
from typing import Final

_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What spreadsheets take as the beginning of a formula, or skip before one."""


def cell_text(value: str) -> str:
    """The text; with an apostrophe before it where a spreadsheet would take it for a formula and run it.

    Not for figures: a negative amount is a number.
    """
    return f"'{value}" if value.startswith(_FORMULA_STARTS) else value


def csv_line(cells: Iterable[str]) -> str:
    """The cells as one line of CSV with its line feed. A cell that holds either kind of line end is quoted."""
    text = io.StringIO()
    # The writer quotes only the characters of its own terminator, and readers end a line at both.
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue().removesuffix("\r\n") + "\n"
