"""What is refused: one schema a rule, where it is found, and what is no finding."""

from typing import Any

import pytest

from backends.schema_ends import can_end
from backends.schema_parts import Root
from backends.schema_rules import ignored, violations
from support.schemas import held, with_property

DEFINITION: dict[str, Any] = {
    "$defs": {
        "A": {"type": "string", "description": "d"},
        "B": {"type": "object"},
        "C": {"anyOf": [{"type": "null", "default": None}, {"type": "string"}]},
    }
}


def found(schema: object, root: Root = "object") -> list[tuple[str, str]]:
    """Place and rule of each violation."""
    return [(one.path, one.rule) for one in violations(held(schema), root=root)]


@pytest.mark.parametrize(
    ("node", "rule"),
    [
        ({}, "no_type"),
        ({"description": "d"}, "no_type"),
        ({"enum": ["a"]}, "no_type"),
        ({"const": 1}, "no_type"),
        (True, "not_an_object"),
        ("string", "not_an_object"),
        ({"type": "text"}, "type"),
        ({"type": []}, "type"),
        ({"type": None}, "type"),
        ({"type": ["string", 1]}, "type"),
        ({"type": ["string", "null"], "minLength": 1}, "types"),
        ({"type": "string", "anyOf": [{"type": "string"}]}, "type_beside_union"),
        ({"anyOf": [{"type": "string"}], "minLength": 1}, "beside_union"),
        ({"anyOf": []}, "any_of"),
        ({"anyOf": {"type": "string"}}, "any_of"),
        ({"anyOf": [{"type": "string"}] * 101}, "branches"),
        ({"oneOf": [{"type": "string"}]}, "one_of"),
        ({"type": "object", "oneOf": [{"type": "object"}]}, "one_of"),
        ({"allOf": [{"type": "string"}]}, "all_of"),
        ({"$ref": "#/$defs/A", "type": "string"}, "type_beside_ref"),
        ({"$ref": "#/$defs/A", "minLength": 1}, "beside_ref"),
        ({"$ref": "#/$defs/A", "description": "here"}, "twice"),
        ({"$ref": "#/$defs/C", "default": None}, "twice"),
        ({"$ref": "#/$defs/none"}, "ref"),
        ({"$ref": "#/properties/p"}, "ref"),
        ({"$ref": "https://example.com/a.json"}, "ref"),
        ({"$ref": 1}, "ref"),
        ({"type": "string", "enum": []}, "enum"),
        ({"type": "string", "enum": "a"}, "enum"),
        ({"type": "string", "enum": ["a", 1]}, "enum"),
        ({"type": "string", "enum": [f"v{number}" for number in range(501)]}, "values"),
        ({"type": "object", "properties": []}, "properties"),
        ({"type": "object", "properties": {"anyOf": {"type": "string"}}}, "reserved"),
        ({"type": "object", "additionalProperties": None}, "additional"),
        ({"type": "object", "required": "a"}, "required"),
        ({"type": "object", "required": [1]}, "required"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "required"),
        ({"type": "string", "required": True}, "required"),
        ({"type": "array", "items": [{"type": "string"}]}, "tuple"),
        ({"type": "array", "items": {}}, "items"),
        ({"type": "array", "items": False}, "items"),
        ({"type": "string", "description": 1}, "text"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "range"),
        ({"type": "string", "$schema": "x"}, "dialect"),
    ],
)
def test_a_rule_is_found_at_its_node(node: object, rule: str) -> None:
    assert ("properties.p", rule) in found(with_property(node, **DEFINITION))


