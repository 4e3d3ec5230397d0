"""A real engine in every run: llama.cpp's server with a tiny model that speaks Kimi's channels."""

import http.client
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from support.lab import Heard, ledger_url, post, wait_for_row
from support.processes import Gateway, free_port, gateway_process, program
from support.shared import shared_path
from support.traffic import WEATHER

KEY = "sk-llamacpp-test"


@dataclass(frozen=True)
class Engine:
    """Where the engine itself is."""

    port: int

    def processing(self) -> int:
        """Requests that the engine is at, by its own metrics."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/metrics", headers={"authorization": f"Bearer {KEY}"})
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        found = re.search(r"^llamacpp:requests_processing (\d+)", text, re.MULTILINE)
        assert found is not None, text
        return int(found[1])


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """llama.cpp's server with the tiny model."""
    model, script = shared_path("engines/kimi-tiny-q8.gguf"), shared_path("engines/serve_llamacpp.py")
    port = free_port()
    env = {"GGUF": str(model), "CTX": "32768", "PATH": os.environ["PATH"]}
    with program([sys.executable, str(script), str(port), KEY], env=env) as started:
        started.wait_for_http(f"http://127.0.0.1:{port}/health")
        yield Engine(port)


@pytest.fixture(scope="module", params=["vllm", "llamacpp"])
def engine_gateway(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Gateway]:
    """A gateway whose one target is the engine, behind the vllm dialect and behind its own."""
    config = (
        f'[server]\ndrain_grace_s = 0\n[[targets]]\nname = "llamacpp"\ndialect = "{request.param}"\n'
        f'base_url = "http://127.0.0.1:{engine.port}/v1"\napi_key_env = "ENGINE_KEY"\n'
        'models = { "kimi-k3.1-pro" = "kimi-k3.1-pro" }\n'
        'prices = { input = "2.00", cache_read = "0.20", output = "10.00" }\n'
    )
    with gateway_process(config, {"ENGINE_KEY": KEY}) as gateway:
        yield gateway


def ask(gateway: Gateway, **fields: Any) -> Heard:
    messages = fields.pop("messages", [{"role": "user", "content": "Say hello."}])
    request = {"model": "kimi-k3.1-pro", "messages": messages, "temperature": 0, **fields}
    return post(gateway.base_url, request, {})


def test_a_folded_answer_has_thought_text_and_usage(engine_gateway: Gateway) -> None:
    heard = ask(engine_gateway)
    message = heard.json["choices"][0]["message"]
    assert message["content"] == "Hello!"
    assert message["reasoning_content"].startswith("The user wants a greeting.")
    usage = heard.json["usage"]
    row = wait_for_row(ledger_url(engine_gateway), heard.headers["x-kimi-request-id"])
    assert (row.prompt_tokens, row.completion_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert usage["prompt_tokens"] > 0
    assert (row.status, row.estimated, row.cost_source) == ("ok", False, "target")


def test_a_stream_shows_thought_before_text_and_ends_with_its_mark(engine_gateway: Gateway) -> None:
    heard = ask(engine_gateway, stream=True, stream_options={"include_usage": True})
    assert heard.joined("content") == "Hello!"
    kinds = "".join("t" * bool(d.get("reasoning_content")) + "c" * bool(d.get("content")) for d in heard.deltas())
    assert re.fullmatch("t+c+", kinds)
    assert heard.done
    assert heard.chunks[-1]["usage"]["total_tokens"] > 0
    assert heard.chunks[-1]["choices"] == []


def test_streamed_and_folded_agree(engine_gateway: Gateway) -> None:
    streamed, folded = ask(engine_gateway, stream=True), ask(engine_gateway)
    message = folded.json["choices"][0]["message"]
    assert streamed.joined("reasoning_content") == message["reasoning_content"]
    assert streamed.joined("content") == message["content"]


def test_the_engine_reads_the_thought_that_we_send_back(engine_gateway: Gateway) -> None:
    turn = {"role": "assistant", "content": "Hello!"}
    after = {"role": "user", "content": "ping"}
    first = {"role": "user", "content": "Say hello."}
    counts = [
        # Another end user than the tests before: nothing is remembered of these turns.
        ask(engine_gateway, user="nobody", messages=[first, {**turn, **thought}, after]).json["usage"][
            "prompt_tokens"
        ]
        for thought in (
            {},
            {"reasoning_content": "The user wants a greeting."},
            {"reasoning": "The user wants a greeting."},
        )
    ]
    assert counts[0] < counts[1] == counts[2]


def test_a_tool_call_comes_whole_through_the_openai_client(engine_gateway: Gateway) -> None:
    client = openai.OpenAI(base_url=engine_gateway.base_url, api_key="any")
    tool: Any = WEATHER
    with client:
        answer = client.chat.completions.create(
            model="kimi-k3.1-pro",
            messages=[{"role": "user", "content": "Weather in Paris?"}],
            tools=[tool],
            temperature=0,
        )
    calls: Any = answer.choices[0].message.tool_calls
    assert [(call.function.name, call.function.arguments.replace(" ", "")) for call in calls] == [
        ("get_weather", '{"city":"Paris"}')
    ]
    assert answer.choices[0].finish_reason == "tool_calls"


def test_a_tool_call_streams_token_by_token(engine_gateway: Gateway) -> None:
    heard = ask(
        engine_gateway, messages=[{"role": "user", "content": "Weather in Paris?"}], tools=[WEATHER], stream=True
    )
    pieces = [piece for delta in heard.deltas() for piece in delta.get("tool_calls") or []]
    assert len(pieces) > 2
    (call,) = heard.tool_calls()
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
        "get_weather",
        {"city": "Paris"},
    )
    assert heard.finish_reason() == "tool_calls"


