"""The words of JSON Schema that tool schemas are made of: types, keywords, subschemas, references, paths."""

import re
from collections.abc import Callable, Iterator
from copy import copy
from decimal import Decimal
from typing import Final, Literal, TypeAlias
from urllib.parse import unquote

import msgspec

from backends.json import Json, JsonObject, as_list, encode

EVERY_TYPE: Final = ("string", "number", "boolean", "object", "array", "null")
"""All values there are: a node with these types says no more than one without a type (integers are numbers)."""
TYPES: Final = frozenset({*EVERY_TYPE, "integer"})
SCALARS: Final = frozenset({"string", "number", "integer", "boolean"})

KEYWORDS_BY_TYPE: Final[dict[str, frozenset[str]]] = {
    "object": frozenset(
        {
            "additionalProperties",
            "dependentRequired",
            "dependentSchemas",
            "maxProperties",
            "minProperties",
            "patternProperties",
            "properties",
            "propertyNames",
            "required",
            "unevaluatedProperties",
        }
    ),
    "array": frozenset(
        {
            "additionalItems",
            "contains",
            "items",
            "maxContains",
            "maxItems",
            "minContains",
            "minItems",
            "prefixItems",
            "unevaluatedItems",
            "uniqueItems",
        }
    ),
    "string": frozenset(
        {"contentEncoding", "contentMediaType", "contentSchema", "format", "maxLength", "minLength", "pattern"}
    ),
    "number": frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"}),
}
"""Keywords that say something about one type and nothing about values of the others."""
CONSTRAINTS: Final = frozenset(
    {"$ref", "allOf", "anyOf", "const", "else", "enum", "if", "not", "oneOf", "then", "type"}
).union(*KEYWORDS_BY_TYPE.values())
"""Keywords that decide which values are valid; everything else is annotation."""

_HOLDS: Final[dict[str, Literal["map", "list", "schema", "either"]]] = {
    "$defs": "map",
    "definitions": "map",
    "dependentSchemas": "map",
    "patternProperties": "map",
    "properties": "map",
    "allOf": "list",
    "anyOf": "list",
    "oneOf": "list",
    "prefixItems": "list",
    "additionalItems": "schema",
    "additionalProperties": "schema",
    "contains": "schema",
    "contentSchema": "schema",
    "else": "schema",
    "if": "schema",
    "not": "schema",
    "propertyNames": "schema",
    "then": "schema",
    "unevaluatedItems": "schema",
    "unevaluatedProperties": "schema",
    "items": "either",  # a schema, or a list of them in older dialects
}
NESTING: Final = frozenset(_HOLDS)
"""Keywords that hold subschemas."""

Step: TypeAlias = tuple[str, str | int | None]
"""The way to a subschema: its keyword, and its name or position there (None: the keyword's own value)."""

Place: TypeAlias = Literal["root", "property", "extra", "other"]
"""Where a node stands: `extra` is additionalProperties, the one place inside a schema where `{}` is taken."""
PLACES: Final[dict[str, Place]] = {
    "properties": "property",
    "patternProperties": "other",
    "$defs": "other",
    "items": "other",
    "prefixItems": "other",
    "additionalProperties": "extra",
    "anyOf": "other",
}
"""The subschemas that are looked at. In `not`, `if` and the like a repair would turn into its opposite."""
Root: TypeAlias = Literal["object", "any"]
"""What a root has to be: an object for tool parameters, anything for response formats."""
SIZE_MAX_BYTES: Final = 15_000  # of a schema as compact JSON; validators since mid-2026 take 120,000
DEPTH_MAX: Final = 100  # of JSON; deeper schemas are refused by any validator and not worked on

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")


def any_value() -> JsonObject:
    """A node for every value, in words that the validator takes."""
    return {"type": list(EVERY_TYPE)}


def child_path(path: str, name: str) -> str:
    """The path of a member: `properties.mode`, and `properties["a.b"]` where the name is no plain word."""
    if _PLAIN_NAME.fullmatch(name):
        return f"{path}.{name}" if path else name
    return f"{path}[{msgspec.json.encode(name).decode()}]"


def children(node: JsonObject) -> Iterator[tuple[Step, Json]]:
    """Every subschema of a node and the way to it, in the node's order."""
    for keyword, value in node.items():
        holds = _HOLDS.get(keyword)
        if holds is None:
            continue
        if holds == "map":
            if isinstance(value, dict):
                for name, child in value.items():
                    yield (keyword, name), child
        elif isinstance(value, list):
            if holds != "schema":
                for position, child in enumerate(value):
                    yield (keyword, position), child
        elif holds != "list" and isinstance(value, dict | bool):
            yield (keyword, None), value


