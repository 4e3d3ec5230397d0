"""`kimi-pricing export`: every field of every row, exact, and harmless in a spreadsheet."""

import csv
import importlib
import io
import json
import stat
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pricing.atomic_file import replacing
from pricing.cells import cell_text
from pricing.export_csv import write_csv
from pricing.export_parquet import write_parquet
from pricing.export_schema import COLUMNS, NAMES
from pricing.ledger.row import LedgerRow, LineRecord
from pricing.ledger.shown import shown
from support.ledger_rows import START, open_row, settled_row
from support.pricing_cli import book_rows, help_examples, run_pricing
from support.processes import run_module

BIG_NANO = 9_000_000_123_456_789
"""Nine million dollars and a few nano-dollars: more digits than a float has."""


def rich_row(request_id: str = "r") -> LedgerRow:
    """A row with something in every kind of column."""
    return settled_row(
        request_id,
        tags={"team": "=1+1", "ticket": "-7"},
        cost_nano=BIG_NANO,
        table_cost_nano=1,
        adjusted=["temperature", "messages[1].content"],
        raw_usage={"cost": Decimal("0.0212"), "prompt_tokens": 7},
        lines=[LineRecord("cache_read", 7, 200, 1400), LineRecord("search", 1, None, 0)],
        estimate_bound_nano=5,
        cache_loss="expired",
        cache_lost_tokens=3,
        cache_lost_nano=12,
        message="-cmd|' /C calc'!A0",
    )


def rows_of(printed: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(printed, newline="")))


def parquet(path: Path) -> Any:
    """The table of a Parquet file."""
    return importlib.import_module("pyarrow.parquet").read_table(path)


def test_the_columns_are_the_names_of_the_row_object() -> None:
    assert list(NAMES) == list(shown(rich_row()))
    assert len(set(NAMES)) == len(NAMES)


def test_csv_has_every_field_with_exact_money_and_unknown_empty(tmp_path: Path) -> None:
    book_rows(tmp_path, [rich_row("a"), open_row("b", started_at=START + 1)])
    first, second = rows_of(run_pricing(tmp_path, "export").stdout)
    expected = shown(rich_row("a"))
    assert (first["cost_usd"], first["table_cost_usd"]) == ("9000000.123456789", "0.000000001")
    assert json.loads(first["lines"]) == {"cache_read": "0.0000014", "search": None}
    assert json.loads(first["tags"]) == {"team": "=1+1", "ticket": "-7"}
    assert json.loads(first["raw_usage"], parse_float=Decimal) == {"cost": Decimal("0.0212"), "prompt_tokens": 7}
    assert first["started_at"] == "2026-11-30T12:00:00.250Z"
    assert (first["stream"], first["prompt_tokens"]) == ("false", "7")
    for column in COLUMNS:
        if column.kind == "text" and not column.outside:
            assert first[column.name] == expected[column.name]
    assert (second["request_id"], second["cost_usd"], second["cached_tokens"]) == ("b", "", "")