def test_an_answer_by_a_schema_is_valid(engine_gateway: Gateway) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    heard = ask(
        engine_gateway,
        messages=[{"role": "user", "content": "Return JSON."}],
        response_format=wanted,
        max_tokens=400,
    )
    assert isinstance(json.loads(heard.json["choices"][0]["message"]["content"])["ok"], bool)


def test_cached_tokens_are_counted_and_billed_as_read(engine_gateway: Gateway) -> None:
    first = ask(engine_gateway, messages=[{"role": "user", "content": "Count to sixty."}])
    again = ask(engine_gateway, messages=[{"role": "user", "content": "Count to sixty."}])
    row = wait_for_row(ledger_url(engine_gateway), again.headers["x-kimi-request-id"])
    assert first.status == again.status == 200
    assert row.cached_tokens
    assert row.cached_tokens == again.json["usage"]["cached_tokens"]
    assert {line.meter for line in row.lines} >= {"cache_read", "output"}


def test_a_prompt_that_is_too_long_has_the_standard_code(engine_gateway: Gateway) -> None:
    heard = ask(engine_gateway, messages=[{"role": "user", "content": "many words " * 60_000}])
    assert (heard.status, heard.error["code"]) == (400, "context_length_exceeded")
    row = wait_for_row(ledger_url(engine_gateway), heard.headers["x-kimi-request-id"])
    assert (row.status, row.cost_nano) == ("error", 0)


def test_a_client_that_leaves_stops_the_engine(engine_gateway: Gateway, engine: Engine) -> None:
    root = engine_gateway.root_url.removeprefix("http://")
    connection = http.client.HTTPConnection(root, timeout=10)
    request = {
        "model": "kimi-k3.1-pro",
        "messages": [{"role": "user", "content": "Tell a long story."}],
        "stream": True,
        "ignore_eos": True,
        "max_tokens": 30_000,
    }
    connection.request("POST", "/v1/chat/completions", json.dumps(request), {"content-type": "application/json"})
    reply = connection.getresponse()
    assert reply.status == 200
    assert reply.read(200)
    assert engine.processing() == 1
    assert connection.sock is not None
    connection.sock.close()
    reply.close()
    left = time.monotonic()
    while engine.processing():
        assert time.monotonic() - left < 3
        time.sleep(0.05)
    request_id = reply.headers["x-kimi-request-id"]
    row = wait_for_row(ledger_url(engine_gateway), request_id)
    assert (row.status, row.estimated) == ("client_disconnected", True)
