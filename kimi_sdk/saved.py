"""A conversation as JSON, for `save` and `load`. Pure. No key, no address and no tool is in it."""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from backends.json import JsonError, JsonObject, as_object, decode, encode
from kimi_sdk.errors import InvalidInput
from kimi_sdk.sizes import Counted
from kimi_sdk.thread import checked_turns
from pricing.usage import TokenUsage

SCHEMA: Final = 1
_KIND: Final = "kimi_sdk.chat"


@dataclass(frozen=True, slots=True)
class Saved:
    """What is kept of a conversation. `turns` are JSON; money is exact dollars."""

    model: str
    effort: str | None
    tier: str | None
    ttl: str | None
    max_completion_tokens: int | None
    conversation: str
    turns: tuple[bytes, ...]
    counted: Counted | None
    usage: TokenUsage
    cost: Decimal
    estimated: Decimal
    replies: int
    unpriced: int


def to_json(saved: Saved) -> bytes:
    """The file's content, a turn in each line."""
    head: dict[str, object] = {"kind": _KIND, "schema": SCHEMA}
    for name in Saved.__slots__:
        value = getattr(saved, name)
        if isinstance(value, TokenUsage | Counted):
            value = {each: getattr(value, each) for each in type(value).__slots__}
        head[name] = str(value) if isinstance(value, Decimal) else value
    del head["turns"]
    turns = b",\n".join(saved.turns)
    return encode({**head, "messages": msgspec.Raw(b"[\n" + turns + b"\n]")}) + b"\n"


def from_json(data: bytes, name: str) -> Saved:
    """The conversation in a file called `name`. Raises `InvalidInput` that says what is wrong with it."""
    try:
        held = as_object(decode(data))
    except JsonError as err:
        raise InvalidInput(f"{name} is no saved chat: {err}") from err
    if held is None or held.get("kind") != _KIND:
        raise InvalidInput(f"{name} is no saved chat: its kind is not {_KIND!r}")
    if held.get("schema") != SCHEMA:
        raise InvalidInput(
            f"{name} was saved with schema {held.get('schema')}, and this version reads {SCHEMA}; "
            "load it with the version of kimi_sdk that saved it"
        )
    try:
        return _saved(held)
    except (KeyError, TypeError, ValueError, InvalidOperation) as err:
        raise InvalidInput(f"{name} is damaged: {err}") from err


def _saved(held: JsonObject) -> Saved:
    found: dict[str, Any] = {name: held[name] for name in Saved.__slots__ if name != "turns"}
    found["usage"] = TokenUsage(**found["usage"])
    found["counted"] = None if found["counted"] is None else Counted(**found["counted"])
    found["cost"], found["estimated"] = Decimal(found["cost"]), Decimal(found["estimated"])
    return Saved(turns=tuple(checked_turns(held["messages"])), **found)
