"""What the relay needs of the process around it: one value, built once by the app."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from backends.dialect import Dialect
from backends.ports import Upstream
from kimi_gateway.core.allocation import Allocation
from kimi_gateway.core.callers import Caller
from kimi_gateway.core.retry import RetryBudget
from kimi_gateway.core.signs import FirstSigns
from kimi_gateway.lifecycle import Lifecycle
from kimi_gateway.metrics import Metrics
from kimi_gateway.ports import Books, Limiter
from kimi_gateway.relay.client import BufferBudget, Scope
from kimi_gateway.relay.frame import Frames
from kimi_gateway.relay.idempotent import Idempotency
from kimi_gateway.relay.pace import Limits
from kimi_gateway.relay.routing import Routing
from kimi_gateway.relay.settle import PriceTag
from kimi_gateway.relay.thinking import Thinking
from kimi_gateway.relay.turnstile import Turnstile
from kimi_gateway.settings import Settings, Target
from pricing.ledger.row import LedgerRow
from pricing.rates import CardBook
from pricing.tokens import TokenCount


class Counting(Protocol):
    """Counts the tokens of a chat request's body, off the event loop."""

    async def count(self, body: bytes) -> TokenCount: ...


class RequestLog(Protocol):
    """Where a settled request leaves its line."""

    def settled(self, row: LedgerRow) -> None: ...


@dataclass(slots=True)
class Context:
    """The relay's surroundings. `settings` and `cards` are replaced whole on a reload; a request keeps the ones
    it began with. `limits` are the periods of attempts by target, for streams and others, `tags` and
    `prices` what `relay.prices` has found. `mono` and `wall` are
    seconds, `random_bits` gives that many random bits."""

    settings: Settings
    cards: CardBook
    dialects: Mapping[str, Dialect]
    upstream: Upstream
    books: Books
    metrics: Metrics
    log: RequestLog
    lifecycle: Lifecycle
    buffers: BufferBudget
    authenticate: Callable[[Scope], Caller]
    mono: Callable[[], float]
    wall: Callable[[], float]
    random_bits: Callable[[int], int]
    thinking: Thinking
    idempotency: Idempotency
    limiter: Limiter
    signs: FirstSigns
    counting: Counting
    routing: Routing
    limits: dict[tuple[str, bool], tuple[Settings, Target, Limits]] = field(default_factory=dict)
    tags: dict[tuple[str, str], tuple[Target, CardBook, float, PriceTag]] = field(
        default_factory=dict
    )  # see relay.prices.tag_at
    prices: dict[tuple[tuple[tuple[str, str], ...], bool], Any] = field(default_factory=dict)
    frames: Frames = field(default_factory=Frames)
    turnstile: Turnstile = field(default_factory=Turnstile)
    allocation: Allocation = field(default_factory=Allocation)
    retries: RetryBudget = field(default_factory=lambda: RetryBudget(0.2))
