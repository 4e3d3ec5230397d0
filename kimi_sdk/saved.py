"""A conversation as JSON, for `save` and `load`. Pure. No key, no address and no tool is in it."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import msgspec

from backends.json import Json, JsonError, JsonObject, as_object, decode, encode
from kimi_sdk.amounts import checked_money
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
    doubtful: Decimal
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
    except (KeyError, TypeError, ValueError) as err:
        raise InvalidInput(f"{name} is damaged: {err}") from err


def _saved(held: JsonObject) -> Saved:
    """Raises `KeyError`, `TypeError` or `ValueError` where something is missing or is not what was saved."""
    limit = held["max_completion_tokens"]
    return Saved(
        model=_text("model", held["model"]),
        effort=_maybe_text("effort", held["effort"]),
        tier=_maybe_text("tier", held["tier"]),
        ttl=_maybe_text("ttl", held["ttl"]),
        max_completion_tokens=None if limit is None else _count("max_completion_tokens", limit),
        conversation=_header("conversation", held["conversation"]),
        turns=tuple(checked_turns(held["messages"])),
        counted=_counted(held["counted"]),
        usage=_usage(held["usage"]),
        cost=_money("cost", held["cost"]),
        estimated=_money("estimated", held["estimated"]),
        doubtful=_money("doubtful", held.get("doubtful", "0")),  # files of before do not have it
        replies=_count("replies", held["replies"]),
        unpriced=_count("unpriced", held["unpriced"]),
    )


def _usage(value: Json) -> TokenUsage:
    held = as_object(value)
    if held is None:
        raise TypeError(f"usage must be an object, not {value!r:.60}")
    may_be_unknown = ("cache_read", "write_5m", "write_1h", "reasoning")
    counts: dict[str, int | None] = {
        name: None if count is None and name in may_be_unknown else _count(f"usage.{name}", count)
        for name, count in held.items()
    }
    return TokenUsage(**counts)  # type: ignore[arg-type]  # None only where it may be


def _counted(value: Json) -> Counted | None:
    if value is None:
        return None
    held = as_object(value) or {}
    return Counted(_count("counted.messages", held["messages"]), _count("counted.tokens", held["tokens"]))


def _count(name: str, value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{name} must be a whole number of at least 0, not {value!r:.60}")
    return value


def _money(name: str, value: Json) -> Decimal:
    amount = checked_money(value) if isinstance(value, str) else None
    if amount is None:
        raise TypeError(f"{name} must be an amount of money in a text, not {value!r:.60}")
    return amount


def _text(name: str, value: Json) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} must be a text, not {value!r:.60}")
    return value


def _maybe_text(name: str, value: Json) -> str | None:
    return None if value is None else _text(name, value)


def _header(name: str, value: Json) -> str:
    text = _text(name, value)
    if not (text.isascii() and text.isprintable()):
        raise ValueError(f"{name} must be plain letters and digits, not {text!r:.60}")
    return text
