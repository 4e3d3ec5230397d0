"""The invoice over the wire: each answered request is one line, recomputed here from the reported usage alone."""

import json
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from backends.emulator.app import Emulator, EmulatorConfig
from support.asgi import serve

# USD per 1M tokens: input, cache read, write 5m, write 1h, output.
PRICES = {
    "kimi-k3.1-pro": ("2.00", "0.20", "2.00", "4.00", "10.00"),
    "kimi-k3.1-pro-highspeed": ("4.00", "0.20", "4.00", "8.00", "20.00"),
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    config = EmulatorConfig(pace=0, stream_ttl_headers=True, vary_usage_places=True)
    with serve(Emulator(config)) as url, httpx2.Client(base_url=url) as client:
        yield client


def usd(model: str, usage: dict[str, Any], headers: httpx2.Headers) -> Decimal:
    """What an answer costs by its usage and headers."""
    write_5m = int(headers["msh-usage-cache-write-tokens-5m"])
    write_1h = int(headers["msh-usage-cache-write-tokens-1h"])
    details = usage["prompt_tokens_details"]
    assert write_5m + write_1h == details["cache_write_tokens"]
    read = details["cached_tokens"]
    fresh = usage["prompt_tokens"] - read - write_5m - write_1h
    counts = (fresh, read, write_5m, write_1h, usage["completion_tokens"])
    prices = map(Decimal, PRICES[model])
    return sum((count * price for count, price in zip(counts, prices, strict=True)), Decimal(0)) / 1_000_000


def answer(response: httpx2.Response) -> tuple[str, dict[str, Any]]:
    """Id and usage, wherever the answer has it."""
    assert response.status_code == 200, response.text
    if not response.headers["content-type"].startswith("text/event-stream"):
        whole = response.json()
        return whole["id"], whole["usage"]
    events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
    found = [usage for event in events for holder in (event, *event["choices"]) if (usage := holder.get("usage"))]
    assert all(usage == found[0] for usage in found)
    return events[0]["id"], found[0]


def requests(count: int) -> Iterator[dict[str, Any]]:
    """Mixed requests: three growing conversations, both tiers, both lifetimes, streamed and not, tools."""
    dice = random.Random(7)
    conversations: list[list[dict[str, Any]]] = [[], [], []]
    for number in range(count):
        conversation = dice.choice(conversations)
        conversation.append({"role": "user", "content": f"{number} weather? " * dice.randrange(1, 120)})
        yield {
            "model": dice.choice(sorted(PRICES)),
            "messages": list(conversation),
            "stream": dice.random() < 0.5,
            "stream_options": {"include_usage": dice.random() < 0.5},
            "prompt_cache_options": {"mode": "implicit", "ttl": dice.choice(["5m", "1h"])},
            "tools": [TOOL] if dice.random() < 0.3 else [],
            "reasoning_effort": dice.choice(["low", "high", "max"]),
            "max_completion_tokens": dice.choice([50, 100_000]),
        }


def test_the_invoice_of_100_mixed_requests_is_what_their_usage_says(client: httpx2.Client) -> None:
    expected: dict[str, Decimal] = {}
    read = 0
    for number, body in enumerate(requests(100)):
        if number % 10 == 9:
            client.post("/emulator/clock", json={"advance_s": 200})
        response = client.post("/v1/chat/completions", json=body)
        id, usage = answer(response)
        expected[id] = usd(body["model"], usage, response.headers)
        read += usage["cached_tokens"]
    invoice = client.get("/emulator/invoice").json()
    assert {line["id"]: Decimal(line["usd"]) for line in invoice["lines"]} == expected
    assert Decimal(invoice["total_usd"]) == sum(expected.values())
    assert read > 0
    assert {line["ttl"] for line in invoice["lines"]} >= {"5m", "1h"}


def test_a_line_names_each_meter_and_their_sum(client: httpx2.Client) -> None:
    body = {
        "model": "kimi-k3.1-pro",
        "messages": [{"role": "user", "content": "word " * 300}],
        "prompt_cache_options": {"ttl": "1h"},
    }
    id, usage = answer(client.post("/v1/chat/completions", json=body))
    [line] = client.get("/emulator/invoice").json()["lines"]
    assert line == {
        "id": id,
        "model": "kimi-k3.1-pro",
        "ttl": "1h",
        "prompt_tokens": usage["prompt_tokens"],
        "input": usage["prompt_tokens"] - 256,
        "cache_read": 0,
        "write_5m": 0,
        "write_1h": 256,
        "output": usage["completion_tokens"],
        "usd": line["usd"],
        "disconnected": False,
        "byok": False,
    }
    nano = (usage["prompt_tokens"] - 256) * 2000 + 256 * 4000 + usage["completion_tokens"] * 10000
    assert Decimal(line["usd"]) == Decimal(nano) / 10**9
    assert "E" not in line["usd"]


def test_the_line_is_there_before_the_last_bytes_arrive(client: httpx2.Client) -> None:
    body = {"model": "kimi-k3.1-pro", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    for number in range(1, 20):
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    break
            assert len(client.get("/emulator/invoice").json()["lines"]) == number
