"""Two schemas as the one that accepts exactly what both accept.

Unions and references that carry constraints beside them are written without them this way. Nothing is
approximated: where the result cannot be said in one plain schema the answer is None, and the caller leaves the
schema as it was.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal, Protocol, TypeAlias

from backends.json import Json, JsonObject, as_list, as_object
from backends.schema_parts import (
    CONSTRAINTS,
    KEYWORDS_BY_TYPE,
    any_value,
    fits,
    same,
    types_of,
    value_key,
    without,
)

Joined: TypeAlias = JsonObject | Literal[False] | None
"""A schema; False where nothing can satisfy both; None where it cannot be written down."""

_MEMBERS: Final = ("properties", "additionalProperties")
_LARGER: Final = frozenset({"exclusiveMinimum", "minItems", "minLength", "minProperties", "minimum"})
_SMALLER: Final = frozenset({"exclusiveMaximum", "maxItems", "maxLength", "maxProperties", "maximum"})
_COUPLED: Final = (
    frozenset({"if", "then", "else"}),
    frozenset({"contains", "minContains", "maxContains"}),
    frozenset({"items", "prefixItems", "additionalItems"}),
    frozenset({*_MEMBERS, "patternProperties"}),
)
"""Keywords that take their meaning from one another."""


_DEPTH_MAX: Final = 32  # of joins within joins, which recursive definitions would go on with for ever


class Bodies(Protocol):
    """What a join asks of the schema as a whole."""

    def body_of(self, reference: str) -> JsonObject | None:
        """What a reference names, chains of references followed; None where it names nothing."""
        ...

    def spend(self) -> None:
        """Counts one step of work; raises where there were too many."""
        ...


@dataclass(slots=True)
class _Joining:
    """One join under way."""

    bodies: Bodies
    depth: int = 0


def conjoin(left: Json, right: Json, bodies: Bodies) -> Joined:
    """The schema for what both accept; key order and annotations are the left one's where both have them."""
    return _conjoin(left, right, _Joining(bodies))


def _conjoin(left: Json, right: Json, joining: _Joining) -> Joined:
    if left is False or right is False:
        return False
    first, second = _as_node(left), _as_node(right)
    if first is None or second is None or joining.depth > _DEPTH_MAX:
        return None
    if not first or not second:
        return first or second or (any_value() if left is True or right is True else {})
    if same(first, second):
        return first
    joining.bodies.spend()
    joining.depth += 1
    try:
        if "$ref" in first and "$ref" in second and not same(first["$ref"], second["$ref"]):
            return _with_two_references(first, second, joining)
        return _joined(first, second, joining) if _separable(first, second) else None
    finally:
        joining.depth -= 1


def _as_node(schema: Json) -> JsonObject | None:
    return {} if schema is True else as_object(schema)


def _with_two_references(left: JsonObject, right: JsonObject, joining: _Joining) -> Joined:
    """One of the references is followed, so that one is left."""
    reference = right["$ref"]
    body = joining.bodies.body_of(reference) if isinstance(reference, str) else None
    if body is None or "$ref" in body:
        return None
    followed = _conjoin(without(right, "$ref"), body, joining)
    return followed if followed is None or followed is False else _conjoin(left, followed, joining)


def _separable(left: JsonObject, right: JsonObject) -> bool:
    """Whether keyword by keyword is the whole truth, with objects' members and arrays' items seen to apart."""
    if any(word in node for node in (left, right) for word in ("unevaluatedProperties", "unevaluatedItems")):
        return False
    for group in _COUPLED:
        here, there = group & left.keys(), group & right.keys()
        if not here or not there:
            continue
        if here == there and all(same(left[word], right[word]) for word in here):
            continue
        if here | there <= set(_MEMBERS) or here == there == {"items"}:
            continue
        if "patternProperties" in group and all(_is_open(node) for node in (left, right)):
            continue
        return False
    return True


def _is_open(node: JsonObject) -> bool:
    """Whether members that are neither listed nor match a pattern may be anything."""
    return node.get("additionalProperties", True) in (True, {})


def _joined(left: JsonObject, right: JsonObject, joining: _Joining) -> Joined:
    members = _join_members(left, right, joining)
    if members is None or members is False:
        return members
    made: JsonObject = {}
    for word in [*left, *(word for word in right if word not in left)]:
        if word in _MEMBERS:
            if word in members:
                made[word] = members[word]
        elif word not in left or word not in right:
            made[word] = left[word] if word in left else right[word]
        elif word not in CONSTRAINTS or same(left[word], right[word]):
            made[word] = left[word]
        else:
            value = _join_word(word, left[word], right[word], joining)
            if value is None or value is False:
                return value
            made[word] = value
    for word, value in members.items():
        made.setdefault(word, value)
    return made if _has_values(made) else False


