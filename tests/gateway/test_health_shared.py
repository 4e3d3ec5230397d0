"""Health in the process and over a real Valkey: what one replica learns the other knows within a second."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from backends.faults import Fault, FaultKind
from kimi_gateway.adapters.health import TargetHealth, members_of, open_health
from kimi_gateway.adapters.health_shared import ValkeyBoard
from kimi_gateway.adapters.state.link import Link
from kimi_gateway.core.secret import Secret
from kimi_gateway.settings import Flags, Settings, Target
from kimi_gateway.settings.load import settings_of
from support.valkey import Server, fresh_prefix, link_to, running

KEY = "sk-health-5d4c3b2a1908"
QUOTA = Fault(FaultKind.QUOTA, "account suspended", 429, "exceeded_current_quota_error")
AUTH = Fault(FaultKind.AUTH, "Unauthorized", 401)
BROKEN = Fault(FaultKind.SERVER, "broken", 500)
TARGETS = (
    Target("moonshot", "moonshot", "https://one.example/v1", Secret(KEY), account="acme"),
    Target("fast", "moonshot", "https://one.example/v1", Secret(KEY), account="acme"),
    Target("vllm", "vllm", "http://two.example/v1"),
)


def settings(*targets: Target, failures: int = 2, open_s: float = 30.0) -> Settings:
    made = settings_of({}, {}, Flags(), source="")
    retry = replace(made.retry, breaker_failures=failures, breaker_open_s=open_s)
    return replace(made, targets=targets or TARGETS, retry=retry)


class Clock:
    """A clock that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(Path(tmp_path_factory.mktemp("v"))) as server:
        yield server


def replica(
    link: Link, prefix: str, name: str, of: Settings | None = None, refresh_s: float = 0.1
) -> TargetHealth:
    board = ValkeyBoard(link, f"{name:>16}", mono=time.monotonic, prefix=prefix)
    held = of or settings()
    return TargetHealth(lambda: held, mono=time.monotonic, board=board, refresh_s=refresh_s)


@asynccontextmanager
async def kept(*replicas: TargetHealth) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one.keep()) for one in replicas]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def becomes(wanted: Callable[[], bool], within_s: float = 1.0) -> None:
    until_s = time.monotonic() + within_s
    while not wanted():
        assert time.monotonic() < until_s
        await asyncio.sleep(0.01)


def test_in_one_process_the_clock_and_the_settings_decide() -> None:
    clock, held = Clock(), [settings(open_s=5)]
    health = open_health(lambda: held[0], None, mono=clock, origin="")
    for _ in range(2):
        assert health.begin("vllm", "a")
        health.failed("vllm", BROKEN, "a")
    assert health.out("vllm") is not None
    clock.now_s += 5
    assert health.begin("vllm", "b")
    health.given_up("vllm", "b")
    assert health.begin("vllm", "c")
    health.succeeded("vllm", "c")
    health.failed("moonshot", QUOTA)
    assert health.out("fast") is not None
    clock.now_s += 301
    assert health.out("fast") is None
    health.failed("moonshot", AUTH)
    assert health.out("fast") is not None
    held[0] = settings(TARGETS[2], failures=1)
    health.reload()
    assert health.out("fast") is None
    health.failed("vllm", BROKEN)
    assert health.out("vllm") is not None


def test_alone_nobody_is_told_and_nothing_piles_up() -> None:
    async def main() -> None:
        health = open_health(settings, None, mono=Clock(), origin="", refresh_s=0.01)
        async with kept(health):
            for _ in range(3):
                health.failed("moonshot", QUOTA)
                await asyncio.sleep(0.02)
            assert not health._book.has_news
        assert health.out("fast") is not None

    asyncio.run(main())


def test_what_one_replica_learns_the_other_knows_within_a_second(server: Server) -> None:
    async def main() -> None:
        links = [link_to(server.url), link_to(server.url)]
        prefix = fresh_prefix()
        one, other = (replica(link, prefix, name) for link, name in zip(links, ("one", "other"), strict=True))
        async with kept(one, other):
            await asyncio.sleep(0.05)
            one.failed("moonshot", QUOTA)
            await becomes(lambda: other.out("fast") is not None)
            found, mine = other.out("fast"), one.out("moonshot")
            assert found is not None
            assert mine is not None
            assert replace(found.fault, message="") == replace(QUOTA, message="")
            assert found.fault.message == QUOTA.message
            assert abs((found.until_s or 0) - (mine.until_s or 0)) < 0.5
            other.failed("vllm", BROKEN)
            other.failed("vllm", BROKEN)
            await becomes(lambda: one.out("vllm") is not None)
            one.failed("moonshot", AUTH)
            await becomes(lambda: (other.out("fast") or found).until_s is None)
            other.reload()
            await becomes(lambda: (one.out("fast") or found).until_s is not None)
        for link in links:
            await link.close()

    asyncio.run(main())


