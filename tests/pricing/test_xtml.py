"""The frame around a chat: what it costs, which texts stand in it, and what of a request is never counted."""

from decimal import Decimal
from functools import cache
from pathlib import Path

import pytest

from pricing.vocabulary import Vocabulary, load_vocabulary
from pricing.xtml import (
    CHOICE_TOKENS,
    DECLARE_TOKENS,
    EFFORT_TOKENS,
    EXTEND_TOKENS,
    JSON_OBJECT_TOKENS,
    JSON_SCHEMA_TOKENS,
    VALUE_TOKENS,
    ChatError,
    Prompt,
    Request,
    frame_chat,
)
from support.shared import shared_path

USER = 11  # open, name, role=, user, sep; close, name, sep, end
ASSISTANT = USER + 6 + 6  # think and response, opened and closed
GENERATION = 10  # assistant opened, think opened
ALONE = USER + GENERATION
NAME = 3
SYSTEM = USER + NAME  # with a type, whose value comes on top

TAGS = ("message", "think", "response", "tools", "call", "argument", "json")
ATTRIBUTES = (" role", " type", " name", " tool", " index", " key", '="', '"')
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"


@cache
def _load(path: Path) -> Vocabulary:
    return load_vocabulary(path)


@pytest.fixture
def vocabulary() -> Vocabulary:
    return _load(shared_path("tokenizer/tiktoken.model"))


def user(content: object = "hi") -> dict[str, object]:
    return {"role": "user", "content": content}


def assistant(**fields: object) -> dict[str, object]:
    return {"role": "assistant", **fields}


def call(name: str, arguments: object, **fields: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def framed(*messages: Request, **fields: object) -> Prompt:
    return frame_chat({"model": "kimi-k3.1-pro", "messages": list(messages), **fields})


def test_names_and_values_of_the_frame_have_the_tokens_they_are_said_to_have(vocabulary: Vocabulary) -> None:
    assert {text: vocabulary.count(text) for text in (*TAGS, *ATTRIBUTES)} == dict.fromkeys(
        (*TAGS, *ATTRIBUTES), 1
    )
    assert {text: vocabulary.count(text) for text in VALUE_TOKENS} == VALUE_TOKENS
    assert all(vocabulary.count(str(number)) == -(-len(str(number)) // 3) for number in range(2000))


def test_a_whole_tool_turn_counts_what_its_pieces_count(vocabulary: Vocabulary) -> None:
    """Written out piece by piece; the capitals are control tokens."""
    argument = 'OPEN~argument~ key~="~{}~"~ type~="~{}~"~SEP~{}~CLOSE~argument~SEP'
    pieces = "~".join(
        (
            'OPEN~message~ role~="~user~"~SEP~Weather in Graz?~CLOSE~message~SEP~END',
            'OPEN~message~ role~="~assistant~"~SEP~OPEN~think~SEP~I look it up.~CLOSE~think~SEP',
            'OPEN~response~SEP~CLOSE~response~SEP~OPEN~tools~SEP~OPEN~call~ tool~="~weather~"~ index~="~1~"~SEP',
            argument.format("city", "string", "Graz"),
            argument.format("days", "number", "2"),
            argument.format("where", "object", '{"zip": 8010, "in": ["AT"]}'),
            "CLOSE~call~SEP~CLOSE~tools~SEP~CLOSE~message~SEP~END",
            'OPEN~message~ role~="~tool~"~ tool~="~weather~"~ index~="~1~"~SEP~sunny~CLOSE~message~SEP~END',
            'OPEN~message~ role~="~assistant~"~SEP~OPEN~think~SEP',
        )
    ).split("~")
    expected = sum(1 if piece.isupper() and len(piece) > 1 else vocabulary.count(piece) for piece in pieces)

    arguments = '{"city":"Graz","days":2,"where":{"zip":8010,"in":["AT"]}}'
    prompt = framed(
        user("Weather in Graz?"),
        assistant(
            reasoning_content="I look it up.", content=None, tool_calls=[call("weather", arguments, id="a")]
        ),
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
    )

    assert prompt.frame_tokens + sum(vocabulary.count(text) for text in prompt.texts) == expected


def test_one_message_has_its_own_tags_and_those_of_the_answer_to_come() -> None:
    assert framed(user()).frame_tokens == ALONE == 21
    assert framed(user(), user()).frame_tokens == ALONE + USER
    assert framed(user()).texts == ["hi"]


def test_an_assistant_message_always_has_its_thought_channel() -> None:
    with_thought = framed(user(), assistant(content="yo", reasoning_content="hm"))
    without = framed(user(), assistant(content="yo"))

    assert with_thought.frame_tokens == without.frame_tokens == ALONE + ASSISTANT
    assert with_thought.texts == ["hi", "hm", "yo"]
    assert without.texts == ["hi", "yo"]


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"reasoning": "hm"}, ["hm"]),
        ({"reasoning_content": "", "reasoning": "hm"}, ["hm"]),
        ({"reasoning_content": " \n"}, []),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "h"}, {"summary": "m"}, 7]}, ["hm"]),
        ({"reasoning_content": None}, []),
    ],
)
def test_a_thought_is_found_under_each_of_its_names(fields: dict[str, object], texts: list[str]) -> None:
    assert framed(assistant(**fields)).texts == texts


