"""One pass of repairs over one schema."""

from dataclasses import dataclass, field
from typing import Final

from backends.json import Json, JsonObject, as_object, encode
from backends.schema_merge import conjoin
from backends.schema_nodes import (
    any_of_for_one_of,
    declared,
    one_type_each,
    plain_items,
    typed,
    typed_values,
    without_dialect,
)
from backends.schema_parts import (
    DEPTH_MAX,
    PLACES,
    Place,
    Root,
    Step,
    any_value,
    children,
    constraints_of,
    escaped,
    is_deeper,
    resolve,
    step_path,
    unescaped,
    with_children,
)
from backends.schema_refs import (
    DEFS,
    chain_words,
    free_name,
    is_plain_reference,
    last_name,
    pointer_path,
    with_plain_references,
    without_orphans,
)
from backends.schema_root import object_root
from backends.schema_unions import bare_reference, bare_union, joined_parts

_STEPS_MAX: Final = 5_000  # nodes looked at and joins made; a step is some 10 µs
_DEFINITIONS_MAX: Final = 50  # made for references with constraints beside them
_LEVELS_MAX: Final = 60  # of nodes within nodes
_ROUNDS_MAX: Final = 32  # of repairs on one node

_JOINT_REPAIRS: Final = (joined_parts, bare_reference, bare_union)
_OWN_REPAIRS: Final = (typed_values, typed, one_type_each, plain_items, declared)


class TooLarge(Exception):
    """More nodes, levels or definitions than a tool schema has, or than one that a repair makes may have."""


