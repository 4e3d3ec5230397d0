"""What can be done with the groups of a report: held against those of the period before, and cut to the dearest.

Pure. Nothing is lost by either: a group that was only there before stays with no requests, and what is cut off is
one group of its own, so that totals hold.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final

from pricing.ledger.store import ReportRow
from pricing.ledger.store.report import TOKEN_COLUMNS

OTHER: Final = "other"

_TENTH: Final = Decimal("0.1")
_STEPS: Final = {"day": timedelta(days=1), "hour": timedelta(hours=1)}
_SHOWN: Final = {"day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H:00Z"}  # as a report shows them


@dataclass(frozen=True, slots=True)
class Previous:
    """The period before, [since, until): one group for each of the report's, in the same order."""

    since: datetime
    until: datetime
    rows: Sequence[ReportRow]


@dataclass(frozen=True, slots=True)
class Change:
    """What became more (or less, where negative), nano-dollars and percent to a tenth.

    Unknown (None) where either cost is; the percentage also where there was nothing before.
    """

    nano: int | None
    percent: Decimal | None


def change(now: ReportRow, before: ReportRow) -> Change:
    """How the cost of a group changed."""
    return change_of(now.cost_nano, before.cost_nano)


def change_of(now_nano: int | None, before_nano: int | None) -> Change:
    """How a sum changed."""
    if now_nano is None or before_nano is None:
        return Change(None, None)
    more = now_nano - before_nano
    if not before_nano:
        return Change(more, None)
    return Change(more, (Decimal(more) * 100 / before_nano).quantize(_TENTH, ROUND_HALF_EVEN))


def summed(by: Mapping[str, str | None], rows: Sequence[ReportRow]) -> ReportRow:
    """All of these as one group; a sum of which no part is known stays unknown. Without rows: nothing, known."""
    return ReportRow(
        by=by,
        requests=sum(row.requests for row in rows),
        tokens={name: _sum(row.tokens[name] for row in rows) for name in TOKEN_COLUMNS},
        unknown={name: sum(row.unknown[name] for row in rows) for name in TOKEN_COLUMNS},
        cost_nano=_sum(row.cost_nano for row in rows),
        estimated_nano=sum(row.estimated_nano for row in rows),
        assumed_nano=sum(row.assumed_nano for row in rows),
        unpriced_requests=sum(row.unpriced_requests for row in rows),
        open_requests=sum(row.open_requests for row in rows),
        unsettled_requests=sum(row.unsettled_requests for row in rows),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if known or not found else None


def joined(
    now: Sequence[ReportRow], before: Sequence[ReportRow], later: timedelta
) -> tuple[list[ReportRow], list[ReportRow]]:
    """The groups of two periods side by side; a day or hour meets the one that is `later` by that much.

    Groups that are only in the period before come last, the dearest first. Raises `ValueError` where the periods
    are no whole days or hours apart and the groups are.
    """
    old = {tuple(by.items()): summed(by, [row]) for row in before for by in [_moved(row.by, later)]}
    rows, earlier = list(now), []
    for row in now:
        group = tuple(row.by.items())
        earlier.append(old.pop(group) if group in old else summed(row.by, []))
    gone = list(old.values())
    return [*rows, *(_nothing_like(row) for row in gone)], [*earlier, *gone]


def _nothing_like(row: ReportRow) -> ReportRow:
    """No requests, under the names of this group; what nobody reported then is no news now either."""
    none = summed(row.by, [])
    tokens = {name: None if row.tokens[name] is None else 0 for name in TOKEN_COLUMNS}
    return ReportRow(none.by, 0, tokens, none.unknown, 0, 0, 0, 0, 0, 0)


def _moved(by: Mapping[str, str | None], later: timedelta) -> dict[str, str | None]:
    return {name: _later(name, value, later) if value and name in _STEPS else value for name, value in by.items()}


def _later(name: str, value: str, later: timedelta) -> str:
    if later % _STEPS[name]:
        raise ValueError(
            f"with {name} in --by the period has to be whole {name}s long, so that each meets one of the period "
            f"before; it is {later}"
        )
    at = datetime.strptime(value, _SHOWN[name]).replace(tzinfo=UTC)
    return (at + later).strftime(_SHOWN[name])


def dearest(rows: Sequence[ReportRow], count: int) -> tuple[list[int], list[int]]:
    """The places of the `count` dearest groups, in the order of the report, and those of all others."""
    by_cost = sorted(range(len(rows)), key=lambda place: -(rows[place].cost_nano or 0))
    return sorted(by_cost[:count]), sorted(by_cost[count:])


def cut(rows: Sequence[ReportRow], kept: Sequence[int], others: Sequence[int]) -> list[ReportRow]:
    """The groups at the places kept, and all others as one whose first name is `other`."""
    found = [rows[place] for place in kept]
    if others:
        names = list(rows[0].by)
        by = {name: OTHER if place == 0 else None for place, name in enumerate(names)}
        found.append(summed(by, [rows[place] for place in others]))
    return found