def _join_word(word: str, left: Json, right: Json, joining: _Joining) -> Json | None:
    """Two different values of a constraint as one; False: nothing satisfies both; None: it cannot be said."""
    if word in _LARGER or word in _SMALLER:
        return _join_bounds(left, right, larger=word in _LARGER)
    match word:
        case "type":
            return _join_types(left, right)
        case "enum":
            known = {value_key(value) for value in as_list(right)}
            return [value for value in as_list(left) if value_key(value) in known] or False
        case "const":
            return False
        case "required":
            return [*as_list(left), *(name for name in as_list(right) if name not in as_list(left))]
        case "uniqueItems":
            return True
        case "patternProperties":
            return _join_maps(left, right, joining)
        case "items":
            items = _conjoin(left, right, joining)
            return None if items is False else items
        case _:
            return None


def _join_maps(left: Json, right: Json, joining: _Joining) -> Json | None:
    """Both maps of subschemas, those under one name joined."""
    ours, theirs = as_object(left), as_object(right)
    if ours is None or theirs is None:
        return None
    made: JsonObject = {**ours, **theirs}
    for name in ours.keys() & theirs.keys():
        both = _conjoin(ours[name], theirs[name], joining)
        if both is None:
            return None
        made[name] = both
    return made


def _join_bounds(left: Json, right: Json, *, larger: bool) -> Json | None:
    if isinstance(left, bool) or isinstance(right, bool):
        return None
    if not isinstance(left, int | float | Decimal) or not isinstance(right, int | float | Decimal):
        return None
    left_wins = Decimal(left) >= Decimal(right) if larger else Decimal(left) <= Decimal(right)
    return left if left_wins else right


def _join_types(left: Json, right: Json) -> Json | None:
    """The types both allow, in the left one's order; False where there is none."""
    ours, theirs = types_of({"type": left}), types_of({"type": right})
    if not ours or not theirs:
        return None
    both = list(dict.fromkeys(kind for one in ours if (kind := _narrower(one, theirs))))
    return False if not both else both[0] if len(both) == 1 else list(both)


def _narrower(kind: str, others: tuple[str, ...]) -> str:
    """The type itself, or integer where the one side says number and the other integer; "" where excluded."""
    if kind in others or (kind == "integer" and "number" in others):
        return kind
    return "integer" if kind == "number" and "integer" in others else ""


def _has_values(node: JsonObject) -> bool:
    """False where the type excludes every value listed, or a closed object requires what it does not list."""
    kinds = types_of(node)
    if node.get("additionalProperties") is False and "patternProperties" not in node and kinds == ("object",):
        listed = as_object(node.get("properties", {})) or {}
        if any(isinstance(name, str) and name not in listed for name in as_list(node.get("required"))):
            return False
    if "const" in node and kinds and not any(fits(node["const"], kind) for kind in kinds):
        return False
    values = node.get("enum")
    if not isinstance(values, list):
        return True
    if "const" in node and value_key(node["const"]) not in {value_key(value) for value in values}:
        return False
    return not kinds or any(fits(value, kind) for value in values for kind in kinds)


# --- members of objects ---------------------------------------------------------------------------------------


def _join_members(left: JsonObject, right: JsonObject, joining: _Joining) -> Joined:
    """`properties` and `additionalProperties` of both; a name that one side does not list is one of its
    additional properties."""
    if not any(word in left for word in _MEMBERS) or not any(word in right for word in _MEMBERS):
        return {word: node[word] for node in (left, right) for word in _MEMBERS if word in node}
    ours, theirs = as_object(left.get("properties", {})), as_object(right.get("properties", {}))
    if ours is None or theirs is None:
        return None
    our_rest, their_rest = left.get("additionalProperties", True), right.get("additionalProperties", True)
    rest = True if _is_open(left) and _is_open(right) else _conjoin(our_rest, their_rest, joining)
    if rest is None:
        return None
    made: JsonObject = {}
    required = {name for node in (left, right) for name in as_list(node.get("required")) if isinstance(name, str)}
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        both = _conjoin(ours.get(name, our_rest), theirs.get(name, their_rest), joining)
        if both is None or (both is False and name not in required and rest is not False):
            return None  # "must not be there" can only be said by a closed object
        if both is False:
            if name in required:
                # Nothing but objects is excluded by that.
                return False if ("object",) in (types_of(left), types_of(right)) else None
            continue
        made[name] = both
    result: JsonObject = {"properties": made}
    if "additionalProperties" in left or "additionalProperties" in right:
        result["additionalProperties"] = rest
    return result


def relevant_to(node: JsonObject, kind: str) -> JsonObject:
    """The members of a node that say something about values of one type, without the type itself."""
    foreign = frozenset[str]().union(
        *(words for of, words in KEYWORDS_BY_TYPE.items() if of != ("number" if kind == "integer" else kind))
    )
    return {word: value for word, value in node.items() if word not in foreign and word != "type"}
