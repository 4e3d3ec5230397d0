"""What a report adds up, once over the rows and once over the hourly sums: the same figures under the same names.

The triggers of the migration say it a third time, for one row. `inconsistencies` and a property test hold the
three together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Label,
    Select,
    Table,
    and_,
    case,
    delete,
    func,
    insert,
    literal_column,
    not_,
    select,
    text,
)

from pricing.ledger.store.tables import (
    GROUP_COLUMNS,
    RANK_OPEN,
    RANK_SETTLED,
    RANK_UNSETTLED,
    SUM_COLUMNS,
    TOKEN_COLUMNS,
    daily_rollups,
    requests,
    rollups,
    summed_days,
)

_SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Inconsistency:
    """A group whose kept sums are not the sums of what they are made of; {} where one side lacks the group.

    `group` has the fixed dimensions and the Unix `hour` where hourly sums differ from the rows, the Unix `day`
    where daily sums differ from the hourly ones.
    """

    group: Mapping[str, int | str]
    true: Mapping[str, int]
    kept: Mapping[str, int]


def _total(value: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.coalesce(func.sum(value), 0)


def _if(condition: ColumnElement[bool], value: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((condition, value), else_=literal_column("0"))


_ONE: Final[ColumnElement[Any]] = literal_column("1")
_ESTIMATED: Final = requests.c.estimated
_OF_ROW: Final[Mapping[str, ColumnElement[Any]]] = {
    "requests": _ONE,
    **{name: requests.c[name] for name in TOKEN_COLUMNS},
    **{f"known_{name}": _if(requests.c[name].is_not(None), _ONE) for name in TOKEN_COLUMNS},
    "without_use": _if(and_(requests.c.cost_source == "none", requests.c.rank == RANK_SETTLED), _ONE),
    "cost_nano": requests.c.cost_nano,
    "known_cost_nano": _if(requests.c.cost_nano.is_not(None), _ONE),
    "estimated_nano": _if(_ESTIMATED, requests.c.cost_nano),
    "assumed_nano": _if(and_(requests.c.assumed, not_(_ESTIMATED)), requests.c.cost_nano),
    "unpriced_requests": _if(requests.c.cost_source == "unpriced", _ONE),
}

ROW_SUMS: Final[list[Label[Any]]] = [
    *(_total(_OF_ROW[name]).label(name) for name in SUM_COLUMNS),
    _total(_if(requests.c.rank == RANK_OPEN, _ONE)).label("open_requests"),
    _total(_if(requests.c.rank == RANK_UNSETTLED, _ONE)).label("unsettled_requests"),
]


def sums_of(table: Table) -> list[Label[Any]]:
    """The same of the hourly or the daily sums."""
    return [
        *(_total(table.c[name]).label(name) for name in SUM_COLUMNS),
        _total(_if(table.c.status == "open", table.c.requests)).label("open_requests"),
        _total(_if(table.c.status == "unsettled", table.c.requests)).label("unsettled_requests"),
    ]


NAMES: Final = (*SUM_COLUMNS, "open_requests", "unsettled_requests")


# The first day that is over and not summed up. By jumps from day to day, so that years of sums cost little.
_NEXT_DAY: Final = text("""
WITH RECURSIVE days(day) AS (
  SELECT min(hour) / 24 FROM kimi_rollups
  UNION ALL
  SELECT (SELECT min(hour) / 24 FROM kimi_rollups WHERE hour >= (days.day + 1) * 24) FROM days
  WHERE days.day IS NOT NULL
)
SELECT min(day) FROM days WHERE day < :end_day AND day NOT IN (SELECT day FROM kimi_summed_days)
""")


def next_day(connection: Connection, end_day: int) -> int | None:
    """The first Unix day before `end_day` that has no true daily sums; None where there is none."""
    found: int | None = connection.execute(_NEXT_DAY, {"end_day": end_day}).scalar()
    return found


def sum_up_day(connection: Connection, day: int) -> None:
    """Makes the daily sums of a Unix day from its hourly ones."""
    groups = [rollups.c[name] for name in GROUP_COLUMNS[1:]]
    of_hours = select(literal_column(str(day)), *groups, *(func.sum(rollups.c[name]) for name in SUM_COLUMNS))
    of_hours = of_hours.where(rollups.c.hour >= day * 24, rollups.c.hour < (day + 1) * 24).group_by(*groups)
    connection.execute(delete(daily_rollups).where(daily_rollups.c.day == day))
    names = ["day", *GROUP_COLUMNS[1:], *SUM_COLUMNS]
    connection.execute(insert(daily_rollups).from_select(names, of_hours))
    connection.execute(insert(summed_days).values(day=day))


def inconsistencies(connection: Connection, *, first_hour: int, end_hour: int | None) -> list[Inconsistency]:
    """The groups of [first_hour, end_hour) whose sums are wrong, at most twenty; empty where all is well.

    Reads every row of these hours, and the sums of every day.
    """
    groups = [requests.c[name] for name in GROUP_COLUMNS]
    of_rows = select(*groups, *(_total(_OF_ROW[name]).label(name) for name in SUM_COLUMNS)).group_by(*groups)
    of_rows = of_rows.where(requests.c.started_at >= first_hour * 3600)
    kept = select(*(rollups.c[name] for name in (*GROUP_COLUMNS, *SUM_COLUMNS)))
    kept = kept.where(rollups.c.hour >= first_hour)
    if end_hour is not None:
        of_rows = of_rows.where(requests.c.started_at < end_hour * 3600)
        kept = kept.where(rollups.c.hour < end_hour)
    return [*_differences(connection, of_rows, kept, "hour"), *_wrong_days(connection)][:_SHOWN_MAX]


def _wrong_days(connection: Connection) -> list[Inconsistency]:
    is_summed = select(summed_days.c.day)
    day = (rollups.c.hour // literal_column("24")).label("day")
    groups = [day, *(rollups.c[name] for name in GROUP_COLUMNS[1:])]
    of_hours = select(*groups, *(_total(rollups.c[name]).label(name) for name in SUM_COLUMNS))
    of_hours = of_hours.where(day.in_(is_summed)).group_by(*groups)
    kept = select(*(daily_rollups.c[name] for name in ("day", *GROUP_COLUMNS[1:], *SUM_COLUMNS)))
    return _differences(connection, of_hours, kept.where(daily_rollups.c.day.in_(is_summed)), "day")


def _differences(connection: Connection, true: Select[Any], kept: Select[Any], time: str) -> list[Inconsistency]:
    left, right = _only_in(connection, true, kept), _only_in(connection, kept, true)
    names = (time, *GROUP_COLUMNS[1:])
    return [
        Inconsistency(dict(zip(names, group, strict=True)), left.get(group, {}), right.get(group, {}))
        for group in sorted({**left, **right})
    ]


def _only_in(
    connection: Connection, these: Select[Any], those: Select[Any]
) -> dict[tuple[Any, ...], dict[str, int]]:
    found = connection.execute(these.except_(those).limit(_SHOWN_MAX))
    width = len(GROUP_COLUMNS)
    return {tuple(line[:width]): dict(zip(SUM_COLUMNS, map(int, line[width:]), strict=True)) for line in found}
