"""Schemas inside requests: only what has to change gets new bytes, and the same request always the same ones."""

import json

import msgspec
import pytest

from backends.schema import normalise_response_format, normalise_tools
from support.cases import case
from support.schemas import normalised

Raw = msgspec.Raw


def test_case_sch_01() -> None:
    given = case("sch-01")
    tools = json.dumps(given["given"]["client_request"]["tools"]).encode()
    made, changed = normalise_tools(Raw(tools))
    expected = given["expect"]["upstream_body"]["tools[0].function.parameters.properties"]
    assert json.loads(bytes(made))[0]["function"]["parameters"]["properties"] == expected
    prefix = "tools[0].function.parameters.properties"
    assert changed == (f"{prefix}.mode", f"{prefix}.level", f"{prefix}.any")


def test_a_list_of_tools_that_needs_nothing_is_the_same_slice() -> None:
    tools = Raw(b'[ {"type": "function", "function": {"name": "get", "parameters": {"type": "object" }}} ]')
    made, changed = normalise_tools(tools)
    assert made is tools
    assert changed == ()


def test_tools_and_members_that_need_nothing_keep_their_bytes() -> None:
    sound = b'{"type": "function", "function": {"name": "a", "parameters": {"type":"object","x": 1.50}}}'
    loose = b'{"type": "function", "function": {"description": "\\u00e9 ", "parameters": {}, "name": "b"}}'
    made, changed = normalise_tools(Raw(b"[" + sound + b" , " + loose + b"]"))
    assert bytes(made) == (
        b"[" + sound + b',{"type":"function","function":'
        b'{"description":"\\u00e9 ","parameters":{"type":"object"},"name":"b"}}]'
    )
    assert changed == ("tools[1].function.parameters",)


def test_the_same_tools_always_give_the_same_bytes_and_twice_is_once() -> None:
    tools = (
        b'[{"type":"function","function":{"name":"a","parameters":{"properties":{"x":{},"y":{"enum":[1.0,2]}}}}}]'
    )
    made, _ = normalise_tools(Raw(tools))
    assert bytes(made) == (
        b'[{"type":"function","function":{"name":"a","parameters":{"properties":'
        b'{"x":{"type":"string"},"y":{"enum":[1.0,2],"type":"number"}},"type":"object"}}}]'
    )
    assert bytes(normalise_tools(Raw(tools))[0]) == bytes(made)
    assert normalise_tools(made) == (made, ())


@pytest.mark.parametrize(
    "tools",
    [
        b"null",
        b"{}",
        b"[]",
        b"[1]",
        b'[{"type":"function"}]',
        b'[{"type":"function","function":7}]',
        b'[{"type":"function","function":{"name":"a"}}]',
        b'[{"type":"function","function":{"name":"a","parameters":null}}]',
        b'[{"type":"builtin_function","function":{"name":"$web_search"}}]',
    ],
)
def test_what_is_no_list_of_tools_with_schemas_stays(tools: bytes) -> None:
    raw = Raw(tools)
    assert normalise_tools(raw) == (raw, ())


def test_a_list_too_long_to_be_remembered_is_done_all_the_same() -> None:
    tool = {"type": "function", "function": {"name": "a", "description": "d" * 300_000, "parameters": {}}}
    made, changed = normalise_tools(Raw(json.dumps([tool]).encode()))
    assert json.loads(bytes(made))[0]["function"]["parameters"] == {"type": "object"}
    assert changed == ("tools[0].function.parameters",)


def test_a_response_format_is_normalised_but_its_root_union_stays() -> None:
    schema = {"anyOf": [{"type": "object", "properties": {"a": {"enum": ["x"]}}}, {"type": "null"}]}
    raw = Raw(json.dumps({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}).encode())
    made, changed = normalise_response_format(raw)
    held_schema = json.loads(bytes(made))["json_schema"]["schema"]
    assert held_schema["anyOf"][0]["properties"]["a"] == {"enum": ["x"], "type": "string"}
    assert changed == ("response_format.json_schema.schema.anyOf[0].properties.a",)
    plain = Raw(b'{"type":"json_object"}')
    assert normalise_response_format(plain) == (plain, ())


def test_names_that_are_no_words_are_quoted_in_paths() -> None:
    _, changed = normalised({"type": "object", "properties": {"a.b": {}, 'q"x': {"properties": {"$c": {}}}}})
    assert changed == [
        'properties["a.b"]',
        'properties["q\\"x"]',
        'properties["q\\"x"].properties.$c',
    ]
