"""Mixed requests with seeded faults over four dialects: no clean end on a broken answer, no 500, one row each.

The ledger stands beside each upstream's own invoice: measured rows equal it, estimates lie within their bound.
"""

import json
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from backends.emulator.faults import KINDS
from backends.emulator.profiles import PROFILES
from pricing.ledger.row import LedgerRow
from pricing.ledger.store import Store
from support.lab import Heard, ledger_url, post, wait_for_row
from support.processes import BASE_URL, Gateway, gateway_process, program
from support.traffic import WEATHER

SKIPPED = {"silence", "hold", "refuse"}  # they take a limit's time each; test_fault_kinds has them
HARMLESS = {"", "stall", "slow", "split", "no_done", "usage"}
"""Faults after which an answer is whole all the same."""
BILLED = ("moonshot", "openrouter")
OPTIONS = {"stall": 'phase = "text"\nfor_s = 0.1', "slow": "bytes = 2000\ngap_ms = 1"}
PRICES = 'prices = { input = "2.00", cache_read = "0.20", output = "10.00" }\n'


@dataclass(frozen=True)
class World:
    gateway: Gateway
    emulators: dict[str, str] = field(default_factory=dict)

    def told(self, dialect: str, path: str) -> Any:
        """What an emulator says of itself."""
        with urllib.request.urlopen(f"{self.emulators[dialect]}/emulator/{path}", timeout=20) as answer:
            return json.load(answer)


@contextmanager
def world(seed: int) -> Iterator[World]:
    """A gateway with a target for each dialect; about a third of the answers suffer something."""
    rules = [f"seed = {seed}\n"]
    for kind in sorted(set(KINDS) - SKIPPED):
        rules.append(f'[[faults]]\nkind = "{kind}"\nprobability = 0.015\n{OPTIONS.get(kind, "")}\n')
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kimi-test-")))
        (folder / "faults.toml").write_text("".join(rules), "utf-8")
        config = ["[server]\ndrain_grace_s = 0\n[retry]\nmax_wait_s = 1\nglobal_ratio = 1\n"]
        emulators = {}
        for name in PROFILES:
            command = [sys.executable, "-m", "kimi_gateway", "emulate", "--dialect", name, "--port", "0"]
            command += ["--pace", "0", "--stream-ttl-headers", "on", "--faults", str(folder / "faults.toml")]
            address = stack.enter_context(program(command, ready=BASE_URL)).wait_for_line(BASE_URL).group()
            emulators[name] = address.removesuffix("/v1")
            model = {"moonshot": "kimi-k3.1-pro", "openrouter": "moonshotai/kimi-k3.1-pro"}
            config.append(
                f'[[targets]]\nname = "{name}"\ndialect = "{name}"\nbase_url = "{address}"\nidle_timeout_s = 8\n'
                f'api_key_env = "KEY"\nmodels = {{ "kimi-k3.1-pro" = "{model.get(name, "m")}" }}\n'
                + ("" if name in model else PRICES)
            )
        yield World(stack.enter_context(gateway_process("\n".join(config), {"KEY": "sk-mixed"})), emulators)


def request(number: int) -> dict[str, Any]:
    """One of many requests: streamed or not, with tools or not, some with long prompts that are cached."""
    made: dict[str, Any] = {
        "model": "kimi-k3.1-pro",
        "reasoning_effort": ("low", "high")[number % 2],
        "stream": number % 3 != 0,
        "messages": [
            {
                "role": "system",
                "content": f"Group {number % 7}. " + "A sentence to be cached. " * (60 * (number % 4)),
            },
            {"role": "user", "content": f"Question {number}?"},
        ],
    }
    if number % 5 == 0:
        made["tools"] = [WEATHER]
    return made


def play(requests: int, seed: int) -> None:
    names = sorted(PROFILES)
    with world(seed) as made, ThreadPoolExecutor(8) as pool:

        def ask(number: int) -> tuple[str, Heard]:
            target = names[number % len(names)]
            return target, post(made.gateway.base_url, request(number), {"x-kimi-target": target})

        answers = list(pool.map(ask, range(requests)))
        rows = {
            heard.headers["x-kimi-request-id"]: wait_for_row(
                ledger_url(made.gateway), heard.headers["x-kimi-request-id"]
            )
            for _, heard in answers
        }
        assert len(rows) == requests
        store = Store(ledger_url(made.gateway))
        try:
            assert sum(row.requests for row in store.report(["status"])) == requests
        finally:
            store.close()
        for name in names:
            own = [
                (heard, rows[heard.headers["x-kimi-request-id"]]) for target, heard in answers if target == name
            ]
            check(made, name, own)


def check(made: World, name: str, answers: list[tuple[Heard, LedgerRow]]) -> None:
    seen = {entry["id"]: entry for entry in made.told(name, "requests")["requests"] if entry["id"]}
    lines = {line["id"]: Decimal(line["usd"]) for line in made.told(name, "invoice")["lines"]}
    assert any(row.status != "ok" for _, row in answers)
    for heard, row in answers:
        assert heard.status != 500
        last = row.attempts[-1]
        fault = (seen.get(last.upstream_id) or {}).get("fault") or ""
        whole = heard.done if heard.events else heard.status == 200 and heard.error is None
        assert whole is (row.status == "ok")
        if whole:
            assert fault in HARMLESS, (name, fault)
        else:
            assert heard.error is not None
        if name in BILLED and last.upstream_id is not None:
            owed = lines.get(last.upstream_id, Decimal(0))
            booked = Decimal(row.cost_nano or 0).scaleb(-9)
            if row.estimated:
                assert abs(booked - owed) <= Decimal(row.estimate_bound_nano or 0).scaleb(-9)
            else:
                assert booked == owed, (name, fault, row.anomaly)


def test_a_hundred_mixed_requests_with_faults() -> None:
    play(100, seed=1)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [2, 3])
def test_a_thousand_mixed_requests_with_faults(seed: int) -> None:
    play(1000, seed=seed)
