"""A value that a JSON Schema accepts, made up from its own words and a seed.

Covers what tool parameters and response formats use: the seven types (also as a list), enum, const, ranges,
lengths, formats, arrays, nested objects, `anyOf`/`oneOf`, `allOf`, and local `$ref`s with recursion that ends.
Of patterns the usual ones are followed (`patterns`), `not` and conditional schemas are not read. Strings say that
they are synthetic wherever the schema leaves them free.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Final

from backends.emulator.dice import Dice
from backends.emulator.patterns import make_match
from backends.json import Json, JsonObject, as_count, as_list, as_object

_MAX_DEPTH: Final = 6  # below it optional members and items are left out
_LAST_DEPTH: Final = 60
_MAX_VALUES: Final = 2_000
_MAX_LENGTH: Final = 100_000  # of strings, whatever minLength says
_MAX_EXPONENT: Final = 300  # numbers beyond it are no bounds
_ROLLS_PER_ITEM: Final = 8  # how often an array whose items must differ is tried
_WORD: Final = "synthetic"  # tried first where there is a pattern; so short that no pattern can take long over it
_FORMATS: Final[Mapping[str, str]] = {
    "date": "2026-11-30",
    "date-time": "2026-11-30T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "synthetic@example.org",
    "idn-email": "synthetic@example.org",
    "hostname": "synthetic.example.org",
    "uri": "https://example.org/synthetic",
    "uri-reference": "/synthetic",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def make_instance(schema: JsonObject, dice: Dice) -> Json:
    """A value for the schema; an empty object where no finite value fits."""
    try:
        return _Maker(schema, dice).value(schema, 0, "value")
    except _Endless:
        return {}


class _Endless(Exception):
    """A required part goes on for ever, or beyond any sensible size: whoever can leave it out does."""


class _Maker:
    def __init__(self, root: JsonObject, dice: Dice) -> None:
        self._root = root
        self._dice = dice
        self._left = _MAX_VALUES

    def value(self, schema: Json, depth: int, name: str) -> Json:
        """A value for one subschema; `name` is what free strings are called after."""
        self._left -= 1
        if self._left < 0 or depth > _LAST_DEPTH:
            raise _Endless
        flat = self._flatten(schema, depth)
        if "const" in flat:
            return flat["const"]
        choices = as_list(flat.get("enum"))
        if choices:
            return self._choice(choices, flat)
        match self._type(flat):
            case "object":
                return self._object(flat, depth)
            case "array":
                return self._array(flat, depth, name)
            case "integer":
                return self._number(flat, whole=True)
            case "number":
                return self._number(flat, whole=False)
            case "boolean":
                return bool(self._dice.below(2))
            case "null":
                return None
            case _:
                return self._string(flat, name)

    def _flatten(self, schema: Json, depth: int) -> JsonObject:
        """The schema with references followed and one branch of each union taken."""
        flat = dict(as_object(schema) or {})
        for _ in range(32):  # chains of references; a circle of nothing but references ends here
            target = flat.pop("$ref", None)
            if isinstance(target, str):
                flat = {**(as_object(self._resolve(target)) or {}), **flat}
                continue
            branches = as_list(flat.pop("anyOf", None)) or as_list(flat.pop("oneOf", None))
            if branches:
                flat = _merged(flat, as_object(self._branch(branches, depth)) or {})
                continue
            parts = as_list(flat.pop("allOf", None))
            if not parts:
                return flat
            for part in parts:
                flat = _merged(flat, as_object(part) or {})
        return flat

    def _branch(self, branches: list[Json], depth: int) -> Json:
        """The first branch; deep inside the first one that needs nothing further."""
        if depth < _MAX_DEPTH:
            return branches[0]
        return next((branch for branch in branches if _is_simple(branch)), branches[-1])

    def _resolve(self, reference: str) -> Json:
        """The subschema that a local reference names, by pointer or by `$id`/`$anchor`; `{}` where it is none."""
        if reference == "#":
            return self._root
        if reference.startswith("#/"):
            spot: Json = self._root
            for step in reference[2:].split("/"):
                key = step.replace("~1", "/").replace("~0", "~")
                if isinstance(spot, dict):
                    spot = spot.get(key)
                elif isinstance(spot, list) and key.isdigit() and int(key) < len(spot):
                    spot = spot[int(key)]
                else:
                    return {}
            return spot
        return _with_id(self._root, reference) or {}

    def _choice(self, choices: list[Json], flat: JsonObject) -> Json:
        wanted = self._type(flat) if "type" in flat else ""
        fitting = [choice for choice in choices if not wanted or _has_type(choice, wanted)] or choices
        return fitting[self._dice.below(len(fitting))]

    def _type(self, flat: JsonObject) -> str:
        kind = flat.get("type")
        if isinstance(kind, list):
            kind = next((one for one in kind if one != "null"), "null")
        if isinstance(kind, str):
            return kind
        if "properties" in flat or "required" in flat:
            return "object"
        return "array" if "items" in flat or "prefixItems" in flat else "string"

    def _object(self, flat: JsonObject, depth: int) -> JsonObject:
        """All required members; the others as the dice say, none of them deep inside."""
        properties = as_object(flat.get("properties")) or {}
        required = [name for name in as_list(flat.get("required")) if isinstance(name, str)]
        least = min(as_count(flat.get("minProperties")) or 0, _MAX_VALUES)
        made: JsonObject = {}
        for name, schema in properties.items():
            optional = name not in required and len(made) >= least
            if optional and (depth >= _MAX_DEPTH or self._dice.below(4) == 0 or schema is False):
                continue
            try:
                made[name] = self.value(schema, depth + 1, name)
            except _Endless:
                if not optional:
                    raise
        extra = flat.get("additionalProperties")
        for name in required:
            if name not in made:
                made[name] = self.value(extra if isinstance(extra, dict) else {}, depth + 1, name)
        while len(made) < least:
            name = f"synthetic_{len(made)}"
            made[name] = self.value(extra if isinstance(extra, dict) else {}, depth + 1, name)
        return made

    def _array(self, flat: JsonObject, depth: int, name: str) -> Json:
        least = min(as_count(flat.get("minItems")) or 0, _MAX_VALUES)
        most = as_count(flat.get("maxItems"))
        length = least if depth >= _MAX_DEPTH else max(least, 1)
        length = length if most is None else min(length, most)
        fixed = as_list(flat.get("prefixItems"))
        items = flat.get("items", {})
        if items is False:
            length = min(length, len(fixed))
        unique = flat.get("uniqueItems") is True
        made: list[Json] = []
        for roll in range(length * _ROLLS_PER_ITEM):
            if len(made) == length:
                break
            schema = fixed[len(made)] if len(made) < len(fixed) else items
            try:
                item = self.value(schema, depth + 1, f"{name} {roll}" if roll else name)
            except _Endless:
                if len(made) < least:
                    raise
                break
            if not unique or item not in made:
                made.append(item)
        return made

    def _number(self, flat: JsonObject, *, whole: bool) -> Json:
        """A small multiple of the step in the range; the middle of a range too narrow to hold one."""
        span = _Span.of(flat)
        step = _decimal(flat.get("multipleOf")) or Decimal(1)
        first = span.first_multiple(step)
        if not whole and span.low is not None and span.high is not None and not span.holds(first):
            return (span.low + span.high) / 2
        rolled = first + step * self._dice.below(6)
        value = rolled if span.holds(rolled) else first
        return int(value) if value == value.to_integral_value() else value

    def _string(self, flat: JsonObject, name: str) -> str:
        form = flat.get("format")
        if isinstance(form, str) and form in _FORMATS:
            return _FORMATS[form]
        text = f"synthetic {name}"
        least = min(as_count(flat.get("minLength")) or 0, _MAX_LENGTH)
        most = as_count(flat.get("maxLength"))
        pattern = flat.get("pattern")
        if isinstance(pattern, str):
            if _fits(pattern, _WORD) and least <= len(_WORD) and (most is None or len(_WORD) <= most):
                return _WORD
            matching = make_match(pattern, self._dice, least=least, most=most)
            if matching is not None:
                return matching
        text += "." * (least - len(text))
        return text if most is None else text[:most]


def _fits(pattern: str, text: str) -> bool:
    """Whether the pattern is found in the text; not where it is none of this language's."""
    try:
        return re.search(pattern, text) is not None
    except (re.error, RecursionError, OverflowError):
        return False


