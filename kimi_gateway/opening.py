"""What a gateway opens before it serves: cards, books, state. What cannot be opened stops the start."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from typing_extensions import override

from backends.ports import Upstream
from kimi_gateway.adapters.capacity.opening import open_capacity
from kimi_gateway.adapters.health import TargetHealth, open_health
from kimi_gateway.adapters.idempotency.opening import open_answers
from kimi_gateway.adapters.keystore import KeyStore
from kimi_gateway.adapters.ledger import JournalBooks, open_books
from kimi_gateway.adapters.limits.alerts import BudgetAlerts
from kimi_gateway.adapters.limits.limiter import Watcher
from kimi_gateway.adapters.limits.opening import open_limiter, periods_of
from kimi_gateway.adapters.limits.outage import OutageLimiter
from kimi_gateway.adapters.limits.spend import spend_of
from kimi_gateway.adapters.load import EngineLoads
from kimi_gateway.adapters.state import EmbeddedError, State, StateUrlError, open_state
from kimi_gateway.core import idempotency
from kimi_gateway.core.limits import Verdict
from kimi_gateway.core.thoughts import Bounds
from kimi_gateway.lifecycle import Lifecycle
from kimi_gateway.logs import Log
from kimi_gateway.metrics import Metrics
from kimi_gateway.ports import StateUnavailable
from kimi_gateway.relay.idempotent import Idempotency
from kimi_gateway.relay.routing import Routing
from kimi_gateway.settings import Settings, open_mode_problem
from kimi_gateway.worker import Share
from pricing.cards import CardBook, CardError, load_cards
from pricing.ledger.address import ledger_id
from pricing.ledger.errors import LedgerError

_ORIGIN_BYTES: Final = 8


class _Watchers(Watcher):
    """The metrics and, where there is a webhook, the alerts: both are told how keys stand."""

    def __init__(self, metrics: Metrics, alerts: BudgetAlerts | None) -> None:
        self._metrics = metrics
        self._alerts = alerts

    @override
    def seen(self, key: str, verdict: Verdict) -> None:
        self._metrics.seen(key, verdict)
        if self._alerts is not None:
            self._alerts.seen(key, verdict)


class StartError(Exception):
    """The gateway cannot start; the message says why and what to do."""


def opened_cards(settings: Settings) -> CardBook:
    """The cards that ship and the operator's own. Raises `StartError`."""
    try:
        return load_cards(Path(settings.pricing.cards_dir) if settings.pricing.cards_dir else None)
    except CardError as err:
        raise StartError(f"pricing.cards_dir: {err}") from err


def opened_books(settings: Settings, log: Log) -> JournalBooks:
    """The books. Raises `StartError`."""
    try:
        return open_books(settings.ledger, settings.timing, log=log, mono=time.monotonic)
    except LedgerError as err:
        raise StartError(f"the ledger cannot be used: {err}") from err


async def opened_state(settings: Settings, share: Share | None, log: Log) -> State:
    """The state, which a worker shares with its siblings. Raises `StartError`."""
    try:
        state = open_state(
            share.state if share is not None else settings.state.url,
            on_outage=settings.state.on_outage,
            bounds=thought_bounds(settings),
            secret=settings.thoughts_secret,
            mono=time.monotonic,
        )
    except _mistakes() as err:
        raise StartError(f"state.url: {err}") from err
    try:
        for note in await state.look():
            log.event(note, level="warning")
    except _outages() as err:
        await state.close()
        raise StartError(f"the state cannot be used: {err}") from err
    return state


def _mistakes() -> tuple[type[Exception], ...]:
    """What is wrong with the settings of a state. Asked for only then: without a server none is loaded."""
    from kimi_gateway.adapters.state.seal import WeakSecret

    return (StateUrlError, WeakSecret, EmbeddedError)


def _outages() -> tuple[type[Exception], ...]:
    from kimi_gateway.adapters.state.link import StateUnsuited

    return (StateUnavailable, StateUnsuited)


