"""What repairs do to the set of valid values, on schemas and values made at random.

Exact schemas hold only what is repaired without a change of meaning: the same values are valid before and after.
Loose ones hold everything that tool servers send: there a value made for the schema stays valid.
"""

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator

from backends.emulator.dice import Dice
from backends.emulator.instances import make_instance
from backends.json import JsonObject, encode
from backends.schema import normalise_schema
from support.schemas import held, loaded

Schema = dict[str, Any]
NAMES = ("a", "b", "c", "d")
SCALARS = (None, True, False, 0, 1, 2, 1.5, 7, "", "a", "b", "abc")
TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
ANYTHING: tuple[Any, ...] = (True, {"description": "anything"}, {"title": "T", "default": None})
REFERENCES = ("#/$defs/A", "#/$defs/B", "#/$defs/C", "#/definitions/D")
SEEDS = st.integers(0, 2**32)


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
        closed = self.maybe(0.1)  # with every name, else what others require would contradict it
        names = NAMES if closed else self.some(NAMES, 4)
        made: Schema = {"properties": {name: self._member(name, depth) for name in names}}
        if self.maybe():
            made["required"] = self.some(NAMES, 2)
        if closed or self.maybe(0.2):
            made["additionalProperties"] = not closed
        if self.maybe(0.1):
            made["minProperties"] = 1
        if self.maybe(0.1):
            made["patternProperties"] = {"^d": self._free}
        return made

    def _member(self, name: str, depth: int) -> Any:
        match name:
            case "a":
                return {"type": "string", "minLength": self.random.choice([0, 1]), **self.notes()}
            case "b":
                return {"type": self.random.choice(["integer", "number"]), "maximum": self.random.choice([2, 7])}
            case "c":
                return self._composite(depth + 1)
            case _:
                return self._free

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


class LooseMaker(Maker):
    """Everything that tool servers send, contradictions and references in old forms included."""

    def root(self) -> Schema:
        made: Schema = {**self._members(0), **self.notes()}
        if self.maybe(0.7):
            made["type"] = self.random.choice(["object", "object", ["object", "null"]])
        made["$defs"] = {"A": self.typed(), "B": self._object(1), "C": {"$ref": "#/$defs/B", **self.notes()}}
        made["definitions"] = {"D": self._object(1), "a/b": self.random.choice([True, self.typed()])}
        return made

    def _object(self, depth: int) -> Schema:
        return {"type": "object", **self._members(depth), **self.notes()}

    def _members(self, depth: int) -> Schema:
        made: Schema = {"properties": {name: self.node(depth + 1) for name in self.some(NAMES, 3)}}
        if self.maybe():
            made["required"] = self.some(NAMES, 2)
        if self.maybe(0.2):
            made["additionalProperties"] = self.random.choice([True, False, {"type": "string"}, {}])
        return made

    def node(self, depth: int, *, alone: bool = True) -> Any:
        """A node of any kind, deep inside one with a type; `alone` where no other decides with it."""
        beside = self.notes() if self.maybe() else self.typed()
        kinds = ("typed", "object", "any", "enum", "empty", "reference", "anyOf", "oneOf", "allOf", "not", "old")
        match self.random.choice(kinds) if depth < 4 else "typed":
            case "object":
                return self._members(depth) if alone and self.maybe(0.3) else self._object(depth)
            case "any":
                return self.random.choice(ANYTHING)
            case "enum":
                return {"enum": self.some(SCALARS, 4, 1), **beside}
            case "empty":
                return {}
            case "reference":
                return {**beside, **self.reference()}
            case "anyOf" | "oneOf" | "allOf" as word:
                return {
                    **beside,
                    word: [self.node(depth + 1, alone=False) for _ in range(self.random.randint(1, 3))],
                }
            case "not":
                return {**beside, "not": {"required": ["a"]}}
            case "old":
                return {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a~1b"}
            case _:
                return self.typed()


@settings(max_examples=150)
@given(SEEDS)
def test_a_value_made_for_a_loose_schema_stays_valid(seed: int) -> None:
    schema = LooseMaker(seed).root()
    before = held(schema)
    after = normalise_schema(before).schema
    old, new = Draft202012Validator(schema), Draft202012Validator(loaded(after))
    for value in made_values(before):
        if isinstance(value, dict) and old.is_valid(value):
            assert new.is_valid(value), value


@settings(max_examples=100)
@given(SEEDS, st.sampled_from(["anyOf", "oneOf"]))
def test_a_value_made_for_one_variant_of_a_root_stays_valid(seed: int, word: str) -> None:
    maker = ExactMaker(seed)
    shared = maker.root()
    definitions = {"$defs": shared["$defs"], "definitions": shared["definitions"]}
    variants = [maker.object(1), maker.object(1), maker.reference()]
    after = normalise_schema(held({word: variants, **definitions})).schema
    assert after["type"] == "object"
    assert word not in after
    new = Draft202012Validator(loaded(after))
    for variant in variants:
        schema = {**variant, **definitions}
        old = Draft202012Validator(schema)
        for value in made_values(held(schema)):
            if isinstance(value, dict) and old.is_valid(value):
                assert new.is_valid(value), value


@settings(max_examples=150)
@given(SEEDS)
def test_normalising_twice_is_normalising_once(seed: int) -> None:
    for schema in (ExactMaker(seed).root(), LooseMaker(seed).root()):
        once = normalise_schema(held(schema))
        twice = normalise_schema(once.schema)
        assert twice.schema is once.schema
        assert twice.changed == ()


@settings(max_examples=100)
@given(SEEDS)
def test_the_same_schema_always_gives_the_same_bytes_and_is_not_touched(seed: int) -> None:
    schema = held(LooseMaker(seed).root())
    text = encode(schema)
    assert encode(normalise_schema(schema).schema) == encode(normalise_schema(held(loaded(schema))).schema)
    assert encode(schema) == text


@settings(max_examples=150)
@given(SEEDS)
def test_a_tuple_of_an_older_dialect_accepts_the_same_lists(seed: int) -> None:
    maker = Maker(seed)
    schema: Schema = {"type": "array", "items": [maker.typed() for _ in range(maker.random.randint(0, 3))]}
    if maker.maybe(0.7):
        schema["additionalItems"] = maker.random.choice([True, False, {"type": "integer"}])
    old = Draft7Validator(schema)
    new = Draft202012Validator(loaded(normalise_schema(held(schema), root="any").schema))
    for _ in range(20):
        value = [maker.value() for _ in range(maker.random.randrange(5))]
        assert old.is_valid(value) == new.is_valid(value), value
