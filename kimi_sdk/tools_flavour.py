"""Schemas as Moonshot takes them, or an error that names the place. Pure."""

from collections.abc import Iterable

from backends.json import JsonObject
from backends.schema import normalise_schema
from backends.schema_rules import Violation, violations
from kimi_sdk.errors import InvalidInput


def in_flavour(schema: JsonObject, *, what: str) -> JsonObject:
    """The schema in Moonshot's flavour of JSON Schema (`backends.schema`), its root an object; `what` names its
    owner in the error.

    Raises `InvalidInput` that names each place which would be refused.
    """
    made = normalise_schema(schema).schema
    refused = violations(made)
    if refused:
        raise InvalidInput(f"Kimi does not take the schema of {what}: {listed(refused)}")
    return made


def listed(refused: Iterable[Violation]) -> str:
    """The violations as one line: place, what is wrong, what to do."""
    return "; ".join(f"at {one.path or 'its root'}: {one.what} ({one.remedy})" for one in refused)
