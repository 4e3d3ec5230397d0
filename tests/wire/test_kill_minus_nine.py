"""Kill -9 of loaded gateways that share a ledger, again and again: nothing settled is lost, nothing is doubled.

Compared are what the clients heard, what the upstream saw, what stood in the journals of the killed, and the
ledger.
"""

import http.client
import itertools
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from backends.emulator.app import Emulator, EmulatorConfig
from pricing.ledger.address import ledger_id
from pricing.ledger.drain import Drainer
from pricing.ledger.framing import Damage
from pricing.ledger.journal_files import list_journals, open_reader
from pricing.ledger.records import Settled
from pricing.ledger.row import LedgerRow
from pricing.ledger.store import Store
from pricing.ledger.store.scan import scan_rows
from pricing.money import usd_text
from support.asgi import serve
from support.forked import Forked, Nursery, nursery
from support.lab import post

GATEWAYS = 2
CLIENTS = 6
CONFIG = """
[server]
drain_grace_s = 0
[timing]
adopt_s = 0.3
progress_s = 0.1
[[targets]]
name = "moonshot"
dialect = "moonshot"
base_url = "{url}/v1"
api_key_env = "KILL_KEY"
"""


@dataclass(slots=True)
class Load:
    """Clients that ask one gateway after another, and what they heard. `gateways` may change at any time."""

    gateways: list[Forked]
    numbers: Any = field(default_factory=itertools.count)
    whole: dict[str, str] = field(default_factory=dict)  # request id to cost_usd, of answers heard to their end
    stopping: threading.Event = field(default_factory=threading.Event)
    asked: int = 0

    def run(self, seed: int) -> None:
        """One client, until it is told to stop."""
        dice = random.Random(seed)
        while not self.stopping.is_set():
            gateway = dice.choice(self.gateways)
            number = next(self.numbers)
            self.asked += 1
            request = {
                "model": "kimi-k3.1-pro",
                "reasoning_effort": "low",
                "stream": dice.random() < 0.5,
                "messages": [{"role": "user", "content": f"number={number}"}],
            }
            try:
                heard = post(gateway.base_url, request, {"x-kimi-tags": f"n={number}", "x-kimi-meta": "1"})
            except (OSError, http.client.HTTPException):
                time.sleep(0.005)  # killed; there will be another
                continue
            if heard.status == 200 and (heard.done or not heard.events):
                about = heard.chunks[-1]["kimi"] if heard.events else heard.json["kimi"]
                self.whole[about["request_id"]] = about["cost_usd"]


def settled_in_journals(directory: Path, url: str) -> dict[str, int | None]:
    """The costs of the requests whose end stands in a journal."""
    found: dict[str, int | None] = {}
    for file in list_journals(directory, ledger_id(url)):
        try:
            reader = open_reader(file.path)
        except FileNotFoundError:
            continue  # another gateway has just adopted it
        while read := reader.read():
            for item in read:
                if not isinstance(item, Damage) and isinstance(item.record, Settled):
                    found[item.record.row.request_id] = item.record.row.cost_nano
        reader.close()
    return found


def number_of(body: Any) -> str:
    """The number that a client put into its question."""
    return str(body["messages"][-1]["content"]).partition("=")[2]


def kill_again_and_again(
    home: Nursery, load: Load, rounds: int, directory: Path, url: str
) -> dict[str, int | None]:
    """Kills a gateway each round and starts another; what the journals of the killed said was settled."""
    dice = random.Random(rounds)
    booked: dict[str, int | None] = {}
    for _ in range(rounds):
        asked, heard = load.asked, len(load.whole)
        end = time.monotonic() + 10
        while load.asked < asked + CLIENTS or len(load.whole) < heard + 2:
            assert time.monotonic() < end, "the gateways do not answer"
            time.sleep(0.005)
        time.sleep(dice.random() * 0.1)
        place = dice.randrange(GATEWAYS)
        assert home.kill(load.gateways[place]) == -9
        booked |= settled_in_journals(directory / ".kimi-journal", url)
        load.gateways[place] = home.start()
    return booked


def drained(directory: Path, url: str) -> list[LedgerRow]:
    """All rows, once everything that the dead left is adopted."""
    drainer = Drainer(directory / ".kimi-journal", url, own=None)
    drainer.drain_once()
    drainer.close()
    assert [path.name for path in (directory / ".kimi-journal").glob("*.journal")] == []
    store = Store(url)
    rows = list(scan_rows(store))
    (total,) = store.report(())
    assert total.requests == len(rows)
    assert total.cost_nano == sum(row.cost_nano or 0 for row in rows)
    assert store.inconsistencies() == []
    store.close()
    return rows


def kill(rounds: int, directory: Path) -> None:
    """The whole of it."""
    emulator = Emulator(EmulatorConfig(pace=0, min_duration_s=0.05, text_tokens=24, max_requests=1_000_000))
    url = f"sqlite:///{directory / 'kimi-ledger.db'}"
    with serve(emulator) as base, nursery(directory, CONFIG.format(url=base), {"KILL_KEY": "sk-kill"}) as home:
        load = Load([home.start() for _ in range(GATEWAYS)])
        threads = [threading.Thread(target=load.run, args=(seed,)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            booked = kill_again_and_again(home, load, rounds, directory, url)
        finally:
            load.stopping.set()
            for thread in threads:
                thread.join()
        for gateway in load.gateways:
            home.kill(gateway)
        seen = httpx2.get(f"{base}/emulator/requests", timeout=30).json()["requests"]
    check(drained(directory, url), load, booked, seen, rounds)


def check(rows: list[LedgerRow], load: Load, booked: dict[str, int | None], seen: list[Any], rounds: int) -> None:
    """Clients, upstream, journals and ledger tell one story."""
    by_id = {row.request_id: row for row in rows}
    assert len(load.whole) > rounds
    for request_id, cost in load.whole.items():
        row = by_id[request_id]
        assert row.status == "ok"
        assert row.cost_nano is not None
        assert Decimal(usd_text(row.cost_nano)) == Decimal(cost)
    for request_id, cost_nano in booked.items():
        assert by_id[request_id].cost_nano == cost_nano
        assert by_id[request_id].status not in ("open", "unsettled")
    by_number = Counter(row.tags["n"] for row in rows)
    assert set(by_number.values()) == {1}
    asked = {number_of(entry["body"]) for entry in seen if entry["path"].endswith("/chat/completions")}
    assert len(asked) > len(load.whole)
    assert asked - set(by_number) == set()
    statuses = Counter(row.status for row in rows)
    assert statuses["open"] == 0
    assert statuses["unsettled"] >= rounds // 2  # they were killed under load, not between requests


def test_twenty_kills_under_load_lose_and_double_nothing(tmp_path: Path) -> None:
    kill(20, tmp_path)


@pytest.mark.chaos
def test_two_hundred_kills_under_load_lose_and_double_nothing(tmp_path: Path) -> None:
    kill(200, tmp_path)
