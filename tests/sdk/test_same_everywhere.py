"""One conversation at every kind of server, sync and async: the same typed result, and every thought goes back."""

from decimal import Decimal
from typing import Any

import pytest

from kimi_sdk import Done, Reply, TextDelta, ThinkingDelta, ToolCall, ToolResult, Usage
from support.sdk_places import KINDS, PLACES, PRO, Place, Talk, talk

KIND_IDS = ["sync", "async"]
COST_SOURCES = {
    "moonshot": "cards",
    "openrouter": "upstream",
    "vllm": "unknown",
    "sglang": "unknown",
    "gateway": "gateway",
}
THOUGHT_FIELDS = {"openrouter": "reasoning", "vllm": "reasoning"}


def weather(city: str) -> str:
    """The weather in a city."""
    return f"18 degrees in {city}. " + "A wind from the west comes over the river. " * 60


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_the_same_conversation_gives_the_same_typed_result(place: Place, kind: type[Talk]) -> None:
    with talk(kind, system="Be brief.", effort="high", **place.arguments) as made:
        asked = made.ask("How far is the Moon?")
        heard = made.stream("And the Sun?")
        chat = made.chat

    streamed = heard.reply
    check_reply(asked, place)
    check_reply(streamed, place)
    assert heard.joined(TextDelta) == streamed.text
    assert heard.joined(ThinkingDelta) == streamed.thinking
    kinds = [type(event) for event in heard.events]
    assert kinds == sorted(kinds, key=[ThinkingDelta, TextDelta, Usage, Done].index)
    assert [turn["role"] for turn in chat.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert [turn["reasoning_content"] for turn in chat.messages[2::2]] == [asked.thinking, streamed.thinking]
    costs = [asked.cost or Decimal(0), streamed.cost or Decimal(0)]
    assert chat.cost == sum(costs)
    assert chat.cost == Decimal(place.invoice()["total_usd"]) or place.name == "openrouter"
    assert chat.unpriced == (2 if COST_SOURCES[place.name] == "unknown" else 0)


def check_reply(reply: Reply, place: Place) -> None:
    assert (reply.model, reply.effort, reply.finish_reason) == (PRO, "high", "stop")
    assert reply.text.startswith("Synthetic answer of the Kimi emulator, effort high.")
    assert reply.thinking is not None
    assert reply.thinking.startswith("Synthetic thought")
    assert reply.usage is not None
    assert reply.usage.prompt > 0
    assert reply.usage.output > 0
    assert reply.cost_source == COST_SOURCES[place.name]
    assert (reply.cost is None) == (reply.cost_source == "unknown")
    assert reply.target == ("moonshot" if place.name == "gateway" else None)
    assert reply.request_id or place.name in ("vllm", "sglang"), "engines name no request"
    assert reply.is_complete
    assert reply.tool_calls == ()


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_a_conversation_with_tools_keeps_every_thought_for_five_turns(place: Place, kind: type[Talk]) -> None:
    thoughts: list[Any] = []
    with talk(kind, effort="high", tools=[weather], **place.arguments) as made:
        for turn in range(5):
            heard = made.stream(f"Call weather for city number {turn}.")
            calls, results = heard.of(ToolCall), heard.of(ToolResult)
            assert [call.name for call in calls] == ["weather"]
            assert [result.call for result in results] == calls
            assert "degrees" in results[0].content
            assert len(heard.of(Usage)) == 2
        kept = [turn for turn in made.chat.messages if turn["role"] == "assistant"]
        thoughts = [turn["reasoning_content"] for turn in kept]

    assert len(thoughts) == 10
    assert all(thoughts)
    requests = place.seen()
    assert len(requests) == 10
    name = THOUGHT_FIELDS.get(place.name, "reasoning_content")
    for number, request in enumerate(requests):
        sent = [turn[name] for turn in request["body"]["messages"] if turn["role"] == "assistant"]
        assert sent == thoughts[:number]
    cached = [request["usage"]["cache_read"] for request in requests]
    assert cached == sorted(cached)
    assert cached[-1] > 0


@pytest.mark.parametrize("place", ["openrouter"], indirect=True)
def test_reasoning_details_go_back_whole(place: Place) -> None:
    with talk(KINDS[0], **place.arguments) as made:
        first = made.ask("one")
        made.ask("two")

    sent = place.seen()[1]["body"]["messages"][1]
    assert sent["reasoning_details"] == first.message["reasoning_details"]
    assert sent["reasoning"] == first.thinking


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_an_answer_begins_with_the_prefix_that_was_given(place: Place, kind: type[Talk]) -> None:
    with talk(kind, **place.arguments) as made:
        asked = made.ask("Go on.", prefix="Once upon")
        heard = made.stream("And then?", prefix="In the end")
        kept = [turn["content"] for turn in made.chat.messages if turn["role"] == "assistant"]

    assert asked.text.startswith("Once upon (synthetic continuation")
    assert heard.joined(TextDelta) == heard.reply.text
    assert heard.reply.text.startswith("In the end (synthetic continuation")
    assert kept == [asked.text, heard.reply.text]
    body = place.seen()[0]["body"]
    if place.name in ("vllm", "sglang"):
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
        assert "partial" not in body["messages"][-1]
    else:
        assert body["messages"][-1]["partial"] is True
