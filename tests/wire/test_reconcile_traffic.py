"""`kimi-pricing reconcile` on real traffic: faults, retries and clients that leave, and nothing unexplained."""

import json
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from backends.emulator.faults import KINDS
from backends.json import encode
from pricing.ledger.store import Store
from support.lab import ledger_url, post
from support.pricing_cli import pricing_json
from support.processes import BASE_URL, Gateway, gateway_process, program

SKIPPED = {"silence", "hold", "refuse", "unauthorized", "forbidden"}
"""They take a limit's time each, or the target away until the configuration is read again."""
OPTIONS = {
    "stall": 'phase = "text"\nfor_s = 0.1',
    "slow": "bytes = 2000\ngap_ms = 1",
    "crash": "after_s = 0.1",
}


@contextmanager
def world(folder: Path, seed: int, share: float) -> Iterator[tuple[Gateway, str]]:
    """A gateway before an emulator of Moonshot that breaks this share of the answers in each way; its address."""
    rules = [f"seed = {seed}\n"]
    for kind in sorted(set(KINDS) - SKIPPED):
        rules.append(f'[[faults]]\nkind = "{kind}"\nprobability = {share}\n{OPTIONS.get(kind, "")}\n')
    (folder / "faults.toml").write_text("".join(rules), "utf-8")
    command = [sys.executable, "-m", "kimi_gateway", "emulate", "--port", "0", "--pace", "0.02"]
    command += ["--stream-ttl-headers", "on", "--faults", str(folder / "faults.toml")]
    with program(command, ready=BASE_URL) as emulator:
        address = emulator.wait_for_line(BASE_URL).group()
        config = (
            "[server]\ndrain_grace_s = 0\n[retry]\nmax_wait_s = 1\nglobal_ratio = 1\nbreaker_failures = 1000000\n"
            "[timing]\nquota_out_s = 0\n"
            f'[[targets]]\nname = "moonshot"\ndialect = "moonshot"\nbase_url = "{address}"\nidle_timeout_s = 8\n'
            'api_key_env = "KEY"\nmodels = { "kimi-k3.1-pro" = "kimi-k3.1-pro" }\n'
        )
        with gateway_process(config, {"KEY": "sk-reconcile"}) as gateway:
            yield gateway, address.removesuffix("/v1")


def request(number: int) -> dict[str, Any]:
    return {
        "model": "kimi-k3.1-pro",
        "reasoning_effort": ("low", "high")[number % 2],
        "stream": number % 3 != 0,
        "messages": [
            {"role": "system", "content": f"Group {number % 5}. " + "To be cached. " * (90 * (number % 4))},
            {"role": "user", "content": f"Question {number}?"},
        ],
    }


def ask_and_leave(gateway: Gateway, number: int) -> None:
    """Asks for a stream, reads its beginning and resets the connection."""
    body = encode({**request(number), "stream": True})
    address = urlsplit(gateway.base_url)
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=20) as client:
        head = f"POST {address.path}/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        client.recv(1)


def wait_for_rows(gateway: Gateway, count: int) -> None:
    """Returns once so many requests are settled in the ledger."""
    store = Store(ledger_url(gateway))
    deadline = time.monotonic() + 20
    try:
        while time.monotonic() < deadline:
            rows = store.report(["status"])
            if sum(row.requests for row in rows if row.by["status"] != "open") == count:
                return
            time.sleep(0.05)
    finally:
        store.close()
    raise AssertionError(f"not {count} settled requests, but {rows}")


def play(folder: Path, requests: int, seed: int) -> None:
    """Every sixth client leaves; ledger and invoice differ by nothing but what the ledger calls an estimate."""
    with world(folder, seed, share=0.03) as (gateway, emulator):

        def ask(number: int) -> None:
            if number % 6 == 0:
                ask_and_leave(gateway, number)
            else:
                post(gateway.base_url, request(number), {})

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(requests)))
        wait_for_rows(gateway, requests)
        words = ("reconcile", "--ledger", ledger_url(gateway), "--journal", str(gateway.journal_dir), "--invoice")
        found = pricing_json(folder, *words, f"{emulator}/emulator/invoice")
        with urllib.request.urlopen(f"{emulator}/emulator/invoice", timeout=20) as answer:
            invoice = json.load(answer)
        assert found["explained"] is True
        assert found["bill_usd"] == invoice["total_usd"]
        classes = {one["class"]: one for one in found["classes"]}
        assert classes["equal"]["findings"] > requests / 3
        assert classes["estimated"]["findings"] > 0
        assert {row["status"] for row in found["rows"]} >= {"client_disconnected"}
        # What is taken off the bill is missed, by its name.
        estimated = {row["bill_id"] for row in found["rows"]}
        taken = next(line for line in invoice["lines"] if line["id"] not in estimated)
        invoice["lines"].remove(taken)
        (folder / "invoice.json").write_text(json.dumps(invoice), "utf-8")
        found = pricing_json(folder, *words, "invoice.json", expect=1)
        assert found["not_explained_usd"] == taken["usd"]


def test_ledger_and_invoice_of_broken_traffic_differ_only_in_ways_that_are_named(tmp_path: Path) -> None:
    play(tmp_path, 60, seed=5)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [6, 7])
def test_a_thousand_broken_requests_are_explained(tmp_path: Path, seed: int) -> None:
    play(tmp_path, 1000, seed)
