"""Sums over the ledger, grouped by any of its dimensions, in exact integers.

Each row's cost stands in exactly one class: estimated, else assumed, else measured. A sum over rows of which
none has a value is unknown (None), not 0.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, FromClause, and_, case, func, literal, select

from pricing.ledger.store.tables import RANK_OPEN, RANK_SETTLED, RANK_UNSETTLED, request_tags, requests

TOKEN_COLUMNS: Final = (
    "prompt_tokens",
    "cached_tokens",
    "write_5m_tokens",
    "write_1h_tokens",
    "completion_tokens",
    "reasoning_tokens",
)
DIMENSIONS: Final = ("day", "hour", "model", "target", "key", "tier", "effort", "route", "status")
TAG_PREFIX: Final = "tag:"
_TIMES: Final = ("day", "hour")


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One group. `by` has the group's values in the order asked for; None where a request lacks the tag.

    Money is nano-dollars; `cost_nano` is None where no request of the group has a known cost. `tokens` has the
    sums by column name, `unknown` how many requests did not report that column.
    """

    by: Mapping[str, str | None]
    requests: int
    tokens: Mapping[str, int | None]
    unknown: Mapping[str, int]
    cost_nano: int | None
    estimated_nano: int
    assumed_nano: int
    unpriced_requests: int
    open_requests: int
    unsettled_requests: int


@dataclass(frozen=True, slots=True)
class _Dimension:
    name: str
    column: ColumnElement[Any]
    shown: Callable[[Any], str | None]


def read_report(
    connection: Connection,
    by: Sequence[str],
    *,
    since: float | None,
    until: float | None,
    where: Mapping[str, str],
) -> list[ReportRow]:
    """The groups: by time where time is asked for first, then the dearest first. See `Store.report`."""
    joins = _Joins()
    dimensions = [joins.dimension(name) for name in dict.fromkeys(by)]
    filters = [joins.dimension(name).column == value for name, value in where.items()]
    if since is not None:
        filters.append(requests.c.started_at >= since)
    if until is not None:
        filters.append(requests.c.started_at < until)
    labels = [dimension.column.label(f"by_{place}") for place, dimension in enumerate(dimensions)]
    query = (
        select(*labels, *_SUMS)
        .select_from(joins.source)
        .where(and_(literal(True), *filters))
        .group_by(*(dimension.column for dimension in dimensions))
    )
    rows = [_row(dimensions, found._mapping) for found in connection.execute(query)]
    rows = [row for row in rows if row.requests]  # without groups SQL gives one row for nothing
    return sorted(rows, key=_order)


class _Joins:
    """The tables a report reads: requests, and the tags asked for."""

    def __init__(self) -> None:
        self.source: FromClause = requests
        self._tags: dict[str, ColumnElement[str]] = {}

    def dimension(self, name: str) -> _Dimension:
        """One way to group. Raises `ValueError` for an unknown one."""
        if name.startswith(TAG_PREFIX) and len(name) > len(TAG_PREFIX):
            return _Dimension(name, self._tag(name.removeprefix(TAG_PREFIX)), _same)
        if name == "day":
            return _Dimension(name, requests.c.hour // 24, _day)
        if name == "hour":
            return _Dimension(name, requests.c.hour, _hour)
        if name in DIMENSIONS:
            return _Dimension(name, requests.c[name], _same)
        raise ValueError(f"a report cannot be grouped by {name!r}; expected {', '.join(DIMENSIONS)} or tag:KEY")

    def _tag(self, tag: str) -> ColumnElement[str]:
        if tag not in self._tags:
            table = request_tags.alias(f"tag_{len(self._tags)}")
            on = and_(table.c.request_id == requests.c.request_id, table.c.tag == tag)
            self.source = self.source.outerjoin(table, on)
            self._tags[tag] = table.c.value
        return self._tags[tag]


def _sum_if(condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return func.coalesce(func.sum(case((condition, requests.c.cost_nano), else_=0)), 0)


def _count_if(condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


_NO_USE: Final = and_(requests.c.cost_source == "none", requests.c.rank == RANK_SETTLED)
_SUMS: Final[list[ColumnElement[Any]]] = [
    func.count().label("requests"),
    *(func.sum(requests.c[name]).label(name) for name in TOKEN_COLUMNS),
    *(func.count(requests.c[name]).label(f"known_{name}") for name in TOKEN_COLUMNS),
    func.sum(requests.c.cost_nano).label("cost_nano"),
    _count_if(_NO_USE).label("without_use"),
    _sum_if(requests.c.estimated).label("estimated_nano"),
    _sum_if(and_(~requests.c.estimated, requests.c.assumed)).label("assumed_nano"),
    _count_if(requests.c.cost_source == "unpriced").label("unpriced_requests"),
    _count_if(requests.c.rank == RANK_OPEN).label("open_requests"),
    _count_if(requests.c.rank == RANK_UNSETTLED).label("unsettled_requests"),
]


def _row(dimensions: Sequence[_Dimension], found: Mapping[Any, Any]) -> ReportRow:
    count = int(found["requests"])
    cost = _whole(found["cost_nano"])
    if cost is None and found["without_use"]:
        cost = 0
    return ReportRow(
        by={one.name: one.shown(found[f"by_{place}"]) for place, one in enumerate(dimensions)},
        requests=count,
        tokens={name: _whole(found[name]) for name in TOKEN_COLUMNS},
        # A request that reached no model used nothing: there is nothing about it to know.
        unknown={
            name: max(0, count - int(found["without_use"]) - int(found[f"known_{name}"])) for name in TOKEN_COLUMNS
        },
        cost_nano=cost,
        estimated_nano=int(found["estimated_nano"]),
        assumed_nano=int(found["assumed_nano"]),
        unpriced_requests=int(found["unpriced_requests"]),
        open_requests=int(found["open_requests"]),
        unsettled_requests=int(found["unsettled_requests"]),
    )


def _order(row: ReportRow) -> tuple[object, ...]:
    times = [value or "" for name, value in row.by.items() if name in _TIMES]
    return (*times, -(row.cost_nano or 0), *(value or "" for value in row.by.values()))


def _whole(value: Any) -> int | None:
    # PostgreSQL sums 64-bit integers into its decimal type.
    return None if value is None else int(value)


def _same(value: str | None) -> str | None:
    return value


def _hour(hour: int) -> str:
    return f"{datetime.fromtimestamp(hour * 3600, UTC):%Y-%m-%dT%H:00Z}"


def _day(day: int) -> str:
    return f"{datetime.fromtimestamp(day * 86400, UTC):%Y-%m-%d}"
