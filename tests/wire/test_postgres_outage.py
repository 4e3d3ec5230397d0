"""PostgreSQL is away at the start, and again in mid-load: no request fails, no row is lost, no password is said.

The journal is the buffer. When the server is back, the gateway books by itself what happened meanwhile.
"""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import httpx2

from backends.emulator.app import Emulator, EmulatorConfig
from pricing.ledger.errors import StoreError
from pricing.ledger.store import Store
from pricing.ledger.store.scan import scan_rows
from pricing.money import usd_text
from support.asgi import serve
from support.lab import Heard, post
from support.postgres import postgres
from support.processes import gateway_process

CLIENTS = 4
CONFIG = """
[server]
drain_grace_s = 0
[ledger]
url = "{ledger}"
[[targets]]
name = "moonshot"
dialect = "moonshot"
base_url = "{upstream}/v1"
api_key_env = "OUTAGE_KEY"
[[keys]]
name = "team"
key_env = "TEAM_KEY"
"""
SECRETS = {"OUTAGE_KEY": "sk-outage", "TEAM_KEY": "kg-team-of-the-outage"}


def ask(base_url: str, number: int) -> Heard:
    """One request."""
    request = {
        "model": "kimi-k3.1-pro",
        "reasoning_effort": "low",
        "stream": number % 2 == 0,
        "messages": [{"role": "user", "content": f"number={number}"}],
    }
    return post(base_url, request, {"x-kimi-meta": "1", "authorization": f"Bearer {SECRETS['TEAM_KEY']}"})


def cost_of(heard: Heard) -> str:
    """What the client was told that it costs."""
    about = heard.chunks[-1]["kimi"] if heard.events else heard.json["kimi"]
    return str(about["cost_usd"])


def booked(url: str, request_id: str) -> bool:
    """Whether the ledger answers and has the request."""
    try:
        store = Store(url)
    except StoreError:
        return False
    found = store.get(request_id)
    store.close()
    return found is not None


def eventually(claim: Callable[[], bool], *, timeout_s: float = 15) -> None:
    """Waits until the claim holds."""
    end = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.05)


def loaded(base_url: str, during: Callable[[], None]) -> list[Heard]:
    """What clients heard that asked on and on while something happened."""
    stopping = threading.Event()
    answers: list[Heard] = []

    def run(first: int) -> None:
        number = first
        while not stopping.is_set():
            answers.append(ask(base_url, number))
            number += CLIENTS

    threads = [threading.Thread(target=run, args=(first,)) for first in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        during()
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    return answers


def test_postgresql_may_be_away_at_the_start_and_in_mid_load(tmp_path: Path) -> None:
    emulator = Emulator(EmulatorConfig(pace=0, min_duration_s=0.02, text_tokens=12))
    with postgres() as server, serve(emulator) as upstream:
        ledger = server.new_database()
        server.stop()
        config = CONFIG.format(ledger=ledger, upstream=upstream)
        with gateway_process(config, SECRETS, directory=tmp_path) as gateway:
            first = ask(gateway.base_url, 0)
            assert httpx2.get(f"{gateway.root_url}/ready").status_code == 200
            server.start()
            eventually(lambda: booked(ledger, first.headers["x-kimi-request-id"]))

            def outage() -> None:
                time.sleep(0.4)
                server.stop(signal.SIGQUIT)
                time.sleep(1.2)
                server.start()
                time.sleep(0.2)

            answers = [first, *loaded(gateway.base_url, outage)]
            assert gateway.stop() == 0
            said = gateway.output()
        check(ledger, answers)
    assert "pelican" not in said
    assert "the journal keeps the records until the ledger is back" in said
    assert "the ledger takes records again" in said


def check(ledger: str, answers: list[Heard]) -> None:
    """Every request was answered, and has its one row with the cost that its client was told."""
    assert Counter(answer.status for answer in answers) == {200: len(answers)}
    assert len(answers) > 20
    store = Store(ledger)
    rows = {row.request_id: row for row in scan_rows(store)}
    assert store.report(())[0].requests == len(rows) == len(answers)
    assert store.inconsistencies() == []
    store.close()
    for answer in answers:
        row = rows[answer.headers["x-kimi-request-id"]]
        assert row.status == "ok"
        assert row.cost_nano is not None
        assert Decimal(usd_text(row.cost_nano)) == Decimal(cost_of(answer))
