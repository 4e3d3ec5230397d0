"""Places and their queue on a server that several gateways share. One script, and one round trip, per operation.

Every request for a place has an id that is used for nothing else, so that an operation may be repeated, or be
undone by one who does not know whether it took place.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Literal, cast

from kimi_gateway.adapters.capacity import scripts
from kimi_gateway.adapters.state.link import Argument, Link, Script
from kimi_gateway.core.routing.facts import Quota
from kimi_gateway.ports import StateUnavailable

PREFIX: Final = "{kimi}c:"
AT_ONCE: Final = 200
"""How many holds one script is told of: it keeps others waiting meanwhile."""

Found = Literal["granted", "queued", "full", "timeout", "gone"]
UNUSED: Final = "none"
"""The use of a place that nobody has used: everything that was charged for it is given back."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A place that is asked for, in so many seconds at the soonest."""

    account: str
    ready_in_s: float
    quota: Quota


@dataclass(frozen=True, slots=True)
class Seen:
    """An account, as the server saw it: whether even a small request would have to wait, and how many do."""

    full: bool
    waiting: int


@dataclass(frozen=True, slots=True)
class Heard:
    """What comes with every answer. `epoch` names the state, which changes when all of it is lost; `life` this
    owner's queue, which changes when its waiters are lost. `given` is which place each of its waiters got."""

    epoch: str
    life: str
    given: Mapping[str, int]
    seen: Mapping[str, Seen]


@dataclass(frozen=True, slots=True)
class Entered:
    """What became of a request: `place` is the number of the one it got, `retry_s` when to come back (0: nobody
    knows)."""

    heard: Heard
    found: Found
    place: int = 0
    retry_s: float = 0.0


class ValkeyPlaces:
    """Places behind one link, for one owner: a process by an id of its own.

    Seconds: `lease_s`: until a hold is free that nobody renews; `heartbeat_s`: until the waiters of an owner that
    does not ask are forgotten, and a place it was given is given to another. `clock` replaces the server's.
    """

    def __init__(
        self,
        link: Link,
        owner: str,
        *,
        lease_s: float,
        heartbeat_s: float,
        prefix: str = PREFIX,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.owner = owner
        self._link = link
        self._clock = clock
        self._prefix = prefix.encode()
        self._head: tuple[Argument, ...] = (owner, repr(heartbeat_s), repr(lease_s), repr(heartbeat_s))

    async def enter(
        self,
        id: str,
        key: str,
        tokens: int,
        wishes: Iterable[Wish],
        *,
        most: int,
        patience_s: float,
        age_s: float | None = None,
        bound_s: float | None = None,
    ) -> Entered:
        """The first of these places that has room, or one in the queue where fewer than `most` wait (-1: never).

        `age_s`: how long it has been waiting elsewhere; it is then taken in however many wait. The call itself
        takes at most `bound_s`, where the link's own limits are too long. Raises `StateUnavailable`.
        """
        told: list[Argument] = [id, key, tokens, most, "" if age_s is None else repr(age_s), repr(patience_s)]
        for wish in wishes:
            quota = wish.quota
            told += [wish.account, repr(wish.ready_in_s), quota.concurrency, quota.rpm, quota.tpm, quota.tpd]
        heard, (found, value) = await self._run(scripts.ENTER, told, bound_s)
        kind = cast(Found, found.decode())
        if kind == "granted":
            return Entered(heard, kind, place=int(value))
        return Entered(heard, kind, retry_s=float(value or 0))

    async def leave(self, ends: Sequence[tuple[str, int | str | None]]) -> tuple[Heard, float]:
        """Gives places back, each with its use (None: unknown, `UNUSED`); the last's seconds to come back in.

        Raises `StateUnavailable`.
        """
        told = chain.from_iterable((id, "" if used is None else used) for id, used in ends)
        heard, (retry_s,) = await self._run(scripts.LEAVE, told)
        return heard, float(retry_s)

    async def tend(self, holds: Sequence[tuple[str, str]], *, waits: bool) -> Heard:
        """Renews holds, each an id and its account, and this owner's place in the queue where it `waits`.

        Raises `StateUnavailable`.
        """
        heard, _ = await self._run(scripts.TEND, ["1" if waits else "0", *chain.from_iterable(holds)])
        return heard

    async def _run(
        self, script: Script, args: Iterable[Argument], bound_s: float | None = None
    ) -> tuple[Heard, list[Any]]:
        now = "" if self._clock is None else repr(self._clock())
        bound: AbstractAsyncContextManager[object] = nullcontext()
        if bound_s is not None:
            bound = asyncio.timeout(bound_s)
        try:
            async with bound:
                reply = await self._link.run(script, [self._prefix], [now, *self._head, *args])
        except TimeoutError:
            raise StateUnavailable(
                f"the state at {self._link.shown} did not answer within {bound_s:g} s"
            ) from None
        epoch, life, given, seen, *rest = reply
        return (
            Heard(
                epoch.decode(),
                life.decode(),
                {given[at].decode(): int(given[at + 1]) for at in range(0, len(given), 2)},
                {
                    seen[at].decode(): Seen(seen[at + 1] == b"1", int(seen[at + 2]))
                    for at in range(0, len(seen), 3)
                },
            ),
            rest,
        )
