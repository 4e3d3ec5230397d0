"""JSON Schemas in tests: as the gateway decodes them, normalised, and those that Moonshot accepts."""

import json
from typing import Any

from backends.json import JsonObject, as_object, decode, encode
from backends.schema import normalise_schema
from backends.schema_parts import Root
from support.shared import shared_path


def held(schema: object) -> JsonObject:
    """The schema as the gateway decodes it."""
    made = as_object(decode(json.dumps(schema).encode()))
    assert made is not None
    return made


def loaded(value: object) -> Any:
    """A value of the gateway's as plain JSON."""
    return json.loads(encode(value))


def normalised(schema: object, root: Root = "object") -> tuple[Any, list[str]]:
    """The normalised schema as plain JSON, and the changed paths."""
    made = normalise_schema(held(schema), root=root)
    return loaded(made.schema), list(made.changed)


def with_property(node: object, **others: object) -> dict[str, Any]:
    """An object schema with the one property p."""
    return {"type": "object", "properties": {"p": node}, **others}


def property_of(node: object, **others: object) -> Any:
    """What becomes of one property."""
    return normalised(with_property(node, **others))[0]["properties"]["p"]


def accepted_schemas() -> list[tuple[str, Any]]:
    """The schemas that Moonshot's validator accepts, with the names of their suites."""
    found = []
    for path in sorted(shared_path("cases/mfjs").glob("*.jsonl")):
        for line in filter(str.strip, path.read_text().splitlines()):
            schema = json.loads(line)
            found.append((path.stem, json.loads(schema) if isinstance(schema, str) else schema))
    return found
