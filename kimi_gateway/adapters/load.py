"""What engines say of their load, asked beside the requests: each by itself, so that a slow one holds up no other.

An engine that nobody answers for is noticed here and not by requests: its load is unknown at once, and after two
looks in a row whoever keeps the health of targets is told. So is an engine that says itself that it is dead
(`/health` of vLLM, 503). One that answers too slowly is only silent: a busy engine is not a dead one.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from typing_extensions import override

from backends.catalog import DIALECTS
from backends.dialect import LoadReport
from backends.faults import Fault, FaultKind
from backends.ports import Call, Reply, Upstream, UpstreamFault
from kimi_gateway.adapters.engine_version import root_of
from kimi_gateway.core.routing.engine_load import Reading, reading
from kimi_gateway.core.routing.facts import Load
from kimi_gateway.logs import Log
from kimi_gateway.ports import Loads
from kimi_gateway.settings import Target

REFRESH_S: Final = 2.0
_FRESH_LOOKS: Final = 3
"""After so many looks without an answer what was said before is too old."""
_GONE_LOOKS: Final = 2
"""One refused connection may be an engine that starts again."""
_MUTE_LOOKS: Final = 15
"""An engine whose paths say nothing of its load is asked again after so many."""
_HEALTH_LOOKS: Final = 5
"""Where asking for its health costs an engine something."""
_MAX_BODY_BYTES: Final = 8 << 20
_QUICK_BYTES: Final = 256 << 10
"""What is longer is read in a thread."""
_NOBODY: Final = frozenset({FaultKind.CONNECT, FaultKind.TLS})


class Keeper(Protocol):
    """Who keeps the health of targets."""

    def found_gone(self, target: str, fault: Fault) -> None:
        """Nobody serves there."""
        ...

    def found_there(self, target: str) -> None:
        """Somebody does."""
        ...


class _Gone(Exception):
    """Nobody serves requests there."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class _Slow(Exception):
    """There was no whole answer in time."""


@dataclass(slots=True)
class _Watch:
    """What is known of one engine. `path` is where it tells its load (None: not known), `looks` counts looks since
    all paths were tried; `gone` and `missed` count looks in a row, `why` is what became of the last."""

    target: Target
    heard_s: float
    load: Load | None = None
    path: str | None = None
    looks: int = 0
    gone: int = 0
    missed: int = 0
    why: str = ""
    told: bool = False
    task: asyncio.Task[None] | None = None

    def is_of(self, target: Target) -> bool:
        """It is still the same engine."""
        return (self.target.base_url, self.target.dialect, self.target.api_key) == (
            target.base_url,
            target.dialect,
            target.api_key,
        )


