"""Rows as CSV, a batch at a time: a head line, then a line per row."""

from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Final

from pricing.cells import cell_text, csv_line
from pricing.export_schema import COLUMNS, NAMES, values
from pricing.ledger.row import LedgerRow
from pricing.render import csv_cell

_LINES_AT_ONCE: Final = 1000


def write_csv(rows: Iterable[LedgerRow], file: IO[bytes], *, verbatim: bool = False) -> int:
    """Writes the rows as UTF-8; says how many.

    A text from outside that a spreadsheet would take for a formula gets an apostrophe before it; with `verbatim`
    it does not, and what reads the file must not run it.
    """
    guarded = [column.outside and not verbatim for column in COLUMNS]
    lines = [csv_line(NAMES)]
    count = 0
    for row in rows:
        cells = [csv_cell(value) for value in values(row)]
        lines.append(csv_line(_cells(cells, guarded)))
        count += 1
        if count % _LINES_AT_ONCE == 0:
            _flush(lines, file)
    _flush(lines, file)
    return count


def _cells(cells: Sequence[str], guarded: Sequence[bool]) -> Iterator[str]:
    for cell, is_guarded in zip(cells, guarded, strict=True):
        yield cell_text(cell) if is_guarded else cell


def _flush(lines: list[str], file: IO[bytes]) -> None:
    """Writes the lines and lets go of them. Half characters, which UTF-8 cannot hold, are replaced."""
    file.write("".join(lines).encode("utf-8", "replace"))
    lines.clear()
