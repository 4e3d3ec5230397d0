"""Bills as lists of lines: OpenRouter's generation records, the emulator's invoice, a mapped CSV file; balances.

Amounts keep their digits: they are `Decimal` from the first byte on.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Any, Final

import msgspec

from pricing.usage import METERS, Meter

MAPPED: Final = ("request_id", "cost", "started_at", "model", "prompt_tokens", *METERS)
"""What a column of a CSV file can hold."""

_NANO: Final = Decimal("0.000000001")
_CENT: Final = Decimal("0.01")
_MS_MIN: Final = 10**11  # larger Unix times are milliseconds

_decoder: Final = msgspec.json.Decoder(float_hook=Decimal)


class BillError(ValueError):
    """A bill cannot be read; the message says where, what was expected and how to set it right."""


@dataclass(frozen=True, slots=True)
class BillLine:
    """One charge. `id` is the upstream's or ours, empty where the bill has none; time is Unix seconds, None where
    unknown. `counts` has the meters that the bill states, disjoint, in tokens."""

    id: str
    usd: Decimal
    model: str = ""
    started_at: float | None = None
    counts: Mapping[Meter, int] | None = None


@dataclass(frozen=True, slots=True)
class Bill:
    """All lines. Amounts are exact to `step` dollars. `folded` are lines that are only there as a number and a
    sum."""

    lines: Sequence[BillLine]
    step: Decimal = _NANO
    folded: int = 0
    folded_usd: Decimal = Decimal(0)


def read_invoice(data: bytes) -> Bill:
    """The emulator's invoice, as `GET /emulator/invoice` gives it. Raises `BillError`."""
    invoice = _object(_decoded(data, "the invoice"), "the invoice")
    if not isinstance(invoice.get("lines"), list):
        raise BillError("the invoice has no list `lines`; expected what GET /emulator/invoice answers")
    lines = [_invoice_line(line, f"lines[{at}]") for at, line in enumerate(invoice["lines"])]
    folded = invoice.get("folded") or {}
    return Bill(
        lines, folded=_count(folded, "lines", "folded"), folded_usd=_amount(folded.get("usd", "0"), "folded.usd")
    )


def _invoice_line(value: Any, where: str) -> BillLine:
    line = _object(value, where)
    counts: dict[Meter, int] = {meter: _count(line, meter, where) for meter in METERS if meter in line}
    charged = _amount(line.get("usd"), f"{where}.usd")
    return BillLine(str(line.get("id", "")), charged, str(line.get("model", "")), None, counts)


def read_generations(data: bytes) -> Bill:
    """OpenRouter's records, one answer of /api/v1/generation a line, with or without `data` around it.

    With a provider key of the operator's own the charge is the fee and what the provider charges that key.
    Raises `BillError`.
    """
    lines = []
    for number, text in enumerate(data.splitlines(), 1):
        if text.strip():
            where = f"line {number}"
            record = _object(_decoded(text, where), where)
            lines.append(_generation(_object(record.get("data", record), where), where))
    return Bill(lines)


def _generation(record: Mapping[str, Any], where: str) -> BillLine:
    identity = record.get("id")
    if not isinstance(identity, str) or not identity:
        raise BillError(f"{where}: no `id`; expected an answer of /api/v1/generation?id=…")
    charged = _amount(record.get("total_cost"), f"{where}: total_cost")
    if record.get("is_byok") is True and record.get("upstream_inference_cost") is not None:
        charged += _amount(record["upstream_inference_cost"], f"{where}: upstream_inference_cost")
    started = record.get("created_at")
    return BillLine(
        identity,
        charged,
        str(record.get("model") or ""),
        None if started is None else _instant(started, f"{where}: created_at"),
        _native_counts(record, where),
    )


def _native_counts(record: Mapping[str, Any], where: str) -> Mapping[Meter, int] | None:
    """The provider's own counts. Writes are not among them: they are in `input` here."""
    names = ("native_tokens_prompt", "native_tokens_completion", "native_tokens_cached")
    if any(not isinstance(record.get(name), int) for name in names):
        return None
    prompt, output, cached = (_count(record, name, where) for name in names)
    return {"input": max(0, prompt - cached), "cache_read": cached, "output": output}


def read_mapping(text: str) -> dict[str, str]:
    """The columns that `NAME=COLUMN,…` names, by what they hold. Raises `BillError`."""
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, equals, column = part.partition("=")
        if not equals or name.strip() not in MAPPED or not column.strip():
            raise BillError(f"{part!r} is no mapping; write NAME=COLUMN with a NAME of {', '.join(MAPPED)}")
        found[name.strip()] = column.strip()
    if "cost" not in found or not {"request_id", "started_at"} & found.keys():
        raise BillError(
            "the mapping needs cost=… and request_id=…, or cost=… and started_at=… to compare by the day"
        )
    return found


def read_csv(data: bytes, mapping: Mapping[str, str]) -> Bill:
    """A CSV file with a head line. Amounts are taken as rounded to as many places as the longest of them has, at
    least two. Raises `BillError`."""
    try:
        reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""))
        columns = reader.fieldnames or ()
        for name, column in mapping.items():
            if column not in columns:
                known = ", ".join(columns) or "none"
                raise BillError(f"{name}={column}: there is no such column; there are {known}")
        lines = [_csv_line(row, mapping, f"line {reader.line_num}") for row in reader]
    except (UnicodeDecodeError, csv.Error) as err:
        raise BillError(f"not a CSV file in UTF-8: {err}") from err
    return Bill(lines, min((_step(line.usd) for line in lines), default=_NANO))