def test_a_replica_that_starts_later_knows_as_well_and_no_key_is_on_the_server(server: Server) -> None:
    async def main() -> None:
        link, prefix = link_to(server.url), fresh_prefix()
        one = replica(link, prefix, "one")
        one.failed("moonshot", QUOTA)
        await one.share()
        later = replica(link, prefix, "later")
        await later.share()
        assert later.out("fast") is not None
        stranger = replica(
            link, prefix, "stranger", settings(replace(TARGETS[0], base_url="https://three.example"))
        )
        await stranger.share()
        assert stranger.out("moonshot") is None
        await link.close()
        raw = server.client()
        kept_there = repr([raw.hgetall(f"{prefix}n"), raw.zrange(f"{prefix}z", 0, -1)])
        assert "account suspended" in kept_there
        assert KEY not in kept_there
        raw.close()

    asyncio.run(main())


def test_notices_are_read_once_and_come_again_after_the_server_lost_all(server: Server) -> None:
    async def main() -> None:
        link, prefix = link_to(server.url), fresh_prefix()
        boards = [ValkeyBoard(link, f"{name:>16}", mono=time.monotonic, prefix=prefix) for name in ("a", "b")]
        one = replica(link, prefix, "a")
        one.failed("moonshot", QUOTA)
        news = one._book.take_news()
        assert await boards[0].exchange(news) == []
        assert {notice.place for notice in await boards[1].exchange([])} == {notice.place for notice in news}
        assert await boards[1].exchange([]) == []
        raw = server.client()
        raw.delete(*(f"{prefix}{name}" for name in "vnzx"))
        raw.close()
        assert await boards[1].exchange([]) == []
        await boards[0].exchange(news[:1])
        assert [notice.place for notice in await boards[1].exchange([])] == [news[0].place]
        await link.close()

    asyncio.run(main())


def test_an_outage_of_the_state_hurts_nobody_and_is_made_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        server = Server(tmp_path)
        server.start()
        links = [link_to(server.url, rest_s=0.05, operation_timeout_s=0.1) for _ in range(2)]
        one, other = (replica(link, "{o}:", name) for link, name in zip(links, ("one", "other"), strict=True))
        async with kept(one, other):
            await asyncio.sleep(0.05)
            server.freeze()
            one.failed("moonshot", QUOTA)
            began_s = time.monotonic()
            assert one.out("fast") is not None
            assert one.begin("vllm")
            assert time.monotonic() - began_s < 0.05
            await asyncio.sleep(0.5)
            assert other.out("fast") is None
            server.stop()
            server.start()  # and knows nothing of what it may have been told
            await becomes(lambda: other.out("fast") is not None, 3.0)
        for link in links:
            await link.close()
        server.stop()

    with caplog.at_level(logging.WARNING, "kimi_gateway.health"):
        asyncio.run(main())
    assert 1 <= len(caplog.records) <= 2, "an outage is one line each, not one for every round"


def test_a_targets_identity_changes_with_its_key_and_address_and_shows_neither() -> None:
    (one,) = members_of(TARGETS[:1])
    (again,) = members_of([replace(TARGETS[0], name="renamed")])
    (rekeyed,) = members_of([replace(TARGETS[0], api_key=Secret("another"))])
    (moved,) = members_of([replace(TARGETS[0], base_url="https://four.example/v1")])
    assert one.identity == again.identity
    assert len({one.identity, rekeyed.identity, moved.identity}) == 3
    assert len(one.identity) == 6
    by_login = {member.target: member.login for member in members_of(TARGETS)}
    assert by_login["moonshot"] == by_login["fast"] != by_login["vllm"]


def test_an_origin_is_sixteen_characters() -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="16 ASCII characters"):
            ValkeyBoard(link_to("redis://127.0.0.1:1"), "short", mono=time.monotonic)

    asyncio.run(main())
