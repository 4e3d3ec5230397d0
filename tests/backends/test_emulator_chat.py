"""Chat completions of the emulator over real sockets: text, thoughts, streams, usage."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from support.emulated import PRO, chat, emulator, folded, message, stream

ASKED = {"role": "user", "content": "Say hello."}


@pytest.fixture(scope="module")
def shared() -> Iterator[httpx2.Client]:
    with emulator() as client:
        yield client


# --- text and thought -----------------------------------------------------------------------------------------


def test_an_answer_has_the_documented_fields(shared: httpx2.Client) -> None:
    answer = chat(shared, ASKED)
    assert set(answer) == {"id", "object", "created", "model", "choices", "usage"}
    assert answer["object"] == "chat.completion"
    assert answer["model"] == PRO
    assert answer["id"].startswith("chatcmpl-")
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert set(choice["message"]) == {"role", "content", "reasoning_content"}
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]


def test_text_and_thought_say_that_they_are_synthetic(shared: httpx2.Client) -> None:
    held = message(shared, ASKED)
    assert held["content"].startswith("Synthetic answer of the Kimi emulator")
    assert held["reasoning_content"].startswith("Synthetic thought of the Kimi emulator")
    assert "Say hello." in held["content"]


def test_the_same_request_gives_the_same_text_streamed_or_not_on_either_tier(shared: httpx2.Client) -> None:
    held = message(shared, ASKED)
    assert message(shared, ASKED) == held
    assert message(shared, ASKED, model="kimi-k3.1-pro-highspeed") == held
    streamed = folded(stream(shared, ASKED))
    assert (streamed["thought"], streamed["text"]) == (held["reasoning_content"], held["content"])


def test_ids_differ_between_answers_to_the_same_request(shared: httpx2.Client) -> None:
    assert chat(shared, ASKED)["id"] != chat(shared, ASKED)["id"]


def test_another_seed_gives_another_text(shared: httpx2.Client) -> None:
    with emulator(seed=1) as other:
        assert message(other, ASKED)["content"] != message(shared, ASKED)["content"]


@pytest.mark.parametrize("text", ["one", "two", "three", "what is this"])
def test_the_length_of_the_thought_follows_the_effort(shared: httpx2.Client, text: str) -> None:
    asked = {"role": "user", "content": text}
    low, high, most, absent, unknown = (
        len(message(shared, asked, reasoning_effort=effort)["reasoning_content"])
        for effort in ("low", "high", "max", None, "turbo")
    )
    assert low < high < most
    assert absent == unknown > high  # absent means max, and a word it does not know runs as max


def test_the_thinking_objects_effort_goes_before_the_other(shared: httpx2.Client) -> None:
    held = message(shared, ASKED, reasoning_effort="max", thinking={"type": "enabled", "effort": "low"})
    assert held == message(shared, ASKED, reasoning_effort="low")


def test_it_thinks_even_where_thinking_is_to_be_off(shared: httpx2.Client) -> None:
    assert message(shared, ASKED, thinking={"type": "disabled"})["reasoning_content"]


def test_partial_mode_continues_the_prefix_without_repeating_it(shared: httpx2.Client) -> None:
    held = message(shared, ASKED, {"role": "assistant", "content": "Well,", "partial": True})
    assert held["content"].startswith(" (synthetic continuation")
    assert held["reasoning_content"]


# --- streams --------------------------------------------------------------------------------------------------


def test_a_stream_begins_with_the_role_then_thinks_then_speaks(shared: httpx2.Client) -> None:
    chunks = stream(shared, ASKED)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    kinds = [next(iter(delta)) for delta in deltas[1:-1]]
    first_text = kinds.index("content")
    assert set(kinds[:first_text]) == {"reasoning_content"}
    assert set(kinds[first_text:]) == {"content"}
    assert deltas[-1] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1


def places(chunks: list[dict[str, Any]]) -> set[str]:
    found = set()
    for chunk in chunks:
        if not chunk["choices"]:
            found.add("extra")
        elif chunk.get("usage"):
            found.add("finish")
        if chunk["choices"] and chunk["choices"][0].get("usage"):
            found.add("choice")
    return found


@pytest.mark.parametrize(
    ("config", "asked", "expected"),
    [
        ({}, False, {"choice"}),
        ({}, True, {"choice", "extra"}),
        ({"usage_places": ("finish",)}, False, {"finish"}),
        ({"usage_places": ("finish", "extra")}, True, {"finish", "extra"}),
        ({"usage_places": ("extra",)}, False, set()),
        ({"usage_places": ("choice", "finish", "extra")}, True, {"choice", "finish", "extra"}),
    ],
)
def test_usage_stands_in_each_documented_place(config: dict[str, Any], asked: bool, expected: set[str]) -> None:
    with emulator(**config) as client:
        chunks = stream(client, ASKED, stream_options={"include_usage": asked})
        whole = chat(client, ASKED)["usage"]
    assert places(chunks) == expected
    for chunk in chunks:
        for holder in (chunk, *chunk["choices"]):
            assert holder.get("usage") in (None, whole)
    if asked:  # then the other chunks say null
        assert all("usage" in chunk for chunk in chunks)


def test_usage_places_can_vary_from_request_to_request() -> None:
    with emulator(vary_usage_places=True) as client:
        found = {
            frozenset(places(stream(client, ASKED, stream_options={"include_usage": True}))) for _ in range(30)
        }
    assert {frozenset({"choice"}), frozenset({"finish"}), frozenset({"choice", "extra"})} <= found


def test_log_probabilities_have_the_same_digits_streamed_or_not(shared: httpx2.Client) -> None:
    whole = chat(shared, ASKED, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    pieces = [
        token
        for chunk in stream(shared, ASKED, logprobs=True, top_logprobs=2)
        for token in (chunk["choices"][0].get("logprobs") or {"content": []})["content"]
    ]
    assert pieces == whole
    assert "".join(token["token"] for token in whole) == message(shared, ASKED)["content"]
    assert all(len(token["top_logprobs"]) == 2 and token["logprob"] < 0 for token in whole)


def test_a_multibyte_prompt_comes_back_unbroken_in_a_stream(shared: httpx2.Client) -> None:
    said = "你好 🌍 " * 3
    asked = {"role": "user", "content": said}
    assert said.strip() in folded(stream(shared, asked))["text"]
