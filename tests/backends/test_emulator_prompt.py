"""The emulator's prompt encoding: a conversation that grows at its end keeps its prefix, nothing else does."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.emulator.moonshot import MOONSHOT
from backends.emulator.parse import parse_request
from backends.emulator.prompt import Prompt, encode_prompt
from backends.json import as_object, decode, encode

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def prompt(messages: list[dict[str, Any]], **fields: Any) -> Prompt:
    body = as_object(decode(encode({"model": "kimi-k3.1-pro", "messages": messages, **fields})))
    assert body is not None
    request = parse_request(body, MOONSHOT)
    return encode_prompt(request, MOONSHOT)


def shared_tokens(left: Prompt, right: Prompt) -> int:
    same = 0
    for at in range(0, min(len(left.data), len(right.data)), 4):
        if left.data[at : at + 4] != right.data[at : at + 4]:
            break
        same += 1
    return same


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, thought: str = "I think.") -> dict[str, Any]:
    return {"role": "assistant", "content": text, "reasoning_content": thought}


TURNS = st.lists(st.tuples(st.text(min_size=1, max_size=40), st.text(max_size=40)), min_size=1, max_size=5)


@settings(max_examples=100, deadline=None)
@given(TURNS, st.text(min_size=1, max_size=20))
def test_an_appended_turn_extends_the_prompt(turns: list[tuple[str, str]], last: str) -> None:
    messages = [message for said, answer in turns for message in (user(said), assistant(answer or "."))]
    shorter = prompt([*messages, user(last)])
    longer = prompt([*messages, user(last), assistant("yes"), user("on")])
    assert longer.data.startswith(shorter.data)  # the opening of the answer is the next turn's thought


@settings(max_examples=100, deadline=None)
@given(TURNS, st.data())
def test_a_changed_turn_breaks_the_prompt_at_that_turn(turns: list[tuple[str, str]], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(turns) - 1))
    before = [user(said) for said, _ in turns]
    after = [*before[:at], user(before[at]["content"] + "!"), *before[at + 1 :]]
    kept = shared_tokens(prompt(before), prompt(after))
    start = prompt([*before[:at], user("?")]).tokens - prompt([user("?")]).tokens
    assert start <= kept < prompt(before).tokens


@pytest.mark.parametrize(
    "change",
    [
        {"reasoning_effort": "low"},
        {"tools": [WEATHER]},
        {"reasoning_effort": "max"},
    ],
)
def test_effort_and_tools_stand_before_the_conversation(change: dict[str, Any]) -> None:
    plain, changed = prompt([user("hello there")]), prompt([user("hello there")], **change)
    assert shared_tokens(plain, changed) <= 1


def test_only_the_tools_stay_common_when_the_effort_changes() -> None:
    low = prompt([user("hi")], tools=[WEATHER], reasoning_effort="low")
    high = prompt([user("hi")], tools=[WEATHER], reasoning_effort="high")
    alone = prompt([user("hi")], tools=[WEATHER]).tokens - prompt([user("hi")]).tokens
    assert alone <= shared_tokens(low, high) < low.tokens - 4


@pytest.mark.parametrize(
    "change",
    [{"tool_choice": "required"}, {"response_format": {"type": "json_object"}}],
)
def test_tool_choice_and_format_stand_after_the_conversation(change: dict[str, Any]) -> None:
    plain = prompt([user("hello there")], tools=[WEATHER])
    changed = prompt([user("hello there")], tools=[WEATHER], **change)
    assert shared_tokens(plain, changed) > plain.tokens - 10


def test_an_unknown_effort_is_as_if_none_was_given() -> None:
    assert prompt([user("hi")], reasoning_effort="turbo") == prompt([user("hi")])


def test_a_thought_in_the_history_counts() -> None:
    without = prompt([user("hi"), assistant("yes", ""), user("on")])
    with_it = prompt([user("hi"), assistant("yes", "x" * 400), user("on")])
    assert with_it.tokens - without.tokens == 100


@pytest.mark.parametrize("thought", ["", " ", None])
def test_a_blank_thought_is_an_empty_channel(thought: str | None) -> None:
    blank = {"role": "assistant", "content": "yes", "reasoning_content": thought}
    absent = {"role": "assistant", "content": "yes"}
    assert prompt([user("hi"), blank, user("on")]) == prompt([user("hi"), absent, user("on")])


def test_text_parts_are_the_same_prompt_as_their_joined_string() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert prompt([{"role": "user", "content": parts}]) == prompt([user("one two")])


def test_tool_results_stand_in_the_order_of_their_calls_and_ids_do_not_count() -> None:
    def turn(ids: list[str], order: list[int]) -> list[dict[str, Any]]:
        calls = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in ids]
        results = [{"role": "tool", "tool_call_id": ids[at], "content": f"result {at}"} for at in order]
        return [user("go"), {"role": "assistant", "content": "", "tool_calls": calls}, *results]

    assert prompt(turn(["a", "b"], [0, 1])) == prompt(turn(["x:0", "x:1"], [1, 0]))


def test_an_image_has_a_flat_count_and_its_own_identity() -> None:
    def picture(data: str) -> Prompt:
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return prompt([{"role": "user", "content": [part]}])

    small, large = picture("iVBORw0KGgo="), picture("iVBORw0KGgo" * 1000)
    assert small.tokens == large.tokens
    assert small.tokens - prompt([user("")]).tokens == MOONSHOT.image_tokens
    assert small != large


@settings(max_examples=100, deadline=None)
@given(TURNS)
def test_a_prompt_never_has_more_tokens_than_its_request_has_bytes(turns: list[tuple[str, str]]) -> None:
    messages = [message for said, answer in turns for message in (user(said), assistant(answer))]
    body = encode({"model": "kimi-k3.1-pro", "messages": messages})
    assert prompt(messages).tokens <= len(body)
