"""Answers as typed values: the schema that is sent, what is read, what is asked again. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel, TypeAdapter, field_validator
from typing_extensions import TypedDict

from backends.json import JsonObject, as_object
from backends.schema_rules import violations
from kimi_sdk.errors import InvalidInput
from kimi_sdk.structured import Misfit, Output, output_of


class City(BaseModel):
    """A city and how many live there."""

    name: str = Field(description="in English")
    people: Annotated[int, Field(ge=0)]
    founded: date | None = None


@dataclass
class Price:
    amount: Decimal
    currency: Literal["EUR", "USD"] = "EUR"


class Point(TypedDict):
    x: int
    y: int


class Pair(NamedTuple):
    first: str
    second: int


class Node(BaseModel):
    value: int
    below: list["Node"] = []


class Names(RootModel[list[str]]):
    pass


Item = TypeVar("Item")


class Page(BaseModel, Generic[Item]):
    items: list[Item]


def schema_of(output: Output[Any]) -> JsonObject:
    return as_object((as_object(output.response_format["json_schema"]) or {})["schema"]) or {}


def test_a_model_is_sent_as_its_schema() -> None:
    output = Output(City)

    assert output.response_format == {
        "type": "json_schema",
        "json_schema": {
            "name": "City",
            "schema": {
                "type": "object",
                "title": "City",
                "description": "A city and how many live there.",
                "properties": {
                    "name": {"type": "string", "description": "in English"},
                    "people": {"type": "integer", "minimum": 0},
                    "founded": {
                        "anyOf": [{"type": "string", "format": "date"}, {"type": "null"}],
                        "default": None,
                    },
                },
                "required": ["name", "people"],
            },
        },
    }
    assert output.read('{"name": "Oslo", "people": 724290}') == City(name="Oslo", people=724290)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Price, '{"amount": "1.10"}', Price(Decimal("1.10"))),
        (Point, '{"x": 1, "y": 2}', {"x": 1, "y": 2}),
        (Node, '{"value": 1, "below": [{"value": 2}]}', Node(value=1, below=[Node(value=2)])),
        (Page[City], '{"items": [{"name": "a", "people": 1}]}', Page(items=[City(name="a", people=1)])),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (list[City], '{"value": [{"name": "a", "people": 1}]}', [City(name="a", people=1)]),
        (list[Node], '{"value": [{"value": 2}]}', [Node(value=2)]),
        (Names, '{"value": ["a"]}', Names(["a"])),
        (Pair, '{"value": ["a", 2]}', Pair("a", 2)),
        (int, '{"value": 3}', 3),
        (str, '{"value": "x"}', "x"),
        (Literal["a", "b"], '{"value": "b"}', "b"),
        (City | Price, '{"value": {"amount": 2}}', Price(Decimal(2))),
        (City | None, '{"value": null}', None),
        (tuple[int, str], '{"value": [1, "a"]}', (1, "a")),
    ],
)
def test_every_type_of_pydantics_has_a_schema_that_kimi_takes(kind: Any, text: str, value: object) -> None:
    output = Output(kind)

    assert violations(schema_of(output)) == []
    assert schema_of(output)["type"] == "object"
    assert output.read(text) == value


def test_what_stands_under_value_is_also_taken_without_it() -> None:
    assert output_of(list[int]).read("[1, 2]") == [1, 2]
    assert output_of(dict[str, int]).read('{"value": 1}') == {"value": 1}
    either: Any = Literal["a"] | Price
    kept: Output[Any] = Output(either)
    assert kept.read('{"amount": 1}') == Price(Decimal(1))


def test_code_fences_do_not_count() -> None:
    assert output_of(Price).read('\n```json\n{"amount": 1}\n```\n') == Price(Decimal(1))
    assert output_of(str).read('{"value": "```\\nx\\n```"}') == "```\nx\n```"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"name": "Oslo"}', "people: Field required"),
        ('{"name": "Oslo", "people": -1}', "people: Input should be greater than or equal to 0 (given: -1)"),
        ('{"name": "Oslo", "peo', "the whole: Invalid JSON: EOF while parsing"),
        ("", "the whole: Invalid JSON"),
        ("I cannot say.", "the whole: Invalid JSON"),
        ("[]", "the whole: Input should be an object (given: [])"),
    ],
)
def test_an_answer_that_does_not_fit_says_where_and_asks_again(text: str, problem: str) -> None:
    output = output_of(City)

    with pytest.raises(Misfit) as caught:
        output.read(text)

    assert caught.value.text == text
    assert [problem in line for line in caught.value.problems] == [True]
    asked = output.repair(caught.value)
    assert asked.startswith(f"Your answer does not fit the JSON schema City:\n- {problem}")
    assert asked.endswith("Answer again with the corrected JSON and nothing else.")


class Checked(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def known(cls, name: str) -> str:
        raise LookupError("the list of names is not there")


def test_a_validator_that_breaks_is_told_like_an_answer_that_does_not_fit() -> None:
    with pytest.raises(Misfit, match="the whole: its check failed with LookupError: the list of names") as caught:
        output_of(Checked).read('{"name": "Oslo"}')

    assert isinstance(caught.value.__cause__, LookupError)


class Strange:
    pass


class Keywords(BaseModel):
    inner: dict[str, int]
    any_of: list[int] = Field(alias="anyOf")


class Holder(BaseModel):
    held: list[Keywords]


class Unknown(BaseModel):
    it: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Strange, "the output Strange has no schema: .*Strange"),
        (Holder, r"schema of the output Holder: at \$defs.Keywords: a property must not be called anyOf"),
        (Unknown, "the output Unknown has no JSON schema: .*not fully defined"),
        (list[Mapping[int, Strange]], "the output list has no schema"),
    ],
)
def test_a_type_that_kimi_cannot_answer_in_is_refused_before_anything_is_sent(kind: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        Output(kind)


def test_names_are_those_of_the_types_in_letters_that_servers_take() -> None:
    kinds: list[Any] = [City, Page[City], list[int], City | None, int]
    names = [Output(kind).name for kind in kinds]

    assert names == ["City", "Page_City_", "list", "answer", "int"]
    assert Output(int, name="how many? " * 20).name == ("how_many__" * 20)[:64]


def test_a_type_is_worked_on_once_also_where_it_cannot_be_hashed() -> None:
    assert output_of(City) is output_of(City)
    held: Any = Annotated[int, ["unhashable"]]
    assert output_of(held).read('{"value": 2}') == 2


@settings(max_examples=60)
@given(
    value=st.lists(
        st.builds(Price, st.decimals(allow_nan=False, allow_infinity=False), st.sampled_from(["EUR", "USD"]))
    )
)
def test_what_is_written_as_the_type_is_read_back(value: list[Price]) -> None:
    written = TypeAdapter(list[Price]).dump_json(value).decode()

    assert output_of(list[Price]).read(f'{{"value": {written}}}') == value