def step_path(path: str, step: Step) -> str:
    """The path of a child that `children` gave."""
    keyword, at = step
    place = child_path(path, keyword)
    if at is None:
        return place
    return f"{place}[{at}]" if isinstance(at, int) else child_path(place, at)


def with_children(node: JsonObject, change: Callable[[Step, Json], Json | None]) -> JsonObject:
    """The node with each subschema replaced by what `change` gives (None: taken out of its map or list).

    The node itself where every child comes back as the same object; key order is kept.
    """
    taken: dict[str, Json] = {}
    for step, child in children(node):
        keyword, at = step
        new = change(step, child)
        if new is child:
            continue
        if at is None:
            taken[keyword] = new
            continue
        held = taken.get(keyword)
        if held is None:
            held = taken[keyword] = copy(node[keyword])
        if isinstance(held, dict):
            held[str(at)] = new
        elif isinstance(held, list) and isinstance(at, int):
            held[at] = new
    if not taken:
        return node
    return {key: _pruned(key, taken[key]) if key in taken else value for key, value in node.items()}


def _pruned(keyword: str, value: Json) -> Json:
    """Without the children that were taken out; a JSON null is never a subschema."""
    if isinstance(value, list):
        return [child for child in value if child is not None]
    if isinstance(value, dict) and _HOLDS[keyword] == "map":
        return {name: child for name, child in value.items() if child is not None}
    return value


def types_of(node: JsonObject) -> tuple[str, ...]:
    """The types that a node names, in its order; () where it names none, or none that can be read."""
    kind = node.get("type")
    if isinstance(kind, str):
        return (kind,)
    return tuple(one for one in as_list(kind) if isinstance(one, str))


def value_type(value: Json) -> str:
    """The narrowest type of a value; a number written with a fraction or an exponent is a number."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int():
            return "integer"
        case float() | Decimal():
            return "number"
        case list():
            return "array"
        case _:
            return "object"


def fits(value: Json, kind: str) -> bool:
    """Whether a value has the type; 1.0 is an integer."""
    found = value_type(value)
    if found == kind or (found == "integer" and kind == "number"):
        return True
    if found == "number" and kind == "integer" and isinstance(value, float | Decimal):
        number = Decimal(value)
        return number.is_finite() and number == number.to_integral_value()
    return False


def same(left: Json, right: Json) -> bool:
    """Whether two values are the same JSON, key order included. Python takes true for 1."""
    return left is right or encode(left) == encode(right)


def value_key(value: Json) -> bytes:
    """Equal for values that JSON Schema calls equal, as far as scalars go: 1 and 1.0 are one value."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return encode(value)
    sign, digits, exponent = Decimal(value).as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    if not text or not isinstance(exponent, int):
        return b"0"
    return f"{sign}:{text}:{exponent + len(digits) - len(text)}".encode()


def resolve(root: JsonObject, reference: str) -> Json | None:
    """What a local reference (`#` or a JSON pointer after `#`) names; None where it names nothing."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    spot = _followed(root, reference)
    return spot if spot is not None or "%" not in reference else _followed(root, unquote(reference))


def _followed(root: JsonObject, pointer: str) -> Json | None:
    spot: Json = root
    for step in pointer[2:].split("/"):
        key = unescaped(step)
        if isinstance(spot, dict) and key in spot:
            spot = spot[key]
        elif isinstance(spot, list) and key.isdecimal() and int(key) < len(spot):
            spot = spot[int(key)]
        else:
            return None
    return spot


def unescaped(step: str) -> str:
    """One step of a JSON pointer as the name it stands for."""
    return step.replace("~1", "/").replace("~0", "~")


def escaped(name: str) -> str:
    """A name as one step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def without(node: JsonObject, *names: str) -> JsonObject:
    """The node without these members."""
    return {key: value for key, value in node.items() if key not in names}


def constraints_of(node: JsonObject, *beside: str) -> JsonObject:
    """The members that decide which values are valid, except those named."""
    return {key: value for key, value in node.items() if key in CONSTRAINTS and key not in beside}


def is_deeper(value: Json, levels: int) -> bool:
    """Whether JSON is nested deeper than that; does not itself recurse."""
    layer: list[Json] = [value]
    for _ in range(levels):
        layer = [
            inner
            for one in layer
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not layer:
            return False
    return True
