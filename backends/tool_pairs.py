"""Calls and their results in a history: which result belongs to which call, and which stand alone.

Ids are unique within a turn only (`search:0` comes again in a later one), so a result is looked for among the
calls of the turn before it and nowhere else. Platforms refuse a call without its result and a result without its
call (`tool_call_id … not found`), and an interrupted session has both for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Turn:
    """An assistant message with calls: its index, the ids of its calls ("" where one has none), the ids of the
    results that follow it before the next turn, and where they stand. `is_last`: no further turn comes."""

    index: int
    calls: list[str]
    results: list[str] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class Pairing:
    """What does not fit.

    `strays` are results without a call; `renamed` those that must belong to the calls left over, by message index
    and the call's id; `unanswered` are calls without a result, by message index and position, and whether no turn
    follows them (then results may still be on their way).
    """

    strays: tuple[int, ...]
    renamed: tuple[tuple[int, str], ...]
    unanswered: tuple[tuple[int, int, bool], ...]


def pair(turns: Sequence[Turn], strays: Sequence[int]) -> Pairing:
    """What does not fit in a history of turns with calls; `strays` are results that follow no such turn."""
    lost = list(strays)
    renamed: list[tuple[int, str]] = []
    unanswered: list[tuple[int, int, bool]] = []
    for turn in turns:
        if turn.results == turn.calls and "" not in turn.calls:
            continue  # nearly always
        ids = {id for id in turn.calls if id}
        given = set(turn.results)
        open_calls = [at for at, id in enumerate(turn.calls) if id not in given or not id]
        others = [index for index, id in zip(turn.places, turn.results, strict=True) if id not in ids]
        if others and _are_surely_theirs(turn, open_calls, others):
            renamed += [(index, turn.calls[at]) for index, at in zip(others, open_calls, strict=True)]
            continue
        lost += others
        unanswered += [(turn.index, at, turn.is_last) for at in open_calls]
    return Pairing(tuple(sorted(lost)), tuple(renamed), tuple(unanswered))


def _are_surely_theirs(turn: Turn, open_calls: Sequence[int], others: Sequence[int]) -> bool:
    """As many results with unknown ids as calls without a result: clients that rename ids keep the order."""
    ids = [turn.calls[at] for at in open_calls]
    return len(open_calls) == len(others) and all(ids) and len(set(ids)) == len(ids)


@dataclass(slots=True)
class Pairer:
    """Collects the turns of a history, message by message."""

    turns: list[Turn] = field(default_factory=list)
    strays: list[int] = field(default_factory=list)
    _open: Turn | None = None

    def assistant(self, index: int, calls: list[str]) -> None:
        """An assistant message; `calls` are the ids of its calls, empty where it has none."""
        self.other()
        if calls:
            self._open = Turn(index, calls)
            self.turns.append(self._open)

    def result(self, index: int, id: str) -> None:
        """A tool message."""
        if self._open is None:
            self.strays.append(index)
        else:
            self._open.results.append(id)
            self._open.places.append(index)

    def other(self) -> None:
        """A message that ends the results of the turn before: any but the system's and tools'."""
        if self._open is not None:
            self._open.is_last = False
            self._open = None

    def pairing(self) -> Pairing:
        """What does not fit."""
        return pair(self.turns, self.strays)