def test_with_thinking_off_no_message_has_a_thought() -> None:
    thought = assistant(content="yo", reasoning_content="hm")

    for fields in ({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}):
        prompt = framed(user(), thought, **fields)
        assert prompt.frame_tokens == ALONE + ASSISTANT - 6
        assert prompt.texts == ["hi", "yo"]
        assert prompt.unsent_tokens == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "low"},
        {"thinking": {"type": "enabled", "effort": "low"}},
        {"reasoning": {"effort": "low"}},
    ],
)
def test_an_effort_costs_a_system_message(fields: dict[str, object]) -> None:
    prompt = framed(user(), **fields)

    assert prompt.frame_tokens == ALONE + SYSTEM + VALUE_TOKENS["thinking-effort"] + EFFORT_TOKENS["low"]
    assert prompt.unsent_tokens == 0


def test_without_an_effort_its_message_is_only_a_possibility() -> None:
    prompt = framed(user())

    assert prompt.unsent_tokens == SYSTEM + VALUE_TOKENS["thinking-effort"] + max(EFFORT_TOKENS.values())


def test_an_unknown_effort_is_named() -> None:
    assert framed(user(), reasoning_effort="ultra").doubts == ("the effort is none of low, medium, high, max",)


def test_tools_are_compact_json_with_sorted_keys() -> None:
    prompt = framed(user(), tools=[WEATHER])

    assert prompt.texts[0] == (
        '[{"function":{"name":"weather","parameters":{"type":"object"}},"type":"function"}]\n```'
    )
    assert prompt.frame_tokens == ALONE + SYSTEM + VALUE_TOKENS["tool-declare"] + DECLARE_TOKENS
    assert framed(user(), tools=[]) == framed(user()) == framed(user(), tools=None)


def test_tools_may_come_later_in_a_system_message() -> None:
    prompt = framed(user(), {"role": "system", "tools": [WEATHER]})

    assert prompt.frame_tokens == ALONE + SYSTEM + VALUE_TOKENS["tool-declare"] + EXTEND_TOKENS
    assert prompt.texts[1].startswith('[{"function"')


def test_numbers_are_written_as_the_encoder_writes_them() -> None:
    schema = {"minimum": Decimal("1.50"), "maximum": Decimal("1E+2"), "default": 7}

    assert framed(user(), tools=[schema]).texts[0].startswith('[{"default":7,"maximum":100.0,"minimum":1.5}]')


@pytest.mark.parametrize("choice", ["required", "none"])
def test_a_tool_choice_costs_a_system_message(choice: str) -> None:
    cost = SYSTEM + VALUE_TOKENS["tool-choice"] + CHOICE_TOKENS[choice]

    assert framed(user(), tool_choice=choice).frame_tokens == ALONE + cost


def test_a_named_function_costs_what_required_costs_and_auto_nothing() -> None:
    named = {"type": "function", "function": {"name": "weather"}}

    assert framed(user(), tool_choice=named) == framed(user(), tool_choice="required")
    assert framed(user(), tool_choice="auto") == framed(user())


@pytest.mark.parametrize(
    "wrapped", [{"name": "out", "schema": {"b": 1, "a": 2}}, {"json_schema": {"a": 2, "b": 1}}]
)
def test_a_json_schema_is_in_the_prompt(wrapped: dict[str, object]) -> None:
    prompt = framed(user(), response_format={"type": "json_schema", "json_schema": wrapped})

    assert prompt.texts == ["hi", '{"a":2,"b":1}\n```']
    assert prompt.frame_tokens == ALONE + SYSTEM + VALUE_TOKENS["response-format"] + JSON_SCHEMA_TOKENS


def test_a_json_object_is_only_asked_for() -> None:
    prompt = framed(user(), response_format={"type": "json_object"})

    assert prompt.frame_tokens == ALONE + SYSTEM + VALUE_TOKENS["response-format"] + JSON_OBJECT_TOKENS
    assert framed(user(), response_format={"type": "text"}) == framed(user())


