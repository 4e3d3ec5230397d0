"""Repairs of unions and references that carry constraints beside them. All exact unless it says otherwise.

Moonshot's validator takes nothing but a title and a description beside `anyOf` and `$ref`. What stands there is
moved into the branches, or into the body of the reference: in place where the body is small, else as a further
definition, so that recursion stays finite and nothing is written twice.
"""

from typing import Protocol

from backends.json import Json, JsonObject, as_list
from backends.schema_merge import Bodies, conjoin
from backends.schema_parts import NESTING, any_value, constraints_of, same, types_of, without


class References(Bodies, Protocol):
    """What a repair asks of the schema as a whole."""

    joins: bool
    """Whether constraints are joined; else a type moves into a union and goes from a reference: looser."""

    def words_of(self, reference: str) -> frozenset[str]:
        """Every member name along the chain of a reference."""
        ...

    def defined(self, reference: str, constraints: JsonObject, body: JsonObject) -> str:
        """The reference to a further definition: the body that a reference and these constraints make."""
        ...


def joined_parts(node: JsonObject, refs: References) -> JsonObject:
    """`allOf` of a node without a type becomes part of it; where that cannot be said, the types that its parts
    leave are stated beside it."""
    parts = node.get("allOf")
    if not isinstance(parts, list) or "type" in node:
        return node
    made: JsonObject = without(node, "allOf")
    for part in parts:
        step = conjoin(made, part, refs) if refs.joins else None
        if step is None or step is False:
            return {**node, **_types_left(parts, refs)} if "$ref" not in node and "anyOf" not in node else node
        made = step
    return made


def _types_left(parts: list[Json], refs: References) -> JsonObject:
    left: JsonObject = {}
    for part in parts:
        reference = part.get("$ref") if isinstance(part, dict) else None
        body = refs.body_of(reference) if isinstance(reference, str) else part
        if isinstance(body, dict) and types_of(body):
            step = conjoin(left, {"type": body["type"]}, refs)
            left = step if isinstance(step, dict) else left
    return left or any_value()


def bare_reference(node: JsonObject, refs: References) -> JsonObject:
    """Constraints beside a reference go into its body; a title or description that the body has too stands beside
    a union with the reference as its one branch. Where the constraints cannot be joined, a type is dropped."""
    reference = node.get("$ref")
    if not isinstance(reference, str):
        return node
    beside = constraints_of(node, "$ref")
    body = refs.body_of(reference)
    if body is None:
        return node
    if beside:
        joined = conjoin(body, beside, refs) if refs.joins else None
        if joined is None or joined is False:
            return without(node, "type") if "type" in node else node
        plain = {key: value for key, value in node.items() if key not in beside}
        if same(constraints_of(joined), constraints_of(body)):
            return plain
        if not NESTING & joined.keys() and "$ref" not in joined:
            return {**joined, **without(plain, "$ref")}
        return {**plain, "$ref": refs.defined(reference, beside, joined)}
    twice = (node.keys() & refs.words_of(reference)) - {"$ref", "$defs", "$id"}
    if not twice:
        return node
    return {
        "anyOf" if key == "$ref" else key: [{"$ref": value}] if key == "$ref" else value
        for key, value in node.items()
    }


def bare_union(node: JsonObject, refs: References) -> JsonObject:
    """Constraints beside `anyOf` go into every branch, and branches that contradict them go. Where they cannot be
    joined, only the type moves, and where they contradict all branches it goes; both are looser."""
    branches = node.get("anyOf")
    if not isinstance(branches, list) or "$ref" in node:
        return node
    possible = [branch for branch in branches if branch is not False]
    if len(possible) < len(branches) and possible:
        return {**node, "anyOf": possible}
    beside = constraints_of(node, "anyOf")
    if not beside or not possible:
        return node
    made: list[Json] = []
    for branch in possible:
        joined = conjoin(beside, branch, refs) if refs.joins else None
        if joined is None:
            return _with_type_inside(node, possible)
        if joined is not False and not _is_contradiction(joined, refs):
            made.append(joined)
    if not made:
        return without(node, "type") if "type" in node else node
    return {key: made if key == "anyOf" else value for key, value in node.items() if key not in beside}


def _is_contradiction(node: JsonObject, refs: References) -> bool:
    """Whether a reference and the constraints beside it exclude each other."""
    reference = node.get("$ref")
    body = refs.body_of(reference) if isinstance(reference, str) else None
    return body is not None and conjoin(body, constraints_of(node, "$ref"), refs) is False


def _with_type_inside(node: JsonObject, branches: list[Json]) -> JsonObject:
    if "type" not in node:
        return node
    made: list[Json] = []
    for branch in branches:
        untyped = isinstance(branch, dict) and not any(word in branch for word in ("type", "$ref", "anyOf"))
        made.append({"type": node["type"], **branch} if untyped and isinstance(branch, dict) else branch)
    return {**without(node, "type"), "anyOf": made}


def variants(branches: list[Json], refs: References, depth: int = 0) -> list[JsonObject]:
    """The branches of a union that can be objects, references followed and unions within them opened."""
    found: list[JsonObject] = []
    for branch in branches:
        node = _opened(branch, refs)
        inner = as_list(node.get("anyOf"))
        if inner and depth < 8:
            found += variants(inner, refs, depth + 1)
        elif not types_of(node) or "object" in types_of(node):
            found.append(node)
    return found


def _opened(branch: Json, refs: References) -> JsonObject:
    """A branch without reference and `oneOf`, with what stands beside its union inside it."""
    if not isinstance(branch, dict):
        return {} if branch is True else {"type": "null"}
    node = branch
    for _ in range(8):
        before = node
        node = joined_parts(node, refs)
        reference = node.get("$ref")
        body = refs.body_of(reference) if isinstance(reference, str) else None
        if body is not None:
            joined = conjoin(body, constraints_of(node, "$ref"), refs)
            node = joined if isinstance(joined, dict) else body
        if "oneOf" in node and "anyOf" not in node:
            node = {"anyOf" if key == "oneOf" else key: value for key, value in node.items()}
        node = bare_union(node, refs)
        if node is before:
            break
    return node