def opened_limiter(
    settings: Settings, share: Share | None, state: State, metrics: Metrics
) -> tuple[OutageLimiter, BudgetAlerts | None]:
    """What counts keys' limits, in the process or shared like the state, and what sends alerts, where it is to.
    Connects to nothing yet."""
    spend = spend_of(settings.ledger.url, Path(settings.ledger.journal_dir))
    alerts = None
    if settings.webhook_url is not None:
        from kimi_gateway.adapters.webhook import Webhook  # not at the top: most have none

        alerts = BudgetAlerts(spend, Webhook(settings.webhook_url), wall=time.time)  # noqa: TID251  # the shell
    workers = share.count if share is not None else 1
    limiter = open_limiter(
        state.link,
        spend,
        periods_of(lease_s=settings.timing.lease_s, adopt_s=settings.timing.adopt_s),
        scope=ledger_id(settings.ledger.url),
        on_outage=settings.state.on_outage,
        replicas=settings.state.replicas * workers,
        wall=time.time,  # noqa: TID251  # the shell reads the clock
        mono=time.monotonic,
        watcher=_Watchers(metrics, alerts),
    )
    return limiter, alerts


@dataclass(frozen=True, slots=True)
class OpenedRouting:
    """What routes, and what has to run beside it."""

    routing: Routing
    health: TargetHealth
    loads: EngineLoads


def opened_routing(
    settings: Callable[[], Settings], share: Share | None, state: State, upstream: Upstream, log: Log
) -> OpenedRouting:
    """What knows the targets: their health, load and limits, shared like the state. Connects to nothing yet."""
    first = settings()
    timing = first.timing
    health = open_health(
        settings,
        state.link,
        mono=time.monotonic,
        origin=secrets.token_hex(_ORIGIN_BYTES),
        refresh_s=timing.health_refresh_s,
    )
    loads = EngineLoads(
        upstream,
        lambda: settings().targets,
        log,
        mono=time.monotonic,
        keeper=health,
        refresh_s=timing.load_refresh_s,
        timeout_s=timing.load_refresh_s,
    )
    capacity = open_capacity(
        state.link,
        queue_max=first.queue.max,
        queue_timeout_s=first.queue.timeout_s,
        lease_s=timing.lease_s,
        on_outage=first.state.on_outage,
        replicas=first.state.replicas * (share.count if share is not None else 1),
        mono=time.monotonic,
        wall=time.time,  # noqa: TID251  # the shell reads the clock
    )
    return OpenedRouting(Routing(health, loads, capacity), health, loads)


def begins_state(settings: Settings, share: Share | None, state: State) -> bool:
    """The state is new with this start, and no other gateway was there before."""
    if share is None:
        return state.link is None or state.embedded is not None
    return not share.again and settings.state.url in ("memory://", "embedded://")


def opened_idempotency(settings: Settings, state: State, lifecycle: Lifecycle) -> Idempotency:
    """What keeps the answers of requests with an Idempotency-Key, in the same state."""
    bounds = idempotency.Bounds(lease_s=settings.timing.lease_s)
    answers = open_answers(state.link, bounds, settings.thoughts_secret, time.monotonic)
    return Idempotency(answers, lifecycle, secrets.randbits, bounds=bounds, on_outage=state.on_outage)


async def opened_keys(settings: Settings, on_change: Callable[[], None]) -> KeyStore:
    """The keys of the ledger, read. Raises `StartError` where there are none at all and strangers could call."""
    keys = KeyStore(
        settings.ledger.url,
        Path(settings.ledger.journal_dir),
        refresh_s=settings.timing.keys_refresh_s,
        wall=time.time,  # noqa: TID251  # the shell reads the clock
        on_change=on_change,
    )
    await keys.start()
    if keys.merged(settings.key_ring).is_open and (problem := open_mode_problem(settings)):
        await keys.close()
        raise StartError(f"server.host: {problem}")
    return keys


def thought_bounds(settings: Settings) -> Bounds:
    """How much is kept of conversations, and for how long."""
    thinking = settings.thinking
    return Bounds(thinking.max_bytes, thinking.max_bytes_per_key, thinking.retention_s)
