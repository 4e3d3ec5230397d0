"""Mixed requests with seeded faults over four dialects: no clean end on a broken answer, no 500, one row each.

The ledger stands beside each upstream's own invoice, line by line. Every difference has a name: a row that nobody
measured lies within the bound that it states; an attempt that failed and was charged all the same says that it may
have been. Nothing else differs.
"""

import http.client
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from backends.emulator.config import EmulatorConfig
from backends.emulator.faults import KINDS, FaultPlan, Rule
from backends.emulator.profiles import PROFILES
from pricing.ledger.row import LedgerRow
from pricing.ledger.store import Store
from pricing.ledger.store.scan import scan_rows
from support.emulators import emulators
from support.lab import Heard, ledger_url, post
from support.processes import Gateway, gateway_process
from support.traffic import WEATHER

SKIPPED = {"silence", "hold", "refuse", "unauthorized", "forbidden"}
"""They take a limit's time each, or a target away until the next reload; test_fault_kinds has them."""
HARMLESS = {"", "stall", "slow", "split", "no_done", "usage"}
"""Faults after which an answer is whole all the same."""
BILLED = ("moonshot", "openrouter")
OPTIONS: dict[str, dict[str, bool | int | float | str | None]] = {
    "stall": {"phase": "text", "for_s": 0.1},
    "slow": {"bytes": 2000, "gap_ms": 1.0},
}
PRICES = 'prices = { input = "2.00", cache_read = "0.20", output = "10.00" }\n'
MODELS = {"moonshot": "kimi-k3.1-pro", "openrouter": "moonshotai/kimi-k3.1-pro"}
LEAVING = "I leave."
LEFT = Rule("stall", {"phase": "text", "for_s": 0.25}, contains=LEAVING)
"""Answers whose clients hang up wait in mid-text until they do."""
CONFIG = """
[server]
drain_grace_s = 0
[retry]
max_wait_s = 1
global_ratio = 1
breaker_failures = 1000000
[timing]
quota_out_s = 0
"""


@dataclass(frozen=True)
class World:
    """The gateway, and the addresses of the emulators by dialect."""

    gateway: Gateway
    emulators: dict[str, str] = field(default_factory=dict)

    def told(self, dialect: str, path: str) -> Any:
        """What an emulator says of itself."""
        return httpx2.get(f"{self.emulators[dialect]}/emulator/{path}", timeout=60).json()

    def rows(self, count: int) -> dict[int, LedgerRow]:
        """The settled rows by the number of the request, once all are there."""
        store = Store(ledger_url(self.gateway))
        try:
            until_s = time.monotonic() + 20
            while True:
                found = list(scan_rows(store))
                if len(found) >= count and all(row.status not in ("open", "unsettled") for row in found):
                    break
                assert time.monotonic() < until_s, Counter(row.status for row in found)
                time.sleep(0.1)
        finally:
            store.close()
        rows = {int(row.tags["n"]): row for row in found}
        assert len(rows) == len(found) == count
        return rows


@contextmanager
def world(seed: int) -> Iterator[World]:
    """A gateway with a target for each dialect; about a third of the answers suffer something."""
    rules = [Rule(kind, OPTIONS.get(kind, {}), probability=0.015) for kind in sorted(set(KINDS) - SKIPPED)]
    configs = {
        name: EmulatorConfig(
            dialect=name,
            pace=0,
            text_tokens=40,
            stream_ttl_headers=True,
            max_requests=1_000_000,
            max_requests_bytes=1 << 30,
            faults=FaultPlan([LEFT, *rules], seed=seed),
        )
        for name in PROFILES
    }
    with ExitStack() as stack:
        addresses = stack.enter_context(emulators(configs))
        config = [CONFIG]
        for name, address in addresses.items():
            config.append(
                f'[[targets]]\nname = "{name}"\ndialect = "{name}"\nbase_url = "{address}/v1"\n'
                f'idle_timeout_s = 8\napi_key_env = "KEY"\n'
                f'models = {{ "kimi-k3.1-pro" = "{MODELS.get(name, "m")}" }}\n'
                + ("" if name in MODELS else PRICES)
            )
        yield World(stack.enter_context(gateway_process("\n".join(config), {"KEY": "sk-mixed"})), addresses)


def leaves(number: int) -> bool:
    """The client of this request hangs up in the middle of the answer."""
    return number % 17 == 1


def request(number: int) -> dict[str, Any]:
    """One of many requests: streamed or not, with tools or not, some with long prompts that are cached."""
    made: dict[str, Any] = {
        "model": "kimi-k3.1-pro",
        "reasoning_effort": ("low", "high")[number % 2],
        "stream": number % 3 != 0 or leaves(number),
        "messages": [
            {
                "role": "system",
                "content": f"Group {number % 7}. " + "A sentence to be cached. " * (60 * (number % 4)),
            },
            {"role": "user", "content": f"{number}: what is it? {LEAVING if leaves(number) else ''}"},
        ],
    }
    if number % 5 == 0:
        made["tools"] = [WEATHER]
    return made


