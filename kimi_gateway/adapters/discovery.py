"""What targets say of themselves: their model lists give the context window, and an engine's only model; an engine
also tells its version.

A target that does not answer keeps what is configured, and is asked again later: engines load for minutes.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from backends.catalog import DIALECTS
from backends.json import JsonError, as_count, as_list, as_object, as_str, decode
from backends.ports import Call, Reply, Upstream, UpstreamFault
from kimi_gateway.adapters.engine_version import ask_version
from kimi_gateway.core.standing import Standings, State
from kimi_gateway.logs import Log
from kimi_gateway.settings import Target

_MAX_LIST_BYTES: Final = 4 * 1024 * 1024
_FINAL_STATUSES: Final = frozenset({401, 403, 404, 405})
_VERSION_WAIT_S: Final = 1.0  # who has just given its list tells its version at once, or not at all


@dataclass(frozen=True, slots=True)
class Listing:
    """A target's models: its own names, each with its window in tokens (0 where it says none)."""

    windows: Mapping[str, int]


class NotListed(Exception):
    """The target gave no list. `final`: asking again will not help; `reached`: it answered. The message holds no
    key."""

    def __init__(self, message: str, *, final: bool, reached: bool = True) -> None:
        super().__init__(message)
        self.final = final
        self.reached = reached


async def ask(upstream: Upstream, target: Target, *, timeout_s: float) -> Listing:
    """The target's list. Raises `NotListed`."""
    headers = {"accept": "application/json"}
    if target.api_key is not None:
        headers["authorization"] = f"Bearer {target.api_key.reveal()}"
    call = Call(
        url=f"{target.base_url}/models",
        headers=headers,
        body=b"",
        connect_timeout_s=min(timeout_s, target.connect_timeout_s),
        method="GET",
    )
    try:
        async with asyncio.timeout(timeout_s):
            reply = await upstream.open(call)
            try:
                body = await _body(reply, timeout_s)
            finally:
                reply.close()
    except TimeoutError:
        raise NotListed(f"no answer within {timeout_s:g} s", final=False, reached=False) from None
    except UpstreamFault as failure:
        raise NotListed(failure.fault.message, final=False, reached=False) from None
    if reply.status != 200:
        raise NotListed(f"status {reply.status}", final=reply.status in _FINAL_STATUSES)
    return parse(body, DIALECTS[target.dialect].models_window_field)


async def _body(reply: Reply, timeout_s: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    while data := await reply.read(timeout_s):
        parts.append(data)
        size += len(data)
        if size > _MAX_LIST_BYTES:
            raise NotListed("its model list is absurdly long", final=True)
    return b"".join(parts)


def parse(body: bytes, window_fields: Sequence[str]) -> Listing:
    """The list in an answer of GET /models; a window has one of the names `window_fields`. Raises `NotListed`."""
    try:
        found = as_object(decode(body))
    except JsonError:
        found = None
    if found is None or "data" not in found:
        raise NotListed("its model list is not one", final=True)
    windows: dict[str, int] = {}
    for item in as_list(found["data"]):
        entry = as_object(item)
        name = as_str(entry.get("id")) if entry is not None else None
        if entry is not None and name:
            stated = (as_count(entry.get(field)) for field in window_fields)
            windows[name] = next((window for window in stated if window is not None and window > 0), 0)
    return Listing(windows)


def completed(target: Target, listing: Listing) -> tuple[Target, str]:
    """The target with what its list says, and a warning ("" where there is none).

    The window is the smallest that a mapped model states, unless the configuration states one. Where nobody
    stated the models and the usual name is not listed, the only model listed is meant.
    """
    models, warning = dict(target.models), ""
    missing = sorted({name for name in models.values() if name not in listing.windows})
    if missing and target.models_assumed and len(listing.windows) == 1:
        only = next(iter(listing.windows))
        models = dict.fromkeys(models, only)
    elif missing and listing.windows:
        listed = ", ".join(sorted(listing.windows)[:8])
        warning = (
            f"target {target.name} does not list {', '.join(missing)} but {listed}; set its models to one of these"
        )
    stated = [window for name in models.values() if (window := listing.windows.get(name, 0))]
    window = target.context_window or min(stated, default=0)
    return replace(target, models=models, context_window=window), warning


class Discovery:
    """Asks targets for their lists and remembers the answers over reloads. One instance per process.

    `wall` gives Unix seconds. `standings` is what became of the last question to each target, and the version of
    its engine when it gave its list: asked once, like the list.
    """

    def __init__(self, upstream: Upstream, log: Log, wall: Callable[[], float]) -> None:
        self.standings = Standings()
        self._upstream = upstream
        self._log = log
        self._wall = wall
        self._listings: dict[tuple[str, str], Listing] = {}
        self._given_up: set[tuple[str, str]] = set()
        self._said: set[str] = set()

    def unknown(self, targets: Sequence[Target]) -> list[Target]:
        """The targets that have not answered yet and still may."""
        return [
            target
            for target in targets
            if (key := _key(target)) not in self._listings and key not in self._given_up
        ]

    async def look_up(self, targets: Sequence[Target], *, timeout_s: float) -> bool:
        """Asks those that are unknown, at once; says whether any of them answered."""
        waiting = self.unknown(targets)
        return any(await asyncio.gather(*(self._one(target, timeout_s) for target in waiting)))

    async def _one(self, target: Target, timeout_s: float) -> bool:
        try:
            listing = await ask(self._upstream, target, timeout_s=timeout_s)
        except NotListed as err:
            if err.final:
                self._given_up.add(_key(target))
            self.standings.seen(*_key(target), State.NO_LIST if err.reached else State.UNREACHABLE, self._wall())
            self._say(f"target {target.name} gave no model list ({err}); what is configured counts")
            return False
        self._listings[_key(target)] = listing
        self.standings.seen(*_key(target), State.ANSWERED, self._wall())
        version = await ask_version(self._upstream, target, timeout_s=min(timeout_s, _VERSION_WAIT_S))
        self.standings.runs(*_key(target), version)
        return True

    def completed(self, targets: Sequence[Target]) -> tuple[Target, ...]:
        """The targets with what is known of them."""
        out = []
        for target in targets:
            listing = self._listings.get(_key(target))
            if listing is None:
                out.append(target)
                continue
            known, warning = completed(target, listing)
            if warning:
                self._say(warning)
            out.append(known)
        return tuple(out)

    def _say(self, warning: str) -> None:
        if warning not in self._said:
            self._said.add(warning)
            self._log.event(warning, level="warning")

    async def keep_looking(
        self,
        targets: Callable[[], Sequence[Target]],
        found: Callable[[], None],
        *,
        every_s: float,
        timeout_s: float,
    ) -> None:
        """Asks again until every target has answered or will not; calls `found` after each success."""
        while self.unknown(targets()):
            await asyncio.sleep(every_s)
            if await self.look_up(targets(), timeout_s=timeout_s):
                found()


def _key(target: Target) -> tuple[str, str]:
    return target.name, target.base_url
