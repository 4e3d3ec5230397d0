"""The health of targets in this process, and what processes that share a state tell each other of it.

What is asked and noted is in memory (`kimi_gateway.core.routing.health`). Beside the requests, whatever is new is
told at once and what others have learned is read every `refresh_s`. Without a shared state there is nobody to
tell; while it is away each process goes by what it knows, and tells it later.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from typing_extensions import override

from backends.faults import Fault
from kimi_gateway.core.routing import breaker
from kimi_gateway.core.routing.facts import Out
from kimi_gateway.core.routing.health import HealthBook, Member, Rules
from kimi_gateway.core.routing.health_notice import Notice
from kimi_gateway.ports import Health, StateUnavailable
from kimi_gateway.settings import Settings, Target

if TYPE_CHECKING:
    from kimi_gateway.adapters.state.link import Link

REFRESH_S: Final = 0.5
_GAP_S: Final = 0.05
"""What is learned within it is told in one go."""

_log: Final = logging.getLogger("kimi_gateway.health")


class Board(Protocol):
    """Where processes leave notices for each other."""

    async def exchange(self, news: Sequence[Notice]) -> list[Notice]:
        """Leaves these, and gives back what others have left since the last time. Raises `StateUnavailable`."""
        ...


class TargetHealth(Health):
    """`ports.Health`. Belongs to one event loop; `mono` is a clock in seconds, `settings` gives those in force."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        *,
        mono: Callable[[], float],
        board: Board | None = None,
        refresh_s: float = REFRESH_S,
    ) -> None:
        self._settings = settings
        self._mono = mono
        self._board = board
        self._refresh_s = refresh_s
        self._book = HealthBook()
        self._is_new = asyncio.Event()
        self._problem = ""
        self.reload()

    @override
    def out(self, target: str) -> Out | None:
        return self._book.out(target, self._mono())

    @override
    def begin(self, target: str, attempt: str = "") -> bool:
        """See `ports.Health.begin`; false as well while the breaker is open. `attempt` is the attempt's own name:
        with it, only the probe's own end decides a breaker, and a key that has been replaced since counts for
        nothing."""
        return self._book.begin(target, self._mono(), attempt)

    @override
    def failed(self, target: str, fault: Fault, attempt: str = "") -> None:
        self._book.failed(target, fault, self._mono(), attempt)
        self._look_for_news()

    @override
    def succeeded(self, target: str, attempt: str = "") -> None:
        self._book.succeeded(target, self._mono(), attempt)
        self._look_for_news()

    @override
    def given_up(self, target: str, attempt: str = "") -> None:
        self._book.given_up(target, attempt)

    @override
    def reload(self) -> None:
        settings = self._settings()
        self._book.configure(members_of(settings.targets), rules_of(settings), self._mono())
        self._look_for_news()

    def found_gone(self, target: str, fault: Fault) -> None:
        """Nobody listens at a target, as was found beside the requests: its breaker opens."""
        self._book.found_gone(target, fault, self._mono())
        self._look_for_news()

    def found_there(self, target: str) -> None:
        """A target was found there: if it had gone, a request may try it before its breaker's time is over."""
        self._book.found_there(target, self._mono())

    @override
    async def keep(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._refresh_s):
                    await self._is_new.wait()
            await self.share()
            await asyncio.sleep(min(_GAP_S, self._refresh_s))

    async def share(self) -> None:
        """One round of what `keep` does: tells what is new here, takes what is new elsewhere. Never raises for a
        state that is away."""
        self._is_new.clear()
        news = self._book.take_news()
        if self._board is None:
            return
        try:
            heard = await self._board.exchange(news)
        except StateUnavailable as err:
            self._book.untold(news)
            if not self._problem:
                _log.warning("what targets are out is not shared until the state is back: %s", err)
            self._problem = str(err)
            return
        self._problem = ""
        for notice in heard:
            self._book.heard(notice, self._mono())

    def _look_for_news(self) -> None:
        if self._book.has_news:
            self._is_new.set()


def open_health(
    settings: Callable[[], Settings],
    link: "Link | None",
    *,
    mono: Callable[[], float],
    origin: str,
    refresh_s: float = REFRESH_S,
) -> TargetHealth:
    """The health over a link, or of this process alone where there is none. Connects to nothing yet. `origin` is
    this process's own name, 16 characters that no other has."""
    if link is None:
        return TargetHealth(settings, mono=mono, refresh_s=refresh_s)
    # Not at the top: a gateway with its state in the process needs none of these libraries.
    from kimi_gateway.adapters.health_shared import ValkeyBoard

    return TargetHealth(settings, mono=mono, board=ValkeyBoard(link, origin, mono=mono), refresh_s=refresh_s)


def rules_of(settings: Settings) -> Rules:
    """The rules that the settings state. An unfinished probe keeps others out as long as a breaker is open."""
    open_s = settings.retry.breaker_open_s
    by_breaker = breaker.Rules(settings.retry.breaker_failures, open_s, max(open_s, 1.0))
    return Rules(by_breaker, settings.timing.quota_out_s)


def members_of(targets: Iterable[Target]) -> list[Member]:
    """The targets as health knows them."""
    logins: dict[tuple[str, str], str] = {}
    members = []
    for target in targets:
        key = "" if target.api_key is None else target.api_key.reveal()
        login = logins.setdefault((urlsplit(target.base_url).netloc, key), f"login-{len(logins)}")
        members.append(Member(target.name, target.account or target.name, login, _identity(target.base_url, key)))
    return members


def _identity(base_url: str, key: str) -> str:
    """Tells two configurations of a name apart, and is too short to find a key by."""
    return blake2b(f"{base_url}\n{key}".encode(), digest_size=3, person=b"kimi health").hexdigest()
