"""Places on a server and places in the process are the same places, over random histories."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kimi_gateway.adapters.capacity.store import UNUSED, Heard, ValkeyPlaces, Wish
from kimi_gateway.core.routing.facts import Place, Quota, Ticket
from kimi_gateway.core.routing.queue_account import Moment
from kimi_gateway.core.routing.queue_book import QueueBook
from kimi_gateway.core.routing.queue_quota import AccountQuotas
from support.valkey import Server, fresh_prefix, link_to, running

NOON = 1_796_040_000.0
LONG_S = 1e9
MOST = 6
QUOTAS = (
    Quota(concurrency=2),
    Quota(concurrency=3, rpm=5),
    Quota(concurrency=2, tpm=600),
    Quota(rpm=4, tpm=900, tpd=2000),
    Quota(concurrency=1, tpd=1500),
)
NAMES = st.integers(0, 11)
ENTER = st.tuples(
    st.just("enter"), NAMES, st.integers(0, 700), st.integers(0, 11), st.sampled_from([0.0, 0.0, 0.0, 7.5])
)
LEAVE = st.tuples(st.just("leave"), NAMES, st.integers(-1, 900), st.just(0), st.just(0.0))
ABANDON = st.tuples(st.just("abandon"), NAMES, st.just(0), st.just(0), st.just(0.0))
WAIT = st.tuples(st.just("wait"), NAMES, st.sampled_from([1, 5, 12, 60, 50_000]), st.just(0), st.just(0.0))
STEPS = st.lists(st.one_of(ENTER, ENTER, LEAVE, ABANDON, WAIT), min_size=25, max_size=40)
Step = tuple[str, int, int, int, float]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(Path(tmp_path_factory.mktemp("v"))) as server:
        yield server


class Twins:
    """The same operation on both, and the same places from both."""

    def __init__(self, places: ValkeyPlaces, quotas: tuple[Quota, Quota]) -> None:
        self._places = places
        self._quotas = quotas
        self._of = AccountQuotas()
        self._book = QueueBook(self._of.of, MOST)
        self.now_s = NOON
        self._rounds = 0
        self._ids: dict[str, str] = {}
        self._given: dict[str, Ticket] = {}
        self._waiting: dict[str, Ticket] = {}

    async def step(self, step: Step) -> None:
        kind, number, tokens, which, delay_s = step
        name = f"r{number}"
        match kind:
            case "enter":
                if name not in self._given and name not in self._waiting:
                    await self._enter(name, tokens, which, delay_s)
            case "leave":
                if name in self._given:
                    del self._given[name]
                    used = None if tokens < 0 else tokens
                    self._book.leave(name, used, self.now)
                    self._compare((await self._places.leave([(self._id(name), used)]))[0])
            case "abandon":
                self._given.pop(name, None)
                self._waiting.pop(name, None)
                self._book.abandon(name, self.now)
                self._compare((await self._places.leave([(self._id(name), UNUSED)]))[0])
            case _:
                self.now_s += tokens
                self._book.serve(self.now)
                self._compare(await self._places.tend([], waits=bool(self._waiting)))

    @property
    def now(self) -> Moment:
        return Moment(self.now_s, self.now_s)

    def _id(self, name: str) -> str:
        """What the server knows a ticket by; one of its own each time."""
        return self._ids.get(name, f"{name}-never")

    async def _enter(self, name: str, tokens: int, which: int, delay_s: float) -> None:
        self._rounds += 1
        self._ids[name] = f"{name}-{self._rounds}"
        both = [
            Place("x", "A", self._quotas[0], self.now_s + delay_s if delay_s else 0.0),
            Place("y", "B", self._quotas[1]),
        ]
        places = (both, both[::-1], both[:1], both[1:])[which % 4]
        ticket = Ticket(name, f"key{which // 4 + len(name) % 2}", tokens, tuple(places))
        wishes = [
            Wish(place.account, max(0.0, place.not_before_s - self.now_s), place.quota) for place in ticket.places
        ]
        here = self._book.enter(ticket, self.now, patience_s=60.0)
        there = await self._places.enter(self._ids[name], ticket.key, tokens, wishes, most=MOST, patience_s=60.0)
        if isinstance(here, Place):
            assert (there.found, ticket.places[there.place]) == ("granted", here)
            self._given[name] = ticket
        elif here is None:
            assert there.found == "queued"
            self._waiting[name] = ticket
        else:
            assert there.found == here.reason
            assert max(1.0, there.retry_s) == pytest.approx(here.retry_after_s)
        self._compare(there.heard)

    def _compare(self, heard: Heard) -> None:
        """Nothing that can be seen differs."""
        names = {id: name for name, id in self._ids.items()}
        given = {
            name: self._waiting[name].places[number]
            for id, number in heard.given.items()
            if (name := names[id]) in self._waiting
        }
        assert given == dict(self._book.take_granted())
        for name in given:
            self._given[name] = self._waiting.pop(name)
        for account, seen in heard.seen.items():
            place = Place("x" if account == "A" else "y", account, self._quotas["AB".index(account)])
            assert (not seen.full, seen.waiting) == (self._book.room(place, self.now), self._book.queued(account))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(quotas=st.tuples(st.sampled_from(QUOTAS), st.sampled_from(QUOTAS)), steps=STEPS)
def test_a_server_and_the_process_give_the_same_places(
    server: Server, quotas: tuple[Quota, Quota], steps: list[Step]
) -> None:
    async def main() -> None:
        link = link_to(server.url, operation_timeout_s=5.0)
        twins: Twins
        places = ValkeyPlaces(
            link,
            "me",
            lease_s=LONG_S,
            heartbeat_s=LONG_S,
            prefix=fresh_prefix(),
            clock=lambda: twins.now_s,
        )
        twins = Twins(places, quotas)
        try:
            for step in steps:
                await twins.step(step)
        finally:
            await link.close()

    asyncio.run(main())