def _merged(left: JsonObject, right: JsonObject) -> JsonObject:
    """Both schemas as one: members and required names of both, otherwise the right one's word."""
    both: JsonObject = {**left, **right}
    properties = {**(as_object(left.get("properties")) or {}), **(as_object(right.get("properties")) or {})}
    if properties:
        both["properties"] = properties
    required = [*as_list(left.get("required")), *as_list(right.get("required"))]
    if required:
        both["required"] = required
    return both


def _with_id(schema: Json, reference: str) -> JsonObject | None:
    if isinstance(schema, dict):
        names = (schema.get("$id"), f"#{schema['$anchor']}" if "$anchor" in schema else None)
        if reference in names:
            return schema
    children = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    return next((found for child in children if (found := _with_id(child, reference)) is not None), None)


def _is_simple(branch: Json) -> bool:
    held = as_object(branch) or {}
    return "$ref" not in held and held.get("type") not in ("object", "array") and "anyOf" not in held


def _has_type(value: Json, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return as_count(value) is not None
        case "number":
            return isinstance(value, int | Decimal) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case _:
            return value is None


def _decimal(value: Json) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    number = Decimal(value)
    return number if -_MAX_EXPONENT < number.adjusted() < _MAX_EXPONENT else None


@dataclass(frozen=True, slots=True)
class _Span:
    """A range of numbers; an open end is not part of it."""

    low: Decimal | None
    low_open: bool
    high: Decimal | None
    high_open: bool

    @staticmethod
    def of(flat: JsonObject) -> "_Span":
        """The range of a schema, the tighter of its closed and open bounds at each end."""
        low, above = _decimal(flat.get("minimum")), _decimal(flat.get("exclusiveMinimum"))
        high, below = _decimal(flat.get("maximum")), _decimal(flat.get("exclusiveMaximum"))
        low_open = above is not None and (low is None or above >= low)
        high_open = below is not None and (high is None or below <= high)
        return _Span(above if low_open else low, low_open, below if high_open else high, high_open)

    def holds(self, value: Decimal) -> bool:
        """Whether the value is in the range."""
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            return False
        return self.high is None or value < self.high or (value == self.high and not self.high_open)

    def first_multiple(self, step: Decimal) -> Decimal:
        """The smallest multiple from the lower bound on; without one the largest up to zero in the range."""
        if self.low is not None:
            first = (self.low / step).to_integral_value(rounding=ROUND_CEILING) * step
            return first + step if self.low_open and first == self.low else first
        if self.high is None:
            return Decimal(0)
        last = (min(self.high, Decimal(0)) / step).to_integral_value(rounding=ROUND_FLOOR) * step
        return last - step if self.high_open and last == self.high else last
