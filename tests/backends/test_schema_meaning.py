"""What repairs do to the set of valid values, on schemas and values made at random.

Exact schemas hold only what is repaired without a change of meaning: the same values are valid before and after.
Loose ones hold everything that tool servers send: there a value made for the schema stays valid.
"""

import json
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from backends.emulator.dice import Dice
from backends.emulator.instances import make_instance
from backends.json import JsonObject, as_object, decode, encode
from backends.schema import normalise_schema

Schema = dict[str, Any]
NAMES = ("a", "b", "c", "d")
SCALARS = (None, True, False, 0, 1, 2, 1.5, 7, "", "a", "b", "abc")
TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
ANYTHING: tuple[Any, ...] = (True, {"description": "anything"}, {"title": "T", "default": None})
REFERENCES = ("#/$defs/A", "#/$defs/B", "#/$defs/C", "#/definitions/D")
SEEDS = st.integers(0, 2**32)


def held(schema: Schema) -> JsonObject:
    """The schema as the gateway decodes it."""
    made = as_object(decode(json.dumps(schema).encode()))
    assert made is not None
    return made


def loaded(value: object) -> Any:
    """A value of the gateway's as `jsonschema` takes it."""
    return json.loads(encode(value))


def made_values(*schemas: JsonObject) -> list[Any]:
    """Values made for the schemas by their own words, valid or not."""
    return [loaded(make_instance(one, Dice(b"%d" % seed))) for one in schemas for seed in range(4)]


class Maker:
    """Makes schemas and values from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def value(self, depth: int = 0) -> Any:
        """Any JSON value of the names and scalars used here."""
        match self.random.choice(["scalar", "list", "object"]) if depth < 3 else "scalar":
            case "list":
                return [self.value(depth + 1) for _ in range(self.random.randrange(3))]
            case "object":
                return {name: self.value(depth + 1) for name in self.some(NAMES, 3)}
            case _:
                return self.random.choice(SCALARS)

    def maybe(self, chance: float = 0.4) -> bool:
        return self.random.random() < chance

    def some(self, things: tuple[Any, ...], most: int, least: int = 0) -> list[Any]:
        return self.random.sample(things, self.random.randint(least, most))

    def notes(self) -> Schema:
        made: Schema = {}
        if self.maybe(0.3):
            made["description"] = self.random.choice(["d", "e"])
        if self.maybe(0.2):
            made["title"] = "T"
        return made

    def reference(self) -> Schema:
        return {"$ref": self.random.choice(REFERENCES)}

    def constraints(self) -> Schema:
        """Keywords of every type but object, each now and then."""
        words: dict[str, tuple[Any, ...]] = {
            "items": ({"type": "integer"}, True, False, {}, {"type": ["null", "string"], "maxLength": 1}),
            "minItems": (0, 1, 2),
            "maxItems": (1, 2, 3),
            "uniqueItems": (True, False),
            "minLength": (0, 1, 2),
            "maxLength": (1, 2, 3),
            "minimum": (0, 1, 1.5),
            "maximum": (1, 2, 7),
        }
        return {word: self.random.choice(values) for word, values in words.items() if self.maybe(0.25)}

    def typed(self) -> Schema:
        kinds = self.some(TYPES, 3, 1)
        return {"type": kinds[0] if self.maybe(0.5) else kinds, **self.constraints(), **self.notes()}


class ExactMaker(Maker):
    """Schemas that nothing contradicts: a member's name says its type, so that what stands beside references and
    unions can be joined."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._free = self._any_node()  # one for all, so that it never meets another

    def root(self) -> Schema:
        made = self.object(0)
        made["$defs"] = {"A": self.object(1), "B": self.object(1), "C": {"$ref": "#/$defs/A", **self.notes()}}
        made["definitions"] = {"D": self.object(1)}
        return made

    def object(self, depth: int) -> Schema:
        return {"type": "object", **self._members(depth), **self.notes()}

    def _any_node(self) -> Any:
        match self.random.choice(["typed", "any", "enum", "const"]):
            case "any":
                return self.random.choice(ANYTHING)
            case "enum":
                return {"enum": self.some(SCALARS, 4, 1), **self.notes()}
            case "const":
                return {"const": self.random.choice(SCALARS), **self.notes()}
            case _:
                return self.typed()

    def _members(self, depth: int) -> Schema:
        makers = {"a": self._string, "b": self._number, "d": lambda: self._free}
        makers["c"] = lambda: self._composite(depth + 1)
        made: Schema = {"properties": {name: makers[name]() for name in self.some(NAMES, 4)}}
        if self.maybe():
            made["required"] = self.some(NAMES, 2)
        if self.maybe(0.3):
            made["additionalProperties"] = self.maybe(0.7)
        if made.get("additionalProperties") is False:  # else nothing would be valid, and that is repaired
            made["required"] = [name for name in made.get("required", []) if name in made["properties"]]
        if self.maybe(0.1):
            made["minProperties"] = 1
        if self.maybe(0.1):
            made["patternProperties"] = {"^d": self._free}
        return made

    def _string(self) -> Schema:
        return {"type": "string", "minLength": self.random.choice([0, 1]), **self.notes()}

    def _number(self) -> Schema:
        return {"type": self.random.choice(["integer", "number"]), "maximum": self.random.choice([2, 7])}

    def _composite(self, depth: int) -> Schema:
        beside = self.notes() if depth > 2 or self.maybe() else self.object(depth)
        match self.random.choice(["object", "reference", "union", "parts"]) if depth < 3 else "reference":
            case "object":
                return self.object(depth)
            case "union":
                return {**beside, "anyOf": self._branches(depth, typed="type" not in beside)}
            case "parts":
                return {"allOf": self._branches(depth, typed=True), **self.notes()}
            case _:
                return {**beside, **self.reference()}

    def _branches(self, depth: int, *, typed: bool) -> list[Any]:
        return [self._branch(depth + 1, typed=typed) for _ in range(self.random.randint(1, 3))]

    def _branch(self, depth: int, *, typed: bool) -> Schema:
        if self.maybe(0.3):
            return self.reference()
        return self.object(depth) if typed or self.maybe() else self._members(depth)


@settings(max_examples=150)
@given(SEEDS)
def test_exact_repairs_leave_the_same_values_valid(seed: int) -> None:
    maker = ExactMaker(seed)
    schema = maker.root()
    before = held(schema)
    after = normalise_schema(before).schema
    old, new = Draft202012Validator(schema), Draft202012Validator(loaded(after))
    others: list[Any] = [{name: maker.value() for name in maker.some(NAMES, 4)} for _ in range(10)]
    for value in [*made_values(before, after), *others]:
        assert old.is_valid(value) == new.is_valid(value), value