def ask(made: World, number: int) -> Heard | None:
    """What the client of a request heard; None for one that hung up."""
    names = sorted(PROFILES)
    headers = {"x-kimi-target": names[number % len(names)], "x-kimi-tags": f"n={number}"}
    if not leaves(number):
        return post(made.gateway.base_url, request(number), headers)
    address = made.gateway.root_url.removeprefix("http://")
    with closing(http.client.HTTPConnection(address, timeout=30)) as line:
        line.request(
            "POST",
            "/v1/chat/completions",
            json.dumps(request(number)),
            {"content-type": "application/json", **headers},
        )
        line.getresponse().read(1)
    return None


def play(requests: int, seed: int) -> Counter[str]:
    """All of it; how many attempts fell into which class."""
    with world(seed) as made, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda number: ask(made, number), range(requests)))
        rows = made.rows(requests)
        classes: Counter[str] = Counter()
        for place, name in enumerate(sorted(PROFILES)):
            numbers = range(place, requests, len(PROFILES))
            received = by_number(made.told(name, "requests")["requests"])
            for number in numbers:
                check_end(answers[number], rows[number], received[number])
            if name in BILLED:
                lines = {line["id"]: Decimal(line["usd"]) for line in made.told(name, "invoice")["lines"]}
                for number in numbers:
                    classes += compare(rows[number], received[number], lines)
                assert lines == {}  # every line of the invoice was met once
    return classes


def by_number(entries: Sequence[Any]) -> defaultdict[int, list[Any]]:
    """What an emulator received of each request, in order."""
    found: defaultdict[int, list[Any]] = defaultdict(list)
    for entry in entries:
        if entry["path"].endswith("/chat/completions"):
            found[int(entry["body"]["messages"][-1]["content"].partition(":")[0])].append(entry)
    return found


def check_end(heard: Heard | None, row: LedgerRow, received: list[Any]) -> None:
    """The client's end, the row's and the upstream's are one."""
    assert len(row.attempts) == len(received)
    if heard is None:
        assert row.status in ("client_disconnected", "ok", "error", "incomplete")
        return
    assert heard.status != 500
    assert heard.headers["x-kimi-request-id"] == row.request_id
    whole = heard.done if heard.events else heard.status == 200 and heard.error is None
    assert whole is (row.status == "ok")
    if whole:
        assert received[-1]["fault"] in HARMLESS, received[-1]["fault"]
    else:
        assert heard.error is not None


def compare(row: LedgerRow, received: list[Any], lines: dict[str, Decimal]) -> Counter[str]:
    """Names the difference between a row and the lines of its attempts, which it takes off the invoice."""
    owed = [lines.pop(entry["id"], Decimal(0)) for entry in received]
    classes: Counter[str] = Counter()
    for attempt, charged in zip(row.attempts[:-1], owed[:-1], strict=True):
        assert charged == 0 or attempt.maybe_billed, (attempt, charged)
        classes["charged for an attempt that failed" if charged else "failed and not charged"] += 1
    booked = Decimal(row.cost_nano or 0).scaleb(-9)
    fault = received[-1]["fault"]
    if row.estimated:
        bound = Decimal(row.estimate_bound_nano or 0).scaleb(-9)
        assert abs(booked - owed[-1]) <= bound, (row.status, fault, booked, owed[-1], bound)
        classes[f"estimated within its bound, {row.status}"] += 1
    else:
        assert booked == owed[-1], (row.status, fault, row.anomaly, booked, owed[-1])
        classes["equal" if booked else "nothing booked and nothing charged"] += 1
    return classes


USUAL = {
    "equal",
    "nothing booked and nothing charged",
    "failed and not charged",
    *(f"estimated within its bound, {status}" for status in ("client_disconnected", "incomplete", "error")),
}
RARE = {"charged for an attempt that failed", "estimated within its bound, ok"}


def check_classes(classes: Counter[str], requests: int) -> None:
    """Most are equal, every other class has a name, and the run met all that are usual."""
    assert set(classes) >= USUAL
    assert set(classes) <= USUAL | RARE
    assert classes["equal"] > requests * len(BILLED) / len(PROFILES) / 2


def test_a_thousand_mixed_requests_with_faults_beside_the_invoice() -> None:
    check_classes(play(1000, seed=1), 1000)


@pytest.mark.chaos
def test_ten_thousand_mixed_requests_with_faults_beside_the_invoice() -> None:
    check_classes(play(10_000, seed=2), 10_000)
