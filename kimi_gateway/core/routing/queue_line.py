"""Who waits at one account: keys take turns, and within a key who came first goes first. Pure.

A key whose request got a place goes to the back of the ring, and a key that comes new begins there. So of keys
that always wait none gets two places more than another. Who may not ask yet stands aside until then.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from kimi_gateway.core.routing.facts import Ticket

_SLACK: Final = 64  # entries of those who have gone that are not worth clearing
_BY_ORDER: Final = attrgetter("order")


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits. `order` is when it came, made unique; `ready_s` is when each account may be asked."""

    ticket: Ticket
    order: tuple[float, int]
    ready_s: Mapping[str, float]
    gone: bool = field(default=False)


class Line:
    """The line at one account. A waiter is in it once, and in those of other accounts too."""

    __slots__ = ("_aside", "_keys", "size")

    def __init__(self) -> None:
        self.size = 0
        self._keys: dict[str, list[Waiter]] = {}  # the ring: whose turn it is comes first
        self._aside: list[tuple[float, tuple[float, int], Waiter]] = []  # a heap; who has gone is skipped later

    def join(self, waiter: Waiter, ready_s: float, now_s: float) -> None:
        """Takes in a waiter who may ask from `ready_s` on."""
        self.size += 1
        if ready_s > now_s:
            self._put_aside(waiter, ready_s)
        else:
            self._stand(waiter)

    def first(self, now_s: float) -> Waiter | None:
        """Whose turn it is; None where nobody may ask now."""
        while self._aside and (self._aside[0][0] <= now_s or self._aside[0][2].gone):
            _, _, waiter = heapq.heappop(self._aside)
            if not waiter.gone:
                self._stand(waiter)
        return next((waiters[0] for waiters in self._keys.values()), None)

    def next_s(self) -> float | None:
        """When the next one who stands aside may ask."""
        return self._aside[0][0] if self._aside else None

    def postpone(self, waiter: Waiter, ready_s: float) -> None:
        """One who stands in line may not ask before `ready_s` after all."""
        self._remove(waiter)
        self._put_aside(waiter, ready_s)

    def served(self, waiter: Waiter) -> None:
        """The waiter has got a place here; it is the turn of another key."""
        self.leave(waiter)
        rest = self._keys.pop(waiter.ticket.key, None)
        if rest:
            self._keys[waiter.ticket.key] = rest

    def leave(self, waiter: Waiter) -> None:
        """The waiter, who is to be marked as gone, waits here no more."""
        self.size -= 1
        self._remove(waiter)
        if len(self._aside) > _SLACK + 2 * self.size:
            self._aside = [entry for entry in self._aside if not entry[2].gone]
            heapq.heapify(self._aside)

    def _stand(self, waiter: Waiter) -> None:
        insort(self._keys.setdefault(waiter.ticket.key, []), waiter, key=_BY_ORDER)

    def _put_aside(self, waiter: Waiter, ready_s: float) -> None:
        heapq.heappush(self._aside, (ready_s, waiter.order, waiter))

    def _remove(self, waiter: Waiter) -> None:
        waiters = self._keys.get(waiter.ticket.key)
        if waiters is None:
            return
        at = bisect_left(waiters, waiter.order, key=_BY_ORDER)
        if at < len(waiters) and waiters[at] is waiter:
            del waiters[at]
            if not waiters:
                del self._keys[waiter.ticket.key]
