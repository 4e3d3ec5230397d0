"""Limits that hold: spend read from the ledger, leases of dead processes, a state that begins anew, outages."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from kimi_gateway.adapters.limits.limiter import LedgerLimiter, Periods
from kimi_gateway.adapters.limits.outage import OutageLimiter
from kimi_gateway.adapters.limits.spend import LedgerSpend
from kimi_gateway.adapters.limits.state import LimitState, MemoryLimits
from kimi_gateway.adapters.limits.valkey import ValkeyLimits
from kimi_gateway.core.limits import Claim, Limits, Use
from kimi_gateway.ports import StateUnavailable
from pricing.ledger.store import Store
from support.ledger_rows import START, ledger_url, open_row, settled_row
from support.valkey import Server, fresh_prefix, link_to, running

KEY = "team-a"
BUDGET = Limits(budget_nano=1_000_000)
QUICK = Periods(lease_s=0.3, release_s=0.2, grace_s=0.0, tick_s=0.02, recount_s=0.05)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(Path(tmp_path_factory.mktemp("v"))) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(ledger_url(tmp_path), create=True)
    yield store
    store.close()


class World:
    """One ledger, one state, and limiters on it as several processes would have them."""

    def __init__(self, tmp_path: Path, server: Server | None) -> None:
        self._url = ledger_url(tmp_path)
        self._server = server
        self._prefix = fresh_prefix()
        self._memory = MemoryLimits(time.time, lease_s=60.0, keep_s=60.0)
        self._links: list[Any] = []
        self.limiters: list[LedgerLimiter] = []

    def state(self, periods: Periods, *, patience_s: float | None = None) -> LimitState:
        if self._server is None:
            return self._memory
        link = link_to(self._server.url, operation_timeout_s=5.0, rest_s=0.05)
        self._links.append(link)
        return ValkeyLimits(link, lease_s=periods.lease_s, keep_s=5.0, prefix=self._prefix, patience_s=patience_s)

    def limiter(self, periods: Periods = QUICK, *, patience_s: float | None = None) -> LedgerLimiter:
        made = LedgerLimiter(
            self.state(periods, patience_s=patience_s),
            LedgerSpend(self._url),
            periods,
            wall=lambda: START,
            mono=time.monotonic,
        )
        self.limiters.append(made)
        return made

    async def close(self) -> None:
        for limiter in self.limiters:
            await limiter.close()
        for link in self._links:
            await link.close()


def claim(name: str, nano: int = 0, *, highspeed: bool = False) -> Claim:
    return Claim(name, KEY, START, nano, highspeed)


def play(tmp_path: Path, server: Server | None, scene: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = World(tmp_path, server)
        try:
            await scene(world)
        finally:
            await world.close()

    asyncio.run(main())


async def left(limiter: LedgerLimiter | OutageLimiter, limits: Limits = BUDGET) -> int:
    found = (await limiter.standing(KEY, limits)).left_nano
    assert found is not None
    return found


@pytest.fixture(params=["process", "server"])
def either(request: pytest.FixtureRequest, server: Server) -> Server | None:
    """The state in the process, and on a server."""
    return server if request.param == "server" else None


def test_the_first_request_finds_what_the_ledger_has_booked(
    tmp_path: Path, store: Store, either: Server | None
) -> None:
    store.upsert(
        [
            settled_row("r1", cost_nano=300_000),
            settled_row("r2", cost_nano=100_000, tier="highspeed"),
            settled_row("other", cost_nano=7, key="team-b"),
            settled_row("before", cost_nano=9, started_at=START - 40 * 86_400),
            open_row("r3", cost_nano=5),
        ]
    )

    async def scene(world: World) -> None:
        limiter = world.limiter()
        await limiter.start(alone=True)
        limits = Limits(budget_nano=1_000_000, highspeed_nano=150_000)
        found = await limiter.standing(KEY, limits)
        assert (found.left_nano, found.highspeed_left_nano) == (599_995, 50_000)
        refused = await limiter.admit(claim("x", 60_000, highspeed=True), limits)
        assert (refused.refused_by, refused.decided) == ("highspeed_budget", (150_000, 50_000))
        assert (await limiter.admit(claim("y", 599_995), limits)).admitted

    play(tmp_path, either, scene)


def test_hundreds_at_once_never_pass_the_budget_by_one_nano_dollar(
    tmp_path: Path, store: Store, either: Server | None
) -> None:
    rng = random.Random(4)
    spent: dict[str, int] = {}
    store.upsert([settled_row("earlier", cost_nano=100_000)])

    async def client(number: int, limiter: LedgerLimiter) -> int:
        served = 0
        for turn in range(6):
            asked = claim(f"r{number}-{turn}", rng.randrange(1, 20_000))
            if not (await limiter.admit(asked, BUDGET)).admitted:
                continue
            await asyncio.sleep(rng.random() * 0.01)
            spent[asked.id] = rng.randrange(asked.nano + 1)
            assert sum(spent.values()) <= 900_000
            assert await limiter.settle(asked, BUDGET, Use(spent[asked.id])) == 0
            served += 1
        return served

    async def drain(until: asyncio.Event) -> None:
        """Books what has ended, late and a few at a time, as the journal does."""
        booked: set[str] = set()
        while not until.is_set() or len(booked) < len(spent):
            new = [name for name in spent if name not in booked][:100]
            rows = [settled_row(name, cost_nano=spent[name]) for name in new]
            await asyncio.to_thread(store.upsert, rows)
            booked.update(new)
            await asyncio.sleep(0.02)

    async def scene(world: World) -> None:
        periods = Periods(lease_s=30.0, grace_s=0.0, tick_s=0.02, recount_s=0.05)
        limiters = [world.limiter(periods) for _ in range(1 if either is None else 4)]
        await limiters[0].start(alone=True)
        ended = asyncio.Event()
        beside = [asyncio.create_task(limiter.keep()) for limiter in limiters]
        draining = asyncio.create_task(drain(ended))
        served = await asyncio.gather(
            *[client(n, limiters[n % len(limiters)]) for n in range(500 if either is None else 250)]
        )
        assert sum(served) >= 100
        assert await left(limiters[-1]) == 900_000 - sum(spent.values())
        ended.set()
        await draining
        for task in beside:
            task.cancel()
        await limiters[0].tick()
        assert await left(limiters[0]) == 900_000 - sum(spent.values())

    play(tmp_path, either, scene)


def test_what_a_dead_process_held_counts_until_the_ledger_says_what_became_of_it(
    tmp_path: Path, store: Store, server: Server
) -> None:
    async def scene(world: World) -> None:
        dead, alive = world.limiter(), world.limiter()
        await dead.start(alone=True)
        for name in ("settled", "unsettled", "dear", "gone"):
            assert (await dead.admit(claim(name, 100_000), BUDGET)).admitted
        assert (await alive.admit(claim("mine", 50_000), BUDGET)).admitted
        store.upsert(
            [
                settled_row("settled", cost_nano=20_000),
                open_row("unsettled", status="unsettled", cost_nano=30_000),
                open_row("dear", status="unsettled", cost_nano=130_000),
            ]
        )
        await asyncio.sleep(0.25)
        await alive.tick()
        assert await left(alive) == 1_000_000 - 450_000
        await asyncio.sleep(0.1)
        await alive.tick()  # leases have ended; the ledger knows three of the four
        assert await left(alive) == 1_000_000 - 20_000 - 100_000 - 130_000 - 100_000 - 50_000
        await asyncio.sleep(0.25)
        await alive.tick()
        assert await left(alive) == 1_000_000 - 20_000 - 100_000 - 130_000 - 50_000
        # It was only cut off: its own word counts, once.
        assert await dead.settle(claim("unsettled", 100_000), BUDGET, Use(40_000)) == 0
        assert await left(alive) == 1_000_000 - 20_000 - 40_000 - 130_000 - 50_000

    play(tmp_path, server, scene)


def test_a_state_that_begins_anew_is_told_what_is_under_way_before_spend_is_read(
    tmp_path: Path, store: Store, server: Server
) -> None:
    store.upsert([settled_row("earlier", cost_nano=100_000)])

    async def scene(world: World) -> None:
        patient = Periods(lease_s=0.3, release_s=0.2, grace_s=0.15, tick_s=0.02, recount_s=60)
        first, second = world.limiter(patient), world.limiter(patient)
        await first.start(alone=True)
        under_way = claim("first", 200_000)
        assert (await first.admit(under_way, BUDGET)).admitted
        await second.admit(claim("second", 300_000), BUDGET)
        await second.settle(claim("second", 300_000), BUDGET, Use(250_000))  # not in the ledger yet
        raw: Any = server.client()
        raw.flushall()
        raw.close()
        beside = asyncio.create_task(second.keep())
        asked = await first.admit(claim("next", 500_000), BUDGET)
        assert (asked.refused_by, asked.left_nano) == ("budget", 450_000)
        store.upsert([settled_row("second", cost_nano=250_000)])
        assert await left(first) == 450_000
        await first.settle(under_way, BUDGET, Use(50_000))
        assert await left(second) == 600_000
        beside.cancel()

    play(tmp_path, server, scene)


def test_the_spend_of_a_period_is_read_once_for_all_who_wait_for_it(tmp_path: Path, store: Store) -> None:
    class Counting(LedgerSpend):
        reads = 0

        @override
        def booked(self, *args: Any, **more: Any) -> Any:
            self.reads += 1
            return super().booked(*args, **more)

    async def main() -> None:
        ledger = Counting(ledger_url(tmp_path))
        state = MemoryLimits(time.time, lease_s=60, keep_s=60)
        limiter = LedgerLimiter(state, ledger, Periods(), wall=lambda: START, mono=time.monotonic)
        verdicts = await asyncio.gather(*[limiter.admit(claim(f"r{n}", 10), BUDGET) for n in range(50)])
        assert all(verdict.admitted for verdict in verdicts)
        assert ledger.reads == 1
        await limiter.close()

    asyncio.run(main())


def test_what_is_booked_late_is_found_at_the_next_count(
    tmp_path: Path, store: Store, either: Server | None
) -> None:
    async def scene(world: World) -> None:
        limiter = world.limiter()
        await limiter.start(alone=True)
        await limiter.admit(claim("a", 100), BUDGET)
        await limiter.settle(claim("a", 100), BUDGET, Use(80))
        # A process that died before this one began left a journal, which somebody brings in now.
        store.upsert([settled_row("a", cost_nano=80), settled_row("late", cost_nano=10)])
        assert await left(limiter) == 1_000_000 - 80
        limiter._recounts[KEY] = (BUDGET, 0.0)  # the time has come
        await limiter.tick()
        assert await left(limiter) == 1_000_000 - 90
        await limiter.tick()
        assert await left(limiter) == 1_000_000 - 90

    play(tmp_path, either, scene)


def test_a_request_that_was_given_up_while_it_asked_holds_nothing(
    tmp_path: Path, store: Store, server: Server
) -> None:
    async def scene(world: World) -> None:
        limiter = world.limiter()
        await limiter.start(alone=True)
        assert await left(limiter) == 1_000_000
        for number in range(20):
            asking = asyncio.create_task(limiter.admit(claim(f"r{number}", 1000), BUDGET))
            for _ in range(number % 7):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            if not asking.cancelled():
                await limiter.settle(claim(f"r{number}", 1000), BUDGET, Use(0))
        assert await left(limiter) == 1_000_000

    play(tmp_path, server, scene)


# --- outages --------------------------------------------------------------------------------------------------


def remove_ledger(tmp_path: Path) -> None:
    for file in tmp_path.glob("ledger.db*"):
        file.unlink()


def wrapped(inner: LedgerLimiter, how: Any, replicas: int = 2) -> OutageLimiter:
    return OutageLimiter(inner, on_outage=how, replicas=replicas, lease_s=0.3, wall=lambda: START)


def test_without_its_state_an_open_gateway_serves_its_share_and_tells_it_afterwards(
    tmp_path: Path, store: Store, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running(Path(tmp_path_factory.mktemp("v"))) as own:

        async def scene(world: World) -> None:
            limiter = wrapped(world.limiter(), "open")
            await limiter.start(alone=True)
            assert (await limiter.admit(claim("before", 200_000), BUDGET)).admitted
            own.stop()
            verdicts = [await limiter.admit(claim(f"r{n}", 100_000), BUDGET) for n in range(5)]
            assert [verdict.admitted for verdict in verdicts] == [True] * 4 + [False]
            assert verdicts[4].refused_by == "budget"
            assert verdicts[4].retry_after_s > 0
            assert await limiter.settle(claim("before", 200_000), BUDGET, Use(150_000)) == 0
            assert await limiter.settle(claim("r0", 100_000), BUDGET, Use(60_000)) == 0
            assert (await limiter.admit(claim("r5", 40_000), BUDGET)).admitted
            own.start()
            await asyncio.sleep(0.1)  # the link tries again
            assert await left(limiter) == 1_000_000 - 150_000 - 60_000 - 300_000 - 40_000
            for name, nano in (("r1", 1), ("r2", 2), ("r3", 3), ("r5", 4)):
                await limiter.settle(claim(name, 100_000), BUDGET, Use(nano))
            assert await limiter.budgets_left({KEY: BUDGET}) == {KEY: 1_000_000 - 150_000 - 60_000 - 10}
            own.stop()
            assert await limiter.budgets_left({KEY: BUDGET, "nobody": BUDGET}) == {KEY: 789_990}

        play(tmp_path, own, scene)


def test_without_its_state_a_closed_gateway_refuses_at_once_and_overspends_nothing(
    tmp_path: Path, store: Store, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running(Path(tmp_path_factory.mktemp("v"))) as own:

        async def scene(world: World) -> None:
            limiter = wrapped(world.limiter(patience_s=0.08), "closed")
            await limiter.start(alone=True)
            assert (await limiter.admit(claim("before", 200_000), BUDGET)).admitted
            for outage in (own.freeze, own.stop):
                outage()
                for number in range(3):
                    began_s = time.monotonic()
                    with pytest.raises(StateUnavailable):
                        await limiter.admit(claim(f"{outage.__name__}-{number}", 1), BUDGET)
                    assert time.monotonic() - began_s < 0.2
                own.thaw() if outage == own.freeze else own.start()
                await asyncio.sleep(0.1)
                assert await left(limiter) == 800_000
            await limiter.settle(claim("before", 200_000), BUDGET, Use(1))
            assert await left(limiter) == 999_999

        play(tmp_path, own, scene)


def test_a_share_of_the_whole_is_served_where_the_ledger_cannot_be_read(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        limiter = wrapped(world.limiter(), "open", replicas=4)  # there is no ledger at all
        assert (await limiter.admit(claim("a", 250_000), BUDGET)).admitted
        assert (await limiter.admit(claim("b", 1), BUDGET)).refused_by == "budget"
        closed = wrapped(world.limiter(), "closed")
        with pytest.raises(StateUnavailable, match="what team-a has spent cannot be read: there is no ledger"):
            await closed.admit(claim("c", 1), BUDGET)
        Store(ledger_url(tmp_path), create=True).close()
        assert await left(limiter) == 750_000

    play(tmp_path, None, scene)


def test_limits_by_the_minute_go_on_with_a_share_of_at_least_one(tmp_path: Path, store: Store) -> None:
    limits = Limits(budget_nano=100, rpm=2, concurrency=3)

    async def scene(world: World) -> None:
        limiter = wrapped(world.limiter(), "open", replicas=4)
        store.close()
        remove_ledger(tmp_path)
        assert (await limiter.admit(claim("a"), limits)).admitted
        assert (await limiter.admit(claim("b"), limits)).refused_by == "concurrency"
        await limiter.settle(claim("a"), limits, Use(0))
        assert (await limiter.admit(claim("b"), limits)).refused_by == "requests"

    play(tmp_path, None, scene)
