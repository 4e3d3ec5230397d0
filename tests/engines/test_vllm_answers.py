"""vLLM behind us: chat, streams, tools, effort, cached tokens, and what it refuses."""

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from support.behind_vllm import ask, gateway_of
from support.lab import ledger_url, wait_for_row
from support.processes import Gateway
from support.traffic import WEATHER
from support.vllm_engine import MODEL, VllmEngine


@pytest.fixture(scope="module")
def gateway(engine: VllmEngine) -> Iterator[Gateway]:
    """A gateway whose one target is the engine."""
    with gateway_of(engine) as started:
        yield started


def said(text: str) -> list[dict[str, Any]]:
    """A history of one turn."""
    return [{"role": "user", "content": text}]


def test_a_folded_answer_has_thought_text_usage_and_a_row(gateway: Gateway) -> None:
    heard = ask(gateway)
    assert heard.status == 200, heard.raw
    message = heard.json["choices"][0]["message"]
    assert message["content"] == "Hello!"
    assert message["reasoning_content"].startswith("The user wants a greeting.")
    usage = heard.json["usage"]
    row = wait_for_row(ledger_url(gateway), heard.headers["x-kimi-request-id"])
    assert (row.prompt_tokens, row.completion_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert (row.status, row.estimated, row.cost_source) == ("ok", False, "target")
    assert row.reasoning_tokens
    assert row.cost_nano


def test_a_stream_shows_thought_before_text_and_ends_with_its_mark(gateway: Gateway) -> None:
    heard = ask(gateway, stream=True, stream_options={"include_usage": True})
    kinds = "".join("t" * bool(d.get("reasoning_content")) + "c" * bool(d.get("content")) for d in heard.deltas())
    assert re.fullmatch("t+c+", kinds)
    assert heard.joined("content") == "Hello!"
    assert (heard.finish_reason(), heard.done) == ("stop", True)
    assert heard.chunks[-1]["choices"] == []
    assert heard.chunks[-1]["usage"]["total_tokens"] > 0


def test_streamed_and_folded_agree(gateway: Gateway) -> None:
    streamed, folded = ask(gateway, stream=True), ask(gateway)
    message = folded.json["choices"][0]["message"]
    assert streamed.joined("reasoning_content") == message["reasoning_content"]
    assert streamed.joined("content") == message["content"]


def test_more_effort_is_a_longer_thought_and_other_words_are_mapped(gateway: Gateway) -> None:
    heard = {effort: ask(gateway, reasoning_effort=effort) for effort in ("low", "medium", "high", "max")}
    assert {found.status for found in heard.values()} == {200}, "vLLM itself refuses medium"
    tokens = {
        effort: found.json["usage"]["completion_tokens_details"]["reasoning_tokens"]
        for effort, found in heard.items()
    }
    assert tokens["low"] < tokens["high"] < tokens["max"]
    assert tokens["medium"] == tokens["high"]
    assert heard["medium"].headers["x-kimi-effort"] == "high"
    assert "reasoning_effort" in heard["medium"].headers["x-kimi-adjusted"]


@pytest.mark.parametrize("wish", [{"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}])
def test_thinking_is_off_where_it_is_asked_to_be(gateway: Gateway, wish: dict[str, Any]) -> None:
    message = ask(gateway, **wish).json["choices"][0]["message"]
    assert not message.get("reasoning_content")
    assert message["content"]


def test_the_engine_reads_the_thought_that_we_send_back(gateway: Gateway) -> None:
    turn = {"role": "assistant", "content": "Hello!"}
    histories: list[Any] = [
        [*said("Say hello."), {**turn, **thought}, *said("ping")]
        for thought in (
            {},
            {"reasoning_content": "The user wants a greeting."},
            {"reasoning": "The user wants a greeting."},
        )
    ]
    # Another end user than the tests before: nothing is remembered of these turns.
    counts = [ask(gateway, user="nobody", messages=one).json["usage"]["prompt_tokens"] for one in histories]
    assert counts[0] < counts[1] == counts[2]


def test_tool_calls_come_through_the_openai_client_folded_and_streamed(gateway: Gateway) -> None:
    with openai.OpenAI(base_url=gateway.base_url, api_key="any") as client:
        tool: Any = WEATHER
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Weather in Paris and Tokyo?"}],
            tools=[tool],
            temperature=0,
        )
    calls: Any = answer.choices[0].message.tool_calls
    assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Paris"}, {"city": "Tokyo"}]
    assert {call.function.name for call in calls} == {"get_weather"}
    assert answer.choices[0].finish_reason == "tool_calls"
    heard = ask(gateway, messages=said("Weather in Paris and Tokyo?"), tools=[WEATHER], stream=True)
    assert [json.loads(call["function"]["arguments"]) for call in heard.tool_calls()] == [
        {"city": "Paris"},
        {"city": "Tokyo"},
    ]
    assert (heard.finish_reason(), heard.done) == ("tool_calls", True)


def test_a_named_tool_is_called_and_says_so(gateway: Gateway) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    heard = ask(gateway, messages=said("Weather in Paris?"), tools=[WEATHER], tool_choice=choice)
    assert heard.status == 200, heard.raw
    assert heard.json["choices"][0]["finish_reason"] == "tool_calls", "vLLM itself says stop"
    (call,) = heard.json["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"


def test_cached_tokens_are_counted_and_billed_as_read(gateway: Gateway) -> None:
    messages = said("Count to sixty. " * 120)
    first, again = ask(gateway, messages=messages), ask(gateway, messages=messages)
    assert first.status == again.status == 200
    row = wait_for_row(ledger_url(gateway), again.headers["x-kimi-request-id"])
    assert row.cached_tokens
    assert row.cached_tokens == again.json["usage"]["cached_tokens"]
    assert row.cached_tokens % 128 == 0, "the size of a block on CPUs"
    assert {line.meter for line in row.lines} >= {"cache_read", "output"}


def test_more_output_than_the_window_leaves_is_lowered_and_not_refused(gateway: Gateway) -> None:
    heard = ask(gateway, max_completion_tokens=1_048_576)
    assert heard.status == 200, "vLLM itself refuses it"
    assert "max_completion_tokens" in heard.headers["x-kimi-adjusted"]


def test_a_prompt_that_is_too_long_has_the_standard_code(gateway: Gateway) -> None:
    heard = ask(gateway, messages=said("many words " * 20_000))
    assert (heard.status, heard.error["code"]) == (400, "context_length_exceeded")
    row = wait_for_row(ledger_url(gateway), heard.headers["x-kimi-request-id"])
    assert (row.status, row.cost_nano) == ("error", 0)
