"""The root of tool parameters as the plain object that Moonshot asks for: `type` object and no union beside it.

A call's arguments are always an object, so stating that changes nothing. A union at the root has no form there
(`anyOf` beside `type` is refused, and so is a root without a type): its variants are merged into one object with
the members of all and the required names common to all. That is looser, except that a member which only some
variants declare must look as they say.
"""

from typing import Final

from backends.json import Json, JsonObject, as_list, as_object
from backends.schema_merge import conjoin
from backends.schema_nodes import any_of_for_one_of, declared
from backends.schema_parts import any_value, constraints_of, fits, same, types_of, value_key, value_type, without
from backends.schema_unions import References, bare_union, joined_parts, variants

_ROUNDS: Final = 16
_CHOICE: Final = frozenset({"type", "enum", "const"})


def object_root(schema: JsonObject, refs: References) -> JsonObject:
    """The schema with an object as its root; the same object where it is one, or where no variant can be one."""
    node = schema
    for _ in range(_ROUNDS):
        before = node
        node = _without_reference(node, refs)
        node = any_of_for_one_of(joined_parts(node, refs))
        node = _merged(bare_union(node, refs), refs)
        if node is before:
            break
    kinds = types_of(node)
    if any(word in node for word in ("$ref", "anyOf")):
        return node
    if "type" not in node:
        return {**node, "type": "object"}
    return {**node, "type": "object"} if len(kinds) > 1 and "object" in kinds else node


def _without_reference(node: JsonObject, refs: References) -> JsonObject:
    """The body instead of a reference at the root, under the root's own title and definitions. Exact."""
    reference = node.get("$ref")
    body = refs.body_of(reference) if isinstance(reference, str) else None
    if body is None:
        return node
    beside = constraints_of(node, "$ref")
    joined = conjoin(body, beside, refs)
    if not isinstance(joined, dict):
        return node
    return {**joined, **{key: value for key, value in node.items() if key != "$ref" and key not in beside}}


def _merged(node: JsonObject, refs: References) -> JsonObject:
    """The variants of the root's union as one object."""
    branches = node.get("anyOf")
    if not isinstance(branches, list) or constraints_of(node, "anyOf"):
        return node
    found = [declared({**variant, "type": "object"}, "other") for variant in variants(branches, refs)]
    if not found:
        return node
    made: JsonObject = {"type": "object"}
    properties = _properties_of(found)
    if properties:
        made["properties"] = properties
    first, *others = (as_list(variant.get("required")) for variant in found)
    required = [name for name in first if all(name in other for other in others)]
    if required:
        made["required"] = required
    rest = _rest_of(found)
    if rest is not True:
        made["additionalProperties"] = rest
    return {**without(node, "anyOf"), **made}


def _properties_of(found: list[JsonObject]) -> JsonObject:
    by_name: dict[str, list[Json]] = {}
    for variant in found:
        for name, schema in (as_object(variant.get("properties", {})) or {}).items():
            by_name.setdefault(name, []).append(schema)
    return {name: _either(schemas) for name, schemas in by_name.items()}


def _rest_of(found: list[JsonObject]) -> Json:
    """What further members may be: closed where all variants are."""
    rests = [variant.get("additionalProperties", True) for variant in found]
    if any(rest is True or rest == {} for rest in rests):
        return True
    open_ones = [rest for rest in rests if rest is not False]
    return _either(open_ones) if open_ones else False


def _either(schemas: list[Json]) -> Json:
    """One schema for what any of these accepts; discriminators become one enum."""
    distinct: list[Json] = []
    for schema in schemas:
        if not any(same(schema, known) for known in distinct):
            distinct.append(schema)
    if len(distinct) == 1:
        return distinct[0]
    if any(schema is True or same(schema, any_value()) for schema in distinct):
        return any_value()
    return _choice(distinct) or {"anyOf": distinct}


def _choice(schemas: list[Json]) -> JsonObject | None:
    """The values of all, where every schema is nothing but a list of values of one and the same type."""
    values: dict[bytes, Json] = {}
    for schema in schemas:
        node = as_object(schema)
        if node is None or not constraints_of(node).keys() <= _CHOICE:
            return None
        listed = [node["const"]] if "const" in node else as_list(node.get("enum"))
        kinds = types_of(node)
        if not listed or (kinds and not all(any(fits(value, kind) for kind in kinds) for value in listed)):
            return None
        values |= {value_key(value): value for value in listed}
    kinds = tuple({value_type(value) for value in values.values()})
    if len(kinds) != 1:
        return None
    annotations = {key: value for key, value in (as_object(schemas[0]) or {}).items() if key not in _CHOICE}
    return {**annotations, "type": kinds[0], "enum": [*values.values()]}
