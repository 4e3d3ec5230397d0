"""A table that fits its page: texts are wrapped, numbers never, and no line ends in blanks."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from typing_extensions import override

_GAP: Final = 2
_LONGEST_PIECE: Final = 16  # what is longer than this may be cut, so that the rest can be read
_KEPT: Final = r"[^\s/_:,;=@.-]|-(?=\d)|\.(?![A-Za-z])"
_ENDS: Final = r"[\s/_:,;=@]|-(?!\d)|\.(?=[A-Za-z])"
_PIECES: Final = re.compile(rf"(?:{_KEPT})*(?:{_ENDS})+|(?:{_KEPT})+")
"""What may be parted from what follows: words, and the parts of paths, addresses and models' names; not dates and
versions."""


class Grid(Table):
    """A table without lines. Columns are (head, holds numbers); numbers stand to the right. A number cell without
    content shows `nothing`; a number column in which nothing stands is left out."""

    def __init__(self, columns: Sequence[tuple[str, bool]], *, width: int, nothing: str) -> None:
        super().__init__(box=None, pad_edge=False, header_style="bold")
        self._page = width
        self._nothing = nothing
        for head, is_number in columns:
            self.add_column(head, justify="right" if is_number else "left")

    @property
    def fits(self) -> bool:
        """Whether the page is wide enough for its numbers and for readable texts."""
        return _total(self._laid_out()[1]) <= self._page

    @override
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns, widths = self._laid_out()
        styles = [str(self.header_style), *(str(row.style or "") for row in self.rows)]
        for number, style in enumerate(styles):
            if number or self.show_header:
                yield from _lines([column[number] for column in columns], widths, style)

    def _laid_out(self) -> "tuple[list[list[_Cell]], list[int]]":
        """The cells of the columns that are shown, head first, and how wide each of them is."""
        columns = []
        for column in self.columns:
            is_number = column.justify == "right"
            cells = [_Cell(content, is_number, self._nothing) for content in (column.header, *column.cells)]
            if len(cells) == 1 or not is_number or any(cell.words != self._nothing for cell in cells[1:]):
                columns.append(cells if self.show_header else [_Cell("", is_number, ""), *cells[1:]])
        return columns, _widths(columns, self._page)


class _Cell:
    """The words of a cell, and how they look."""

    def __init__(self, content: object, is_number: bool, nothing: str) -> None:
        words = content.plain if isinstance(content, Text) else str(content)
        self.words = nothing if is_number and not words.strip() else words
        self.style = str(content.style) if isinstance(content, Text) else ""
        self.is_number = is_number


def _widths(columns: Sequence[Sequence[_Cell]], page: int) -> list[int]:
    """The width of each column: what it holds, and where the page is too narrow first heads, then texts in several
    lines."""
    widths = [max(cell_len(cell.words) for cell in cells) for cells in columns]
    least = [_least(cells) for cells in columns]
    if _total(widths) > page:
        widths = [
            low if cells[0].is_number else wide for cells, low, wide in zip(columns, least, widths, strict=True)
        ]
    while _total(widths) > page:
        at = max(range(len(widths)), key=lambda index: (widths[index] > least[index], widths[index]))
        if widths[at] <= least[at]:
            break
        widths[at] -= 1
    return widths


def _least(cells: Sequence[_Cell]) -> int:
    """How narrow a column may become: no figure is parted, and a text only where its pieces end."""
    head = max((cell_len(word) for word in cells[0].words.split()), default=0)
    if cells[0].is_number:
        return max(head, *(cell_len(cell.words) for cell in cells[1:]), 0)
    pieces = (cell_len(piece.rstrip()) for cell in cells[1:] for piece in _PIECES.findall(cell.words))
    return max(head, min(max(pieces, default=0), _LONGEST_PIECE))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _lines(cells: Sequence[_Cell], widths: Sequence[int], style: str) -> Iterator[Text]:
    """One row as lines of text."""
    wrapped = [_wrapped(cell.words, width) for cell, width in zip(cells, widths, strict=True)]
    for number in range(max(map(len, wrapped), default=0)):
        line = Text(style=style, no_wrap=True, overflow="ignore")
        for cell, parts, width in zip(cells, wrapped, widths, strict=True):
            part = parts[number] if number < len(parts) else ""
            blanks = " " * (width - cell_len(part))
            line.append(blanks if cell.is_number else "").append(part, cell.style)
            line.append("" if cell.is_number else blanks).append(" " * _GAP)
        line.rstrip()
        yield line


def _wrapped(words: str, width: int) -> list[str]:
    """The words in lines that are no wider than that; what cannot be parted is cut."""
    lines, line = [], ""
    for piece in _PIECES.findall(words):
        if cell_len((line + piece).rstrip()) <= width:
            line += piece
            continue
        if line:
            lines.append(line.rstrip())
        *whole, line = [piece] if cell_len(piece.rstrip()) <= width else chop_cells(piece.rstrip(), max(width, 1))
        lines += whole
    return [*lines, line.rstrip()]
