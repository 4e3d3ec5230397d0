"""Tables fit their page, and never by cutting a figure."""

import io

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from pricing.grid import Grid

NOTHING = "–"
words = st.text(st.characters(categories=["L", "N", "P"], exclude_characters="–"), max_size=30)
texts = st.lists(words, max_size=4).map(" ".join)
numbers = st.integers(0, 10**12).map(lambda number: f"{number:,}") | st.just("")


def drawn(grid: Grid) -> list[str]:
    """The lines of a table without colours."""
    page = io.StringIO()
    Console(file=page, width=10_000, color_system=None).print(grid)
    return page.getvalue().splitlines()


def grid(columns: list[tuple[str, bool]], *rows: tuple[str, ...], width: int = 80) -> Grid:
    made = Grid(columns, width=width, nothing=NOTHING)
    for row in rows:
        made.add_row(*row)
    return made


def test_numbers_stand_to_the_right_and_no_line_ends_in_blanks() -> None:
    made = grid([("name", False), ("count", True), ("note", False)], ("a", "1", "x"), ("bb", "1,000", ""))
    assert drawn(made) == [
        "name  count  note",
        "a         1  x",
        "bb    1,000",
    ]


def test_a_number_column_in_which_nothing_stands_is_left_out_and_a_text_column_is_not() -> None:
    made = grid(
        [("name", False), ("a", True), ("b", True), ("c", False)], ("x", "", "", ""), ("y", NOTHING, "1", "")
    )
    assert drawn(made) == ["name  b  c", "x     –", "y     1"]
    assert drawn(grid([("name", False), ("a", True)])) == ["name  a"]


def test_on_a_narrow_page_first_heads_then_texts_are_wrapped_where_they_part() -> None:
    columns = [("model", False), ("write 5m", True)]
    row = ("kimi-k3.1-pro-highspeed", "7")
    assert drawn(grid(columns, row, width=30)) == [
        "model                    write",
        "                            5m",
        "kimi-k3.1-pro-highspeed      7",
    ]
    assert drawn(grid(columns, row, width=22)) == [
        "model            write",
        "                    5m",
        "kimi-k3.1-pro-       7",
        "highspeed",
    ]


def test_a_date_is_not_parted() -> None:
    made = grid([("card", False)], ("moonshot/kimi-k3@2026-10-24",), width=17)
    assert drawn(made)[1:] == ["moonshot/kimi-k3@", "2026-10-24"]


def test_wide_characters_take_two_columns() -> None:
    made = grid([("tag", False), ("n", True)], ("日本", "1"), ("x", "2"))
    assert drawn(made) == ["tag   n", "日本  1", "x     2"]


def test_styles_do_not_change_what_is_printed() -> None:
    plain, coloured = (grid([("a", False), ("b", True)]) for _ in range(2))
    plain.add_row("x", "1", style="bold")
    coloured.add_row(Text("x", style="dim"), Text("1", style="red"))
    assert drawn(plain) == drawn(coloured)


@given(st.lists(st.tuples(texts, texts, numbers, numbers), max_size=6), st.integers(20, 120))
@settings(max_examples=100, deadline=None)
def test_a_table_that_fits_is_no_wider_than_its_page_and_loses_nothing(
    rows: list[tuple[str, str, str, str]], width: int
) -> None:
    made = grid([("one", False), ("another", False), ("some tokens", True), ("USD", True)], *rows, width=width)
    lines = drawn(made)
    if made.fits:
        assert max(map(cell_len, lines)) <= width
    assert lines == [line.rstrip() for line in lines]
    shown = "".join(lines)
    for row in rows:
        for figure in row[2:]:
            assert figure in shown
    counted = sum(len("".join(cell.split())) for row in rows for cell in row[:2])
    assert sum(len("".join(line.split())) for line in lines) >= counted
