"""Budgets over whole gateways that share a Valkey: kills at random, and a Valkey that stops in mid-traffic."""

import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import httpx2
import pytest

from backends.emulator.app import Emulator
from backends.emulator.config import EmulatorConfig
from pricing.ledger.store import Store
from pricing.ledger.store.scan import scan_rows
from support.asgi import serve
from support.forked import Forked, Nursery, nursery
from support.pids import becomes_true
from support.valkey import Server, running

CONFIG = """
[server]
drain_grace_s = 0
drain_timeout_s = 2
[ledger]
url = "sqlite:///kimi-ledger.db"
[state]
url = "{state}"
on_outage = "{on_outage}"
replicas = 2
[timing]
lease_s = 1
adopt_s = 0.2
progress_s = 0.2
[[targets]]
name = "moonshot"
dialect = "moonshot"
base_url = "{emulator}/v1"
api_key_env = "UP"
[[keys]]
name = "team"
key_env = "TEAM"
budget_usd = "{budget}"
"""
ENV = {"UP": "sk-up", "TEAM": "kg-team-secret-one"}
HEADERS = {"authorization": f"Bearer {ENV['TEAM']}"}
NANO = 1_000_000_000


@dataclass
class Fleet:
    """Gateways with one ledger and one Valkey."""

    directory: Path
    server: Server
    home: Nursery
    gateways: list[Forked] = field(default_factory=list)

    def ask(self, gateway: Forked, timeout_s: float = 20) -> httpx2.Response:
        body = {
            "model": "kimi-k3.1-pro",
            "reasoning_effort": "low",
            "max_completion_tokens": 400,
            "messages": [{"role": "user", "content": "hello"}],
        }
        url = f"{gateway.base_url}/chat/completions"
        return httpx2.post(url, json=body, headers=HEADERS, timeout=timeout_s)

    def booked(self) -> tuple[int, int, int]:
        """The nano-dollars of rows that are settled, the bounds of the others, and how many are open."""
        store = Store(f"sqlite:///{self.directory / 'kimi-ledger.db'}")
        try:
            rows = list(scan_rows(store))
        finally:
            store.close()
        settled = [row.cost_nano or 0 for row in rows if row.status not in ("open", "unsettled")]
        others = [row for row in rows if row.status in ("open", "unsettled")]
        bounds = [max(row.cost_nano or 0, row.reserved_nano or 0) for row in others]
        return sum(settled), sum(bounds), sum(row.status == "open" for row in others)

    def budget(self, gateway: Forked) -> dict[str, Decimal]:
        """What the key's balance says of its budget."""
        answer = httpx2.get(f"{gateway.base_url}/users/me/balance", headers=HEADERS, timeout=10)
        found: dict[str, Decimal] = answer.json()["data"]["budget"]
        return {name: Decimal(str(found[name])) for name in ("spent", "reserved")}


@contextmanager
def fleet(count: int, *, budget: str, on_outage: str = "open", pace: float = 0.0) -> Iterator[Fleet]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="k")))  # short enough for a socket
        emulator = stack.enter_context(serve(Emulator(EmulatorConfig(pace=pace, text_tokens=60))))
        server = stack.enter_context(running(directory))
        text = CONFIG.format(state=server.url, on_outage=on_outage, emulator=emulator, budget=budget)
        home = stack.enter_context(nursery(directory, text, ENV))
        yield Fleet(directory, server, home, [home.start() for _ in range(count)])


def hammer(made: Fleet, seconds: float, clients: int, kill: "threading.Event") -> list[int]:
    """Clients that ask gateways at random until the time is over; the statuses, 0 where the gateway died."""
    statuses: list[int] = []
    end = time.monotonic() + seconds

    def run(seed: int) -> None:
        draw = random.Random(seed)
        while time.monotonic() < end and not kill.is_set():
            gateway = draw.choice(made.gateways)
            try:
                statuses.append(made.ask(gateway).status_code)
            except httpx2.HTTPError:
                statuses.append(0)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def check_kills(kills: int, gateways: int, seconds: float, *, seed: int = 7) -> None:
    """Spend plus the bounds of what nobody knows never exceeds the budget, whoever is killed and when; and what
    the dead held is free again, or booked at its bound, after the lease."""
    budget = "0.05"
    whole = int(Decimal(budget) * NANO)
    with fleet(gateways, budget=budget, pace=0.3) as made:
        stop, draw = threading.Event(), random.Random(seed)
        found: list[int] = []
        crowd = threading.Thread(target=lambda: found.extend(hammer(made, seconds, 12, stop)))
        crowd.start()
        for _ in range(kills):
            time.sleep(seconds / (kills + 1) * draw.uniform(0.5, 1.0))
            place = draw.randrange(len(made.gateways))
            made.home.kill(made.gateways[place], signal.SIGKILL)
            made.gateways[place] = made.home.start()
            settled, bounds, _ = made.booked()
            assert settled + bounds <= whole
        crowd.join()
        assert 200 in found
        assert set(found) <= {200, 402, 502, 0}, set(found)
        assert becomes_true(lambda: made.booked()[2] == 0)
        settled, bounds, _ = made.booked()
        assert 0 < settled + bounds <= whole
        assert becomes_true(lambda: made.budget(made.gateways[0])["reserved"] == 0)
        # What a dead process had booked itself may come to the ledger after its bound did: never less counts.
        assert settled + bounds <= made.budget(made.gateways[0])["spent"] * NANO <= whole


def test_a_budget_holds_while_gateways_are_killed() -> None:
    check_kills(kills=2, gateways=2, seconds=3)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_budget_holds_while_gateways_are_killed_again_and_again(seed: int) -> None:
    check_kills(kills=15, gateways=4, seconds=40, seed=seed)


def test_while_valkey_is_away_an_open_gateway_fails_no_request_and_keeps_to_its_share() -> None:
    with fleet(2, budget="0.05") as made:
        assert {made.ask(gateway).status_code for gateway in made.gateways} == {200}
        made.server.stop()
        spent_before = made.booked()[0]
        first = [made.ask(gateway).status_code for _ in range(3) for gateway in made.gateways]
        assert set(first) == {200}, "the outage fails no request"
        for gateway in made.gateways:  # each admits its share and no more
            for _ in range(60):
                if made.ask(gateway).status_code == 402:
                    break
            else:
                pytest.fail("an outage made the budget endless")
        assert becomes_true(lambda: made.booked()[2] == 0)
        assert spent_before < made.booked()[0] <= int(Decimal("0.05") * NANO)
        made.server.start()
        assert becomes_true(lambda: made.budget(made.gateways[0])["spent"] * NANO == made.booked()[0])


def test_while_valkey_is_away_a_closed_gateway_refuses_at_once() -> None:
    with fleet(1, budget="0.05", on_outage="closed") as made:
        gateway = made.gateways[0]
        assert made.ask(gateway).status_code == 200
        assert becomes_true(lambda: made.booked()[0] > 0)
        rows = made.booked()
        made.server.stop()
        took = []
        for _ in range(10):
            began = time.monotonic()
            answer = made.ask(gateway)
            took.append(time.monotonic() - began)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "state_unavailable")
        assert min(took) < 1, "told at once, however busy the machine is: the state's own limits are longer"
        assert made.booked() == rows
        made.server.start()
        assert becomes_true(lambda: made.ask(gateway).status_code == 200)
