"""Two schemas as one: exactly what both accept, or an honest "cannot be said"."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from backends.json import JsonObject, as_object
from backends.schema_merge import conjoin
from backends.schema_parts import resolve
from support.schemas import held, loaded

Schema = dict[str, Any]
SCALARS = (None, True, False, 0, 1, 2, 1.5, "", "a", "bb", "abc")
TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")


class Definitions:
    """The definitions that references name."""

    def __init__(self, schema: JsonObject) -> None:
        self._schema = schema
        self.steps = 0

    def body_of(self, reference: str) -> JsonObject | None:
        return as_object(resolve(self._schema, reference))

    def spend(self) -> None:
        self.steps += 1


NONE = Definitions({})


def node(random: Random, depth: int = 0) -> Any:
    """A schema of words that can be joined, and of some that cannot."""
    kinds = random.sample(TYPES, random.randint(1, 3))
    words: dict[str, list[Any]] = {
        "type": [kinds[0], kinds],
        "enum": [random.sample(SCALARS, random.randint(1, 5))],
        "const": list(SCALARS),
        "minLength": [0, 1, 2],
        "maxLength": [1, 2, 3],
        "minimum": [0, 1, 1.5],
        "exclusiveMaximum": [1, 2],
        "multipleOf": [1, 0.5],
        "minItems": [0, 1],
        "uniqueItems": [True, False],
        "required": [random.sample(("a", "b"), random.randint(0, 2))],
        "title": ["T", "U"],
    }
    made = {word: random.choice(values) for word, values in words.items() if random.random() < 0.25}
    if depth < 2:
        if random.random() < 0.5:
            names = random.sample(("a", "b", "c"), random.randint(0, 3))
            made["properties"] = {name: node(random, depth + 1) for name in names}
        if random.random() < 0.3:
            made["additionalProperties"] = random.choice([True, False, node(random, depth + 1)])
        if random.random() < 0.2:
            made["patternProperties"] = {"^a": node(random, depth + 1)}
        if random.random() < 0.3:
            made["items"] = node(random, depth + 1)
        if random.random() < 0.2:
            made["anyOf"] = [node(random, depth + 1) for _ in range(2)]
    return random.choice([made, made, made, True])


def value(random: Random, depth: int = 0) -> Any:
    match random.choice(["scalar", "list", "object"]) if depth < 2 else "scalar":
        case "list":
            return [value(random, depth + 1) for _ in range(random.randrange(3))]
        case "object":
            return {name: value(random, depth + 1) for name in random.sample("abc", random.randrange(4))}
        case _:
            return random.choice(SCALARS)


@settings(max_examples=200)
@given(st.integers(0, 2**32))
def test_a_join_accepts_what_both_accept(seed: int) -> None:
    random = Random(seed)
    left, right = {"x": node(random)}, {"x": node(random)}
    made = conjoin(held(left)["x"], held(right)["x"], NONE)
    if made is None:
        return
    first, second, both = (Draft202012Validator(one) for one in (left["x"], right["x"], loaded(made)))
    for _ in range(30):
        one = value(random)
        assert both.is_valid(one) == (first.is_valid(one) and second.is_valid(one)), one


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ({"type": "integer"}, {"type": "number"}, {"type": "integer"}),
        ({"type": ["string", "null"]}, {"type": "string"}, {"type": "string"}),
        ({"minLength": 1}, {"minLength": 5, "maxLength": 9}, {"minLength": 5, "maxLength": 9}),
        ({"enum": ["a", "b"]}, {"enum": ["b", "c"]}, {"enum": ["b"]}),
        (
            {"description": "outer"},
            {"description": "inner", "type": "string"},
            {"description": "outer", "type": "string"},
        ),
        ({"required": ["a"]}, {"required": ["b", "a"]}, {"required": ["a", "b"]}),
        ({}, {"type": "string"}, {"type": "string"}),
    ],
)
def test_words_join_as_the_stricter_one(left: Schema, right: Schema, expected: Schema) -> None:
    assert conjoin(held(left), held(right), NONE) == held(expected)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"type": "string"}, {"type": "integer"}),
        ({"enum": ["a"]}, {"enum": ["b"]}),
        ({"const": 1}, {"const": True}),
        ({"type": "string"}, {"const": 1}),
        (
            {"type": "object", "properties": {}, "additionalProperties": False},
            {"type": "object", "properties": {"a": {}}, "required": ["a"]},
        ),
    ],
)
def test_a_contradiction_is_told_apart_from_what_cannot_be_said(left: Schema, right: Schema) -> None:
    assert conjoin(held(left), held(right), NONE) is False


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"pattern": "a"}, {"pattern": "b"}),
        ({"anyOf": [{"minLength": 1}]}, {"anyOf": [{"maxLength": 2}]}),
        ({"if": {"required": ["a"]}}, {"then": {"required": ["b"]}}),
        ({"patternProperties": {"^a": {}}}, {"additionalProperties": False}),
        ({"unevaluatedProperties": False}, {"properties": {"a": {}}}),
        ({"not": {"type": "string"}}, {"not": {"type": "null"}}),
    ],
)
def test_what_one_schema_cannot_say_is_not_approximated(left: Schema, right: Schema) -> None:
    assert conjoin(held(left), held(right), NONE) is None


def test_of_two_references_one_is_followed() -> None:
    definitions = Definitions(held({"$defs": {"A": {"type": "object"}, "B": {"required": ["b"]}}}))
    made = conjoin(held({"$ref": "#/$defs/A"}), held({"$ref": "#/$defs/B"}), definitions)
    assert made == {"$ref": "#/$defs/A", "required": ["b"]}


def test_definitions_that_cross_for_ever_are_given_up() -> None:
    def crossed(other: str) -> Schema:
        inner = {"$ref": f"#/$defs/{other}", "properties": {"c": {"$ref": f"#/$defs/{other}"}}}
        return {"properties": {"c": inner}}

    definitions = Definitions(held({"$defs": {"A": crossed("B"), "B": crossed("A")}}))
    left = held({"$ref": "#/$defs/A", **crossed("A")})
    right = held({"$ref": "#/$defs/B", **crossed("B")})
    conjoin(left, right, definitions)
    assert 10 < definitions.steps < 1_000
