"""Functions as tools: what the model is told of them, and how what it sends is read. Pure."""

import asyncio
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from backends.json import JsonObject, as_list, as_object
from backends.schema_rules import violations
from kimi_sdk.errors import InvalidInput
from kimi_sdk.tools import Tool, ToolBox, tool, tool_from_schema
from kimi_sdk.tools_calls import ToolCall, ToolResult, read_calls, with_distinct_ids
from kimi_sdk.tools_docs import read_doc


class Place(BaseModel):
    city: str
    country: str = "NO"


@dataclass
class Forecast:
    on: date
    degrees: Decimal


class Unit(Enum):
    CELSIUS = "C"
    KELVIN = "K"


def forecast(place: Place, days: int = 1, *, unit: Unit = Unit.CELSIUS) -> list[Forecast]:
    """The forecast for a place.

    One entry a day.

    Args:
        place: where; a city
            with its country
        days: how many
    """
    return [Forecast(date(2026, 12, 1 + day), Decimal("-3.50")) for day in range(days)]


def call(name: str, arguments: str = "{}", id: str = "call_1") -> ToolCall:
    return ToolCall(id, name, arguments)


def run(function: Callable[..., Any], arguments: str = "{}") -> ToolResult:
    """The result of one call, the same from sync and async code."""
    box = ToolBox([function])
    one = box.run_one(call(box.names[0], arguments))
    other = asyncio.run(box.run_one_async(call(box.names[0], arguments)))
    assert (one.content, one.is_error, type(one.error)) == (other.content, other.is_error, type(other.error))
    return one


def parameters(function: Callable[..., Any]) -> JsonObject:
    return tool(function).parameters


# --- what the model is told -----------------------------------------------------------------------------------


def test_a_function_is_described_by_its_signature_and_docstring() -> None:
    assert tool(forecast).definition == {
        "type": "function",
        "function": {
            "name": "forecast",
            "description": "The forecast for a place.\n\nOne entry a day.",
            "parameters": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "place": {"$ref": "#/$defs/Place", "description": "where; a city with its country"},
                    "days": {"type": "integer", "default": 1, "description": "how many"},
                    "unit": {"$ref": "#/$defs/Unit", "default": "C"},
                },
                "required": ["place"],
                "$defs": {
                    "Place": {
                        "type": "object",
                        "title": "Place",
                        "properties": {"city": {"type": "string"}, "country": {"type": "string", "default": "NO"}},
                        "required": ["city"],
                    },
                    "Unit": {"type": "string", "title": "Unit", "enum": ["C", "K"]},
                },
            },
        },
    }


def test_the_definitions_are_the_same_bytes_each_time() -> None:
    assert json.dumps(ToolBox([forecast]).definitions) == json.dumps(ToolBox([forecast]).definitions)


def test_a_decorated_function_is_still_the_function() -> None:
    @tool
    def double(number: int) -> int:
        """Twice."""
        return 2 * number

    @tool(name="triple-it", description="Thrice.")
    def triple(number: int) -> int:
        return 3 * number

    assert (double(4), triple(4)) == (8, 12)
    assert isinstance(double, Tool)
    assert (double.name, double.description) == ("double", "Twice.")
    assert (triple.name, triple.description) == ("triple-it", "Thrice.")
    assert ToolBox([double, triple]).run_one(call("triple-it", '{"number": 5}')).content == "15"


def test_annotations_describe_parameters_and_win_over_the_docstring() -> None:
    def search(
        words: Annotated[str, "what to look for"],
        limit: Annotated[int, Field(ge=1, le=50, description="at most so many")] = 10,
        order: Literal["new", "old"] = "new",
    ) -> None:
        """Search.

        :param words: unused
        :param order: which first,
            of all
        :type order: str
        :returns: nothing
        """

    made = as_object(parameters(search)["properties"]) or {}
    assert made["words"] == {"type": "string", "description": "what to look for"}
    assert made["limit"] == {
        "type": "integer", "minimum": 1, "maximum": 50, "default": 10, "description": "at most so many",
    }  # fmt: skip
    assert made["order"] == {
        "type": "string", "enum": ["new", "old"], "default": "new", "description": "which first, of all",
    }  # fmt: skip
    assert tool(search).description == "Search.\n\n:returns: nothing"