@dataclass(slots=True)
class Pass:
    """The work on one schema. It is what repairs ask for references.

    `joins` False is the modest way for schemas that grow too large otherwise, see `schema_unions.References`.
    """

    schema: JsonObject
    root: Root
    joins: bool
    again: bool = False
    """Set where a repair went beyond one node, so that another pass may find more."""
    _plain: JsonObject = field(init=False)
    _origins: dict[str, str] = field(init=False)
    _names: set[str] = field(init=False)
    _changed: dict[tuple[Step, ...], None] = field(default_factory=dict)
    _made: dict[tuple[str, bytes], str] = field(default_factory=dict)
    _bodies: dict[str, JsonObject] = field(default_factory=dict)
    _steps: int = 0
    _depth: int = 0

    def __post_init__(self) -> None:
        self._plain, self._origins = with_plain_references(self.schema)
        self._names = set(as_object(self._plain.get("$defs", {})) or {})

    def repaired(self) -> JsonObject:
        """The schema after the pass, the same object where nothing was to do. Raises `TooLarge`."""
        if self._plain is not self.schema:
            self.again = True
            self._note_references(self.schema, ())
            if "definitions" in self.schema and not self._changed:
                self._note((("definitions", None),))
        top = object_root(self._plain, self) if self.root == "object" else self._plain
        if top is not self._plain:
            self.again = True
            self._note(())
        made = as_object(self._node(top, "root", (), self._plain)) or {}
        new: JsonObject = {}
        while len(new) < len(self._bodies):
            name = [*self._bodies][len(new)]
            new[name] = self._node(self._bodies[name], "other", None)
        if new:
            made = {**made, "$defs": {**(as_object(made.get("$defs", {})) or {}), **new}}
        return without_orphans(made, self._plain) if self._changed else self.schema

    def changed(self, path: str) -> tuple[str, ...]:
        """The places that were changed, as the client wrote them, each after `path`."""
        return tuple(dict.fromkeys(self._path_of(path, way) for way in self._changed))

    def spend(self) -> None:
        """Counts a node or a join. Raises `TooLarge`."""
        self._steps += 1
        if self._steps > _STEPS_MAX:
            raise TooLarge

    def body_of(self, reference: str) -> JsonObject | None:
        """What a reference names; a chain of references is followed and joined."""
        return self._body(reference, frozenset())

    def _body(self, reference: str, seen: frozenset[str]) -> JsonObject | None:
        target = self._target(reference)
        if target is None or reference in seen:
            return None
        inner = target.get("$ref")
        if not isinstance(inner, str):
            return target
        body = self._body(inner, seen | {reference})
        if body is None:
            return None
        joined = conjoin(body, constraints_of(target, "$ref"), self)
        if not isinstance(joined, dict):
            return None
        return {**joined, **{k: v for k, v in target.items() if k != "$ref" and k not in joined}}

    def _target(self, reference: str) -> JsonObject | None:
        """What a reference names itself, among the client's definitions and those made here."""
        made = self._bodies.get(unescaped(reference.removeprefix(DEFS)))
        if made is not None and reference.startswith(DEFS):
            return made
        target = resolve(self._plain, reference)
        return any_value() if target is True else as_object(target)

    def words_of(self, reference: str) -> frozenset[str]:
        """Every member name along the chain of a reference."""
        return chain_words(reference, self._target)

    def defined(self, reference: str, constraints: JsonObject, body: JsonObject) -> str:
        """The reference to a further definition, one for each reference and set of constraints. Raises `TooLarge`
        where definitions that refer to one another keep asking for more."""
        key = (reference, encode(constraints))
        if key not in self._made:
            if len(self._made) >= _DEFINITIONS_MAX or is_deeper(body, DEPTH_MAX):
                raise TooLarge
            name = free_name(last_name(reference), self._names)
            self._names.add(name)
            self._made[key] = name
            self._bodies[name] = body
        return DEFS + escaped(self._made[key])

    def _node(
        self, value: Json, place: Place, way: tuple[Step, ...] | None, origin: JsonObject | None = None
    ) -> Json:
        """A schema in any place. `way` None: nothing is noted, because what holds it was noted already.

        `origin` is what the client wrote there, where `value` is not that any more.
        """
        self.spend()
        if self._depth > _LEVELS_MAX:
            raise TooLarge
        if value is True and place in ("property", "other"):
            self._note(way)
            return any_value()
        if not isinstance(value, dict):
            return value
        node = self._repaired(value, place)
        if node is not value:
            self._note(way)
        origin = origin if origin is not None else value
        known = dict(children(origin)) if node is not origin else None

        def child(step: Step, inner: Json) -> Json | None:
            moved = known is not None and known.get(step) is not inner
            return self._child(node, step, inner, None if moved or way is None else (*way, step))

        self._depth += 1
        made = with_children(node, child)
        self._depth -= 1
        return made

    def _child(self, node: JsonObject, step: Step, inner: Json, way: tuple[Step, ...] | None) -> Json | None:
        keyword, name = step
        place = PLACES.get(keyword)
        if place is None:
            return inner
        if inner is False and keyword == "properties":
            required = node.get("required")
            if isinstance(required, list) and name in required:
                return inner
            self._note(way)
            return None
        if isinstance(inner, bool) and keyword == "items":
            return inner
        return self._node(inner, place, way)

    def _repaired(self, value: JsonObject, place: Place) -> JsonObject:
        node = value
        for _ in range(_ROUNDS_MAX):
            before = node
            node = any_of_for_one_of(without_dialect(node))
            alone = node
            for joint in _JOINT_REPAIRS:
                node = joint(node, self)
            self.again |= node is not alone
            for own in _OWN_REPAIRS:
                node = own(node, place)
            if node is before:
                break
        return node

    def _note(self, way: tuple[Step, ...] | None) -> None:
        if way is not None:
            self._changed[way] = None

    def _note_references(self, node: JsonObject, way: tuple[Step, ...]) -> None:
        """Notes each reference that was renamed."""
        reference = node.get("$ref")
        if isinstance(reference, str) and not is_plain_reference(reference) and resolve(self.schema, reference):
            self._note(way)
        for step, inner in children(node):
            if isinstance(inner, dict):
                self._note_references(inner, (*way, step))

    def _path_of(self, path: str, way: tuple[Step, ...]) -> str:
        """Where the client wrote a node; a definition may have been copied from elsewhere."""
        if way and way[0][0] == "$defs" and str(way[0][1]) in self._origins:
            path = pointer_path(path, self._origins[str(way[0][1])])
            way = way[1:]
        for step in way:
            path = step_path(path, step)
        return path
