"""Sums over the ledger, grouped by any of its dimensions, in exact integers.

By fixed dimensions whole days and hours are read from the sums that are kept of them, and only what is left of a
period at its two ends from the rows; by tags everything is read from the rows. Each row's cost stands in exactly
one class: estimated, else assumed, else measured. A sum over rows of which none has a value is unknown (None),
not 0.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, Connection, FromClause, Select, Table, and_, literal, literal_column, select

from pricing.ledger.store.repricings import DIFFERENCES, REPRICED
from pricing.ledger.store.sums import NAMES, ROW_SUMS, sums_of
from pricing.ledger.store.tables import (
    TOKEN_COLUMNS,
    daily_rollups,
    request_tags,
    requests,
    rollups,
    summed_days,
)

__all__ = ["DIMENSIONS", "TAG_PREFIX", "TOKEN_COLUMNS", "ReportRow", "read_report"]

DIMENSIONS: Final = ("day", "hour", "model", "target", "key", "tier", "effort", "route", "status", "cache_loss")
TAG_PREFIX: Final = "tag:"
_TIMES: Final = ("day", "hour")
_KNOWN: Final = tuple((name, f"known_{name}") for name in TOKEN_COLUMNS)
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
_GAPS_MAX: Final = 8
"""With more stretches of days without daily sums than this, all hours are looked at once."""


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
class Period:
    """[since, until) in Unix seconds; None is without end."""

    since: float | None
    until: float | None


@dataclass(frozen=True, slots=True)
class _Dimension:
    name: str
    column: ColumnElement[Any]
    shown: Callable[[Any], str | None]


def read_report(
    connection: Connection,
    by: Sequence[str],
    period: Period,
    where: Mapping[str, str],
    *,
    from_rows: bool,
    repriced: bool = False,
) -> list[ReportRow]:
    """The groups: by time where time is asked for first, then the dearest first. See `Store.report`."""
    names = list(dict.fromkeys(by))
    groups: dict[tuple[Any, ...], list[int]] = {}
    shown: list[_Dimension] = []
    for source, part in chain(
        _parts(connection, [*names, *where], period, from_rows),
        [(_Rows(REPRICED, DIFFERENCES), period)] if repriced else [],
    ):
        shown = [source.dimension(name) for name in names]
        filters = [source.dimension(name).column == value for name, value in where.items()]
        for found in connection.execute(source.query(shown, [*filters, *source.within(part)])):
            # PostgreSQL sums 64-bit integers into its decimal type.
            values = [int(value) for value in found[len(names) :]]
            group = tuple(found[: len(names)])
            known = groups.get(group)
            groups[group] = values if known is None else [a + b for a, b in zip(known, values, strict=True)]
    rows = [_row(shown, group, dict(zip(NAMES, values, strict=True))) for group, values in groups.items()]
    # Without groups SQL gives one row for nothing.
    return sorted((row for row in rows if row.requests), key=_order)


def _parts(
    connection: Connection, names: Sequence[str], period: Period, from_rows: bool
) -> Iterator[tuple["_Source", Period]]:
    """What a report reads, and the part of the period that each stands for.

    All of it has to be read in one view of the database: a day may lose its sums, or get them, at any time.
    """
    first_s, end_s = _whole(period, _HOUR_S)
    if from_rows or _is_empty(first_s, end_s) or any(name.startswith(TAG_PREFIX) for name in names):
        yield _Rows(), period
    else:
        yield from _kept_parts(connection, Period(first_s, end_s), by_hour="hour" in names)
        if first_s != period.since:
            yield _Rows(), Period(period.since, first_s)
        if end_s != period.until:
            yield _Rows(), Period(end_s, period.until)


def _kept_parts(connection: Connection, hours: Period, *, by_hour: bool) -> Iterator[tuple["_Source", Period]]:
    days = Period(*_whole(hours, _DAY_S))
    if by_hour or _is_empty(days.since, days.until):
        yield _Hours(None), hours
        return
    yield _Days(), days
    day = summed_days.c.day
    summed = connection.scalars(select(day).where(*_between(day, days, _DAY_S)).order_by(day)).all()
    gaps = list(_gaps(summed, hours))
    if len(gaps) > _GAPS_MAX:
        yield _Hours(days), hours
    else:
        yield from ((_Hours(None), gap) for gap in gaps)


def _gaps(days: Sequence[int], hours: Period) -> Iterator[Period]:
    """What is left of a period without these days, in order."""
    since = hours.since
    for day in days:
        if since is None or since < day * _DAY_S:
            yield Period(since, day * _DAY_S)
        since = (day + 1) * _DAY_S
    if not _is_empty(since, hours.until):
        yield Period(since, hours.until)


def _whole(period: Period, step_s: int) -> tuple[float | None, float | None]:
    """The whole hours or days of a period; the end may be before the beginning where there are none."""
    since, until = period.since, period.until
    # Rounded as the hour of a row is, downwards, and never by way of a quotient that may itself be rounded.
    first_s = None if since is None else since // step_s * step_s
    if first_s is not None and since is not None and first_s < since:
        first_s += step_s
    return first_s, None if until is None else until // step_s * step_s


def _is_empty(since: float | None, until: float | None) -> bool:
    return since is not None and until is not None and since >= until


class _Days:
    """The daily sums, of the days that have true ones."""

    def dimension(self, name: str) -> _Dimension:
        """One way to group. Raises `ValueError` for an unknown one."""
        return _Dimension(name, daily_rollups.c.day, _day) if name == "day" else _fixed(name, daily_rollups)

    def within(self, period: Period) -> list[ColumnElement[bool]]:
        """The conditions for a period of whole days."""
        day = daily_rollups.c.day
        return [day.in_(select(summed_days.c.day)), *_between(day, period, _DAY_S)]

    def query(self, by: Sequence[_Dimension], filters: Sequence[ColumnElement[bool]]) -> Select[Any]:
        """The sums by group."""
        return _query(daily_rollups, by, filters, sums_of(daily_rollups))


class _Hours:
    """The hourly sums; without those that the daily ones of `days` stand for."""

    def __init__(self, days: Period | None) -> None:
        self._days = days

    def dimension(self, name: str) -> _Dimension:
        """One way to group. Raises `ValueError` for an unknown one."""
        return _fixed(name, rollups)

    def within(self, period: Period) -> list[ColumnElement[bool]]:
        """The conditions for a period of whole hours."""
        found = _between(rollups.c.hour, period, _HOUR_S)
        if self._days is not None:
            summed = select(summed_days.c.day).where(*_between(summed_days.c.day, self._days, _DAY_S))
            found.append((rollups.c.hour // literal_column("24")).not_in(summed))
        return found

    def query(self, by: Sequence[_Dimension], filters: Sequence[ColumnElement[bool]]) -> Select[Any]:
        """The sums by group."""
        return _query(rollups, by, filters, sums_of(rollups))


def _between(column: ColumnElement[int], period: Period, step_s: int) -> list[ColumnElement[bool]]:
    found = []
    if period.since is not None:
        found.append(column >= int(period.since // step_s))
    if period.until is not None:
        found.append(column < int(period.until // step_s))
    return found


class _Rows:
    """The requests, and the tags asked for."""

    def __init__(self, source: FromClause = requests, sums: Sequence[ColumnElement[Any]] = ROW_SUMS) -> None:
        self._source = source
        self._sums = sums
        self._tags: dict[str, ColumnElement[str]] = {}

    def dimension(self, name: str) -> _Dimension:
        """One way to group. Raises `ValueError` for an unknown one."""
        if name.startswith(TAG_PREFIX) and len(name) > len(TAG_PREFIX):
            return _Dimension(name, self._tag(name.removeprefix(TAG_PREFIX)), _same)
        return _fixed(name, requests)

    def within(self, period: Period) -> list[ColumnElement[bool]]:
        """The conditions for any period."""
        found = []
        if period.since is not None:
            found.append(requests.c.started_at >= period.since)
        if period.until is not None:
            found.append(requests.c.started_at < period.until)
        return found

    def query(self, by: Sequence[_Dimension], filters: Sequence[ColumnElement[bool]]) -> Select[Any]:
        """The sums by group."""
        return _query(self._source, by, filters, self._sums)

    def _tag(self, tag: str) -> ColumnElement[str]:
        if tag not in self._tags:
            table = request_tags.alias(f"tag_{len(self._tags)}")
            on = and_(table.c.request_id == requests.c.request_id, table.c.tag == tag)
            self._source = self._source.outerjoin(table, on)
            self._tags[tag] = table.c.value
        return self._tags[tag]


_Source: TypeAlias = _Days | _Hours | _Rows


def _fixed(name: str, table: Table) -> _Dimension:
    if name == "day":
        # A literal: PostgreSQL takes two parameters of the same value for different ways to group.
        return _Dimension(name, table.c.hour // literal_column("24"), _day)
    if name == "hour":
        return _Dimension(name, table.c.hour, _hour)
    if name in DIMENSIONS:
        return _Dimension(name, table.c[name], _same)
    raise ValueError(f"a report cannot be grouped by {name!r}; expected {', '.join(DIMENSIONS)} or tag:KEY")


def _query(
    source: FromClause,
    by: Sequence[_Dimension],
    filters: Sequence[ColumnElement[bool]],
    sums: Sequence[ColumnElement[Any]],
) -> Select[Any]:
    labels = [dimension.column.label(f"by_{place}") for place, dimension in enumerate(by)]
    query = select(*labels, *sums).select_from(source).where(and_(literal(True), *filters))
    return query.group_by(*(dimension.column for dimension in by))


def _row(by: Sequence[_Dimension], group: Sequence[Any], sums: Mapping[str, int]) -> ReportRow:
    count = sums["requests"]
    cost = sums["cost_nano"] if sums["known_cost_nano"] or sums["without_use"] else None
    return ReportRow(
        by={one.name: one.shown(value) for one, value in zip(by, group, strict=True)},
        requests=count,
        tokens={name: sums[name] if sums[known] else None for name, known in _KNOWN},
        # A request that reached no model used nothing: there is nothing about it to know.
        unknown={name: max(0, count - sums["without_use"] - sums[known]) for name, known in _KNOWN},
        cost_nano=cost,
        estimated_nano=sums["estimated_nano"],
        assumed_nano=sums["assumed_nano"],
        unpriced_requests=sums["unpriced_requests"],
        open_requests=sums["open_requests"],
        unsettled_requests=sums["unsettled_requests"],
    )


def _order(row: ReportRow) -> tuple[object, ...]:
    times = [value or "" for name, value in row.by.items() if name in _TIMES]
    return (*times, -(row.cost_nano or 0), *(value or "" for value in row.by.values()))


def _same(value: str | None) -> str | None:
    return value


@lru_cache(4096)
def _hour(hour: int) -> str:
    return f"{datetime.fromtimestamp(hour * _HOUR_S, UTC):%Y-%m-%dT%H:00Z}"


@lru_cache(4096)
def _day(day: int) -> str:
    return f"{datetime.fromtimestamp(day * 86400, UTC):%Y-%m-%d}"
