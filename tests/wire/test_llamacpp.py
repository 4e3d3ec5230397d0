"""A real engine in every run: llama.cpp's server with a tiny model that speaks Kimi's channels."""

import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from support.lab import Heard, ledger_url, post, wait_for_row
from support.processes import Gateway, free_port, gateway_process, program
from support.shared import shared_path

KEY = "sk-llamacpp-test"


@pytest.fixture(scope="module")
def engine_gateway() -> Iterator[Gateway]:
    """A gateway whose one target is llama.cpp's server behind the vllm dialect."""
    model, script = shared_path("engines/kimi-tiny-q8.gguf"), shared_path("engines/serve_llamacpp.py")
    port = free_port()
    env = {"GGUF": str(model), "CTX": "32768", "PATH": os.environ["PATH"]}
    with program([sys.executable, str(script), str(port), KEY], env=env) as engine:
        engine.wait_for_http(f"http://127.0.0.1:{port}/health")
        config = (
            f'[server]\ndrain_grace_s = 0\n[[targets]]\nname = "llamacpp"\ndialect = "vllm"\nbase_url = "http://127.0.0.1:{port}/v1"\n'
            f'api_key_env = "ENGINE_KEY"\nmodels = {{ "kimi-k3.1-pro" = "kimi-k3.1-pro" }}\n'
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
        ask(engine_gateway, messages=[first, {**turn, **thought}, after]).json["usage"]["prompt_tokens"]
        for thought in (
            {},
            {"reasoning_content": "The user wants a greeting."},
            {"reasoning": "The user wants a greeting."},
        )
    ]
    assert counts[0] < counts[1] == counts[2]


def test_a_tool_call_comes_whole_through_the_openai_client(engine_gateway: Gateway) -> None:
    client = openai.OpenAI(base_url=engine_gateway.base_url, api_key="any")
    tool: Any = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
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
