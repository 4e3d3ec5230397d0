"""Whether a recursive schema has a value at all: one that ends."""

from collections import deque
from collections.abc import Set

from backends.json import Json, JsonObject, as_count, as_list, as_object
from backends.schema_parts import SCALARS, children, resolve, types_of


def can_end(schema: JsonObject) -> bool:
    """Whether some finite value satisfies the recursion of a schema. Only what is required counts."""
    references = _references(schema)
    ending: set[str] = set()
    while True:
        more = {ref for ref in references - ending if _ends(resolve(schema, ref), ending)}
        if not more:
            return _ends(schema, ending)
        ending |= more


def _references(schema: JsonObject) -> set[str]:
    found: set[str] = set()
    queue: deque[Json] = deque([schema])
    while queue:
        node = queue.popleft()
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                found.add(str(node["$ref"]))
            queue += [child for _, child in children(node)]
    return found


def _ends(node: Json | None, ending: Set[str]) -> bool:
    """Whether a value for the node ends, given the references known to end. What cannot be read is taken to."""
    if not isinstance(node, dict):
        return True
    reference = node.get("$ref")
    if isinstance(reference, str) and reference not in ending:
        return False
    branches = as_list(node.get("anyOf"))
    if branches and not any(_ends(branch, ending) for branch in branches):
        return False
    kinds = types_of(node)
    if SCALARS & {*kinds} or "null" in kinds:
        return True
    if "array" in kinds and not (as_count(node.get("minItems")) or 0):
        return True
    properties = as_object(node.get("properties", {})) or {}
    needed = [properties.get(name, True) for name in as_list(node.get("required")) if isinstance(name, str)]
    if "array" in kinds:
        needed = [node.get("items", True)]
    return all(_ends(inner, ending) for inner in needed)