def test_parameters_may_have_any_name() -> None:
    def odd(_private: int, copy: str, model_config: bool, schema: int = 3) -> str:
        """Odd."""
        return f"{_private} {copy} {model_config} {schema}"

    made = as_object(parameters(odd)["properties"]) or {}
    assert list(made) == ["_private", "copy", "model_config", "schema"]
    assert run(odd, '{"_private": 1, "copy": "c", "model_config": true}').content == "1 c True 3"


class Library:
    """Books."""

    def find(self, title: str) -> str:
        """Find a book."""
        return f"found {title}"

    def __call__(self, shelf: int) -> str:
        """Look at a shelf."""
        return f"shelf {shelf}"


def test_methods_partials_and_callable_objects_are_functions_too() -> None:
    def add(first: int, second: int, /, third: int = 0) -> int:
        """Add."""
        return first + second * 10 + third * 100

    library = Library()
    box = ToolBox([library.find, library, tool(partial(add, 7), name="add_seven")])

    assert box.names == ("find", "Library", "add_seven")
    assert [definition["function"]["description"] for definition in box.definitions] == [  # type: ignore[index,call-overload]
        "Find a book.", "Look at a shelf.", "Add.",
    ]  # fmt: skip
    calls = [
        call("find", '{"title": "Emma"}'),
        call("Library", '{"shelf": 2}'),
        call("add_seven", '{"third": 3, "second": 2}'),
    ]
    assert [result.content for result in box.run(calls)] == ["found Emma", "shelf 2", "327"]


class Strange:
    """No JSON."""


def test_what_the_model_could_not_call_is_refused_by_name() -> None:
    def untyped(city) -> str:  # type: ignore[no-untyped-def]
        return str(city)

    def many(*cities: str) -> str:
        raise NotImplementedError

    def more(**cities: str) -> str:
        raise NotImplementedError

    def strange(it: Strange) -> str:
        raise NotImplementedError

    def it(a: int) -> int:
        raise NotImplementedError

    def unknown(it: "Nowhere") -> str:  # type: ignore[name-defined]  # noqa: F821
        raise NotImplementedError

    for function, reason in (
        (untyped, r"parameter city of the tool untyped has no type; write it, such as city: str"),
        (many, r"many takes \*cities.*name its parameters"),
        (more, r"more takes \*\*cities"),
        (strange, r"the tool strange has a parameter that JSON cannot hold.*Strange"),
        (it, r"the name 'it' is not taken: too short"),
        (lambda: None, r"the name '<lambda>' is not taken"),
        (Library.find, r"parameter self of the tool find has no type; give the bound method"),
        (unknown, r"the types of the tool unknown cannot be read: name 'Nowhere'.*level of the module"),
        (Library, r"a tool is a function, not <class"),
        ("search", r"a tool is a function, not 'search'"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            ToolBox([function])  # type: ignore[list-item]


def test_a_schema_that_kimi_refuses_is_named_with_its_place() -> None:
    def deep(required: int) -> None:
        """A name that the validator takes for a keyword."""

    with pytest.raises(InvalidInput, match=r"schema of the tool deep: at its root: .*called required \(rename it"):
        tool(deep)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="the name forecast is that of tool forecast too"):
        ToolBox([forecast, tool(forecast)])


def test_a_tool_of_a_server_keeps_its_schema_and_takes_an_object() -> None:
    schema: JsonObject = {"properties": {"path": {"type": "string"}, "mode": {"const": "r"}}, "$schema": "x"}
    made = tool_from_schema(
        lambda arguments: sorted(arguments.items()), name="read_file", description="Read.", parameters=schema
    )

    assert made.parameters["type"] == "object"
    assert violations(made.parameters) == []
    box = ToolBox([made])
    assert box.run_one(call("read_file", '{"path": "a", "mode": "r"}')).content == '[["mode","r"],["path","a"]]'
    assert "not a JSON object" in box.run_one(call("read_file", "[1]")).content


def test_a_built_in_function_is_declared_and_its_call_echoed() -> None:
    search: JsonObject = {"type": "builtin_function", "function": {"name": "$web_search"}}
    box = ToolBox([search, forecast])

    assert box.definitions[0] == search
    assert box.run_one(call("$web_search", '{"q":  "x"}')).content == '{"q":  "x"}'
    with pytest.raises(InvalidInput, match=r"built-in function.*tool_from_schema"):
        ToolBox([{"type": "function", "function": {"name": "abc"}}])


ARGUMENT_TYPES: list[Any] = [
    int, str, bool, float, Decimal, date, datetime, Path, bytes, Unit, Place, Forecast, Place | None, int | str,
    list[int], list[Place], dict[str, int], dict[str, list[Place]], tuple[int, str], set[str], Any,
    Literal["a", 1], Place | Forecast, list[dict[str, Any]], None,
]  # fmt: skip


@settings(max_examples=60)
@given(kinds=st.lists(st.sampled_from(ARGUMENT_TYPES), max_size=4), optional=st.booleans())
def test_kimi_takes_the_schema_of_every_signature(kinds: list[Any], optional: bool) -> None:
    def made() -> None:
        """Made."""

    made.__annotations__ = {f"p{number}": kind for number, kind in enumerate(kinds)}
    default: Any = None if optional else inspect.Parameter.empty
    made.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for name, kind in made.__annotations__.items()
        ]
    )

    schema = tool(made).parameters

    assert violations(schema) == []
    assert list(as_object(schema["properties"]) or {} if kinds else {}) == list(made.__annotations__)
    assert as_list(schema.get("required")) == ([] if optional else list(made.__annotations__))


