"""Limits on a server and limits in the process are the same limits, over random histories."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kimi_gateway.adapters.limits.state import LimitState, MemoryLimits, Outcome
from kimi_gateway.adapters.limits.valkey import ValkeyLimits
from kimi_gateway.core.limits import Claim, Limits, Use, period_name
from pricing.ledger.store.spend import Booked, BookedRow
from support.valkey import Server, fresh_prefix, link_to, running

NOON = 1_796_040_000.0
LEASE_S, KEEP_S = 60.0, 200.0
T = TypeVar("T")

LIMITS = (
    Limits(budget_nano=1000),
    Limits(budget_nano=1000, highspeed_nano=300, period="day"),
    Limits(highspeed_nano=200, rpm=7),
    Limits(budget_nano=700, rpm=11, tpm=900, concurrency=3, period="total"),
    Limits(rpm=5, tpm=500),
    Limits(concurrency=2),
)
NAMES = st.integers(0, 9).map("r{}".format)
KEYS = st.sampled_from(["team-a", "team.b_c"])
NANO = st.integers(0, 400)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), KEYS, NAMES, NANO, st.booleans(), st.integers(0, 1200)),
        st.tuples(
            st.just("settle"), KEYS, NAMES, NANO, st.sampled_from([None, True, False]), st.integers(-1, 800)
        ),
        st.tuples(st.just("restore"), KEYS, NAMES, NANO, st.booleans(), st.just(0)),
        st.tuples(st.just("renew"), KEYS, NAMES, st.just(0), st.just(False), st.just(0)),
        st.tuples(st.just("resolve"), KEYS, NAMES, NANO, st.booleans(), st.just(0)),
        st.tuples(st.just("load"), KEYS, NAMES, NANO, st.booleans(), st.integers(0, 3)),
        st.tuples(st.just("wait"), KEYS, NAMES, st.integers(0, 100), st.booleans(), st.just(0)),
    ),
    max_size=40,
)
Step = tuple[str, str, str, int, bool | None, int]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(Path(tmp_path_factory.mktemp("v"))) as server:
        yield server


class Twins:
    """The same operation on both, and the same answer from both."""

    def __init__(self, memory: LimitState, shared: LimitState, limits: Limits) -> None:
        self._both = (memory, shared)
        self._limits = limits
        self.now_s = NOON
        self._held: dict[str, Claim] = {}

    async def step(self, step: Step) -> None:
        kind, key, name, nano, flag, number = step
        claim = Claim(f"{key}-{name}", key, self.now_s, nano, bool(flag), number)
        match kind:
            case "admit":
                if claim.id in self._held:  # a request has an id of its own
                    return
                verdict = await self.same(lambda one: one.admit(claim, self._limits))
                if not isinstance(verdict, str) and verdict.admitted:
                    self._held[claim.id] = claim
            case "settle":
                held = self._held.pop(claim.id, claim)
                use = Use(nano, None if number < 0 else number, flag)
                await self.same(lambda one: one.settle([(held, self._limits, use)]))
            case "restore":
                held = self._held.setdefault(claim.id, claim)
                await self.same(lambda one: one.restore([(held, self._limits)]))
            case "renew":
                await self.same(lambda one: one.renew([(key, claim.id), (key, "never")]))
            case "resolve":
                await self.same(lambda one: one.resolve([Outcome(key, claim.id, nano, bool(flag))]))
            case "load":
                await self._load(claim, number)
            case _:
                self.now_s += nano + (0.125 if flag else 0)
        await self.look(key)

    async def _load(self, claim: Claim, kind: int) -> None:
        period = period_name(self._limits.period, self.now_s)
        known = [await one.known(claim.key, period, unload=claim.highspeed) for one in self._both]
        assert known[0].ids == known[1].ids
        states: tuple[Literal["open", "unsettled", "settled"], ...] = ("open", "unsettled", "settled")
        rows = {}
        for at, name in enumerate([*sorted(known[0].ids), f"{claim.key}-far"]):
            if (at + kind) % 4 < 3:
                rows[name] = BookedRow(states[(at + kind) % 4], at * 7, at % 2 == 0, at * 11)
        booked = Booked(claim.nano + 300, claim.nano, rows)
        taken = [
            await one.install(claim.key, period, booked, what) for one, what in zip(self._both, known, strict=True)
        ]
        assert taken == [True, True]

    async def look(self, key: str) -> None:
        """Nothing that can be seen differs."""
        await self.same(lambda one: one.standing(key, self._limits, self.now_s))
        late = [sorted(await one.lapsed(100), key=lambda lapsed: (lapsed.key, lapsed.id)) for one in self._both]
        assert late[0] == late[1]

    async def same(self, ask: Callable[[LimitState], Awaitable[T]]) -> T:
        first, second = [await ask(one) for one in self._both]
        assert first == second
        return first


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(limits=st.sampled_from(LIMITS), steps=STEPS)
def test_a_server_and_the_process_agree_on_every_answer(server: Server, limits: Limits, steps: list[Step]) -> None:
    async def main() -> None:
        link = link_to(server.url, operation_timeout_s=5.0)
        twins: Twins
        memory = MemoryLimits(lambda: twins.now_s, lease_s=LEASE_S, keep_s=KEEP_S)
        shared = ValkeyLimits(
            link, lease_s=LEASE_S, keep_s=KEEP_S, prefix=fresh_prefix(), clock=lambda: twins.now_s
        )
        twins = Twins(memory, shared, limits)
        try:
            await shared.greet(alone=True)
            for key in ("team-a", "team.b_c"):
                await twins.step(("load", key, "r0", 0, False, 3))
            for step in steps:
                await twins.step(step)
        finally:
            await link.close()

    asyncio.run(main())
