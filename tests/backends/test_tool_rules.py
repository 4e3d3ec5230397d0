"""What is refused in a list of tools: names, kinds, repeated names, schemas."""

from typing import Any

import pytest

from backends.json import Json
from backends.tool_rules import tool_violations


def tool(name: Json, **function: Json) -> dict[str, Json]:
    return {"type": "function", "function": {"name": name, **function}}


def found(*tools: Json) -> list[tuple[str, str]]:
    return [(one.path, one.rule) for one in tool_violations(list(tools))]


@pytest.mark.parametrize("name", ["get", "_get", "get_weather-2", "a" * 64, "A1b"])
def test_names_that_every_version_takes_are_no_finding(name: str) -> None:
    assert found(tool(name)) == []


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("f", "name"),
        ("", "name"),
        ("a" * 65, "name"),
        ("21st_magic", "name"),
        ("-get", "name"),
        ("get.weather", "name"),
        ("wetter_für", "name"),
        ("get\n", "name"),
        (None, "name"),
        (7, "name"),
        ("$web_search", "reserved"),
    ],
)
def test_a_name_that_is_refused_is_found(name: Json, rule: str) -> None:
    assert found(tool(name)) == [("tools[0].function.name", rule)]


def test_built_in_functions_have_a_dollar_and_no_schema_to_look_at() -> None:
    builtin: Json = {"type": "builtin_function", "function": {"name": "$web_search", "parameters": {"type": "x"}}}
    assert found(builtin) == []


def test_a_name_that_two_tools_have_is_found_at_the_second() -> None:
    violations = tool_violations([tool("get"), tool("put"), tool("get")])
    assert [(one.path, one.rule) for one in violations] == [("tools[2].function.name", "duplicate")]
    assert "tools[0]" in violations[0].what


@pytest.mark.parametrize(
    ("value", "place", "rule"),
    [
        (7, "tools[0]", "tool"),
        ({"type": "function"}, "tools[0]", "tool"),
        ({"function": {"name": "get"}}, "tools[0]", "kind"),
        ({"type": "plugin", "function": {"name": "get"}}, "tools[0]", "kind"),
        (tool("get", parameters=None), "tools[0].function.parameters", "root"),
        (tool("get", parameters=True), "tools[0].function.parameters", "root"),
        (tool("get", parameters="{}"), "tools[0].function.parameters", "root"),
    ],
)
def test_what_is_no_tool_is_one_finding(value: Json, place: str, rule: str) -> None:
    assert found(value) == [(place, rule)]


def test_schemas_are_looked_at_where_there_are_any() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"mode": {"enum": ["a"]}}}
    assert found(tool("get"), tool("put", parameters=schema)) == [
        ("tools[1].function.parameters.properties.mode", "no_type")
    ]


@pytest.mark.parametrize("tools", [None, [], {}])
def test_no_tools_are_no_finding(tools: Json) -> None:
    assert tool_violations(tools) == []