# --- docstrings -----------------------------------------------------------------------------------------------


NUMPY = """Sum.

    Parameters
    ----------
    first, second : int
        A number.

        Any number.
    rest : list of int, optional

    Returns
    -------
    int
        The sum.
    """
GOOGLE = """Sum.

    Args:
        first (int): A number.
        **rest: more: all of
            them

    Returns:
        The sum: a number.
    """


@pytest.mark.parametrize(
    ("docstring", "description", "said"),
    [
        (None, "", {}),
        ("Sum.", "Sum.", {}),
        (
            NUMPY,
            "Sum.\n\nReturns\n-------\nint\n    The sum.",
            {"first": "A number. Any number.", "second": "A number. Any number."},
        ),
        (GOOGLE, "Sum.\n\nReturns:\n    The sum: a number.", {"first": "A number.", "rest": "more: all of them"}),
        ("Sum.\n\n:param int first: A number.\n:type first: int\n", "Sum.", {"first": "A number."}),
        ("Args: none are taken", "Args: none are taken", {}),
        ("Sum.\n\nArgs:\n", "Sum.", {}),
    ],
)
def test_a_docstring_is_read_in_each_style(docstring: str | None, description: str, said: dict[str, str]) -> None:
    doc = read_doc(docstring)

    assert (doc.description, doc.parameters) == (description, said)


@settings(max_examples=60)
@given(
    st.text(alphabet="aA:- \n\t(),.*", max_size=60).map(
        lambda text: f"Do it.\n\nArgs:\n{text}\nParameters\n---\n{text}"
    )
)
def test_no_docstring_is_too_strange(docstring: str) -> None:
    assert read_doc(docstring).description.startswith("Do it.")


# --- ids ------------------------------------------------------------------------------------------------------


def assistant(*ids: object) -> JsonObject:
    calls: list[Any] = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": calls}


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["a", "b", "a_2", "a_3", "call_1", "call", "", " ", None]), max_size=8))
def test_every_call_of_a_turn_has_an_id_of_its_own_and_keeps_it_where_it_had_one(ids: list[str | None]) -> None:
    message = assistant(*ids)

    made = with_distinct_ids(message)

    named = [found.id for found in read_calls(made)]
    assert all(name.strip() for name in named)
    assert len(set(named)) == len(ids)
    for number, id in enumerate(ids):
        if id and id.strip() and id not in ids[:number]:
            assert named[number] == id
    assert (made is message) == (named == ids)
    assert with_distinct_ids(made) is made
    assert {**made, "tool_calls": None} == {**message, "tool_calls": None}


def test_calls_are_read_also_where_fields_are_missing_or_arguments_are_an_object() -> None:
    message: JsonObject = {
        "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": {"a": 1}}}, {}, {"function": None}]
    }

    assert read_calls(message) == (ToolCall("x", "f", '{"a":1}'), ToolCall("", "", ""), ToolCall("", "", ""))
    assert read_calls({"content": "hi"}) == ()


def test_a_call_shows_its_arguments_as_json_where_they_are() -> None:
    assert call("f", '{"price": 0.10}').parsed == {"price": Decimal("0.10")}
    assert call("f", '{"price"').parsed is None
    assert call("f", '"half \ud83d"').parsed is None
