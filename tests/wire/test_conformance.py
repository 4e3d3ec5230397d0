"""One suite over every dialect file: whatever stands behind, the client sees one and the same dialect.

Each dialect that the emulator speaks stands behind the gateway as an emulator of its own; a dialect file that it
does not speak (a close relative of another) is named in `RELATIVES` and served by that one.
"""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from backends.catalog import DIALECTS
from backends.emulator.app import Emulator
from backends.emulator.config import EmulatorConfig
from backends.emulator.profiles import PROFILES
from support.asgi import serve
from support.lab import Heard, ledger_url, post, wait_for_row
from support.processes import Gateway, gateway_process
from support.traffic import WEATHER, message_of

RELATIVES = {"llamacpp": "sglang"}
PRICES = 'prices = { input = "2.00", cache_read = "0.20", output = "10.00" }\n'
ASK: dict[str, Any] = {
    "model": "kimi-k3.1-pro",
    "reasoning_effort": "low",
    "messages": [{"role": "user", "content": "Weather in Paris?"}],
}


@dataclass(frozen=True)
class Bench:
    """A gateway with one target for each dialect, and the addresses of their emulators."""

    gateway: Gateway
    emulators: dict[str, str]

    def ask(self, dialect: str, **fields: Any) -> Heard:
        heard = post(self.gateway.base_url, {**ASK, **fields}, {"x-kimi-target": dialect})
        assert heard.status == 200, heard.raw
        return heard

    def row(self, heard: Heard) -> Any:
        return wait_for_row(ledger_url(self.gateway), heard.headers["x-kimi-request-id"])


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with ExitStack() as stack:
        config = ["[server]\ndrain_grace_s = 0\n"]
        emulators = {}
        for name, dialect in DIALECTS.items():
            spoken = RELATIVES.get(name, name)
            app = Emulator(EmulatorConfig(dialect=spoken, pace=0))
            emulators[name] = stack.enter_context(serve(app))
            model = dialect.models.get("kimi-k3.1-pro", "kimi-k3.1-pro")
            config.append(
                f'[[targets]]\nname = "{name}"\ndialect = "{name}"\nbase_url = "{emulators[name]}/v1"\n'
                f'api_key_env = "KEY"\nmodels = {{ "kimi-k3.1-pro" = "{model}" }}\n'
                + ("" if dialect.seller else PRICES)
            )
        gateway = stack.enter_context(gateway_process("\n".join(config), {"KEY": "sk-conformance"}))
        yield Bench(gateway, emulators)


def test_every_dialect_is_emulated_or_has_a_relative_that_is() -> None:
    assert set(DIALECTS) == set(PROFILES) | set(RELATIVES)


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_a_folded_answer(bench: Bench, dialect: str) -> None:
    heard = bench.ask(dialect)
    message, usage = heard.json["choices"][0]["message"], heard.json["usage"]
    assert message["reasoning_content"]
    assert message["content"]
    assert "reasoning" not in message
    assert heard.json["choices"][0]["finish_reason"] == "stop"
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert heard.json["model"] == "kimi-k3.1-pro"
    row = bench.row(heard)
    assert (row.status, row.estimated, row.target) == ("ok", False, dialect)
    assert (row.prompt_tokens, row.completion_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert row.cost_nano


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_a_stream_says_the_same_in_one_shape(bench: Bench, dialect: str, usage: bool) -> None:
    folded = bench.ask(dialect)
    heard = bench.ask(dialect, stream=True, stream_options={"include_usage": usage})
    message = folded.json["choices"][0]["message"]
    assert heard.joined("reasoning_content") == message["reasoning_content"]
    assert heard.joined("content") == message["content"]
    assert not any("reasoning" in delta for delta in heard.deltas())
    assert (heard.finish_reason(), heard.done) == ("stop", True)
    finishing = next(chunk for chunk in heard.chunks if chunk["choices"] and chunk["choices"][0]["finish_reason"])
    assert finishing["choices"][0]["usage"]["completion_tokens"] > 0
    assert [chunk["choices"] for chunk in heard.chunks].count([]) == int(usage)
    assert {chunk["model"] for chunk in heard.chunks} == {"kimi-k3.1-pro"}
    assert len({chunk["id"] for chunk in heard.chunks}) == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_a_tool_conversation_keeps_its_thought(bench: Bench, dialect: str, stream: bool) -> None:
    first = bench.ask(dialect, tools=[WEATHER], tool_choice="required", stream=stream)
    message = message_of(first)
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "18 C"} for call in message["tool_calls"]]
    second = bench.ask(dialect, tools=[WEATHER], messages=[*ASK["messages"], message, *results], stream=stream)
    assert second.headers["x-kimi-thinking"] == "intact"
    sent = last_request(bench, dialect)["messages"][1]
    assert message["reasoning_content"] in [sent.get(name) for name in DIALECTS[dialect].thought_in]
    assert sent["tool_calls"] == message["tool_calls"]


def last_request(bench: Bench, dialect: str) -> Any:
    """The body of the last chat request that the dialect's emulator received."""
    with urllib.request.urlopen(f"{bench.emulators[dialect]}/emulator/requests", timeout=10) as answer:
        return json.load(answer)["requests"][-1]["body"]


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_an_upstreams_refusal_has_our_shape(bench: Bench, dialect: str) -> None:
    request = {**ASK, "messages": [{"role": "user", "content": "x" * 5_000_000}]}
    heard = post(bench.gateway.base_url, request, {"x-kimi-target": dialect})
    assert heard.status == 400
    assert set(heard.error) == {"message", "type", "param", "code"}
    assert (heard.error["type"], heard.error["code"]) == ("invalid_request_error", "context_length_exceeded")
    assert bench.row(heard).cost_nano == 0
