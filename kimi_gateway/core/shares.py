"""Who gives when room runs out: the largest first, and nobody below a fair share for one who has more than it.

The fair share is the room divided by the number of those who hold anything. Someone who stays within it gets
room from the largest other, who by arithmetic holds more. Someone above it gets room from a larger other only as
far as that one keeps its fair share, else from itself. What gives, gives a whole item, its next one out; only one
who holds more than the share can come below it by that, and only for another within the share.
"""

import heapq
from collections.abc import Hashable
from typing import Final, Generic, Protocol, TypeVar

_SLACK: Final = 64  # stale entries of a ranking that are not worth clearing


class Item(Protocol):
    """What leaves as a whole."""

    @property
    def size_bytes(self) -> int: ...


class Share(Protocol):
    """One member's part of the room. `rank` belongs to the ranking: its valid entry there."""

    name: Hashable
    size_bytes: int
    rank: int

    def next_out(self) -> Item:
        """What this member would give first."""
        ...


S = TypeVar("S", bound=Share)


class Ranking(Generic[S]):
    """Members by name, and the largest of them in logarithmic time; of equals the one unchanged for longest."""

    __slots__ = ("_count", "_heap", "members")

    def __init__(self) -> None:
        self.members: dict[Hashable, S] = {}
        self._heap: list[tuple[int, int, S]] = []  # entries go stale and are skipped, not searched for
        self._count = 0

    def add(self, share: S) -> S:
        """Takes in a member. Gives it back."""
        self.members[share.name] = share
        self._rank(share)
        return share

    def drop(self, share: S) -> None:
        """Takes out a member, if it is one."""
        if self.members.pop(share.name, None) is not None:
            share.rank = -1

    def resize(self, share: S, by_bytes: int) -> None:
        """Notes that a member has grown or shrunk."""
        share.size_bytes += by_bytes
        self._rank(share)

    def largest(self, besides: S | None = None) -> S | None:
        """The member that holds most, `besides` left out; None where there is no other."""
        first = self._first()
        if first is None or first is not besides:
            return first
        held = heapq.heappop(self._heap)
        second = self._first()
        heapq.heappush(self._heap, held)
        return second

    def contest(self, own: S | None, need_bytes: int, room_bytes: int) -> tuple[S | None, bool]:
        """The other member that may have to give to `own` (None: one that holds nothing yet), None where none
        may; and whether it gives before `own` itself does."""
        other = self.largest(besides=own)
        if other is None:
            return None, False
        fair_bytes = room_bytes // (len(self.members) + (1 if own is None else 0))
        wanted_bytes = need_bytes + (own.size_bytes if own is not None else 0)
        if wanted_bytes <= fair_bytes:
            return other, True
        if other.size_bytes - other.next_out().size_bytes < fair_bytes:
            return None, False
        return other, other.size_bytes > wanted_bytes

    def _rank(self, share: S) -> None:
        self._count += 1
        share.rank = self._count
        heapq.heappush(self._heap, (-share.size_bytes, share.rank, share))
        if len(self._heap) > _SLACK + 4 * len(self.members):
            self._heap = [entry for entry in self._heap if entry[2].rank == entry[1]]
            heapq.heapify(self._heap)

    def _first(self) -> S | None:
        while self._heap:
            _, rank, share = self._heap[0]
            if share.rank == rank:
                return share
            heapq.heappop(self._heap)
        return None
