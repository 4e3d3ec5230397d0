"""The ledger beside the upstream's own invoice, to the last digit. The two share no code and no price table."""

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest

from support import traffic
from support.lab import ledger_url, post, wait_for_row
from support.processes import Gateway, gateway_process, program, run_module

REQUESTS = 100
PRO = "kimi-k3.1-pro"
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/v1")


@contextmanager
def emulated_gateway(ttl_headers: str) -> Iterator[tuple[Gateway, str]]:
    """A gateway before an emulator in a process of its own; and the emulator's address."""
    command = [sys.executable, "-m", "kimi_gateway", "emulate", "--port", "0", "--pace", "0"]
    with program([*command, "--stream-ttl-headers", ttl_headers], ready=ADDRESS) as emulator:
        address = emulator.wait_for_line(ADDRESS).group()
        config = (
            f'[server]\ndrain_grace_s = 0\n[[targets]]\nname = "moonshot"\ndialect = "moonshot"\n'
            f'base_url = "{address}"\napi_key_env = "UPSTREAM_KEY"\n'
            f'models = {{ "{PRO}" = "{PRO}", "{PRO}-highspeed" = "{PRO}-highspeed" }}\n'
        )
        with gateway_process(config, {"UPSTREAM_KEY": "sk-invoice"}) as gateway:
            yield gateway, address.removesuffix("/v1")


def invoice(emulator: str) -> Any:
    with urllib.request.urlopen(f"{emulator}/emulator/invoice", timeout=10) as answer:
        return json.load(answer)


def report(gateway: Gateway, *arguments: str) -> Any:
    """What `kimi-pricing report` prints for this gateway's ledger."""
    words = ["report", "--ledger", ledger_url(gateway), "--journal", str(gateway.journal_dir), "--format", "json"]
    done = run_module("pricing", *words, *arguments, directory=gateway.journal_dir)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def wait_for_rows(gateway: Gateway, answers: list[Any]) -> None:
    """Returns when every answer's row is settled in the ledger."""
    for answer in answers:
        wait_for_row(ledger_url(gateway), answer.headers["x-kimi-request-id"])


def test_with_ttl_headers_report_and_invoice_agree_to_the_last_digit() -> None:
    with emulated_gateway("on") as (gateway, emulator):
        answers = traffic.run(gateway.base_url, REQUESTS)
        assert len(answers) == REQUESTS
        wait_for_rows(gateway, answers)
        found, billed = report(gateway, "--by", "model,tier"), invoice(emulator)
    assert len(billed["lines"]) == REQUESTS
    assert sum(row["requests"] for row in found["rows"]) == REQUESTS
    assert found["total_usd"] == billed["total_usd"] == found["measured_usd"]
    assert (found["assumed_usd"], found["estimated_usd"], found["unpriced_requests"]) == ("0", "0", 0)
    assert {line["ttl"] for line in billed["lines"]} >= {"5m", "1h"}
    assert {row["tier"] for row in found["rows"]} == {"standard", "highspeed"}
    assert sum(Decimal(line["usd"]) for line in billed["lines"]) == Decimal(billed["total_usd"])


def test_without_ttl_headers_only_assumed_rows_could_differ_and_with_one_ttl_a_prefix_none_does() -> None:
    with emulated_gateway("off") as (gateway, emulator):
        answers = traffic.run(gateway.base_url, REQUESTS)
        wait_for_rows(gateway, answers)
        found, billed = report(gateway), invoice(emulator)
        own = {line["id"]: Decimal(line["usd"]) for line in billed["lines"]}
        rows = [wait_for_row(ledger_url(gateway), answer.headers["x-kimi-request-id"]) for answer in answers]
    assert any(row.assumed for row in rows)
    assert any(not row.assumed for row in rows)
    for row in rows:
        assert Decimal(row.cost_nano or 0).scaleb(-9) == own[row.attempts[0].upstream_id or ""]
    assert found["total_usd"] == billed["total_usd"]
    assert Decimal(found["assumed_usd"]) > 0
    assert Decimal(found["measured_usd"]) + Decimal(found["assumed_usd"]) == Decimal(found["total_usd"])


def test_without_ttl_headers_a_locked_ttl_shows_as_a_difference_of_assumed_rows_alone() -> None:
    """The first write locks a prefix at 5m; 1h asked for later is billed at 5m, and no stream says so."""
    with emulated_gateway("off") as (gateway, emulator):
        talk = traffic.conversation(1, 2, ttl="", model="kimi-k3.1-pro")
        first = post(gateway.base_url, next(talk), {})
        second_request = talk.send(traffic.message_of(first))
        options = {"prompt_cache_options": {"mode": "implicit", "ttl": "1h"}}
        second = post(gateway.base_url, second_request | options, {})
        rows = [wait_for_row(ledger_url(gateway), heard.headers["x-kimi-request-id"]) for heard in (first, second)]
        own = {line["id"]: Decimal(line["usd"]) for line in invoice(emulator)["lines"]}
    differences = [Decimal(row.cost_nano or 0).scaleb(-9) - own[row.attempts[0].upstream_id or ""] for row in rows]
    assert differences[0] == 0
    assert differences[1] > 0
    assert rows[1].assumed


@pytest.mark.parametrize("ttl", ["", "1h"])
def test_the_cost_in_the_answer_is_the_rows(ttl: str) -> None:
    with emulated_gateway("on") as (gateway, _):
        request = next(traffic.conversation(2, 1, ttl=ttl, model="kimi-k3.1-pro")) | {"stream": False}
        heard = post(gateway.base_url, request, {})
        row = wait_for_row(ledger_url(gateway), heard.headers["x-kimi-request-id"])
    exact = f"{Decimal(row.cost_nano or 0).scaleb(-9).normalize():f}"
    assert heard.headers["x-kimi-cost-usd"] == heard.json["kimi"]["cost_usd"] == exact
    assert f'"cost":{exact}'.encode() in heard.raw
