"""A chat request in the words of the server that is asked. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from backends.dialect import Dialect
from backends.json import JsonObject, encode
from backends.messages import encode_messages, read_heads
from kimi_sdk.errors import InvalidInput
from kimi_sdk.place import Place, Tier, Ttl
from kimi_sdk.reply import NO_OPENING, Opening

Effort = Literal["low", "high", "max"]
"""How much the model thinks. Unset means its default, max."""

IDEMPOTENCY_KEY: Final = "Idempotency-Key"


@dataclass(frozen=True, slots=True)
class Manner:
    """How a chat asks: what is the same for all its requests. `conversation` names it to servers that keep one
    conversation in one place; `tools` are their declarations as JSON, b"" for none."""

    place: Place
    model: str
    effort: Effort | None = None
    tier: Tier | None = None
    ttl: Ttl | None = None
    tools: bytes = b""
    conversation: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """What one request asks besides. `format` is the response_format as JSON."""

    opening: Opening = NO_OPENING
    stop: tuple[str, ...] = ()
    limit: int | None = None
    format: JsonObject | None = field(default=None)


def request_body(manner: Manner, turns: Sequence[bytes], wish: Wish) -> bytes:
    """The request's body. It always asks for a stream: what came of an answer that breaks off is not lost then,
    and no silence is so long that a connection is ended for it. The same turns always come out as the same bytes,
    so that the server finds its cache.

    Raises `InvalidInput` for what this server does not take.
    """
    place = manner.place
    sent = [*turns, *opening_turns(wish.opening, place.dialect)]
    raws = [msgspec.Raw(turn) for turn in sent]
    encoded = encode_messages(raws, read_heads(msgspec.Raw(b"[" + b",".join(sent) + b"]")), place.dialect)
    body: dict[str, object] = {
        "model": place.model_at(manner.model, manner.tier),
        "messages": encoded.messages,
    }
    body |= _of_the_chat(manner)
    if wish.limit is not None:
        body["max_completion_tokens"] = wish.limit
    if wish.stop:
        body["stop"] = wish.stop
    if wish.format is not None:
        body["response_format"] = wish.format
    if encoded.continues:
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return encode({**body, "stream": True, "stream_options": {"include_usage": True}})


def request_headers(manner: Manner, key: str) -> dict[str, str]:
    """Headers of the request; `key` is its idempotency key, which only the gateway knows what to do with."""
    dialect = manner.place.dialect
    headers = dict(dialect.extra_headers)
    if dialect.conversation_header and manner.conversation:
        headers[dialect.conversation_header] = manner.conversation
    if manner.place.is_gateway:
        headers[IDEMPOTENCY_KEY] = key
    return headers


def opening_turns(opening: Opening, dialect: Dialect) -> list[bytes]:
    """The last turn of a request whose answer is to begin in a certain way; none without."""
    if not opening.text:
        return []
    turn: dict[str, object] = {"role": "assistant", "content": opening.text}
    if opening.thinking is not None:
        turn["reasoning_content"] = opening.thinking
    if opening.details and dialect.keeps_thought_details:
        turn["reasoning_details"] = list(opening.details)
    return [encode({**turn, "partial": True})]


def checked_stop(stop: str | Sequence[str], dialect: Dialect) -> tuple[str, ...]:
    """The texts at which an answer ends. Raises `InvalidInput` for more or longer ones than this server takes."""
    given: object = stop
    if not isinstance(given, Iterable):
        raise InvalidInput(f"stop must be a text, or several, none of them empty, not {stop!r}")
    stops: tuple[object, ...] = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(one, str) and one for one in stops):
        raise InvalidInput(f"stop must be a text, or several, none of them empty, not {stop!r}")
    contract = dialect.contract
    if contract.max_stops and len(stops) > contract.max_stops:
        raise InvalidInput(f"stop may be {contract.max_stops} texts at {dialect.name}, not {len(stops)}")
    limit = contract.max_stop_bytes
    texts = tuple(str(one) for one in stops)
    for one in texts:
        try:
            size_bytes = len(one.encode())
        except UnicodeEncodeError as err:
            raise InvalidInput(f"a text of stop holds half a character at position {err.start}") from err
        if limit and size_bytes > limit:
            raise InvalidInput(f"a text of stop may have {limit} bytes at {dialect.name}: {one!r} is longer")
    return texts


def _of_the_chat(manner: Manner) -> dict[str, object]:
    """The fields that are the same in all requests of a chat."""
    dialect = manner.place.dialect
    body: dict[str, object] = {}
    if manner.tools:
        body["tools"] = msgspec.Raw(manner.tools)
    if manner.effort is not None:
        _put(body, dialect.effort_path, manner.effort)
    if manner.tier == "highspeed" and manner.place.is_gateway:
        body["service_tier"] = "highspeed"
    if manner.ttl is not None and dialect.cache_options:
        body["prompt_cache_options"] = {"mode": "implicit", "ttl": manner.ttl}
    if dialect.conversation_field and manner.conversation:
        body[dialect.conversation_field] = manner.conversation
    return body


def _put(body: dict[str, object], path: Sequence[str], value: object) -> None:
    *outer, name = path
    place: Any = body
    for step in outer:
        place = place.setdefault(step, {})
    place[name] = value
