"""Past tool calls and blank texts: what would poison a session is mended, everything else keeps its bytes."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.tool_history import call_ids, is_blank_text, is_sound, mended_calls, read_calls, sound_arguments
from support.cases import case

Raw = msgspec.Raw


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


def are_sound(tool_calls: Raw) -> bool:
    """Every call is one, and its arguments hold an object."""
    read = read_calls(tool_calls)
    return read is not None and all(map(is_sound, read))


def calls(*arguments: object) -> list[dict[str, Any]]:
    return [
        {"id": f"f:{index}", "type": "function", "function": {"name": "f", "arguments": one}}
        for index, one in enumerate(arguments)
    ]


# --- blank texts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", " ", "\n\t ", "\u3000", "\u00a0 \x0b"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_white_space_is_blank_however_it_is_written(value: str, ascii_only: bool) -> None:
    assert is_blank_text(Raw(json.dumps(value, ensure_ascii=ascii_only).encode()))


@pytest.mark.parametrize("value", [None, 0, 7, [], {}, True, "a", " a", "!", '"', "\\", "\u4ef7", "\\n"])
def test_anything_else_is_not(value: object) -> None:
    assert not is_blank_text(raw(value))


@given(st.text(alphabet=' \t\n\r\u3000\u00a0\x0bab\\"', max_size=4), st.booleans())
def test_a_text_is_blank_if_nothing_is_left_of_it(value: str, ascii_only: bool) -> None:
    data = Raw(json.dumps(value, ensure_ascii=ascii_only).encode())
    assert is_blank_text(data) == (not value.strip())


# --- arguments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["{}", '{"a":1}', ' {"a": [1, 2.50]} ', '{"a":NaN}', '{"a":"\\ud800"}'])
def test_arguments_that_hold_an_object_stay(arguments: str) -> None:
    assert sound_arguments(arguments) is arguments
    assert are_sound(raw(calls(arguments)))
    assert mended_calls(raw(calls(arguments))) is None


@pytest.mark.parametrize(
    "arguments",
    ["", " ", "{", '{"cmd":"ls", bg": true}', "[1]", "null", '"text"', "7", '{"a":1}{"b":2}', None, 7, []],
)
def test_arguments_that_no_engine_can_decode_become_an_empty_object(arguments: Any) -> None:
    assert sound_arguments(arguments) == "{}"
    assert not are_sound(raw(calls("{}", arguments)))
    mended = mended_calls(raw(calls("{}", arguments)))
    assert mended is not None
    assert mended.paths == ("tool_calls[1].function.arguments",)
    assert json.loads(msgspec.json.encode(mended.calls)) == calls("{}", "{}")


def test_an_object_sent_instead_of_its_text_becomes_its_text() -> None:
    assert sound_arguments({"a": 1}) == '{"a":1}'
    mended = mended_calls(raw(calls({"a": 1})))
    assert mended is not None
    assert json.loads(msgspec.json.encode(mended.calls)) == calls('{"a":1}')


def test_ids_are_read_whatever_the_shape_of_a_call() -> None:
    odd = raw([{"id": "a"}, {"id": None}, {"id": 7, "function": 1}, 7, {}, {"id": "b"}])
    assert read_calls(odd) is None
    assert call_ids(odd) == ["a", "", "", "", "", "b"]
    assert call_ids(raw(None)) == []


def test_a_call_without_arguments_gets_empty_ones() -> None:
    mended = mended_calls(raw([{"id": "a", "type": "function", "function": {"name": "f"}}]))
    assert mended is not None
    (call,) = json.loads(msgspec.json.encode(mended.calls))
    assert call["function"] == {"name": "f", "arguments": "{}"}


def test_everything_but_the_arguments_keeps_its_bytes() -> None:
    sound = b'{ "id":"a:0", "type":"function", "function":{"name":"f","arguments":"{ }"} }'
    broken = b'{"x": 1.50, "id":"a:1", "function":{"arguments":"{","name":"\\u0066"}, "type":"function"}'
    mended = mended_calls(Raw(b"[" + sound + b"," + broken + b"]"))
    assert mended is not None
    assert msgspec.json.encode(mended.calls) == (
        b"[" + sound + b',{"x":1.50,"id":"a:1","function":{"arguments":"{}","name":"\\u0066"},"type":"function"}]'
    )


@pytest.mark.parametrize("tool_calls", [b"null", b"[]", b"{}", b"7", b"[7]", b'[{"function":7}]', b'[{"id":"a"}]'])
def test_what_are_no_calls_is_left_to_others(tool_calls: bytes) -> None:
    assert mended_calls(Raw(tool_calls)) is None


def test_case_tool_06() -> None:
    given = case("tool-06")
    message = given["given"]["client_request"]["messages"][1]
    mended = mended_calls(raw(message["tool_calls"]))
    assert mended is not None
    (call,) = json.loads(msgspec.json.encode(mended.calls))
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
        made = Raw(msgspec.json.encode(mended.calls))
        assert are_sound(made)
        assert mended_calls(made) is None


def test_a_long_text_outside_ascii_is_judged_by_its_beginning() -> None:
    text = msgspec.Raw(b'"' + "中".encode() * 3_000_000 + b'"')
    tracemalloc.start()
    try:
        assert not is_blank_text(text)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


@pytest.mark.parametrize(
    ("text", "blank"),
    [
        ('""', True),
        ('"\\u3000\\n "', True),
        ('"\u3000\u2003"', True),
        ('"' + " " * 5_000 + '"', True),
        ('"' + " " * 5_000 + '."', False),
        ('"' + "\\u0020" * 500 + '"', True),
        ('"\\u4e2d"', False),
        ('"' + "\u3000" * 500 + 'x"', False),
    ],
)
def test_white_space_of_any_kind_and_length_is_blank(text: str, blank: bool) -> None:
    assert is_blank_text(msgspec.Raw(text.encode())) is blank


def test_a_number_of_thousands_of_digits_in_a_past_call_poisons_nothing() -> None:
    number = "1" + "0" * 5_000
    calls = msgspec.Raw(f'[{{"id":{number},"function":{{"name":"f","arguments":{{"a":{number}}}}}}}]'.encode())
    assert call_ids(calls) == [""]
    mended = mended_calls(calls)
    assert mended is not None
    assert b'"arguments":"{}"' in bytes(mended.calls[0])