@pytest.mark.parametrize(
    "node",
    [
        {"type": "string", "format": "uuid", "pattern": "x"},
        {"type": ["string", "null"], "enum": ["a", None]},
        {"type": "integer", "enum": [1, 2]},
        {"type": "number", "enum": [1, 2.5]},
        {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/A"}], "description": "d", "default": None},
        {"$ref": "#/$defs/B", "description": "here"},
        {"type": "array"},
        {"type": "object", "additionalProperties": {}},
        {"type": "object", "additionalProperties": False, "properties": {"type": {"type": "string"}}},
        {"type": "integer", "minimum": 1, "maximum": 1},
    ],
)
def test_what_is_taken_is_no_finding(node: object) -> None:
    assert found(with_property(node, **DEFINITION)) == []


@pytest.mark.parametrize(
    "schema", [{}, {"type": "string"}, {"anyOf": [{"type": "object"}]}, {"$ref": "#/$defs/A"}]
)
def test_the_root_of_parameters_has_to_be_an_object_that_of_an_answer_not(schema: dict[str, Any]) -> None:
    whole = {**schema, "$defs": {"A": {"type": "object"}}} if "$ref" in schema else schema
    assert ("", "root") in found(whole)
    assert found(whole, root="any") == []


def test_every_place_is_named_under_the_given_path() -> None:
    schema = with_property({"type": "array", "items": {"type": "object", "properties": {"a.b": {}}}})
    (one,) = violations(held(schema), path="tools[2].function.parameters")
    assert one.path == 'tools[2].function.parameters.properties.p.items.properties["a.b"]'
    assert one.remedy


def test_sizes_are_limited() -> None:
    long = with_property({"type": "string", "description": "d" * 15_000})
    assert found(long) == [("", "size")]
    many = {"type": "object", "properties": {f"p{number}": {"type": "null"} for number in range(1_001)}}
    assert ("", "names") in found(many)
    deep: dict[str, Any] = {"type": "object", "properties": {}}
    for _ in range(10):
        deep = {"type": "object", "properties": {"p": deep}}
    assert found(deep) == []
    assert found({"type": "object", "properties": {"p": deep}}) == [(".".join(["properties.p"] * 10), "levels")]


def test_a_definition_needs_a_name_without_a_slash_and_its_place_at_the_root() -> None:
    assert found({"type": "object", "$defs": {"a/b": {"type": "string"}}}) == [("", "defs")]
    assert found({"type": "object", "$defs": {"": {"type": "string"}}}) == [("", "defs")]
    assert found({"type": "object", "definitions": {"A": {"type": "string"}}}) == [("", "definitions")]


def test_recursion_needs_a_way_out() -> None:
    def node(required: list[str], **members: object) -> dict[str, Any]:
        return {"type": "object", "properties": members, "required": required}

    assert found(node(["next"], next={"$ref": "#"})) == [("", "endless")]
    assert found(node([], next={"$ref": "#"})) == []
    assert found(node(["next"], next={"anyOf": [{"$ref": "#"}, {"type": "null"}]})) == []
    assert found(node(["children"], children={"type": "array", "items": {"$ref": "#"}})) == []
    assert found(node(["children"], children={"type": "array", "items": {"$ref": "#"}, "minItems": 1})) == [
        ("", "endless")
    ]


def test_definitions_that_need_one_another_for_ever_are_endless() -> None:
    def needing(name: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"x": {"$ref": f"#/$defs/{name}"}}, "required": ["x"]}

    schema = {**needing("A"), "$defs": {"A": needing("B"), "B": needing("A")}}
    assert not can_end(held(schema))
    assert can_end(held({**schema, "$defs": {"A": needing("B"), "B": {"type": "string"}}}))


def test_no_schema_is_one_finding() -> None:
    assert [one.rule for one in violations(True)] == ["root"]
    assert [one.rule for one in violations(None)] == ["root"]


def test_keywords_that_are_not_enforced_are_named_with_their_places() -> None:
    schema = with_property({"type": "string", "format": "date", "title": "T"}, additionalProperties=False)
    assert ignored(held(schema), path="s") == ["s.properties.p.format"]
    assert ignored(held(with_property({"type": "string"}))) == []
    assert ignored(True) == []
