"""References, roots and bounds: what becomes of a schema as a whole."""

from typing import Any

import pytest

from backends.json import as_object, decode, encode
from backends.schema import normalise_schema
from backends.schema_rules import violations
from support.schemas import held, normalised, property_of, with_property

# --- references -----------------------------------------------------------------------------------------------


def test_references_of_older_dialects_become_definitions_and_recursion_stays_finite() -> None:
    made, changed = normalised(
        {
            "type": "object",
            "properties": {
                "a": {"$ref": "#/definitions/Node"},
                "b": {"$ref": "#/properties/c"},
                "c": {"enum": [1]},
            },
            "definitions": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/definitions/Node"}}}},
        }
    )
    assert made == {
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/Node"},
            "b": {"$ref": "#/$defs/c"},
            "c": {"enum": [1], "type": "integer"},
        },
        "$defs": {
            "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}},
            "c": {"enum": [1], "type": "integer"},
        },
    }
    assert set(changed) == {"properties.a", "properties.b", "properties.c", "definitions.Node.properties.next"}


def test_a_type_beside_a_reference_that_says_the_same_goes() -> None:
    definitions = {"$defs": {"A": {"type": "object", "properties": {"x": {"type": "string"}}}}}
    assert property_of({"type": "object", "$ref": "#/$defs/A"}, **definitions) == {"$ref": "#/$defs/A"}


def test_constraints_beside_a_reference_are_joined_with_a_small_body_in_place() -> None:
    definitions = {"$defs": {"S": {"type": "string", "minLength": 1, "description": "its own"}}}
    node = {"$ref": "#/$defs/S", "minLength": 5, "maxLength": 9, "description": "here"}
    assert property_of(node, **definitions) == {
        "type": "string",
        "minLength": 5,
        "maxLength": 9,
        "description": "here",
    }


def test_constraints_beside_a_recursive_reference_make_a_further_definition() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/N", "required": ["next"]}}}
    made, _ = normalised(with_property({"$ref": "#/$defs/N"}, **{"$defs": {"N": node}}))
    assert made["$defs"]["N"] == {"type": "object", "properties": {"next": {"$ref": "#/$defs/N_2"}}}
    assert made["$defs"]["N_2"] == {
        "type": "object",
        "properties": {"next": {"$ref": "#/$defs/N_2"}},
        "required": ["next"],
    }


def test_a_description_on_both_sides_of_a_reference_stands_beside_a_union_of_one() -> None:
    definitions = {"$defs": {"A": {"type": "string", "description": "of the definition"}}}
    made, changed = normalised(with_property({"$ref": "#/$defs/A", "description": "here"}, **definitions))
    assert made["properties"]["p"] == {"anyOf": [{"$ref": "#/$defs/A"}], "description": "here"}
    assert made["$defs"] == definitions["$defs"]
    assert changed == ["properties.p"]


@pytest.mark.parametrize(
    "reference", ["https://example.com/a.json", "#/$defs/none", "#/definitions/none", "#name"]
)
def test_a_reference_that_names_nothing_stays(reference: str) -> None:
    schema = with_property({"$ref": reference})
    assert normalised(schema) == (schema, [])
    assert [found.rule for found in violations(held(schema))] == ["ref"]


# --- the root -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [{}, {"type": ["object", "null"]}])
def test_the_root_of_parameters_is_an_object(schema: object) -> None:
    assert normalised(schema) == ({"type": "object"}, [""])


def test_a_union_at_the_root_becomes_one_object() -> None:
    schema = {
        "type": "object",
        "description": "one of them",
        "anyOf": [
            {
                "properties": {"filename": {"type": "string"}, "content": {"type": "string"}},
                "required": ["filename"],
            },
            {
                "properties": {"filename": {"type": "string"}, "url": {"type": "string"}},
                "required": ["url", "filename"],
            },
        ],
    }
    made, changed = normalised(schema)
    assert made == {
        "description": "one of them",
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("filename", "content", "url")},
        "required": ["filename"],
    }
    assert changed == [""]
    assert normalised(schema, root="any")[0]["anyOf"][0]["type"] == "object"


def test_the_discriminator_of_a_root_union_becomes_one_enum_and_unused_definitions_go() -> None:
    variant = {"type": "object", "required": ["kind"], "additionalProperties": False}
    definitions = {
        name: {**variant, "properties": {"kind": {"const": name, "type": "string", "title": "Kind"}}}
        for name in ("cat", "dog")
    }
    made, _ = normalised({"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "$defs": definitions})
    assert made == {
        "type": "object",
        "properties": {"kind": {"title": "Kind", "type": "string", "enum": ["cat", "dog"]}},
        "required": ["kind"],
        "additionalProperties": False,
    }


def test_a_reference_at_the_root_of_parameters_is_written_out() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}
    schema = {"$ref": "#/$defs/N", "$defs": {"N": node}}
    assert normalised(schema) == ({**node, "$defs": {"N": node}}, [""])
    assert normalised(schema, root="any") == (schema, [])


def test_a_root_that_is_no_object_stays() -> None:
    assert normalised({"type": "string"}) == ({"type": "string"}, [])


# --- bounds ---------------------------------------------------------------------------------------------------


def test_a_schema_too_deep_for_any_validator_stays() -> None:
    schema: dict[str, Any] = {}
    for _ in range(80):
        schema = {"properties": {"p": schema}}
    assert normalised(schema) == (schema, [])
    assert [found.rule for found in violations(held(schema))] == ["depth"]


def test_definitions_that_ask_for_ever_more_definitions_come_to_an_end() -> None:
    def crossed(one: str, other: str) -> dict[str, Any]:
        deeper = {"properties": {"c": {"$ref": f"#/$defs/{other}"}}}
        inner = {"type": "object", "anyOf": [deeper, {"$ref": f"#/$defs/{one}"}], **deeper}
        return {"type": "object", "properties": {"c": {**inner, "$ref": f"#/$defs/{other}"}, one: {"enum": [1]}}}

    schema = with_property({"$ref": "#/$defs/A"}, **{"$defs": {"A": crossed("A", "B"), "B": crossed("B", "A")}})
    once, changed = normalised(schema)
    assert normalised(once) == (once, [])
    assert changed


def test_more_references_than_a_tool_schema_has_are_left_alone() -> None:
    names = [f"D{number}" for number in range(501)]
    schema = {
        "type": "object",
        "properties": {name: {"$ref": f"#/definitions/{name}"} for name in names},
        "definitions": {name: {"type": "string"} for name in names},
    }
    assert normalised(schema) == (schema, [])


def test_numbers_beyond_any_machine_are_compared_without_being_written_out() -> None:
    text = (
        b'{"type":"object","properties":{"p":{"allOf":[{"enum":[1e999999999999,1E-999999999999,1.0]},'
        b'{"enum":[1,10e999999999998]}]}}}'
    )
    made = normalise_schema(as_object(decode(text)) or {}).schema
    assert encode(made) == (b'{"type":"object","properties":{"p":{"enum":[1E+999999999999,1.0],"type":"number"}}}')


def test_a_reference_may_be_percent_encoded() -> None:
    schema = with_property({"$ref": "#/%24defs/A"}, **{"$defs": {"A": {"type": "string"}}})
    made, _ = normalised(schema)
    assert violations(held(made)) == []
    assert made["properties"]["p"] == {"$ref": "#/$defs/A_2"}
