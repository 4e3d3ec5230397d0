"""Made-up values for JSON Schemas: valid by `jsonschema` for what tools and formats really use."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from backends.emulator.dice import Dice
from backends.emulator.instances import make_instance
from backends.emulator.patterns import make_match
from backends.json import as_object, decode, encode
from support.shared import shared_path

Schema = dict[str, Any]


def made(schema: Schema, seed: bytes = b"") -> Any:
    held = as_object(decode(json.dumps(schema).encode()))
    assert held is not None
    return json.loads(encode(make_instance(held, Dice(seed))))


def ranged(kind: str, low: int, width: int, *, open_low: bool, open_high: bool) -> Schema:
    return {
        "type": kind,
        "exclusiveMinimum" if open_low else "minimum": low,
        "exclusiveMaximum" if open_high else "maximum": low + width + 2,
    }


SCALARS: st.SearchStrategy[Schema] = st.one_of(
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean", "null")]),
    st.sampled_from([{"type": ["null", "integer"]}, {"type": ["string", "null"]}, {"const": 7}, {}]),
    st.lists(st.text(max_size=5), min_size=1, max_size=4, unique=True).map(
        lambda values: {"type": "string", "enum": values}
    ),
    st.builds(
        ranged,
        st.sampled_from(["integer", "number"]),
        st.integers(-1000, 1000),
        st.integers(0, 20),
        open_low=st.booleans(),
        open_high=st.booleans(),
    ),
    st.integers(1, 50).map(lambda step: {"type": "integer", "minimum": 1, "multipleOf": step}),
    st.builds(
        lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more},
        st.integers(0, 30),
        st.integers(0, 30),
    ),
    st.sampled_from(
        [{"type": "number", "minimum": 0.1, "maximum": 0.2}, {"type": "string", "format": "date-time"}]
    ),
)
PROPERTIES: st.SearchStrategy[Schema] = st.one_of(
    SCALARS,
    st.builds(
        lambda items, least, more: {"type": "array", "items": items, "minItems": least, "maxItems": least + more},
        SCALARS,
        st.integers(0, 4),
        st.integers(0, 3),
    ),
)


@st.composite
def flat_objects(draw: st.DrawFn) -> Schema:
    properties = draw(st.dictionaries(st.text(min_size=1, max_size=8), PROPERTIES, max_size=6))
    required = [name for name in properties if draw(st.booleans())]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


@settings(max_examples=200, deadline=None)
@given(flat_objects(), st.binary(max_size=4))
def test_arguments_for_flat_object_schemas_are_valid(schema: Schema, seed: bytes) -> None:
    Draft202012Validator(schema).validate(made(schema, seed))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"at": {"type": "object", "required": ["lat"]}}, "required": ["at"]},
        {"type": "object", "allOf": [{"required": ["a"], "properties": {"a": {"type": "integer"}}}]},
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}},
        {"type": "array", "uniqueItems": True, "minItems": 4, "items": {"type": "string"}},
        {
            "type": "object",
            "required": ["tree"],
            "properties": {"tree": {"$ref": "#/$defs/node"}},
            "$defs": {
                "node": {
                    "type": "object",
                    "required": ["children"],
                    "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                }
            },
        },
    ],
)
def test_nested_and_recursive_schemas_come_out_valid_and_end(schema: Schema) -> None:
    for seed in range(20):
        Draft202012Validator(schema).validate(made(schema, b"%d" % seed))


def test_a_schema_that_nothing_finite_fits_still_ends() -> None:
    node: Schema = {"type": "object", "required": ["a", "b", "c"]}
    node["properties"] = {name: {"$ref": "#"} for name in "abc"}
    assert isinstance(made(node), dict)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 10**15},
        {"type": "array", "minItems": 10**15, "items": {}},
        {"type": "object", "minProperties": 10**15},
    ],
)
def test_an_absurd_size_is_not_followed(schema: Schema) -> None:
    assert len(json.dumps(made(schema))) < 1_000_000


def test_free_strings_say_that_they_are_synthetic() -> None:
    schema: Schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    assert made(schema) == {"city": "synthetic city"}


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[a-z]+$", r"^[A-Z]{2}-\d{4}$", r"^(?:low|high|max)$", r"^\+?[1-9]\d{1,14}$", r"^#[0-9a-fA-F]{6}$",
        r"^(?P<a>x)$", r"^[^a-z]$", r"^\S+@\S+\.\w{2,}$", r"[0-9]", r"^$", r"^v\d+(\.\d+){2}(-[a-z]+)?$",
        r"^\u4e2d.*$", r"^[\w.-]{3,}\/[^\s]$", r"^\t[\]\\]$",
    ],
)  # fmt: skip
def test_strings_follow_the_usual_patterns(pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    if "?P<" in pattern:  # of this language, not of schemas: left as a free text
        assert make_match(pattern, Dice(b"")) is None
        return
    for seed in range(20):
        Draft202012Validator(schema).validate(made(schema, b"%d" % seed))


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([r"^[a-z]+$", r"^[0-9a-f]*$", r"^(ab|c)+$", r"^x.{0,40}$"]),
    st.integers(1, 20),
    st.integers(0, 9),
)
def test_strings_follow_a_pattern_and_a_length_at_once(pattern: str, least: int, more: int) -> None:
    schema = {"type": "string", "pattern": pattern, "minLength": least, "maxLength": least + more + 1}
    Draft202012Validator(schema).validate(made(schema))


@pytest.mark.parametrize(
    "pattern", [r"(?=a)b", r"(a)\1", r"\bword", "(", "[", "a{", "*", "(" * 500, "(a{9}){9999}{9}"]
)
def test_patterns_that_are_not_followed_leave_the_string_free(pattern: str) -> None:
    assert make_match(pattern, Dice(b"")) is None
    assert "synthetic" in made({"type": "string", "pattern": pattern})


@given(st.text(alphabet="ab[]()^$|?*+{}0,-\\dw.", max_size=24), st.integers(0, 30))
@settings(max_examples=200, deadline=None)
def test_any_pattern_at_all_ends_quickly_in_a_match_or_nothing(pattern: str, least: int) -> None:
    text = make_match(pattern, Dice(b"7"), least=least)
    assert text is None or len(text) >= least


def test_the_same_seed_gives_the_same_value() -> None:
    schema: Schema = {"type": "object", "properties": {name: {"type": "integer"} for name in "abcdef"}}
    assert made(schema, b"1") == made(schema, b"1")
    assert len({json.dumps(made(schema, b"%d" % seed)) for seed in range(20)}) > 1


def test_arguments_for_every_accepted_object_schema_of_the_vendors_flavour_are_valid() -> None:
    checked = 0
    for path in sorted(shared_path("cases/mfjs").glob("*.jsonl")):
        for line in filter(str.strip, path.read_text().splitlines()):
            schema = json.loads(line)
            schema = json.loads(schema) if isinstance(schema, str) else schema
            if isinstance(schema, dict) and schema.get("type") == "object":
                for seed in range(3):
                    Draft202012Validator(schema).validate(made(schema, b"%d" % seed))
                checked += 1
    assert checked == 122