class EngineLoads(Loads):
    """`ports.Loads`. Belongs to one event loop; `mono` is a clock in seconds.

    `targets` gives those in force. A look at one engine takes at most `timeout_s` for each question.
    """

    def __init__(
        self,
        upstream: Upstream,
        targets: Callable[[], Sequence[Target]],
        log: Log,
        *,
        mono: Callable[[], float],
        keeper: Keeper | None = None,
        refresh_s: float = REFRESH_S,
        timeout_s: float = REFRESH_S,
    ) -> None:
        self._upstream = upstream
        self._targets = targets
        self._log = log
        self._mono = mono
        self._keeper = keeper
        self._refresh_s = refresh_s
        self._timeout_s = timeout_s
        self._watches: dict[str, _Watch] = {}

    @override
    def load(self, target: str) -> Load | None:
        watch = self._watches.get(target)
        if watch is None or watch.load is None:
            return None
        return watch.load if self._mono() - watch.load.at_s <= _FRESH_LOOKS * self._refresh_s else None

    def silent(self, target: str) -> str:
        """Since when and why an engine does not answer, for people; "" where it does or is not watched."""
        watch = self._watches.get(target)
        if watch is None or not _is_silent(watch):
            return ""
        return f"no answer for {self._mono() - watch.heard_s:.0f} s: {watch.why}"

    @override
    async def keep(self) -> None:
        try:
            while True:
                self._begin_round()
                await asyncio.sleep(self._refresh_s)
        finally:
            for watch in self._watches.values():
                if watch.task is not None:
                    watch.task.cancel()

    async def look(self) -> None:
        """One round of what `keep` does, to its end."""
        self._begin_round()
        tasks = [watch.task for watch in self._watches.values() if watch.task is not None]
        await asyncio.gather(*tasks)

    def _begin_round(self) -> None:
        """Looks at every engine that is not being looked at; forgets those that are no targets any more."""
        engines = {one.name: one for one in self._targets() if DIALECTS[one.dialect].load is not None}
        for name in [name for name, watch in self._watches.items() if not _stays(watch, engines.get(name))]:
            watch = self._watches.pop(name)
            if watch.task is not None:
                watch.task.cancel()
        for name, target in engines.items():
            watch = self._watches.setdefault(name, _Watch(target, self._mono()))
            watch.target = target
            if watch.task is None or watch.task.done():
                watch.task = asyncio.create_task(self._look_at(watch), name=f"load of {name}")

    async def _look_at(self, watch: _Watch) -> None:
        report = DIALECTS[watch.target.dialect].load
        assert report is not None, "only engines that say something are watched"
        try:
            asked, found = await self._asked(watch, report)
        except _Gone as gone:
            self._found_gone(watch, gone.fault)
        except _Slow as slow:
            watch.gone, watch.missed, watch.why = 0, watch.missed + 1, str(slow)
        else:
            if asked:
                self._found_there(watch, found)
        self._tell_of(watch)

    def _found_gone(self, watch: _Watch, fault: Fault) -> None:
        watch.load, watch.path = None, None
        watch.gone, watch.missed, watch.why = watch.gone + 1, watch.missed + 1, fault.message
        if watch.gone >= _GONE_LOOKS and self._keeper is not None:
            self._keeper.found_gone(watch.target.name, fault)

    def _found_there(self, watch: _Watch, found: Reading | None) -> None:
        now_s = self._mono()
        watch.heard_s, watch.gone, watch.missed = now_s, 0, 0
        watch.load = None if found is None else Load(found.running, found.waiting, now_s, found.cache_used)
        if self._keeper is not None:
            self._keeper.found_there(watch.target.name)

    def _tell_of(self, watch: _Watch) -> None:
        """One line of the log when an engine falls silent, and one when it is back."""
        silent, name = _is_silent(watch), watch.target.name
        if silent and not watch.told:
            self._log.event(f"target {name} is silent: {watch.why}", level="warning")
        elif watch.told and not silent:
            self._log.event(f"target {name} answers again")
        watch.told = silent

    async def _asked(self, watch: _Watch, report: LoadReport) -> tuple[bool, Reading | None]:
        """Whether an engine was asked anything, and what it says of its load. Raises `_Gone`, `_Slow`."""
        known = watch.path
        watch.looks = watch.looks % _MUTE_LOOKS + 1
        is_due = known is not None or watch.looks == 1 or watch.missed > 0
        found = await self._first_to_say(watch, report) if is_due else None
        is_lost = known is not None and found is None
        asks_health = report.health_is_cheap or (found is None and (is_lost or watch.looks % _HEALTH_LOOKS == 1))
        if is_lost:
            watch.looks = 0  # asked on every path next time
        if asks_health:
            await self._check_health(watch.target, report)
        return is_due or asks_health, found

    async def _first_to_say(self, watch: _Watch, report: LoadReport) -> Reading | None:
        """What the first path says that says anything; the one that did last time is the first."""
        paths = [path for path in report.paths if path != watch.path]
        if watch.path is not None:
            paths.insert(0, watch.path)
        for path in paths:
            found = await self._read(watch.target, path, report)
            if found is not None:
                watch.path = path
                return found
        watch.path = None
        return None

    async def _read(self, target: Target, path: str, report: LoadReport) -> Reading | None:
        status, body = await self._get(target, path)
        if status != 200:
            return None
        if len(body) > _QUICK_BYTES:
            return await asyncio.to_thread(reading, body, report)
        return reading(body, report)

    async def _check_health(self, target: Target, report: LoadReport) -> None:
        """Raises `_Gone` for an engine that says it is not well, and `_Slow`."""
        status, _ = await self._get(target, report.health_path)
        if status >= 500:
            raise _Gone(Fault(FaultKind.SERVER, f"the engine's {report.health_path} answers {status}", status))

    async def _get(self, target: Target, path: str) -> tuple[int, bytes]:
        """Status and body at a path; (0, b"") for an answer that cannot be used. Raises `_Gone`, `_Slow`."""
        headers = {"accept": "text/plain, application/json"}
        if target.api_key is not None:
            headers["authorization"] = f"Bearer {target.api_key.reveal()}"
        call = Call(
            url=f"{root_of(target.base_url)}{path}",
            headers=headers,
            body=b"",
            connect_timeout_s=min(self._timeout_s, target.connect_timeout_s),
            method="GET",
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._upstream.open(call)
                try:
                    return reply.status, await _body(reply, self._timeout_s)
                finally:
                    reply.close()
        except TimeoutError:
            raise _Slow(f"{path.partition('?')[0]} did not answer within {self._timeout_s:g} s") from None
        except UpstreamFault as failure:
            if failure.fault.kind in _NOBODY:
                raise _Gone(failure.fault) from None
            if failure.fault.kind is FaultKind.RESET:
                raise _Slow(failure.fault.message) from None
            return 0, b""


def _is_silent(watch: _Watch) -> bool:
    return watch.gone >= _GONE_LOOKS or watch.missed >= _FRESH_LOOKS


def _stays(watch: _Watch, target: Target | None) -> bool:
    return target is not None and watch.is_of(target)


async def _body(reply: Reply, timeout_s: float) -> bytes:
    """The whole body; b"" where it is absurdly long."""
    parts: list[bytes] = []
    size_bytes = 0
    while (data := await reply.read(timeout_s)) != b"":
        size_bytes += len(data or b"")
        if size_bytes > _MAX_BODY_BYTES:
            return b""
        parts.append(data or b"")
    return b"".join(parts)
