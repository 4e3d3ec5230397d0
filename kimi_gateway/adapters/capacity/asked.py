"""What a process knows of its requests for places that several processes share."""

import asyncio
from dataclasses import dataclass

from kimi_gateway.core.routing.facts import Place, Ticket
from kimi_gateway.ports import StateUnavailable


@dataclass(frozen=True, slots=True)
class Periods:
    """Seconds. `lease_s`: until a hold is free that nobody renews; `poll_s`: how often the server is asked while
    somebody waits; `stale_s`: how long what was seen of an account counts."""

    lease_s: float = 60.0
    poll_s: float = 0.025
    stale_s: float = 0.5


@dataclass(slots=True, eq=False)
class Asked:
    """A request for one of these places that is under way. `life` is the queue's where it is known to wait. Its
    future is None where it is sent away."""

    id: str
    ticket: Ticket
    places: tuple[Place, ...]
    began_s: float
    future: asyncio.Future[Place | StateUnavailable | None]
    life: str | None = None


@dataclass(frozen=True, slots=True)
class Held:
    id: str
    is_alone: bool  # given while the server was away
