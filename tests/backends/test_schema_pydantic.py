"""Schemas that pydantic makes come out as Moonshot takes them, and still say what the models say."""

import json
from datetime import date
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from backends.schema_parts import Root
from backends.schema_rules import violations
from support.schemas import held, normalised


class Colour(Enum):
    """What it looks like."""

    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Address(BaseModel):
    """Where somebody lives."""

    street: str = Field(min_length=1)
    city: str | None = None


class Person(BaseModel):
    """Nested, optional, described on both sides."""

    name: str
    home: Address = Field(description="the first address")
    work: Address | None = None
    others: list[Address] = []
    born: date | None = None


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Unions(BaseModel):
    plain: int | str
    deep: list[int | Address] | dict[str, Person] | None = None
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    either: Cat | Dog | None = None


class Enums(BaseModel):
    colour: Colour = Field(default=Colour.RED, description="the colour")
    level: Level
    mixed: Literal["a", 1, None] = None
    some: list[Colour] = []


class Node(BaseModel):
    """A tree."""

    value: int
    left: "Node | None" = None
    children: list["Node"] = Field(default=[], description="further nodes")


class Folder(BaseModel):
    files: dict[str, int] = {}
    folders: dict[str, "Folder"] = {}


class Anything(BaseModel):
    value: Any
    said: Any = Field(None, description="any value")
    extras: dict[str, Any]
    list_of_any: list[Any] = []
    pair: tuple[int, str] = (1, "a")
    price: Decimal = Decimal(1)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", title="Strict parameters")

    count: Annotated[int, Field(gt=0, le=10, multiple_of=2)]
    tags: Annotated[list[Annotated[str, Field(pattern="^[a-z]+$")]], Field(max_length=3)] = []
    where: Address


MODELS = [Person, Unions, Enums, Node, Folder, Anything, Strict]
VALUES: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (Person, {"name": "a", "home": {"street": "s"}, "work": None, "others": [{"street": "t", "city": "c"}]}),
    (Unions, {"plain": 1, "pet": {"kind": "dog", "name": "x"}, "deep": [1, {"street": "s"}]}),
    (Unions, {"plain": "a", "pet": {"kind": "cat"}, "deep": {"p": {"name": "n", "home": {"street": "s"}}}}),
    (Enums, {"level": 2, "colour": "blue", "mixed": 1, "some": ["red"]}),
    (Node, {"value": 1, "left": {"value": 2}, "children": [{"value": 3, "children": [{"value": 4}]}]}),
    (Folder, {"files": {"a": 1}, "folders": {"b": {"folders": {}}}}),
    (Anything, {"value": {"a": [1]}, "said": 1, "extras": {"k": None}, "list_of_any": [1, "a"], "pair": [1, "b"]}),
    (Strict, {"count": 4, "tags": ["a"], "where": {"street": "s"}}),
]
WRONG: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (Person, {"name": "a"}),
    (Person, {"name": "a", "home": {"street": ""}}),
    (Unions, {"plain": 1.5, "pet": {"kind": "cat"}}),
    (Unions, {"plain": 1, "pet": {"kind": "dog"}}),
    (Enums, {"level": 3}),
    (Enums, {"level": 1, "mixed": "b"}),
    (Node, {"value": 1, "children": [{"value": "x"}]}),
    (Folder, {"folders": {"b": {"files": {"a": "x"}}}}),
    (Anything, {"value": 1, "extras": {}, "pair": [1, 2]}),
    (Strict, {"count": 4, "where": {"street": "s"}, "more": 1}),
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("root", ["object", "any"])
def test_a_model_comes_out_acceptable(model: type[BaseModel], root: Root) -> None:
    made, _ = normalised(model.model_json_schema(), root)
    assert violations(held(made), root=root) == []
    assert normalised(made, root) == (made, [])
    Draft202012Validator.check_schema(made)


@pytest.mark.parametrize(("model", "value"), VALUES)
def test_what_a_model_takes_is_valid_before_and_after(model: type[BaseModel], value: dict[str, Any]) -> None:
    dumped = json.loads(model.model_validate(value).model_dump_json(by_alias=True))
    schema = model.model_json_schema()
    made, _ = normalised(schema)
    for one in (value, dumped):
        Draft202012Validator(schema).validate(one)
        Draft202012Validator(made).validate(one)


@pytest.mark.parametrize(("model", "value"), WRONG)
def test_what_a_model_refuses_is_refused_before_and_after(model: type[BaseModel], value: dict[str, Any]) -> None:
    schema = model.model_json_schema()
    made, _ = normalised(schema)
    assert not Draft202012Validator(schema).is_valid(value)
    assert not Draft202012Validator(made).is_valid(value)


def test_models_without_anything_strange_are_left_as_they_are() -> None:
    schema = Address.model_json_schema()
    assert normalised(schema) == (schema, [])


@pytest.mark.parametrize("union", [Cat | Dog, Annotated[Cat | Dog, Field(discriminator="kind")], Node])
def test_a_union_as_parameters_comes_out_as_one_object(union: Any) -> None:
    schema = TypeAdapter(union).json_schema()
    made, changed = normalised(schema)
    assert violations(held(made)) == []
    assert made["type"] == "object"
    assert changed == [""] or union is Node
    for value in ({"kind": "cat", "lives": 1}, {"kind": "dog", "name": "a"}, {"value": 1}):
        if Draft202012Validator(schema).is_valid(value):
            Draft202012Validator(made).validate(value)
