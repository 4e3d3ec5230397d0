"""Two equal replicas with a prefix cache each: where conversations go, and what they read there."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import httpx2
import pytest

from backends.emulator.config import EmulatorConfig
from support.emulators import emulators
from support.fleet import CHEAP, PRO, route, target
from support.lab import heal
from support.processes import Gateway, gateway_process
from support.talking import PlainClient, Said

REPLICAS = ("east", "west")


class Stage:
    """The gateway and the addresses of its two replicas."""

    def __init__(self, gateway: Gateway, addresses: dict[str, str]) -> None:
        self.gateway = gateway
        self.addresses = addresses

    def fails(self, name: str, faults: str) -> None:
        """Sets the faults of a replica, "" for none."""
        answer = httpx2.post(f"{self.addresses[name]}/emulator/faults", content=faults, timeout=10)
        assert answer.status_code == 200, answer.text

    def forgets(self, name: str) -> None:
        """A replica loses its cache, as with a restart."""
        assert httpx2.post(f"{self.addresses[name]}/emulator/reset", timeout=10).status_code == 200

    def turn(self, client: PlainClient) -> tuple[str, Said]:
        """The next turn: who served it, and what was said."""
        said = client.turn(self.gateway.base_url)
        return said.kimi["target"], said


@pytest.fixture(scope="module")
def shared() -> Iterator[Stage]:
    config = EmulatorConfig(pace=0, text_tokens=40)
    with ExitStack() as stack:
        addresses = stack.enter_context(emulators(dict.fromkeys(REPLICAS, config)))
        models = {PRO: PRO}
        targets = [
            target(name, f"{address}/v1", {"models": models, "prices": CHEAP})
            for name, address in addresses.items()
        ]
        text = "\n".join(
            [
                "[server]\ndrain_grace_s = 0",
                "[retry]\nglobal_ratio = 1\nbreaker_failures = 1000",
                "[timing]\nload_refresh_s = 0.2",
                *targets,
                route(PRO, REPLICAS, policy="cost"),
            ]
        )
        yield Stage(stack.enter_context(gateway_process(text, {"FLEET_KEY": "sk-replicas"})), addresses)


@pytest.fixture
def stage(shared: Stage) -> Iterator[Stage]:
    """The same, both replicas well."""
    yield shared
    for name in REPLICAS:
        shared.fails(name, "")
    heal(shared.gateway)


def other(name: str) -> str:
    return REPLICAS[1 - REPLICAS.index(name)]


def test_a_conversation_stays_where_it_began_and_reads_more_each_time(stage: Stage) -> None:
    clients = [PlainClient(f"number {number} of eight") for number in range(8)]
    homes = []
    for _ in range(3):
        turns = [stage.turn(client) for client in clients]  # they take turns
        homes.append([name for name, _ in turns])
    assert homes == [homes[0]] * 3
    assert set(Counter(homes[0])) == set(REPLICAS)
    for client in clients:
        cached = [said.cached_tokens for said in client.said]
        assert all(later > earlier for earlier, later in pairwise(cached)), cached


def test_a_conversation_whose_replica_fails_moves_and_stays_where_it_is_warm(stage: Stage) -> None:
    client = PlainClient("a move")
    home, _ = stage.turn(client)
    assert stage.turn(client)[0] == home
    stage.fails(home, '[[faults]]\nkind = "http_error"\n')
    moved, said = stage.turn(client)
    assert (moved, said.kimi["attempts"]) == (other(home), 2)
    stage.fails(home, "")
    for _ in range(2):
        before = client.said[-1].cached_tokens
        where, said = stage.turn(client)
        assert (where, said.kimi["attempts"]) == (other(home), 1)
        assert said.cached_tokens > before


def test_a_conversation_goes_back_where_its_new_place_reports_again_and_again_that_it_kept_nothing(
    stage: Stage,
) -> None:
    client = PlainClient("there and back")
    home = stage.turn(client)[0]
    assert {stage.turn(client)[0] for _ in range(3)} == {home}
    stage.fails(home, '[[faults]]\nkind = "http_error"\n')
    assert stage.turn(client)[0] == other(home)
    stage.fails(home, "")
    for _ in range(4):
        stage.forgets(other(home))
        where, said = stage.turn(client)
        assert (said.cached_tokens > 0) is (where == home)
        if where == home:
            return
    raise AssertionError(f"it stays at {other(home)}, which keeps nothing")


def test_conversations_with_one_system_prompt_begin_where_it_is_warm(stage: Stage) -> None:
    rules = "A rule of the house that is worth caching. " * 100
    homes: list[list[str]] = []
    for house in range(5):
        begun: list[str] = []
        for guest in range(3):
            messages: list[Any] = [
                {"role": "system", "content": f"House {house}. {rules}"},
                {"role": "user", "content": f"I am guest {guest}."},
            ]
            name, said = stage.turn(PlainClient("", messages=messages))
            begun.append(name)
            assert (said.cached_tokens > 0) is (guest > 0)
        homes.append(begun)
    assert [set(begun) for begun in homes] == [{begun[0]} for begun in homes]
    assert {begun[0] for begun in homes} == set(REPLICAS)