@pytest.mark.parametrize("start", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1"])
def test_a_text_from_outside_never_begins_like_a_formula(tmp_path: Path, start: str) -> None:
    book_rows(tmp_path, [settled_row("a", key=start, route=start, message=start, upstream_model=start)])
    (row,) = rows_of(run_pricing(tmp_path, "export").stdout)
    assert {row[name] for name in ("key", "route", "message", "upstream_model")} == {f"'{start}"}
    (row,) = rows_of(run_pricing(tmp_path, "export", "--verbatim").stdout)
    assert row["key"] == start


def test_figures_and_ordinary_texts_are_left_as_they_are(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a", cost_nano=-5, key="team-a", message="a = b")])
    (row,) = rows_of(run_pricing(tmp_path, "export").stdout)
    assert (row["cost_usd"], row["key"], row["message"]) == ("-0.000000005", "team-a", "a = b")
    assert cell_text("") == ""


def test_a_tag_that_looks_like_a_formula_is_harmless_in_a_report_too(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a", tags={"team": "=1+1"}), settled_row("b")])
    found = rows_of(run_pricing(tmp_path, "report", "--by", "tag:team", "--format", "csv").stdout)
    assert {row["tag:team"] for row in found} == {"'=1+1", ""}


def test_parquet_has_the_documented_types_and_the_same_values(tmp_path: Path) -> None:
    book_rows(tmp_path, [rich_row("a"), open_row("b", started_at=START + 1)])
    run_pricing(tmp_path, "export", "--format", "parquet", "--output", "out.parquet")
    table = parquet(tmp_path / "out.parquet")
    assert table.column_names == list(NAMES)
    types = {field.name: str(field.type) for field in table.schema}
    assert types["cost_usd"] == types["cache_lost_usd"] == "decimal128(38, 9)"
    assert types["started_at"] == "timestamp[ms, tz=UTC]"
    assert (types["prompt_tokens"], types["stream"]) == ("int64", "bool")
    first, second = table.to_pylist()
    assert first["cost_usd"] == Decimal("9000000.123456789")
    assert first["started_at"] == datetime(2026, 11, 30, 12, 0, 0, 250_000, UTC)
    assert dict(first["tags"]) == {"team": "=1+1", "ticket": "-7"}
    assert dict(first["lines"]) == {"cache_read": Decimal("0.000001400"), "search": None}
    assert first["adjusted"] == ["temperature", "messages[1].content"]
    assert json.loads(first["raw_usage"])["prompt_tokens"] == 7
    assert second["cost_usd"] is None
    assert second["attempt_log"] == "[]"


def test_parquet_without_rows_is_a_whole_file(tmp_path: Path) -> None:
    book_rows(tmp_path, [])
    printed = run_pricing(tmp_path, "export", "--format", "parquet").stdout_bytes
    (tmp_path / "empty.parquet").write_bytes(printed)
    assert parquet(tmp_path / "empty.parquet").num_rows == 0


def test_a_period_counts_by_start_and_the_rows_come_in_that_order(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row(f"r{at}", started_at=START + 60 * at) for at in (2, 0, 1, 3)])
    words = ("export", "--since", "2026-11-30T12:01:00Z", "--until", "2026-11-30T12:03:00Z")
    assert [row["request_id"] for row in rows_of(run_pricing(tmp_path, *words).stdout)] == ["r1", "r2"]


def test_a_large_ledger_comes_whole_in_both_forms(tmp_path: Path) -> None:
    count = 2_500  # more than a batch of the scan and of the CSV writer
    book_rows(tmp_path, (settled_row(f"r{at:05}", started_at=START + at) for at in range(count)))
    run_pricing(tmp_path, "export", "--output", "all.csv")
    run_pricing(tmp_path, "export", "--output", "all.parquet", "--format", "parquet")
    names = [row["request_id"] for row in rows_of((tmp_path / "all.csv").read_text("utf-8"))]
    assert names == [f"r{at:05}" for at in range(count)]
    assert parquet(tmp_path / "all.parquet").column("request_id").to_pylist() == names


def test_a_file_is_replaced_whole_and_says_what_is_in_it(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a")])
    place = tmp_path / "out.csv"
    place.write_text("old", "utf-8")
    place.chmod(0o640)
    said = run_pricing(tmp_path, "export", "--output", "out.csv")
    assert said.stdout == ""
    assert "1 requests written to out.csv" in said.stderr
    assert stat.S_IMODE(place.stat().st_mode) == 0o640
    assert len(rows_of(place.read_text("utf-8"))) == 1


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    place = tmp_path / "out.csv"
    place.write_text("old", "utf-8")

    def fail() -> None:
        with replacing(place) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert place.read_text("utf-8") == "old"
    assert list(tmp_path.iterdir()) == [place]


def test_half_a_character_does_not_stop_an_export(tmp_path: Path) -> None:
    row = settled_row("a", message="x")
    book_rows(tmp_path, [row])
    odd = "half \ud83d of it"
    assert cell_text(odd) == odd
    row.message = odd
    for write in (write_csv, write_parquet):
        assert write([row], io.BytesIO()) == 1


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a")])
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from pricing.cli import app\n"
        "app(['export', '--format', 'parquet', '--output', 'x.parquet'], prog_name='kimi-pricing')"
    )
    done = run_module("-c", code, directory=tmp_path)
    assert done.returncode == 2
    assert "pip install 'kimi-gateway[parquet]'" in done.stderr
    assert not (tmp_path / "x.parquet").exists()


def test_wrong_use_is_exit_2_with_the_remedy(tmp_path: Path) -> None:
    assert "no ledger" in run_pricing(tmp_path, "export", expect=2).stderr
    book_rows(tmp_path, [])
    stderr = run_pricing(tmp_path, "export", "--output", "absent/out.csv", expect=2).stderr
    assert "absent/out.csv cannot be written" in stderr


def test_every_example_of_its_help_runs(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a")])
    examples = list(help_examples(tmp_path, "export"))
    assert len(examples) >= 4
    for words in examples:
        run_pricing(tmp_path, *words)
    assert (tmp_path / "november.csv").exists()
    assert parquet(tmp_path / "requests.parquet").num_rows == 1
