"""One gateway process, from its settings to its exit code: builds the parts, serves, reloads, drains.

SIGTERM, SIGINT   /ready says 503, requests are taken for `drain_grace_s`; then the listener closes; at
                  `drain_timeout_s` what is still open is ended with `shutting_down`; exit 0
a second one      ends at once
SIGHUP            reads the settings again; what is wrong in them changes nothing
"""

import asyncio
import gc
import logging
import socket
import sys
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import uvloop

from backends.catalog import DIALECTS
from backends.lean.upstream import LeanUpstream
from backends.ports import Upstream
from kimi_gateway import __version__
from kimi_gateway.adapters.counting import ThreadedCounting
from kimi_gateway.adapters.discovery import Discovery
from kimi_gateway.adapters.keystore import KeyStore
from kimi_gateway.adapters.ledger import JournalBooks
from kimi_gateway.adapters.siblings import Siblings
from kimi_gateway.adapters.state import State
from kimi_gateway.app import AsgiApp, Exposition, authenticator, create_admin_app, create_app
from kimi_gateway.banner import banner, url_of
from kimi_gateway.core.expositions import merged
from kimi_gateway.core.keys import OPEN_NAME
from kimi_gateway.core.retry import RetryBudget
from kimi_gateway.core.signs import FirstSigns
from kimi_gateway.emulated import emulator_at, start_emulator
from kimi_gateway.entropy import Entropy
from kimi_gateway.launch import NO_TARGET, Launch, bound_sockets
from kimi_gateway.lifecycle import Lifecycle
from kimi_gateway.logs import LineWriter, Log, LogHandler, choose_format
from kimi_gateway.metrics import Metrics, sample_loop_lag
from kimi_gateway.opening import (
    StartError,
    begins_state,
    opened_books,
    opened_cards,
    opened_idempotency,
    opened_keys,
    opened_limiter,
    opened_routing,
    opened_state,
)
from kimi_gateway.ports import Limiter
from kimi_gateway.relay.client import BufferBudget
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.endpoint import ChatEndpoint
from kimi_gateway.relay.thinking import Thinking
from kimi_gateway.relay.tokens import TokenEndpoint
from kimi_gateway.relay.turnstile import Turnstile
from kimi_gateway.server import Gate, Listener, raise_descriptor_limit
from kimi_gateway.settings import (
    Server,
    Settings,
    SettingsError,
    Target,
    carry_over,
    process_environment,
    with_targets,
)
from kimi_gateway.shutdown import Signals, drain
from pricing.cards import CardBook
from pricing.vocabulary import find_vocabulary

_log: Final = logging.getLogger("kimi_gateway.process")
_FIRST_LOOK_S: Final = 2.0  # a start is not held up longer by a target that is away
_LOOK_EVERY_S: Final = 15.0
_LOOK_TIMEOUT_S: Final = 10.0
_BOOKS_CLOSE_S: Final = 10.0


def run(launch: Launch) -> int:
    """Serves until a signal ends it; the exit code. Raises `StartError`, `server.ListenError`."""
    settings = launch.settings
    most = settings.server.max_connections
    warning = raise_descriptor_limit(most, chosen=most != Server().max_connections)
    cards = opened_cards(settings)
    sock, admin_sock = bound_sockets(launch)
    writer = LineWriter(sys.stderr, format=choose_format(launch.log_format, sys.stderr))
    log = Log(writer, wall=time.time)  # noqa: TID251  # the shell reads the clock
    handler = LogHandler(log)
    logging.getLogger().addHandler(handler)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # its warnings are about what clients send
    if warning:
        log.event(warning, level="warning")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Gateway(launch, log, cards).serve(sock, admin_sock))
    finally:
        logging.getLogger().removeHandler(handler)
        log.close()