def _csv_line(row: Mapping[str, str | None], mapping: Mapping[str, str], where: str) -> BillLine:
    cells = {name: (row.get(column) or "").strip() for name, column in mapping.items()}
    counts = {name: _whole(cells[name], f"{where}: {name}") for name in cells if name in METERS and cells[name]}
    prompt = cells.get("prompt_tokens", "")
    if prompt and "input" not in counts:
        parts = sum(count for name, count in counts.items() if name in ("cache_read", "write_5m", "write_1h"))
        counts["input"] = max(0, _whole(prompt, f"{where}: prompt_tokens") - parts)
    started = cells.get("started_at", "")
    return BillLine(
        cells.get("request_id", ""),
        _amount(cells["cost"].removeprefix("$"), f"{where}: cost"),
        cells.get("model", ""),
        _instant(started, f"{where}: started_at") if started else None,
        {meter: counts[meter] for meter in METERS if meter in counts} or None,
    )


def _step(amount: Decimal) -> Decimal:
    exponent = amount.as_tuple().exponent
    return min(_CENT, Decimal(1).scaleb(exponent)) if isinstance(exponent, int) else _CENT


def _decoded(data: bytes, where: str) -> Any:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, ArithmeticError, RecursionError) as err:
        raise BillError(f"{where}: not JSON: {err}") from err


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BillError(f"{where}: a JSON object was expected")
    return value


_DIGITS = 30
"""More places before or after the point than any amount of money has."""
_LATEST_S = 7_258_118_400.0  # the year 2200


def _amount(value: Any, where: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise BillError(f"{where}: an amount in dollars was expected, not {value!r}")
    try:
        amount = Decimal(value)
        finite = amount.is_finite() and abs(amount.adjusted()) < _DIGITS
    except InvalidOperation as err:
        raise BillError(f"{where}: {value!r} is no amount; expected dollars such as 0.0212") from err
    if not finite:
        raise BillError(f"{where}: {str(value)[:40]!r} is no amount of dollars that a bill can have")
    return amount


def _count(table: Mapping[str, Any], name: str, where: str) -> int:
    value = table.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BillError(f"{where}.{name}: a count was expected, not {value!r}")
    return value


def _whole(text: str, where: str) -> int:
    if not text.isdecimal():
        raise BillError(f"{where}: {text!r} is no count of tokens")
    return int(text)


def _instant(value: Any, where: str) -> float:
    """Unix seconds of an RFC 3339 time, or of Unix seconds or milliseconds."""
    try:
        if isinstance(value, str) and not value.replace(".", "", 1).isdecimal():
            at = datetime.fromisoformat(value)
            seconds = (at.replace(tzinfo=UTC) if at.tzinfo is None else at).timestamp()
        else:
            seconds = float(value)
    except (TypeError, ValueError, OverflowError) as err:
        raise BillError(f"{where}: {value!r} is no time; expected 2026-11-30T12:00:00Z or Unix seconds") from err
    found = seconds / 1000 if seconds >= _MS_MIN else seconds
    if not 0 <= found < _LATEST_S:
        raise BillError(f"{where}: {str(value)[:40]!r} is no time of a bill")
    return found


@dataclass(frozen=True, slots=True)
class Interval:
    """[since, until) in Unix seconds, and what was charged in it, dollars, exact to `step`."""

    since: float
    until: float
    charged: Decimal
    step: Decimal


def read_readings(files: Sequence[bytes], ends: tuple[float | None, float | None]) -> list[Interval]:
    """The intervals between readings of Moonshot's balance, one reading a line, a list of them, or one a file.

    A reading is what /v1/users/me/balance answers, with a time at `at`; where two have none, they are of `ends`. A
    top-up between a reading and the one before it stands at `topped_up`. Raises `BillError`.
    """
    readings = [reading for data in files for reading in _readings(data)]
    if len(readings) == 2 and all(at is None for at, _, _ in readings):
        readings = [(at, *reading[1:]) for at, reading in zip(ends, readings, strict=True)]
    if any(at is None for at, _, _ in readings):
        raise BillError('a reading has no time; add one as "at", or give two readings with --since and --until')
    timed = sorted((at, balance, more) for at, balance, more in readings if at is not None)
    if len(timed) < 2:
        raise BillError("two readings of the balance are needed at least, one before and one after the requests")
    step = min(_step(balance) for _, balance, _ in timed)
    return [
        Interval(first, end, before - after + more, step)
        for (first, before, _), (end, after, more) in pairwise(timed)
    ]


def _readings(data: bytes) -> Iterator[tuple[float | None, Decimal, Decimal]]:
    try:
        found = _decoder.decode(data)
    except (msgspec.DecodeError, ArithmeticError, RecursionError):
        lines = [line for line in data.splitlines() if line.strip()]
        found = [_decoded(line, f"reading {number}") for number, line in enumerate(lines, 1)]
    for number, value in enumerate(found if isinstance(found, list) else [found], 1):
        where = f"reading {number}"
        reading = _object(value, where)
        inner = _object(reading.get("data", reading), where)
        at = reading.get("at")
        yield (
            None if at is None else _instant(at, f"{where}: at"),
            _amount(inner.get("available_balance"), f"{where}: available_balance"),
            _amount(reading.get("topped_up", 0), f"{where}: topped_up"),
        )


def days(bill: Bill) -> list[Interval]:
    """The lines of a bill by day (UTC). Raises `BillError` for a line without a time."""
    sums: dict[int, Decimal] = {}
    for line in bill.lines:
        if line.started_at is None:
            raise BillError("a line has no time, and no request to match it with; map request_id or started_at")
        day = int(line.started_at // 86_400)
        sums[day] = sums.get(day, Decimal(0)) + line.usd
    # Each line may be rounded by itself.
    step = bill.step * max(1, len(bill.lines))
    return [Interval(day * 86_400.0, (day + 1) * 86_400.0, charged, step) for day, charged in sorted(sums.items())]
