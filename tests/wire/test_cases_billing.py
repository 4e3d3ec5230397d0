"""The cases of kind billing over real sockets: right to the nano-dollar, and nothing held at the end."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from pricing.ledger.store import Store
from pricing.money import usd_text
from support.cases import case
from support.lab import Heard, Lab, lab, ledger_url, wait_for_row
from support.processes import run_module

KEY = {"authorization": "Bearer kg-billing-one"}
CAPPED = {"authorization": "Bearer kg-billing-two"}
HI: dict[str, Any] = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "hi"}]}
KEYS = """
[[keys]]
name = "plain"
key_env = "PLAIN"
pin = true
[[keys]]
name = "capped"
key_env = "CAPPED"
pin = true
budget_usd = "0.05"
[[keys]]
name = "leaving"
key_env = "LEAVING"
pin = true
budget_usd = "5"
"""


@pytest.fixture(scope="module")
def made() -> Iterator[Lab]:
    env = {"PLAIN": "kg-billing-one", "CAPPED": "kg-billing-two", "LEAVING": "kg-billing-three"}
    # The keys come first: what follows in the file are targets.
    with lab(KEYS, env=env) as found:
        yield found


def ask(made: Lab, request: Any, *answers: Any, headers: dict[str, str] = KEY, target: str = "moonshot") -> Heard:
    return made.ask(request, *answers, target=target, headers=headers)


def ok(usage: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"status": 200, "json_usage": usage, **more}


def balance(made: Lab, secret: str) -> dict[str, Any]:
    answer = httpx2.get(f"{made.gateway.base_url}/users/me/balance", headers={"authorization": f"Bearer {secret}"})
    found: dict[str, Any] = json.loads(answer.text, parse_float=Decimal)["data"]["budget"]
    return found


def report_total(made: Lab, tag: str) -> str:
    """What `kimi-pricing report` says that the requests with a tag cost together."""
    words = ["report", "--by", "tag:case", "--format", "json"]
    words += ["--ledger", ledger_url(made.gateway), "--journal", str(made.gateway.journal_dir)]
    done = run_module("pricing", *words, directory=made.gateway.journal_dir)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    return next(str(row["cost_usd"]) for row in rows if row["tag:case"] == tag)


def test_bill_01_a_client_that_hangs_up_is_booked_and_its_reservation_settled(made: Lab) -> None:
    given = case("bill-01")["given"]
    upstream = made.upstreams["vllm"]
    upstream.add(*given["upstream"])
    before = len(upstream.requests)
    headers = {"authorization": "Bearer kg-billing-three", "x-kimi-target": "vllm"}
    url = f"{made.gateway.base_url}/chat/completions"
    with httpx2.stream("POST", url, json=given["client_request"], headers=headers, timeout=10) as answer:
        request_id = answer.headers["x-kimi-request-id"]
        for line in answer.iter_lines():
            if "upon" in line:
                break
    upstream.wait_for_disconnect(2)
    assert len(upstream.requests) == before + 1
    row = made.row(Heard(200, {"x-kimi-request-id": request_id}, b""))
    assert (row["status"], row["estimated"]) == ("client_disconnected", True)
    assert row["prompt_tokens"] > 0
    assert row["completion_tokens"] > 0
    assert Decimal(row["cost_usd"]) > 0
    after = balance(made, "kg-billing-three")
    assert (after["reserved"], after["spent"]) == (0, Decimal(row["cost_usd"]))
    store = Store(ledger_url(made.gateway))
    assert [one.requests for one in store.report(("key",)) if one.by["key"] == "leaving"] == [1]
    store.close()


def test_bill_02_five_at_once_do_not_all_pass_one_budget(made: Lab) -> None:
    text = "word " * 150  # 1,000 tokens at the most, by its bytes and the frame around it
    request = {
        "model": "kimi-k3.1-pro",
        "max_completion_tokens": 1500,
        "messages": [{"role": "user", "content": text}],
    }
    usage = {"prompt_tokens": 1000, "completion_tokens": 400, "total_tokens": 1400, "cached_tokens": 0}
    upstream = made.upstreams["moonshot"]
    before = len(upstream.requests)
    body = {
        "id": "c",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}],
    }
    late = {
        "status": 200,
        "headers": {"content-type": "application/json"},
        "timeline": [[1.0, json.dumps({**body, "usage": usage})]],
    }
    upstream.add(late, late)
    statuses: list[int] = []

    def one() -> None:
        headers = {"x-kimi-target": "moonshot", **CAPPED}
        answer = httpx2.post(
            f"{made.gateway.base_url}/chat/completions", json=request, headers=headers, timeout=20
        )
        statuses.append(answer.status_code)

    threads = [threading.Thread(target=one) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect = case("bill-02")["expect"]
    assert sorted(statuses) == [200, 200, 402, 402, 402]
    assert len(upstream.requests) - before == expect["upstream_calls"]
    left = balance(made, "kg-billing-two")
    assert (left["spent"], left["reserved"]) == (Decimal(expect["settled_usd"]), 0)
    assert ask(made, request, ok(usage), headers=CAPPED).status == 200


def test_bill_04_a_thousand_small_costs_add_up_exactly(made: Lab) -> None:
    given, expect = case("bill-04")["given"], case("bill-04")["expect"]
    usage = given["upstream_x1000"]["usage"]
    request = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "hi"}]}
    upstream = made.upstreams["moonshot"]
    count = 1000
    upstream.add(*[ok(usage)] * count)
    headers = {"x-kimi-target": "moonshot", "x-kimi-tags": "case=bill-04", **KEY}
    body = json.dumps(request)
    with closing(http.client.HTTPConnection(made.gateway.root_url.removeprefix("http://"), timeout=20)) as line:
        for _ in range(count):
            line.request("POST", "/v1/chat/completions", body, {"content-type": "application/json", **headers})
            answer = line.getresponse()
            assert answer.read()
            assert answer.headers["x-kimi-cost-usd"] == expect["ledger_each"]["cost_usd"]
    wait_for_row(ledger_url(made.gateway), answer.headers["x-kimi-request-id"])  # they come there in their order
    assert report_total(made, "bill-04") == expect["report_total_usd"]


def test_bill_05_writes_of_5_minutes_and_1_hour_have_their_own_prices(made: Lab) -> None:
    given, expect = case("bill-05")["given"], case("bill-05")["expect"]
    answer, request = given["upstream"][0], given["client_request"]
    row = made.row(ask(made, request, answer))
    wanted = expect["ledger"][0]
    names = {"fresh_input": "input", "cached_read": "cache_read"}
    assert row["cost_usd"] == wanted["cost_usd"]
    assert row["lines"] == {names.get(name, name): value for name, value in wanted["lines"].items()}
    assert row["assumed"] is False
    bare = ok(answer["json_usage"])
    row = made.row(ask(made, request, bare))
    assert (row["cost_usd"], row["assumed"]) == (expect["without_headers"]["cost_usd"], True)
    plain = {name: value for name, value in request.items() if name != "prompt_cache_options"}
    row = made.row(ask(made, plain, bare))
    assert row["cost_usd"] == expect["if_ttl_was_not_requested_and_no_headers"]["cost_usd"]


def test_bill_06_the_reported_counter_decides_and_a_changed_effort_forecasts_no_hit(made: Lab) -> None:
    """The gateway's clock plays no part in a cost: the reports of the case come one behind the other."""
    given, expect = case("bill-06")["given"], case("bill-06")["expect"]
    messages: list[Any] = [{"role": "user", "content": "a long story. " * 2500}]
    costs, headers = [], {}
    for number, one in enumerate(given["requests"]):
        request = {"model": "kimi-k3.1-pro", "reasoning_effort": "max", "messages": messages}
        if "reasoning_effort" in one:
            request["reasoning_effort"] = "low"
        heard = ask(made, request, ok({**one["usage"], "total_tokens": 8250}))
        headers = heard.headers
        costs.append(made.row(heard)["cost_usd"])
        answered = heard.json["choices"][0]["message"]
        messages = [*messages, answered, {"role": "user", "content": f"on {number}"}]
    assert costs == expect["cost_usd"]
    assert headers["x-kimi-cache-loss"].startswith("effort;")


