"""Past tool calls and empty turns: what would poison a session is mended, everything else keeps its bytes."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.json import Json, JsonObject
from backends.tool_history import (
    UNSET,
    are_arguments_sound,
    content_without_blank_parts,
    is_blank_part,
    is_empty_turn,
    may_be_empty_turn,
    may_hold_blank_parts,
    mended_calls,
    mended_content,
    sound_arguments,
)
from support.cases import case

Raw = msgspec.Raw


def text(value: str) -> dict[str, Json]:
    return {"type": "text", "text": value}


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


def calls(*arguments: object) -> list[dict[str, Any]]:
    return [
        {"id": f"f:{index}", "type": "function", "function": {"name": "f", "arguments": one}}
        for index, one in enumerate(arguments)
    ]


# --- blank parts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [[text("")], [text("  ")], [text("\n\t ")], [text("\u3000")], [{"text": ""}], []]
)
def test_content_of_nothing_but_blank_parts_is_left_out(content: Any) -> None:
    assert content_without_blank_parts(content) is UNSET
    assert may_hold_blank_parts(raw(content))
    mended = mended_content(raw(content))
    assert mended is not None
    assert mended.members == {"content": UNSET}
    assert mended.paths == ("content",)


@pytest.mark.parametrize("content", [None, "", "text", " ", [text("a")], [text(" a ")], [{"type": "image_url"}]])
def test_other_content_stays_the_same_object(content: Any) -> None:
    assert content_without_blank_parts(content) is content
    assert mended_content(raw(content)) is None


def test_the_real_part_beside_a_blank_one_keeps_its_bytes() -> None:
    real = b'{ "type":"text", "text" : "a\\u0062" }'
    mended = mended_content(Raw(b"[" + real + b', {"type":"text","text":" "}]'))
    assert mended is not None
    kept = mended.members["content"]
    assert isinstance(kept, list)
    assert [bytes(part) for part in kept] == [real]
    assert content_without_blank_parts([text("a"), text("")]) == [text("a")]


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "text": ""}, {"type": "text"}, {"type": "text", "text": 1}, ""]
)
def test_a_part_that_is_not_text_is_not_blank(part: Any) -> None:
    assert not is_blank_part(part)


@given(st.lists(st.text(alphabet=' \t\n\r\u3000\u00a0\x0bab\\"', max_size=4), max_size=3), st.booleans())
def test_the_cheap_look_never_misses_a_blank_part(texts: list[str], ascii_only: bool) -> None:
    content: list[Any] = [text(one) for one in texts]
    data = Raw(json.dumps(content, ensure_ascii=ascii_only).encode())
    if content_without_blank_parts(content) is not content:
        assert may_hold_blank_parts(data)
        assert mended_content(data) is not None
    else:
        assert mended_content(data) is None


def test_case_tool_05() -> None:
    message = case("tool-05")["given"]["client_request"]["messages"][1]
    mended = mended_content(raw(message["content"]))
    assert mended is not None
    assert mended.members == {"content": UNSET}
    assert mended_calls(raw(message["tool_calls"])) is None
    assert not is_empty_turn(message)
    assert not may_be_empty_turn(raw(message["content"]), raw(message["tool_calls"]))


# --- arguments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["{}", '{"a":1}', ' {"a": [1, 2.50]} ', '{"a":NaN}', '{"a":"\\ud800"}'])
def test_arguments_that_hold_an_object_stay(arguments: str) -> None:
    assert sound_arguments(arguments) is arguments
    assert are_arguments_sound(raw(calls(arguments)))
    assert mended_calls(raw(calls(arguments))) is None


@pytest.mark.parametrize(
    "arguments",
    ["", " ", "{", '{"cmd":"ls", bg": true}', "[1]", "null", '"text"', "7", '{"a":1}{"b":2}', None, 7, []],
)
def test_arguments_that_no_engine_can_decode_become_an_empty_object(arguments: Any) -> None:
    assert sound_arguments(arguments) == "{}"
    assert not are_arguments_sound(raw(calls("{}", arguments)))
    mended = mended_calls(raw(calls("{}", arguments)))
    assert mended is not None
    assert mended.paths == ("tool_calls[1].function.arguments",)
    assert json.loads(msgspec.json.encode(mended.members["tool_calls"])) == calls("{}", "{}")


def test_an_object_sent_instead_of_its_text_becomes_its_text() -> None:
    assert sound_arguments({"a": 1}) == '{"a":1}'
    mended = mended_calls(raw(calls({"a": 1})))
    assert mended is not None
    assert json.loads(msgspec.json.encode(mended.members["tool_calls"])) == calls('{"a":1}')


def test_a_call_without_arguments_gets_empty_ones() -> None:
    mended = mended_calls(raw([{"id": "a", "type": "function", "function": {"name": "f"}}]))
    assert mended is not None
    (call,) = json.loads(msgspec.json.encode(mended.members["tool_calls"]))
    assert call["function"] == {"name": "f", "arguments": "{}"}


def test_everything_but_the_arguments_keeps_its_bytes() -> None:
    sound = b'{ "id":"a:0", "type":"function", "function":{"name":"f","arguments":"{ }"} }'
    broken = b'{"x": 1.50, "id":"a:1", "function":{"arguments":"{","name":"\\u0066"}, "type":"function"}'
    mended = mended_calls(Raw(b"[" + sound + b"," + broken + b"]"))
    assert mended is not None
    assert msgspec.json.encode(mended.members["tool_calls"]) == (
        b"[" + sound + b',{"x":1.50,"id":"a:1","function":{"arguments":"{}","name":"\\u0066"},"type":"function"}]'
    )


@pytest.mark.parametrize("tool_calls", [b"null", b"[]", b"{}", b"7", b"[7]", b'[{"function":7}]', b'[{"id":"a"}]'])
def test_what_are_no_calls_is_left_to_others(tool_calls: bytes) -> None:
    assert mended_calls(Raw(tool_calls)) is None
    assert mended_calls(UNSET) is None
    assert are_arguments_sound(UNSET)
    assert are_arguments_sound(Raw(b"null"))


def test_case_tool_06() -> None:
    given = case("tool-06")
    message = given["given"]["client_request"]["messages"][1]
    mended = mended_calls(raw(message["tool_calls"]))
    assert mended is not None
    (call,) = json.loads(msgspec.json.encode(mended.members["tool_calls"]))
    expected = given["expect"]["either"][0]["upstream_body"]
    assert {f"messages[1].{path}": call["function"]["arguments"] for path in mended.paths} == expected
    assert call["id"] == message["tool_calls"][0]["id"]


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))
)
def test_whatever_stands_there_decodes_to_an_object_afterwards(arguments: Any) -> None:
    assert isinstance(json.loads(sound_arguments(arguments)), dict)
    mended = mended_calls(raw(calls(arguments)))
    if mended is not None:
        made = Raw(msgspec.json.encode(mended.members["tool_calls"]))
        assert are_arguments_sound(made)
        assert mended_calls(made) is None


# --- empty turns ----------------------------------------------------------------------------------------------


def turn(**members: Any) -> JsonObject:
    return {"role": "assistant", **members}


EMPTY = [
    turn(),
    turn(content=None),
    turn(content=""),
    turn(content=[]),
    turn(content=[text(" ")]),
    turn(content="", reasoning_content="was thinking"),
    turn(content="", tool_calls=[]),
    turn(content=None, tool_calls=None),
]
FULL = [
    turn(content="a"),
    turn(content=" "),
    turn(content=[text(""), text("a")]),
    turn(content=[{"type": "image_url", "image_url": "ms://a"}]),
    turn(content="", tool_calls=calls("{}")),
    turn(content="", partial=True),
    turn(content=None, refusal="no"),
    turn(content=None, function_call={"name": "f", "arguments": "{}"}),
    {"role": "user", "content": ""},
    {"role": "system", "tools": []},
    {"role": "tool", "content": "", "tool_call_id": "a"},
]


@pytest.mark.parametrize("message", EMPTY)
def test_an_assistant_turn_without_content_and_calls_is_empty(message: JsonObject) -> None:
    assert is_empty_turn(message)
    content = raw(message["content"]) if "content" in message else UNSET
    tool_calls = raw(message["tool_calls"]) if "tool_calls" in message else UNSET
    assert may_be_empty_turn(content, tool_calls)


@pytest.mark.parametrize("message", FULL)
def test_anything_else_is_not(message: JsonObject) -> None:
    assert not is_empty_turn(message)


@pytest.mark.parametrize(
    "content", ['"some words"', '[{"type":"text","text":"some words"}]', '[{"type":"image_url"}]']
)
def test_a_turn_with_something_in_it_needs_no_look(content: str) -> None:
    assert not may_be_empty_turn(Raw(content.encode()), UNSET)


def test_case_hist_04() -> None:
    messages = case("hist-04")["given"]["client_request"]["messages"]
    assert [is_empty_turn(message) for message in messages] == [False, True, False]
