"""A report's figures as the bars of a chart. Pure; the floats are geometry, the words beside them are exact."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pricing.ledger.store import ReportRow
from pricing.money import usd_text
from pricing.render import UNKNOWN, plain
from pricing.report_view import Report

BARS_MAX: Final = 31
_SERIES_MAX: Final = 7
_METERS: Final = (
    ("cached_tokens", "cached"),
    ("write_5m_tokens", "write 5m"),
    ("write_1h_tokens", "write 1h"),
    ("completion_tokens", "output"),
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One piece of a bar: how long it is, and what it says when pointed at."""

    value: float
    words: str


@dataclass(frozen=True, slots=True)
class Series:
    """Pieces of one colour, one for each label; None where there is nothing."""

    name: str
    bars: Sequence[Bar | None]


def drawn(report: Report) -> list[ReportRow]:
    """The groups that get a bar: the dearest, in the order of the report."""
    rows = report.rows
    kept = sorted(range(len(rows)), key=lambda place: -(rows[place].cost_nano or 0))[:BARS_MAX]
    return [rows[place] for place in sorted(kept)]


def label(row: ReportRow) -> str:
    return plain(", ".join(UNKNOWN if value is None else value for value in row.by.values()))


def _usd_bar(nano: int, words: str) -> Bar:
    return Bar(nano / 1e9, plain(f"{words}: {usd_text(nano)} USD"))


def by_class(rows: Sequence[ReportRow]) -> list[Series]:
    """Measured, estimated and assumed cost of each group; a class that is nowhere is left out."""
    found = []
    for name in ("measured", "estimated", "assumed"):
        nanos = [_of_class(row, name) for row in rows]
        if name == "measured" or any(nanos):
            pairs = zip(rows, nanos, strict=True)
            bars = [_usd_bar(nano, f"{label(row)}, {name}") if nano else None for row, nano in pairs]
            found.append(Series(name, bars))
    return found


def _of_class(row: ReportRow, name: str) -> int:
    match name:
        case "estimated":
            return row.estimated_nano
        case "assumed":
            return row.assumed_nano
        case _:
            return (row.cost_nano or 0) - row.estimated_nano - row.assumed_nano


def over_time(report: Report, names: Sequence[str]) -> tuple[list[str], list[Series]]:
    """The cost by day or hour, stacked by whatever else the report is grouped by; the smallest of that as one."""
    costs: dict[str, dict[str, int]] = {}
    for row in report.rows:
        rest = ", ".join(UNKNOWN if row.by[name] is None else str(row.by[name]) for name in names[1:])
        by_time = costs.setdefault(rest or "cost", {})
        time = str(row.by[names[0]])
        by_time[time] = by_time.get(time, 0) + (row.cost_nano or 0)
    times = list(dict.fromkeys(str(row.by[names[0]]) for row in report.rows))[-BARS_MAX:]
    order = sorted(costs, key=lambda rest: -sum(costs[rest].values()))
    shown = {rest: costs[rest] for rest in order[:_SERIES_MAX]}
    if len(order) > _SERIES_MAX:
        others = [costs[rest] for rest in order[_SERIES_MAX:]]
        shown["all others"] = {time: sum(one.get(time, 0) for one in others) for time in times}
    series = [
        Series(plain(rest), [_usd_bar(by[time], f"{time}, {rest}") if by.get(time) else None for time in times])
        for rest, by in shown.items()
    ]
    return [plain(time) for time in times], series


def by_meter(rows: Sequence[ReportRow]) -> list[Series]:
    def bars(counts: Sequence[int], name: str) -> list[Bar | None]:
        pairs = zip(rows, counts, strict=True)
        return [Bar(count, f"{label(row)}, {name}: {count:,}") if count else None for row, count in pairs]

    found = [Series("fresh input", bars([_fresh(row) for row in rows], "fresh input"))]
    for column, name in _METERS:
        counts = [row.tokens[column] or 0 for row in rows]
        if any(counts):
            found.append(Series(name, bars(counts, name)))
    return found


def _fresh(row: ReportRow) -> int:
    cached = sum(row.tokens[name] or 0 for name in ("cached_tokens", "write_5m_tokens", "write_1h_tokens"))
    return max(0, (row.tokens["prompt_tokens"] or 0) - cached)
