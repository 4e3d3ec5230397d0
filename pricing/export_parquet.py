"""Rows as a Parquet file, a row group at a time. The one door to pyarrow, which is the extra [parquet].

Money is decimal128(38, 9): exact to the nano-dollar. Loaded only when a Parquet file is asked for.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from typing import IO, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types of its own
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from pricing.export_schema import COLUMNS, Kind, values
from pricing.ledger.row import LedgerRow
from pricing.render import json_text

_ROWS_IN_GROUP: Final = 20_000
_USD: Final = pa.decimal128(38, 9)
_TYPES: Final[Mapping[Kind, Any]] = {
    "text": pa.string(),
    "count": pa.int64(),
    "flag": pa.bool_(),
    "usd": _USD,
    "time": pa.timestamp("ms", tz="UTC"),
    "texts": pa.list_(pa.string()),
    "tags": pa.map_(pa.string(), pa.string()),
    "usd_by_meter": pa.map_(pa.string(), _USD),
    "json": pa.string(),
}

SCHEMA: Final = pa.schema([pa.field(column.name, _TYPES[column.kind]) for column in COLUMNS])


def write_parquet(rows: Iterable[LedgerRow], file: IO[bytes]) -> int:
    """Writes the rows; says how many. Without rows it is a file with the schema and no row group."""
    left = iter(rows)
    count = 0
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        while batch := list(islice(left, _ROWS_IN_GROUP)):
            writer.write_table(_table(batch))
            count += len(batch)
    return count


def _table(rows: Iterable[LedgerRow]) -> Any:
    by_column = zip(*(values(row) for row in rows), strict=True)
    arrays = [
        pa.array([_MADE[column.kind](value) for value in found], type=_TYPES[column.kind])
        for column, found in zip(COLUMNS, by_column, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _usd(value: Any) -> Decimal | None:
    return None if value is None else Decimal(value)


def _time(value: Any) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value).astimezone(UTC)


def _same(value: Any) -> Any:
    return value


def _text(value: Any) -> str | None:
    # UTF-8 cannot hold half a character, and an upstream's text may have one.
    return None if value is None else str(value).encode("utf-8", "replace").decode()


_MADE: Final[Mapping[Kind, Callable[[Any], Any]]] = {
    "text": _text,
    "count": _same,
    "flag": _same,
    "usd": _usd,
    "time": _time,
    "texts": _same,
    "tags": lambda tags: list(tags.items()),
    "usd_by_meter": lambda lines: [(meter, _usd(usd)) for meter, usd in lines.items()],
    "json": lambda value: None if value is None else json_text(value),
}
