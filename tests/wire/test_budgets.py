"""Limits and budgets of keys over real sockets: nothing beyond a budget, and nothing held at the end."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from backends.emulator.app import Emulator
from backends.emulator.config import EmulatorConfig
from kimi_gateway.cli import app
from pricing.ledger.row import LedgerRow
from pricing.ledger.store import Store
from pricing.ledger.store.scan import scan_rows
from support.asgi import serve
from support.processes import Gateway, gateway_process

SECRETS = {"UP": "sk-up", "TEAM": "kg-team-secret-one", "OTHER": "kg-other-secret-two"}
CONFIG = """
[server]
drain_grace_s = 0
{server}
[state]
url = "{state}"
[timing]
keys_refresh_s = 0.3
[[targets]]
name = "moonshot"
dialect = "moonshot"
base_url = "{upstream}/v1"
api_key_env = "UP"
[[keys]]
name = "team"
key_env = "TEAM"
{limits}
[[keys]]
name = "free"
key_env = "OTHER"
"""


@contextmanager
def gateway(
    directory: Path, limits: str, *, state: str = "memory://", workers: int = 1, tokens: int = 40
) -> Iterator[tuple[Gateway, str]]:
    emulator = Emulator(EmulatorConfig(pace=0, text_tokens=tokens))
    with serve(emulator) as upstream:
        config = CONFIG.format(server=f"workers = {workers}", state=state, upstream=upstream, limits=limits)
        with gateway_process(config, SECRETS, directory=directory) as made:
            yield made, upstream


def request(number: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "model": "kimi-k3.1-pro",
        "reasoning_effort": "low",
        "messages": [{"role": "user", "content": f"number {number}"}],
        **more,
    }


def ask(made: Gateway, body: dict[str, Any], secret: str = SECRETS["TEAM"]) -> httpx2.Response:
    headers = {"authorization": f"Bearer {secret}"}
    return httpx2.post(f"{made.base_url}/chat/completions", json=body, headers=headers, timeout=30)


def balance(made: Gateway, secret: str = SECRETS["TEAM"]) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {secret}"}
    answer = httpx2.get(f"{made.base_url}/users/me/balance", headers=headers)
    found: dict[str, Any] = json.loads(answer.text, parse_float=Decimal)["data"]
    return found


def rows_of(made: Gateway, count: int) -> list[LedgerRow]:
    """The rows of the key, once there are so many and all are settled."""
    end = time.monotonic() + 15
    while True:
        store = Store(f"sqlite:///{made.ledger}")
        rows = [row for row in scan_rows(store) if row.key == "team"]
        store.close()
        if len(rows) == count and all(row.status != "open" for row in rows):
            return rows
        assert time.monotonic() < end, f"{len(rows)} rows of {count}"
        time.sleep(0.05)


async def _crowd(made: Gateway, count: int) -> list[int]:
    limits = httpx2.Limits(max_connections=count)
    headers = {"authorization": f"Bearer {SECRETS['TEAM']}"}
    async with httpx2.AsyncClient(timeout=60, limits=limits, headers=headers) as client:

        async def one(number: int) -> int:
            body = request(number, max_completion_tokens=2000, stream=number % 2 == 0)
            answer = await client.post(f"{made.base_url}/chat/completions", json=body)
            return int(answer.status_code)

        return await asyncio.gather(*(one(number) for number in range(count)))


def hold(directory: Path, *, state: str, workers: int, count: int) -> None:
    """So many requests at once on one key: what is booked stays within the budget, nothing is held at the end."""
    with gateway(directory, 'budget_usd = "0.5"', state=state, workers=workers) as (made, _):
        statuses = Counter(asyncio.run(_crowd(made, count)))
        assert set(statuses) <= {200, 402}, statuses
        assert statuses[200] > 0
        rows = rows_of(made, statuses[200])
        spent = sum(row.cost_nano or 0 for row in rows)
        assert 0 < spent <= 500_000_000
        left = balance(made)
        assert left["budget"]["reserved"] == 0
        assert left["budget"]["spent"] == Decimal(spent) / 1_000_000_000
        assert left["available_balance"] == Decimal("0.5") - left["budget"]["spent"]


@pytest.mark.parametrize(("state", "workers"), [("memory://", 1), ("embedded://", 2)])
def test_a_crowd_never_passes_its_budget_and_leaves_nothing_held(tmp_path: Path, state: str, workers: int) -> None:
    hold(tmp_path, state=state, workers=workers, count=60)


@pytest.mark.chaos
@pytest.mark.parametrize(("state", "workers"), [("memory://", 1), ("embedded://", 4)])
def test_five_hundred_at_once_never_pass_their_budget(tmp_path: Path, state: str, workers: int) -> None:
    hold(tmp_path, state=state, workers=workers, count=500)


def test_one_key_and_its_limits(tmp_path: Path) -> None:
    """Several claims on one process, because starting one takes a second."""
    with gateway(tmp_path, 'budget_usd = "1.00"\nrpm = 5', tokens=20) as (made, upstream):
        # Without a limit of its own a request gets the largest that fits, disclosed.
        answer = ask(made, request())
        assert answer.status_code == 200, answer.text
        assert "max_completion_tokens" in answer.headers["x-kimi-adjusted"]
        sent = httpx2.get(f"{upstream}/emulator/requests").json()
        limit = json.dumps(sent).split('"max_completion_tokens": ')[1].split(",")[0].rstrip("}")
        assert 16_000 <= int(limit) < 100_000
        assert answer.headers["x-ratelimit-limit-requests"] == "5"
        assert answer.headers["x-ratelimit-remaining-requests"] == "4"
        # What cannot fit is refused, with what is left, and is no row.
        big = ask(made, request(max_completion_tokens=120_000))
        assert (big.status_code, big.json()["error"]["code"]) == (402, "budget_exceeded")
        assert big.headers["x-should-retry"] == "false"
        assert "0.99" in big.json()["error"]["message"]
        # Another key without limits is not touched.
        assert balance(made, SECRETS["OTHER"])["has_budget"] is False
        assert "x-ratelimit-limit-requests" not in ask(made, request(), SECRETS["OTHER"]).headers
        # A sixth request within the minute is told to wait.
        statuses = [ask(made, request(number, max_completion_tokens=100)).status_code for number in range(5)]
        assert statuses[:4] == [200] * 4
        limited = ask(made, request(9, max_completion_tokens=100))
        assert (limited.status_code, limited.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(limited.headers["retry-after"]) >= 1
        metrics = httpx2.get(f"{made.root_url}/metrics").text
        assert 'kimi_budget_remaining_usd{key="team"} 0.99' in metrics


def keys(directory: Path, *words: str) -> str:
    """What `kimi-gateway keys` prints, run beside the gateway without the seconds that starting it takes."""
    with contextlib.chdir(directory):
        done = CliRunner().invoke(app, ["keys", *words], env=SECRETS)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_keys_of_the_ledger_are_followed_while_it_runs(tmp_path: Path) -> None:
    with gateway(tmp_path, "") as (made, _):
        ledger = ("--ledger", f"sqlite:///{made.ledger}")
        secret = json.loads(keys(tmp_path, "create", "fresh", *ledger, "--format", "json"))["key"]
        until(lambda: ask(made, request(), secret).status_code == 200)
        assert ask(made, request(), secret + "x").status_code == 401
        rotated = json.loads(keys(tmp_path, "rotate", "fresh", "--overlap", "1h", *ledger, "--format", "json"))[
            "key"
        ]
        until(lambda: ask(made, request(), rotated).status_code == 200)
        assert ask(made, request(), secret).status_code == 200
        keys(tmp_path, "revoke", "fresh", *ledger)
        until(lambda: ask(made, request(), rotated).status_code == 401)
        assert ask(made, request(), secret).status_code == 401
        listed = json.loads(keys(tmp_path, "list", *ledger, "--format", "json"))
        assert "fresh" in json.dumps(listed)
        said = made.output()
        assert secret not in said
        assert rotated not in said


def until(claim: Any, timeout_s: float = 10) -> None:
    end = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.1)