class Gateway:
    """The parts of a running gateway. Belongs to one event loop."""

    def __init__(self, launch: Launch, log: Log, cards: CardBook) -> None:
        self._launch = launch
        self._log = log
        self._cards = cards
        self._configured = launch.settings
        self._lifecycle = Lifecycle()
        self._metrics = Metrics()
        self._emulator: Target | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._close_books_s = _BOOKS_CLOSE_S
        self._ctx: Context
        self._discovery: Discovery
        self._thinking: Thinking
        self._keys: KeyStore

    async def serve(self, sock: socket.socket, admin_sock: socket.socket | None) -> int:
        """Serves on bound sockets until a signal ends it; the exit code. Raises `StartError`."""
        signals = Signals()
        signals.install(asyncio.get_running_loop())
        if self._launch.share is not None:
            signals.end_with(asyncio.get_running_loop(), self._launch.share.alive)
        self._log.hide(self._configured.secrets())
        async with AsyncExitStack() as stack:
            listener = await self._start(stack, sock, admin_sock)
            self._keep("reload", self._reload_on(signals.hangup))
            await signals.stop.wait()
            server = self._ctx.settings.server
            clean = await drain(
                self._lifecycle,
                listener,
                signals,
                self._log,
                grace_s=server.drain_grace_s,
                timeout_s=server.drain_timeout_s,
            )
            at_once = signals.at_once.is_set()
            if at_once:
                self._close_books_s = 0.5
        self._log.event("stopped", clean=clean)
        return 128 + signals.number if at_once else 0

    async def _start(
        self, stack: AsyncExitStack, sock: socket.socket, admin_sock: socket.socket | None
    ) -> Listener:
        stack.callback(sock.close)
        if not self._configured.targets and self._launch.emulator_if_empty:
            share = self._launch.share  # the emulator is this process's own, or the one that its supervisor runs
            self._emulator = emulator_at(share.emulator) if share is not None else await start_emulator(stack)
            self._configured = self._with_emulator(self._configured)
        if not self._configured.targets:
            raise StartError(NO_TARGET)
        books = await self._open(stack)
        await self._look_first()
        host = self._configured.server.host
        chat = ChatEndpoint(self._ctx)
        tokens = TokenEndpoint(self._ctx)
        exposition = await self._exposition(stack)
        app = create_app(
            self._ctx,
            chat,
            tokens,
            ledger_problem=books.problem,
            metrics_here=admin_sock is None,
            exposition=exposition,
            standings=self._discovery.standings,
        )
        metrics_url = await self._start_admin(stack, admin_sock, books, exposition)
        listener = Listener(self._gate(app), sock)
        stack.push_async_callback(listener.close)
        _settle_memory()
        await listener.start()
        self._keep("lag", sample_loop_lag(self._metrics, time.monotonic))
        url = url_of(host, listener.address[1])
        emulated = self._emulator is not None
        if self._launch.speaks:
            self._launch.say(banner(self._ctx.settings, url, metrics_url=metrics_url or url, emulator=emulated))
        self._log.event(
            "started", version=__version__, base_url=f"{url}/v1", open_mode=self._ctx.settings.open_mode
        )
        return listener

    async def _open(self, stack: AsyncExitStack) -> JournalBooks:
        """Opens the parts of the gateway and starts what runs beside the requests. Raises `StartError`."""
        upstream = LeanUpstream()
        stack.push_async_callback(upstream.close)
        books = opened_books(self._configured, self._log)
        stack.push_async_callback(self._close_books, books)
        state = await opened_state(self._configured, self._launch.share, self._log)
        stack.push_async_callback(state.close)
        counting = ThreadedCounting(lambda: find_vocabulary(process_environment()), self._log)
        stack.callback(counting.close)
        settings, share = self._configured, self._launch.share
        limiter, alerts = opened_limiter(settings, share, state, self._metrics)
        stack.push_async_callback(limiter.close)
        if alerts is not None:
            stack.push_async_callback(alerts.close)
        await limiter.start(alone=begins_state(settings, share, state))
        self._keys = await opened_keys(self._configured, self._apply)
        stack.push_async_callback(self._keys.close)
        self._build(upstream, books, state, limiter, counting)
        stack.push_async_callback(self._ctx.routing.capacity.close)
        stack.push_async_callback(self._cancel_tasks)
        self._keep("books", books.keep_writing())
        self._keep("limits", limiter.keep())
        self._keep("capacity", self._ctx.routing.capacity.keep())
        self._keep("health", self._ctx.routing.health.keep())
        self._keep("loads", self._ctx.routing.loads.keep())
        self._keep("keys", self._keys.keep_fresh())
        return books

    def _gate(self, app: AsgiApp) -> Gate:
        return Gate(app, self._lifecycle, max_connections=self._part(self._configured.server.max_connections))

    def _part(self, whole: int) -> int:
        """This process's part of what the gateway may take altogether."""
        count = self._launch.share.count if self._launch.share is not None else 1
        return max(1, whole // count)

    def _build(
        self,
        upstream: Upstream,
        books: JournalBooks,
        state: State,
        limiter: Limiter,
        counting: ThreadedCounting,
    ) -> None:
        self._discovery = Discovery(upstream, self._log, time.time)  # noqa: TID251  # the shell's clock
        turnstile = Turnstile()
        self._thinking = Thinking(state.conversations, self._metrics, turnstile)
        routing = opened_routing(self._targets_now, self._launch.share, state, upstream, self._log)
        self._ctx = Context(
            settings=self._configured,
            cards=self._cards,
            dialects=DIALECTS,
            upstream=upstream,
            books=books,
            metrics=self._metrics,
            log=self._log,
            lifecycle=self._lifecycle,
            buffers=BufferBudget(self._part(self._configured.server.max_buffered_bytes)),
            retries=RetryBudget(self._configured.retry.global_ratio),
            authenticate=authenticator(lambda: self._ctx.settings),
            mono=time.monotonic,
            wall=time.time,  # noqa: TID251  # the shell reads the clock
            random_bits=Entropy().bits,
            thinking=self._thinking,
            turnstile=turnstile,
            idempotency=opened_idempotency(self._configured, state, self._lifecycle),
            limiter=limiter,
            signs=FirstSigns(self._log, self._discovery.standings),
            counting=counting,
            routing=routing.routing,
        )
        self._apply()

    def _targets_now(self) -> Settings:
        """The settings in force, completed by what targets say of themselves; before that as they are written."""
        return self._ctx.settings if hasattr(self, "_ctx") else self._configured

    def _apply(self) -> None:
        """Puts the configured settings, completed by what targets say of themselves, in force."""
        targets = self._discovery.completed(self._configured.targets)
        settings = replace(
            with_targets(self._configured, targets), key_ring=self._keys.merged(self._configured.key_ring)
        )
        self._ctx.settings = settings
        self._ctx.cards = self._cards
        self._ctx.buffers.limit_bytes = self._part(settings.server.max_buffered_bytes)
        self._ctx.retries.ratio = settings.retry.global_ratio
        self._ctx.routing.configure(settings)
        self._metrics.configure(
            targets=[target.name for target in settings.targets],
            models=[*[route.model for route in settings.routes], *[m for t in settings.targets for m in t.models]],
            keys=settings.key_ring.names or [OPEN_NAME],
        )
        self._log.hide(settings.secrets())

    async def _look_first(self) -> None:
        await self._discovery.look_up(self._configured.targets, timeout_s=_FIRST_LOOK_S)
        self._apply()
        self._look_on()

    def _look_on(self) -> None:
        self._keep(
            "discovery",
            self._discovery.keep_looking(
                lambda: self._configured.targets, self._apply, every_s=_LOOK_EVERY_S, timeout_s=_LOOK_TIMEOUT_S
            ),
        )

    async def _close_books(self, books: JournalBooks) -> None:
        if not await asyncio.to_thread(books.close, self._close_books_s):
            self._log.event("not all of the journal is in the ledger yet; the next start brings it there")

    async def _exposition(self, stack: AsyncExitStack) -> Exposition | None:
        """The metrics of all workers; None where this process is the only one."""
        share = self._launch.share
        if share is None:
            return None
        siblings = Siblings(Path(share.directory), share.index, self._metrics.render)
        await siblings.start()
        stack.push_async_callback(siblings.close)

        async def render() -> bytes:
            await self._ctx.thinking.sample()
            return merged(await siblings.texts()).encode()

        return render

    async def _start_admin(
        self,
        stack: AsyncExitStack,
        sock: socket.socket | None,
        books: JournalBooks,
        exposition: Exposition | None,
    ) -> str:
        """Starts the listener for /metrics where one is wanted; its address, "" without."""
        if sock is None:
            return ""
        host = str(sock.getsockname()[0])
        app = create_admin_app(
            self._ctx,
            host,
            ledger_problem=books.problem,
            exposition=exposition,
            standings=self._discovery.standings,
        )
        listener = Listener(app, sock)
        stack.push_async_callback(listener.close)
        await listener.start()
        return url_of(*listener.address)

    def _with_emulator(self, settings: Settings) -> Settings:
        return settings if self._emulator is None else with_targets(settings, (self._emulator,))

    async def _reload_on(self, hangup: asyncio.Event) -> None:
        """Reads the settings again after each SIGHUP, for ever."""
        while True:
            await hangup.wait()
            hangup.clear()
            await self._reload()

    async def _reload(self) -> None:
        try:
            fresh = await asyncio.to_thread(self._launch.reload)
            if not fresh.targets:
                fresh = self._with_emulator(fresh)
            if not fresh.targets:
                raise SettingsError([NO_TARGET], fresh.source)
            settings, waiting = carry_over(self._configured, fresh, has_more_keys=self._keys.closes)
            cards = await asyncio.to_thread(opened_cards, settings)
        except (SettingsError, StartError) as err:
            reasons = err.mistakes if isinstance(err, SettingsError) else (str(err),)
            self._log.event(f"reload refused, the settings in force stay: {'; '.join(reasons)}", level="error")
            return
        self._configured, self._cards = settings, cards
        await self._discovery.look_up(settings.targets, timeout_s=_FIRST_LOOK_S)
        self._apply()
        self._ctx.routing.health.reload()
        self._look_on()
        self._log.event("reloaded", targets=len(settings.targets), keys=len(settings.keys))
        if waiting:
            self._log.event(f"takes effect at the next start only: {', '.join(waiting)}", level="warning")

    def _keep(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Runs something beside the requests; a second one of a name replaces the first."""
        old = self._tasks.pop(name, None)
        if old is not None:
            old.cancel()
        self._tasks[name] = asyncio.create_task(self._guarded(name, work), name=name)

    async def _guarded(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:  # the task's last line of defence: the gateway serves on without it, and says so
            _log.exception("the background task %s ended", name)

    async def _cancel_tasks(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        for task in self._tasks.values():
            with suppress(asyncio.CancelledError):
                await task


def _settle_memory() -> None:
    """Takes what the start has made out of the garbage collector's sight: it stays to the end. A full collection
    took 150 ms with it, in which no answer went on (`bench/stall.py`)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 5, 200)  # a middle one in 2 ms, for 4.5; a full one (17 ms) seldom
