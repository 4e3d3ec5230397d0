"""A place at a target for one attempt: waited for where all are taken, held while it runs, given back once."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from backends.faults import Fault, FaultKind
from kimi_gateway.core.routing.facts import Grant, Out, Place, Refused, Ticket
from kimi_gateway.errors import GatewayError, StateOut
from kimi_gateway.ports import StateUnavailable
from kimi_gateway.relay.faults import error_for
from kimi_gateway.relay.routing import Routing

_SOON_S: Final = 1.0


@dataclass(slots=True)
class Seat:
    """One attempt's place. `waited_s` is the time in the queue. Its end is told once, by whichever comes first."""

    routing: Routing
    target: str
    attempt: str
    grant: Grant | None = None
    _is_judged: bool = False
    _is_left: bool = False

    @property
    def waited_s(self) -> float:
        """The time in the queue, in seconds."""
        return self.grant.waited_s if self.grant is not None else 0.0

    def begin(self) -> bool:
        """The attempt is about to be sent; false where the target takes none after all."""
        if not self.routing.health.begin(self.target, self.attempt):
            self._is_judged = True
            return False
        self.routing.began(self.target)
        return True

    def succeeded(self) -> None:
        """It came to its clean end."""
        if not self._is_judged:
            self._is_judged = True
            self.routing.health.succeeded(self.target, self.attempt)
            self.routing.ended(self.target)

    def failed(self, fault: Fault) -> None:
        """It failed."""
        if not self._is_judged:
            self._is_judged = True
            self.routing.health.failed(self.target, fault, self.attempt)
            self.routing.ended(self.target)

    async def leave(self, tokens: int | None) -> None:
        """Gives the place back; `tokens` is what was used, None where nobody knows. An attempt of which no end was
        told has said nothing of its target."""
        if not self._is_judged:
            self._is_judged = True
            self.routing.health.given_up(self.target, self.attempt)
            self.routing.ended(self.target)
        if self.grant is not None and not self._is_left:
            self._is_left = True
            await self.routing.capacity.leave(self.grant, tokens)


async def seated(
    routing: Routing,
    ticket: Ticket,
    *,
    wait_s: Callable[[], float],
    keep_alive: Callable[[], Awaitable[None]],
) -> Seat:
    """A seat at the first of the ticket's places that has room, at once or when one gets free.

    `keep_alive` is called after each `wait_s()` seconds of waiting. Raises `GatewayError`: 429 `queue_timeout`,
    503 where the shared state decides and is away.
    """
    if not routing.is_limited and not ticket.places[0].not_before_s:
        return Seat(routing, ticket.places[0].target, ticket.id)
    entering = asyncio.ensure_future(routing.capacity.enter(ticket))
    try:
        while not entering.done():
            await asyncio.wait({entering}, timeout=wait_s())
            if not entering.done():
                await keep_alive()
        answer = entering.result()
    except StateUnavailable as err:
        raise StateOut(str(err)) from err
    except BaseException:
        await _let_go(routing, entering)
        raise
    if isinstance(answer, Refused):
        raise _no_room(answer)
    return Seat(routing, answer.place.target, ticket.id, answer)


async def _let_go(routing: Routing, entering: "asyncio.Future[Grant | Refused]") -> None:
    """Leaves the queue, and gives back a place that was given in the same moment."""
    if not entering.done():
        entering.cancel()
        return
    if not entering.cancelled() and entering.exception() is None and isinstance(grant := entering.result(), Grant):
        await routing.capacity.leave(grant, 0)


def _no_room(answer: Refused) -> GatewayError:
    if answer.reason == "full":
        words = "every target that could serve this is at its limits, and the queue is full"
    else:
        words = "every target that could serve this stayed at its limits for queue.timeout_s"
    return GatewayError(
        f"{words}; send the request again after the time in retry-after",
        status=429,
        type="rate_limit_error",
        code="queue_timeout",
        headers={"retry-after": str(max(1, math.ceil(answer.retry_after_s))), "x-should-retry": "true"},
    )


def places_now(routing: Routing, places: Sequence[Place], now_s: float, *, max_wait_s: float) -> tuple[Place, ...]:
    """Those of the places whose target may be asked now, or soon enough to be waited for: a time that it named
    itself, for a rate or an overload, and that is within `max_wait_s`."""
    found = []
    for place in places:
        out = routing.health.out(place.target)
        if out is None:
            found.append(place)
        elif (until_s := ready_s(out, now_s, max_wait_s=max_wait_s)) is not None:
            later_s = max(place.not_before_s, until_s)
            found.append(Place(place.target, place.account, place.quota, later_s))
    return tuple(found)


def ready_s(out: Out, now_s: float, *, max_wait_s: float) -> float | None:
    """When a target that is out may be asked again (0: now); None where that is not to be waited for."""
    if out.until_s is None or out.probing:
        return None
    if out.until_s <= now_s:
        return 0.0
    if out.fault.kind in (FaultKind.RATE, FaultKind.OVERLOAD) and out.until_s - now_s <= max_wait_s:
        return out.until_s
    return None


def nobody(outs: Sequence[Out], now_s: float) -> GatewayError:
    """The answer where every target that could serve a request is out.

    An empty account, a refused key, a rate, an overload that names its end: what the upstream itself would answer,
    so that a client hears the same whether we ask or not. Else 503 `no_target`, with the time when the first of
    them is tried again.
    """
    named = [out for out in outs if out.fault.kind in _ORDER]
    if len(named) == len(outs) and named:
        first = min(named, key=lambda out: _ORDER.index(out.fault.kind))
        fault = first.fault
        if fault.kind in (FaultKind.RATE, FaultKind.OVERLOAD) and first.until_s is not None:
            fault = replace(fault, retry_after_s=max(0.0, first.until_s - now_s))
        return error_for(fault)
    soonest_s = min((out.until_s - now_s for out in outs if out.until_s is not None), default=_SOON_S)
    return GatewayError(
        "every target that could serve this failed too often of late and is left alone for a while; "
        "the operator sees why in the gateway's log and at /ready",
        status=503,
        type="upstream_error",
        code="no_target",
        headers={"retry-after": str(max(1, math.ceil(soonest_s))), "x-should-retry": "true"},
    )


_ORDER: Final = (FaultKind.OVERLOAD, FaultKind.RATE, FaultKind.QUOTA, FaultKind.AUTH)
"""Of several the one that ends soonest by itself is told."""