def test_the_four_check_figures_come_out_exactly(made: Lab) -> None:
    """100,000 tokens of prompt, 80,000 read and 15,000 written, 2,000 of output, at both tiers and TTLs."""
    usage = {
        "prompt_tokens": 100_000,
        "completion_tokens": 2_000,
        "total_tokens": 102_000,
        "prompt_tokens_details": {"cached_tokens": 80_000, "cache_write_tokens": 15_000},
    }
    found = {}
    for model in ("kimi-k3.1-pro", "kimi-k3.1-pro-highspeed"):
        for ttl in ("5m", "1h"):
            answer = ok(usage, headers={f"Msh-Usage-Cache-Write-Tokens-{ttl}": "15000"})
            request = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
            heard = ask(made, {**request, "prompt_cache_options": {"mode": "implicit", "ttl": ttl}}, answer)
            found[model.removeprefix("kimi-k3.1-"), ttl] = heard.headers["x-kimi-cost-usd"]
    assert found == {
        ("pro", "5m"): usd_text(76_000_000),
        ("pro", "1h"): "0.106",
        ("pro-highspeed", "5m"): "0.136",
        ("pro-highspeed", "1h"): "0.196",
    }


def test_an_answer_without_a_price_takes_its_reservation_from_the_budget(made: Lab) -> None:
    answer = {
        "id": "c",
        "model": "kimi-unheard-of",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 1000, "total_tokens": 2000},
    }
    before = balance(made, "kg-billing-three")["left"]
    request = {
        "model": "kimi-k3.1-pro",
        "max_completion_tokens": 1000,
        "messages": [{"role": "user", "content": "hi"}],
    }
    headers = {"authorization": "Bearer kg-billing-three"}
    heard = ask(made, request, {"status": 200, "json": answer}, headers=headers)
    assert made.row(heard)["cost_usd"] is None
    after = balance(made, "kg-billing-three")
    assert after["reserved"] == 0
    assert before - after["left"] > Decimal("0.01")


def test_an_estimate_is_never_more_than_the_request_could_have(made: Lab) -> None:
    """An upstream that sends far more than was asked for and never says how much it was."""
    chunk = {"id": "c", "choices": [{"index": 0, "delta": {"content": "x" * 200_000}, "finish_reason": None}]}
    end = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    text = "".join(f"data: {json.dumps(one)}\n\n" for one in (chunk, end)) + "data: [DONE]\n\n"
    request = {
        "model": "kimi-k3.1-pro",
        "max_completion_tokens": 100,
        "messages": [{"role": "user", "content": "hi"}],
    }
    row = made.row(ask(made, request, {"status": 200, "sse_text": text}))
    assert (row["completion_tokens"], row["estimated"]) == (100, True)
    assert "output_beyond_limit" in row["anomaly"]
