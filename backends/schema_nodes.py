"""Repairs of one schema node that need no other node. Each gives back the same object where it has nothing to do.

What each does to the set of valid values stands in its first lines: "exact" means that nothing changes.
"""

from decimal import Decimal

from backends.json import Json, JsonObject, as_list, as_object
from backends.schema_merge import relevant_to
from backends.schema_parts import (
    KEYWORDS_BY_TYPE,
    Place,
    any_value,
    constraints_of,
    fits,
    types_of,
    value_type,
    without,
)


def without_dialect(node: JsonObject) -> JsonObject:
    """`$schema` is dropped. Exact: nobody reads it there."""
    return without(node, "$schema") if "$schema" in node else node


def any_of_for_one_of(node: JsonObject) -> JsonObject:
    """`oneOf` becomes `anyOf`. Looser: a value that several branches accept is valid as well."""
    if not as_list(node.get("oneOf")) or "anyOf" in node:
        return node
    return {"anyOf" if key == "oneOf" else key: value for key, value in node.items()}


# --- values ---------------------------------------------------------------------------------------------------


def typed_values(node: JsonObject, _place: Place) -> JsonObject:
    """An enum gets the type of its values, and loses those that its type excludes. Exact, except that an empty
    enum, or one that contradicts its type in every value, allows nothing as written and something afterwards."""
    values = node.get("enum")
    if not isinstance(values, list) or any(word in node for word in ("anyOf", "$ref", "allOf")):
        return node
    if not values:
        return without(node, "enum")
    kinds = types_of(node)
    if not kinds:
        return node if "type" in node else _with_types_of(values, node)
    kept = [value for value in values if any(fits(value, kind) for kind in kinds)]
    if not kept:
        return _with_types_of(values, without(node, "type"))
    if not are_enum_types(kinds):
        return _with_types_of(kept, without(node, "type"))
    return node if len(kept) == len(values) else {**node, "enum": kept}


def are_enum_types(kinds: tuple[str, ...]) -> bool:
    """Whether an enum may stand beside these types: one, or null beside string or boolean. Number and null are
    documented as well, but validators up to mid-2026 stumble over them in one order."""
    return len(kinds) == 1 or (len(kinds) == 2 and "null" in kinds and bool({"string", "boolean"} & {*kinds}))


def _with_types_of(values: list[Json], node: JsonObject) -> JsonObject:
    """The node with these values and their type, as a union where they are of several."""
    by_type: dict[str, list[Json]] = {}
    for value in values:
        by_type.setdefault(value_type(value), []).append(value)
    if "integer" in by_type and "number" in by_type:
        numbers: list[Json] = [value for value in values if isinstance(value, int | Decimal | float)]
        merged: dict[str, list[Json]] = {}
        for kind, held in by_type.items():
            merged["number" if kind in ("integer", "number") else kind] = held
        by_type = {**merged, "number": [value for value in numbers if not isinstance(value, bool)]}
    kinds = tuple(by_type)
    if len(kinds) == 1:
        return {**node, "enum": values, "type": kinds[0]}
    if are_enum_types(kinds):
        scalar = next(kind for kind in kinds if kind != "null")
        return {**node, "enum": values, "type": [scalar, "null"]}
    branches: list[Json] = [{"type": kind, "enum": held} for kind, held in by_type.items()]
    return {"anyOf" if key == "enum" else key: branches if key == "enum" else value for key, value in node.items()}


def typed(node: JsonObject, place: Place) -> JsonObject:
    """A node without a type gets one. Exact for a constant and for a node that says nothing (every type), except
    that an empty property becomes a string, which is a guess, as is the type that its keywords speak of."""
    if any(word in node for word in ("type", "anyOf", "$ref", "enum")):
        return node
    if place in ("root", "extra") and not node:
        return node
    if "const" in node:
        return {**node, "type": value_type(node["const"])}
    for kind, words in KEYWORDS_BY_TYPE.items():
        if words & node.keys():
            return {**node, "type": kind}
    if place == "property" and not node:
        return {"type": "string"}
    return {**node, **any_value()}


def one_type_each(node: JsonObject, _place: Place) -> JsonObject:
    """A list of types with more beside it that constrains one of them becomes a union with a branch for each.
    Exact."""
    kinds = tuple(dict.fromkeys(types_of(node)))
    if not is_overloaded(node, kinds) or any(word in node for word in ("anyOf", "$ref")):
        return node
    held = constraints_of(node, "type")
    branches: list[Json] = []
    for kind in kinds:
        branch: JsonObject = {"type": kind, **relevant_to(held, kind)}
        if "const" in branch and not fits(branch["const"], kind):
            continue
        branches.append(branch)
    if not branches:
        return node
    return {
        "anyOf" if key == "type" else key: branches if key == "type" else value
        for key, value in node.items()
        if key not in held
    }


def is_overloaded(node: JsonObject, kinds: tuple[str, ...]) -> bool:
    """Whether a node has several types and constraints that belong to one; an enum may stand beside a pair."""
    if len(kinds) < 2 or ("enum" in node and are_enum_types(kinds)):
        return False
    return "enum" in node or "const" in node or any(words & node.keys() for words in KEYWORDS_BY_TYPE.values())


# --- arrays and objects ---------------------------------------------------------------------------------------


def plain_items(node: JsonObject, _place: Place) -> JsonObject:
    """Tuple `items` become `prefixItems`, `items` that say nothing are left out, `items: false` is a maximum
    length. Exact, as is `additionalItems` of the old tuples."""
    items = node.get("items")
    if isinstance(items, list):
        return _with_prefix(node, items)
    if items is True or items == {}:
        return without(node, "items")
    if items is False:
        return _at_most(without(node, "items"), len(as_list(node.get("prefixItems"))))
    return node


def _with_prefix(node: JsonObject, items: list[Json]) -> JsonObject:
    before = as_list(node.get("prefixItems"))
    rest = node.get("additionalItems")
    made: JsonObject = {}
    for key, value in node.items():
        if key == "items":
            if before or items:
                made["prefixItems"] = [*before, *items]
        elif key not in ("prefixItems", "additionalItems"):
            made[key] = value
    if rest is False:
        return _at_most(made, len(before) + len(items))
    return {**made, "items": rest} if as_object(rest) else made


def _at_most(node: JsonObject, length: int) -> JsonObject:
    most = node.get("maxItems")
    stated = isinstance(most, int) and not isinstance(most, bool) and most <= length
    return node if stated else {**node, "maxItems": length}


def declared(node: JsonObject, _place: Place) -> JsonObject:
    """A required name that `properties` do not list is listed, with what other members may be. Exact. Where there
    may be no others nothing would be valid: there it is not required any more. Of other types nothing is."""
    required, properties = node.get("required"), node.get("properties", {})
    rest = node.get("additionalProperties", True)
    kinds = types_of(node)
    if not kinds or not isinstance(required, list) or not isinstance(properties, dict):
        return node
    missing = [name for name in required if isinstance(name, str) and name not in properties]
    if not missing:
        return node
    if "object" not in kinds:
        return without(node, "required")
    if rest is False and "patternProperties" not in node:
        left: list[Json] = [name for name in required if name not in missing]
        return {**node, "required": left} if left else without(node, "required")
    by_name = "patternProperties" in node
    held: Json = any_value() if by_name or rest is True or rest == {} else rest
    return {**node, "properties": {**properties, **dict.fromkeys(missing, held)}}