def test_a_name_is_an_attribute_and_escaped() -> None:
    prompt = framed({"role": "user", "content": "hi", "name": 'a&"b'})

    assert prompt.texts == ["a&amp;&quot;b", "hi"]
    assert prompt.frame_tokens == ALONE + NAME


def test_each_argument_of_a_call_is_an_element() -> None:
    one = framed(assistant(tool_calls=[call("f", {"s": "x"})]))
    two = framed(assistant(tool_calls=[call("f", '{"s":"x","n":[1, null]}')]))

    assert one.texts == ["f", "s", "x"]
    assert two.texts == ["f", "s", "x", "n", "[1, null]"]
    assert two.frame_tokens - one.frame_tokens == 3 + 2 * NAME + VALUE_TOKENS["array"] + 3


@pytest.mark.parametrize("arguments", ["", None, "{}", {}])
def test_a_call_may_have_no_arguments(arguments: object) -> None:
    prompt = framed(assistant(tool_calls=[call("f", arguments)]))

    assert (prompt.texts, prompt.doubts) == (["f"], ())


def test_arguments_that_are_not_json_are_kept_as_they_are() -> None:
    prompt = framed(assistant(tool_calls=[call("f", '{"a": 1')]))

    assert (prompt.texts, prompt.doubts) == (["f", '{"a": 1'], ())


def test_arguments_that_are_no_object_are_counted_and_named() -> None:
    prompt = framed(assistant(tool_calls=[call("f", "[1]")]))

    assert prompt.texts == ["f", "[1]"]
    assert prompt.doubts == (
        "messages[0].tool_calls[0].function.arguments is JSON but not an object, which the encoder refuses",
    )


def test_a_tool_result_takes_its_name_from_its_call_in_any_order() -> None:
    calls = assistant(tool_calls=[call("first", {}, id="a"), call("second", {}, id="b")])
    prompt = framed(
        calls,
        {"role": "tool", "tool_call_id": "b", "name": "stale", "content": "2"},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    )

    assert prompt.texts == ["first", "second", "second", "2", "first", "1"]
    assert prompt.doubts == ()


def test_a_tool_result_without_an_id_is_named_by_itself_or_by_its_place() -> None:
    calls = assistant(tool_calls=[call("first", {})])

    assert framed(calls, {"role": "tool", "tool": "own", "content": "1"}).texts == ["first", "own", "1"]
    assert framed(calls, {"role": "tool", "content": "1"}).texts == ["first", "first", "1"]


def test_a_tool_result_of_no_call_is_counted_and_named() -> None:
    prompt = framed({"role": "tool", "tool_call_id": "x", "content": "1"})

    assert prompt.texts == ["1"]
    assert prompt.doubts == ("messages[0] is the result of no known tool call, which the encoder refuses",)


def test_media_are_never_text() -> None:
    parts = [
        {"type": "text", "text": "look: "},
        {"type": "image_url", "image_url": {"url": PIXEL}},
        {"type": "image_url", "image_url": PIXEL},
        {"type": "video_url", "video_url": {"url": "ms://file"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    ]
    prompt = framed(user(parts), {"role": "tool", "tool": "shot", "content": parts[:2]})

    assert prompt.texts == ["look: ", "shot", "look: "]
    assert prompt.media_parts == 5


def test_a_string_of_content_is_text_whatever_it_looks_like() -> None:
    """Moonshot counts a part list sent as a JSON string as text."""
    content = f'[{{"type":"image_url","image_url":{{"url":"{PIXEL}"}}}}]'

    assert framed(user(content)).texts == [content]
    assert framed(user(content)).media_parts == 0


def test_an_answer_begun_by_the_client_stays_open() -> None:
    begun = framed(user(), assistant(content="{", partial=True))

    assert begun.frame_tokens == USER + ASSISTANT - 3 - 4
    assert begun.texts == ["hi", "{"]


def test_a_developer_is_a_system_and_another_role_is_named() -> None:
    assert framed({"role": "developer", "content": "x"}) == framed({"role": "system", "content": "x"})
    assert framed({"role": "narrator", "content": "x"}).doubts == ("messages[0].role is unknown to the encoder",)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [7]}]}, "messages[0].tool_calls[0]"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "messages[0].tool_calls[0].function.name",
        ),
        ({"messages": [], "tools": "x"}, "tools"),
    ],
)
def test_what_is_no_chat_is_refused_with_its_path(body: dict[str, object], path: str) -> None:
    with pytest.raises(ChatError, match=r"must be") as caught:
        frame_chat(body)

    assert caught.value.path == path
