"""Schemas in Moonshot's flavour, node by node: what changes, how it is named, and what stays."""

import pytest

from backends.schema import normalise_schema
from backends.schema_rules import violations
from support.schemas import accepted_schemas, held, normalised, with_property

EVERY = ["string", "number", "boolean", "object", "array", "null"]


# --- accepted schemas -----------------------------------------------------------------------------------------


def test_object_schemas_that_moonshot_accepts_are_left_as_they_are() -> None:
    schemas = [schema for _, schema in accepted_schemas() if schema.get("type") == "object"]
    assert len(schemas) == 122
    for schema in schemas:
        before = held(schema)
        made = normalise_schema(before)
        assert made.schema is before, schema
        assert made.changed == ()
        assert violations(before) == []


def test_every_schema_that_moonshot_accepts_is_left_as_it_is_in_a_response_format() -> None:
    for suite, schema in accepted_schemas():
        before = held(schema)
        assert normalise_schema(before, root="any").schema is before, (suite, schema)
        assert violations(before, root="any") == [], (suite, schema)


# --- rules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        # values without a type
        ({"enum": ["head", "tail"]}, {"enum": ["head", "tail"], "type": "string"}),
        ({"enum": [1, 2]}, {"enum": [1, 2], "type": "integer"}),
        ({"enum": [1, 2.5]}, {"enum": [1, 2.5], "type": "number"}),
        ({"enum": [True]}, {"enum": [True], "type": "boolean"}),
        ({"enum": [None]}, {"enum": [None], "type": "null"}),
        ({"enum": ["a", None]}, {"enum": ["a", None], "type": ["string", "null"]}),
        (
            {"enum": ["a", 1, None], "description": "d"},
            {
                "anyOf": [
                    {"type": "string", "enum": ["a"]},
                    {"type": "integer", "enum": [1]},
                    {"type": "null", "enum": [None]},
                ],
                "description": "d",
            },
        ),
        ({"enum": [{"a": 1}]}, {"enum": [{"a": 1}], "type": "object"}),
        ({"const": "k"}, {"const": "k", "type": "string"}),
        ({"const": None}, {"const": None, "type": "null"}),
        # values that the type excludes
        ({"type": "string", "enum": ["a", None]}, {"type": "string", "enum": ["a"]}),
        ({"type": "object", "enum": ["move", "copy"]}, {"enum": ["move", "copy"], "type": "string"}),
        ({"type": "string", "enum": []}, {"type": "string"}),
        (
            {"type": ["integer", "null"], "enum": [1, None]},
            {"anyOf": [{"type": "integer", "enum": [1]}, {"type": "null", "enum": [None]}]},
        ),
        # nothing said
        ({}, {"type": "string"}),
        (True, {"type": EVERY}),
        ({"description": "any value"}, {"description": "any value", "type": EVERY}),
        ({"title": "T", "default": None}, {"title": "T", "default": None, "type": EVERY}),
        # keywords of one type
        ({"properties": {"a": {"type": "string"}}}, {"properties": {"a": {"type": "string"}}, "type": "object"}),
        ({"items": {"type": "string"}}, {"items": {"type": "string"}, "type": "array"}),
        ({"pattern": "x"}, {"pattern": "x", "type": "string"}),
        ({"minimum": 1}, {"minimum": 1, "type": "number"}),
        # lists of types with more than notes beside them
        (
            {"type": ["object", "null"], "properties": {"a": {"type": "string"}}, "description": "d"},
            {
                "anyOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"type": "null"}],
                "description": "d",
            },
        ),
        # arrays
        ({"type": "array", "items": {}}, {"type": "array"}),
        ({"type": "array", "items": True}, {"type": "array"}),
        ({"type": "array", "items": False}, {"type": "array", "maxItems": 0}),
        (
            {"type": "array", "items": [{"type": "string"}, {"type": "number"}], "minItems": 2},
            {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "minItems": 2},
        ),
        (
            {"type": "array", "items": [{"type": "string"}], "additionalItems": False},
            {"type": "array", "prefixItems": [{"type": "string"}], "maxItems": 1},
        ),
        (
            {"type": "array", "items": [{"type": "string"}], "additionalItems": {"enum": [1]}},
            {"type": "array", "prefixItems": [{"type": "string"}], "items": {"enum": [1], "type": "integer"}},
        ),
        # unions
        (
            {"type": "string", "anyOf": [{"minLength": 1}, {"maxLength": 9}, {"type": "integer"}]},
            {"anyOf": [{"type": "string", "minLength": 1}, {"type": "string", "maxLength": 9}]},
        ),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                        "required": [name],
                    }
                    for name in ("a", "b")
                ]
            },
        ),
        (
            {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        ),
        (
            {"allOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"required": ["a"]}]},
            {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        ),
        ({"anyOf": [{"type": "string"}, False]}, {"anyOf": [{"type": "string"}]}),
        # required names
        (
            {"type": "object", "properties": {}, "required": ["a"]},
            {"type": "object", "properties": {"a": {"type": EVERY}}, "required": ["a"]},
        ),
        (
            {"type": "object", "required": ["a"], "additionalProperties": {"type": "integer"}},
            {
                "type": "object",
                "required": ["a"],
                "additionalProperties": {"type": "integer"},
                "properties": {"a": {"type": "integer"}},
            },
        ),
        # old dialects
        ({"type": "string", "$schema": "http://json-schema.org/draft-07/schema#"}, {"type": "string"}),
    ],
)
def test_a_node_is_written_as_moonshot_takes_it(node: object, expected: object) -> None:
    made, changed = normalised(with_property(node))
    assert made["properties"]["p"] == expected
    assert list(made["properties"]["p"]) == list(expected) if isinstance(expected, dict) else True
    assert changed == ["properties.p"]
    assert violations(held(made)) == []


@pytest.mark.parametrize(
    "node",
    [
        {"type": "string", "format": "date-time", "pattern": "^x", "const": "x"},
        {"type": "number", "exclusiveMinimum": 0, "multipleOf": 5, "examples": [5]},
        {"type": ["string", "null"], "default": None},
        {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "T"},
        {"type": "object", "additionalProperties": {}, "x-order": 1},
        {"type": "array", "prefixItems": [{"type": "string"}], "uniqueItems": True},
        {"type": "object", "properties": {}, "allOf": [{"if": {"required": ["a"]}, "then": {"required": ["b"]}}]},
        {"$ref": "#/$defs/A", "description": "here"},
    ],
)
def test_what_is_taken_stays_as_it_is(node: object) -> None:
    before = held(with_property(node, **{"$defs": {"A": {"type": "string"}}}))
    assert normalise_schema(before).schema is before
    assert violations(before) == []


def test_a_property_that_may_not_be_there_is_left_out() -> None:
    made, changed = normalised({"type": "object", "properties": {"a": False, "b": {"type": "string"}}})
    assert made["properties"] == {"b": {"type": "string"}}
    assert changed == ["properties.a"]
