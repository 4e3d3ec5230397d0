"""References in the form that Moonshot's validator takes: `#`, or a place under the root's `$defs`.

Draft-07 `definitions`, pointers at sibling properties and `$defs` inside a subschema are all copied under the
root's `$defs`, which changes no meaning and keeps recursion finite. What points nowhere, or out of the document,
stays.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from backends.json import Json, JsonObject, as_list, as_object
from backends.schema_parts import (
    CONSTRAINTS,
    any_value,
    child_path,
    children,
    escaped,
    resolve,
    unescaped,
    with_children,
)

DEFS: Final = "#/$defs/"
_NAMES_MAX: Final = 500  # places that references may name, beyond it the schema is left alone


def is_plain_reference(reference: str) -> bool:
    """Whether the validator takes a reference of this form: a definition has a name, and no slash in it."""
    if reference == "#":
        return True
    return reference.startswith(DEFS) and is_plain_name(unescaped(reference.removeprefix(DEFS).split("/")[0]))


def is_plain_name(name: str) -> bool:
    """Whether a definition may be called that."""
    return name != "" and "/" not in name


def chain_words(reference: str, target_of: Callable[[str], JsonObject | None]) -> frozenset[str]:
    """The member names of what a reference names, of what that refers to, and so on; of the branches of a union
    their annotations, which must not be repeated either, except title and description."""
    words: set[str] = set()
    seen: set[str] = set()
    while reference not in seen:
        seen.add(reference)
        target = target_of(reference)
        if target is None:
            break
        words |= target.keys()
        for branch in as_list(target.get("anyOf")):
            words |= (as_object(branch) or {}).keys() - CONSTRAINTS - {"title", "description"}
        reference = str(target.get("$ref", reference))
    return frozenset(words)


def with_plain_references(schema: JsonObject) -> tuple[JsonObject, dict[str, str]]:
    """The schema with every local reference in the plain form, and the place that each new definition was copied
    from (by its name, as a JSON pointer); the same object and nothing where that changes nothing."""
    moved: dict[str, str] = {}
    bodies: JsonObject = {}
    defs = as_object(schema.get("$defs", {})) or {}
    taken = set(defs)
    queue = deque(_references(schema))
    while queue:
        reference = queue.popleft()
        if reference in moved or is_plain_reference(reference):
            continue
        if len(moved) == _NAMES_MAX:
            return schema, {}
        target = resolve(schema, reference)
        if isinstance(target, bool):
            target = any_value() if target else {"not": {}}
        if not isinstance(target, dict):
            continue
        name = free_name(last_name(reference), taken)
        taken.add(name)
        moved[reference] = DEFS + escaped(name)
        bodies[name] = target
        queue += _references(target)
    if not moved and "definitions" not in schema and all(is_plain_name(name) for name in defs):
        return schema, {}
    origins = {unescaped(new.removeprefix(DEFS)): old for old, new in moved.items()}
    return _rewritten(schema, moved, bodies), origins


def _rewritten(schema: JsonObject, moved: dict[str, str], bodies: JsonObject) -> JsonObject:
    """The schema with new names for the references and the bodies they name; `definitions` has no use any more."""

    def renamed(node: Json) -> Json:
        if not isinstance(node, dict):
            return node
        fixed = with_children(node, lambda _step, child: renamed(child))
        reference = fixed.get("$ref")
        return {**fixed, "$ref": moved[reference]} if isinstance(reference, str) and reference in moved else fixed

    made = as_object(renamed(schema)) or {}
    kept = {name: body for name, body in (as_object(made.get("$defs", {})) or {}).items() if is_plain_name(name)}
    new: JsonObject = {**kept, **{name: renamed(body) for name, body in bodies.items()}}
    result = {key: value for key, value in made.items() if key != "definitions"}
    return {**result, "$defs": new} if new or "$defs" in made else result


def _references(node: Json) -> list[str]:
    """Every `$ref` in schema positions, outermost first."""
    found: list[str] = []
    queue = deque([node])
    while queue:
        one = queue.popleft()
        if not isinstance(one, dict):
            continue
        reference = one.get("$ref")
        if isinstance(reference, str):
            found.append(reference)
        queue += [child for _, child in children(one)]
    return found


def last_name(reference: str) -> str:
    """A name for what a pointer points at: its last step, or the one before a position in a list."""
    steps = [unescaped(step) for step in reference.split("/")[1:]]
    words = [step for step in steps if step and not step.isdecimal()]
    return (words[-1] if words else "schema").replace("/", "_")


def free_name(base: str, taken: set[str]) -> str:
    """The name itself, or with the first number from 2 on that makes it new."""
    if base not in taken:
        return base
    number = 2
    while f"{base}_{number}" in taken:
        number += 1
    return f"{base}_{number}"


def without_orphans(schema: JsonObject, before: JsonObject) -> JsonObject:
    """The schema without the definitions that nothing leads to any more; those that nothing led to before stay."""
    defs = as_object(schema.get("$defs", {})) or {}
    never = (as_object(before.get("$defs", {})) or {}).keys() - _reachable(before, set())
    orphans = defs.keys() - never - _reachable(schema, never)
    if not orphans:
        return schema
    kept: JsonObject = {name: body for name, body in defs.items() if name not in orphans}
    if not kept:
        return {key: value for key, value in schema.items() if key != "$defs"}
    return {**schema, "$defs": kept}


def _reachable(schema: JsonObject, also: set[str]) -> set[str]:
    """The names of the definitions that the root, and those definitions also, lead to."""
    defs = as_object(schema.get("$defs", {})) or {}
    found: set[str] = set()
    starts = [{key: value for key, value in schema.items() if key != "$defs"}, *(defs.get(name) for name in also)]
    queue = deque(reference for start in starts for reference in _references(start))
    while queue:
        reference = queue.popleft()
        name = unescaped(reference.removeprefix(DEFS).split("/")[0])
        if reference.startswith(DEFS) and name in defs and name not in found:
            found.add(name)
            queue += _references(defs[name])
    return found


def pointer_path(path: str, pointer: str) -> str:
    """A JSON pointer of the document at `path` as a path, such as `definitions.Item`."""
    for step in pointer.split("/")[1:]:
        path = f"{path}[{step}]" if step.isdecimal() else child_path(path, unescaped(step))
    return path
