"""What Moonshot refuses in a schema: each place with the rule it breaks and how to write it instead.

Rules and limits are those of the public validator MoonshotAI/walle v0.1.10 (docs/walle.md, docs/mfjs-spec.md), its
accepted schemas, and of refusals that users reported: a root without `type` object (tools), nodes without a type,
`type` beside `anyOf` or `$ref`, tuple `items`, a title or description on both sides of a reference.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, TypeAlias

from backends.json import Json, JsonObject, as_list, as_object, encode
from backends.schema_ends import can_end
from backends.schema_nodes import are_enum_types, is_overloaded
from backends.schema_parts import (
    CONSTRAINTS,
    DEPTH_MAX,
    PLACES,
    SIZE_MAX_BYTES,
    TYPES,
    Place,
    Root,
    child_path,
    children,
    constraints_of,
    fits,
    is_deeper,
    resolve,
    step_path,
    types_of,
)
from backends.schema_refs import chain_words, is_plain_name, is_plain_reference

LEVELS_MAX: Final = 10  # of properties within properties; since mid-2026 30
NAMES_MAX: Final = 1_000  # property names in all objects together; since mid-2026 3,000
BRANCHES_MAX: Final = 100  # of one anyOf; since mid-2026 500
VALUES_MAX: Final = 500  # of one enum; since mid-2026 1,000
RESERVED_NAMES: Final = frozenset({"$defs", "$ref", "additionalProperties", "anyOf", "required"})
"""Names that no property may have: the validator takes them for keywords."""
_RANGES: Final = (
    ("minLength", "maxLength"),
    ("minimum", "maximum"),
    ("minItems", "maxItems"),
)
_TEXTS: Final = ("title", "description", "pattern", "$id")


@dataclass(frozen=True, slots=True)
class Violation:
    """A place (such as `properties.mode`, "" for the root), the rule broken there, what is wrong, what to do."""

    path: str
    rule: str
    what: str
    remedy: str


def violations(schema: Json, *, root: Root = "object", path: str = "") -> list[Violation]:
    """What Moonshot would refuse, in the order of the schema; empty for one it takes.

    `root` is `object` for tool parameters and `any` for response formats. `path` is put before each path.
    """
    node = as_object(schema)
    if node is None:
        return [Violation(path, "root", "a schema is an object", "write it as an object with type object")]
    if is_deeper(node, DEPTH_MAX):
        return [Violation(path, "depth", f"nested deeper than {DEPTH_MAX} levels of JSON", _FLATTER)]
    check = _Check(node)
    check.root(root, path)
    return check.found


_FLATTER: Final = "flatten it, or move parts of it into a text argument"


@dataclass(slots=True)
class _Check:
    """One schema being checked."""

    schema: JsonObject
    found: list[Violation] = field(default_factory=list)
    names: int = 0

    def root(self, root: Root, path: str) -> None:
        """Everything about the schema."""
        size = len(encode(self.schema))
        if size > SIZE_MAX_BYTES:
            self._add(path, "size", f"{size:,} bytes as compact JSON; the limit is {SIZE_MAX_BYTES:,}", _SHORTER)
        node = self.schema
        if root == "object" and types_of(node) != ("object",):
            said = f"says {encode(node['type']).decode()}" if "type" in node else "has no type"
            self._add(
                path, "root", f"the root {said}; arguments are an object", 'set "type": "object" at the root'
            )
        self._node(node, "root", path, 0)
        if self.names > NAMES_MAX:
            self._add(path, "names", f"{self.names:,} property names in all; the limit is {NAMES_MAX:,}", _FLATTER)
        if not can_end(self.schema):
            self._add(path, "endless", "every value needs a further one, for ever", _END)

    def _add(self, path: str, rule: str, what: str, remedy: str) -> None:
        self.found.append(Violation(path, rule, what, remedy))

    def _node(self, value: Json, place: Place, path: str, level: int) -> None:
        if isinstance(value, bool) and place == "extra":
            return
        if not isinstance(value, dict):
            said = "true or false" if isinstance(value, bool) else "no schema"
            self._add(path, "not_an_object", f"{said} where a schema belongs", "write an object with a type")
            return
        for violation in _violations_of(value, place, path, self.schema):
            self.found.append(violation)
        properties = as_object(value.get("properties", {})) or {}
        self.names += len(properties)
        if level == LEVELS_MAX and properties:
            self._add(path, "levels", f"objects nested deeper than {LEVELS_MAX} levels", _FLATTER)
        for step, child in children(value):
            inner = PLACES.get(step[0])
            if step[0] == "items" and not as_object(value["items"]):
                continue  # a list, or nothing said: that is the finding
            if inner is not None:
                self._node(child, inner, step_path(path, step), level + (inner == "property"))


_SHORTER: Final = "shorten descriptions, or split the tool"
_END: Final = "make the recursive member optional, or let it be null"


def _violations_of(node: JsonObject, place: Place, path: str, root: JsonObject) -> Iterator[Violation]:
    """What is wrong with one node itself."""
    for rule, what, remedy in (
        *_of_type(node, place),
        *_of_union(node),
        *_of_reference(node, root),
        *_of_values(node),
        *_of_object(node),
        *_of_array(node),
        *_of_texts_and_ranges(node),
    ):
        yield Violation(path, rule, what, remedy)


_Problem: TypeAlias = tuple[str, str, str]


def _of_type(node: JsonObject, place: Place) -> Iterator[_Problem]:
    if "$schema" in node:
        yield "dialect", "$schema is not known there", "leave $schema out"
    if "definitions" in node and place == "root":
        yield "definitions", "definitions is not known there", "write $defs"
    if "type" in node:
        yield from _of_stated_type(node)
        return
    if any(word in node for word in ("anyOf", "$ref", "oneOf")) or (not node and place in ("root", "extra")):
        return
    if "allOf" in node:
        yield "all_of", "there is no allOf, and no type beside it", "write the parts as one schema"
    elif "enum" in node or "const" in node:
        yield "no_type", "values without a type", "add the type of the values"
    else:
        yield "no_type", "no type", "add a type, or a list of types where it may be anything"


def _of_stated_type(node: JsonObject) -> Iterator[_Problem]:
    kind = node["type"]
    kinds = types_of(node)
    named = [kind] if isinstance(kind, str) else as_list(kind)
    if not kinds or len(kinds) != len(named) or not TYPES.issuperset(kinds):
        yield "type", f"{encode(kind).decode()} is no type", f"use one of {', '.join(sorted(TYPES))}, or a list"
        return
    if is_overloaded(node, kinds):
        yield "types", "more than a description beside a list of types", "write an anyOf with a branch per type"


def _of_union(node: JsonObject) -> Iterator[_Problem]:
    if "oneOf" in node and "anyOf" not in node:
        yield "one_of", "there is no oneOf", "write anyOf"
    if "anyOf" not in node:
        return
    branches = node["anyOf"]
    if not isinstance(branches, list) or not branches:
        yield "any_of", "anyOf must be a list with at least one schema", "list the alternatives"
    elif len(branches) > BRANCHES_MAX:
        yield "branches", f"{len(branches)} alternatives; the limit is {BRANCHES_MAX}", "use fewer alternatives"
    yield from _of_neighbours(node, "anyOf", "into each branch")


def _of_neighbours(node: JsonObject, word: str, where: str) -> Iterator[_Problem]:
    """Only a title and a description may stand beside unions and references."""
    beside = constraints_of(node, word, "oneOf", *(("anyOf",) if word == "anyOf" else ()))
    short = "union" if word == "anyOf" else "ref"
    if "type" in beside:
        yield f"type_beside_{short}", f"type beside {word}", f"move type {where}"
    others = ", ".join(name for name in beside if name != "type")
    if others:
        yield f"beside_{short}", f"{others} beside {word}", f"move what constrains {where}"


def _of_reference(node: JsonObject, root: JsonObject) -> Iterator[_Problem]:
    if "$ref" not in node:
        return
    reference = node["$ref"]
    if not isinstance(reference, str):
        yield "ref", "$ref must be a string", "write #/$defs/NAME"
        return
    target = resolve(root, reference)
    if not is_plain_reference(reference):
        what = "points outside of $defs" if isinstance(target, dict) else "points out of the schema, or nowhere"
        yield "ref", f"$ref {reference} {what}", "define it under $defs of the root and write #/$defs/NAME"
        return
    if not isinstance(target, dict):
        yield "ref", f"$ref {reference} names nothing", "define it under $defs of the root"
        return
    yield from _of_neighbours(node, "$ref", "into the definition")
    words = chain_words(reference, lambda name: as_object(resolve(root, name)))
    twice = [name for name in node if name in words and name not in CONSTRAINTS and name not in ("$defs", "$id")]
    if twice:
        yield "twice", f"{' and '.join(twice)} beside $ref and in its definition", "keep it in one place"


def _of_values(node: JsonObject) -> Iterator[_Problem]:
    if "enum" not in node:
        return
    values, kinds = node["enum"], types_of(node)
    if not isinstance(values, list) or not values:
        yield "enum", "enum must be a list with at least one value", "list the values, or leave enum out"
        return
    if len(values) > VALUES_MAX:
        yield "values", f"{len(values)} values; the limit is {VALUES_MAX}", "describe them in words instead"
    if not kinds:
        return
    if not are_enum_types(kinds):
        yield "enum", "an enum of several types", "write an anyOf with an enum per type"
    strange = [value for value in values if not any(fits(value, kind) for kind in kinds)]
    if strange:
        shown = encode(strange[0]).decode()[:40]
        yield "enum", f"value {shown} is not of type {' or '.join(kinds)}", "make values and type agree"


def _of_object(node: JsonObject) -> Iterator[_Problem]:
    properties = node.get("properties", {})
    if not isinstance(properties, dict):
        yield "properties", "properties must be an object", "write name: schema pairs"
        return
    for name in properties:
        if name in RESERVED_NAMES:
            yield "reserved", f"a property must not be called {name}", "rename it"
    if "additionalProperties" in node and not isinstance(node["additionalProperties"], dict | bool):
        yield "additional", "additionalProperties must be true, false or a schema", "write one of them"
    if "$defs" in node and as_object(node["$defs"]) is None:
        yield "defs", "$defs must be an object", "write name: schema pairs"
    for name in as_object(node.get("$defs", {})) or {}:
        if not is_plain_name(name):
            yield "defs", f"a definition must not be called {name!r}", "give it a name without a slash"
    required = node.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        yield "required", "required must be a list of names", "list the required members in the object's node"
        return
    missing = [str(name) for name in required if name not in properties]
    if missing:
        yield "required", f"required names {', '.join(missing)}, which properties do not list", "add it there"


def _of_array(node: JsonObject) -> Iterator[_Problem]:
    if "items" not in node:
        return
    items = node["items"]
    if isinstance(items, list):
        yield "tuple", "items is a list", "write prefixItems"
    elif items == {} or items is True:
        yield "items", "items says nothing", "leave items out"
    elif not isinstance(items, dict):
        yield "items", "items must be a schema", "write a schema, or maxItems for a closed list"


def _of_texts_and_ranges(node: JsonObject) -> Iterator[_Problem]:
    for word in _TEXTS:
        if word in node and not isinstance(node[word], str):
            yield "text", f"{word} must be a string", "write a string"
    for least, most in _RANGES:
        low, high = node.get(least), node.get(most)
        if _is_number(low) and _is_number(high) and Decimal(str(low)) > Decimal(str(high)):
            yield "range", f"{least} is larger than {most}", "nothing fits: set one of them right"


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def ignored(schema: Json, *, path: str = "") -> list[str]:
    """The places of keywords that Moonshot takes and does not enforce: the model reads them, no more."""
    found: list[str] = []
    node = as_object(schema)
    queue = deque([(node, path)] if node is not None and not is_deeper(node, DEPTH_MAX) else [])
    while queue:
        one, where = queue.popleft()
        found += [child_path(where, word) for word in one if word in _IGNORED]
        for step, child in children(one):
            if step[0] in PLACES and isinstance(child, dict):
                queue.append((child, step_path(where, step)))
    return found


_IGNORED: Final = frozenset(
    {
        "allOf",
        "const",
        "contains",
        "dependentRequired",
        "dependentSchemas",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "if",
        "maxProperties",
        "minProperties",
        "multipleOf",
        "not",
        "pattern",
        "patternProperties",
        "prefixItems",
        "propertyNames",
        "uniqueItems",
    }
)
