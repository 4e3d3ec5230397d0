"""The narrow view of a request body: the fields the gateway acts on, decoded; everything else as raw bytes.

The body is scanned once. Top-level fields and messages stay slices of the client's bytes and are spliced into
the upstream's body, so what we do not touch arrives unchanged and a million-token prompt is never decoded.
A wrong type or value in a field we read is a 400 that names it; about other fields the view says nothing.
"""

import codecs
import re
from collections.abc import Generator
from decimal import Decimal
from typing import Any, Final

import msgspec

from backends.json import Json, JsonError, JsonObject, as_count, as_object, as_str, decode
from backends.messages import MessageError, MessageHead, is_true, read_heads
from kimi_gateway.core.effort import EffortWish
from kimi_gateway.errors import InvalidRequest
from pricing.estimate import TextSize

Raw = msgspec.Raw

_fields = msgspec.json.Decoder(dict[str, Raw])
_BASE64: Final = re.compile(rb";base64,[A-Za-z0-9+/=\\s]*")
_items = msgspec.json.Decoder(list[Raw])
_head = msgspec.json.Decoder(MessageHead)
_utf8 = codecs.getincrementaldecoder("utf-8")
_MEDIA: Final = b";base64,"
_PIECE_BYTES: Final = 1024 * 1024  # half a millisecond
_MESSAGE_BYTES: Final = 2_048  # a message costs as much as so many bytes, however short it is


class RequestView(msgspec.Struct, gc=False):
    """One chat completion request. `fields` and `messages` are slices of the body, in the client's order."""

    fields: dict[str, Raw]
    messages: list[Raw]
    heads: list[MessageHead]
    text: TextSize
    model: str
    stream: bool
    stream_options: JsonObject
    n: int
    effort: EffortWish
    output_limit: int | None  # max_completion_tokens, else max_tokens
    limit_field: str  # the name it came under, "" where there was none
    ttl: str  # "", "5m", "1h"
    service_tier: str | None
    named_tool: str | None  # the function that tool_choice names

    @property
    def include_usage(self) -> bool:
        """The client asked for the extra usage chunk."""
        return self.stream_options.get("include_usage") is True


def read(body: bytes) -> RequestView:
    """The view of a body. Raises `InvalidRequest` naming field, problem and remedy."""
    try:
        characters = len(body) if body.isascii() else len(body.decode())
    except UnicodeDecodeError as err:
        raise _not_utf8(err.start) from err
    fields = _top_level(body)
    media_bytes = _media_bytes(body) if _MEDIA in body else 0
    messages = _slices(fields)
    return _view(fields, _text_size(len(body), characters, media_bytes), messages, _heads(fields["messages"]))


def read_steps(body: bytes) -> Generator[None, None, RequestView]:
    """The same in pieces of two milliseconds or so, for large bodies. Raises `InvalidRequest`."""
    characters = yield from _characters(body)
    fields = _top_level(body)
    yield
    has_media = False
    for start in range(0, len(body), _PIECE_BYTES):
        has_media = has_media or body.find(_MEDIA, start, start + _PIECE_BYTES + len(_MEDIA)) >= 0
        yield
    text = _text_size(len(body), characters, _media_bytes(body) if has_media else 0)
    yield
    messages = _slices(fields)
    yield
    heads = yield from _heads_steps(fields["messages"], messages)
    return _view(fields, text, messages, heads)


def _heads_steps(whole: Raw, messages: list[Raw]) -> Generator[None, None, list[MessageHead]]:
    """The same as `_heads`, one message after the other."""
    heads: list[MessageHead] = []
    seen_bytes = 0
    for message in messages:
        try:
            heads.append(_head.decode(message))
        except msgspec.DecodeError:
            return _heads(whole)  # which says where
        seen_bytes += len(message) + _MESSAGE_BYTES
        if seen_bytes > _PIECE_BYTES:
            yield
            seen_bytes = 0
    return heads


def _characters(body: bytes) -> Generator[None, None, int]:
    """How many there are. Raises `InvalidRequest` for what is not UTF-8."""
    characters, decoder, start = 0, _utf8(), 0
    try:
        for start in range(0, len(body), _PIECE_BYTES):
            piece = body[start : start + _PIECE_BYTES]
            characters += len(decoder.decode(piece, start + _PIECE_BYTES >= len(body)))
            yield
    except UnicodeDecodeError as err:
        raise _not_utf8(_first_wrong(body)) from err
    return characters


def _first_wrong(body: bytes) -> int:
    """The place of the first byte that is not UTF-8; of a body that has one."""
    try:
        body.decode()
    except UnicodeDecodeError as err:
        return err.start
    return len(body)


def _not_utf8(place: int) -> InvalidRequest:
    return InvalidRequest(
        f"the body is not UTF-8 at byte {place}; send JSON encoded as UTF-8", code="invalid_json"
    )


def _view(fields: dict[str, Raw], text: TextSize, messages: list[Raw], heads: list[MessageHead]) -> RequestView:
    limit, limit_field = _output_limit(fields)
    _check_prefix(heads, fields)
    is_plain = _RARE.isdisjoint(fields)  # 3 µs less where it is
    return RequestView(
        fields=fields,
        messages=messages,
        heads=heads,
        text=text,
        model=_model(fields),
        stream=fields.get("stream") == _TRUE or _typed(fields, "stream", bool) or False,
        stream_options={} if is_plain else _stream_options(fields),
        n=1 if is_plain else _count(fields, "n", least=1) or 1,
        effort=_NO_WISH if is_plain else _effort(fields),
        output_limit=limit,
        limit_field=limit_field,
        ttl="" if is_plain else _ttl(fields),
        service_tier=None if is_plain else _typed(fields, "service_tier", str),
        named_tool=None if is_plain else _named_tool(fields),
    )


def _top_level(body: bytes) -> dict[str, Raw]:
    try:
        fields = _fields.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise InvalidRequest(
            f"the body is not a JSON object ({_short(err)}); send one with model and messages", code="invalid_json"
        ) from err
    for name in [name for name, raw in fields.items() if raw == _NULL and name in _NULLABLE]:
        del fields[name]
    return fields


def _media_bytes(body: bytes) -> int:
    """The bytes of base64 in it."""
    return sum(match.end() - match.start() for match in _BASE64.finditer(body))


def _text_size(size_bytes: int, characters: int, media_bytes: int) -> TextSize:
    """The size of the text in a body, without the base64 of its media, from its bytes and characters.

    A character of 2, 3 or 4 bytes adds 1, 2 or 3 to the difference of the two; counting 4 bytes for every 3 of it
    never counts too many bytes outside ASCII, so the lower bound of an estimate stays one.
    """
    extra = size_bytes - characters
    other = extra * 4 // 3
    text = size_bytes - media_bytes
    return TextSize(text, min(other, text), min(extra // 2, other // 3))


_RARE: Final = frozenset(
    {
        "n",
        "prompt_cache_options",
        "reasoning",
        "reasoning_effort",
        "service_tier",
        "stream_options",
        "thinking",
        "tool_choice",
    }
)
"""Fields that are read where they are there, besides those that nearly every request has."""
_NO_WISH: Final = EffortWish()
_TRUE: Final = Raw(b"true")
_NULL: Final = Raw(b"null")

# Fields for which null means the same as absent; elsewhere a null is the client's and passes.
_NULLABLE: Final = frozenset(
    {
        "max_completion_tokens",
        "max_tokens",
        "n",
        "parallel_tool_calls",
        "prompt_cache_options",
        "reasoning",
        "reasoning_effort",
        "response_format",
        "service_tier",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
    }
)


def _short(err: BaseException) -> str:
    return str(err).replace("\n", " ")[:160]


def _value(fields: dict[str, Raw], name: str) -> Json:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return decode(bytes(raw))
    except JsonError as err:
        raise InvalidRequest(f"{name} is not valid JSON ({err})", code="invalid_json", param=name) from err


_KINDS: Final = {bool: "true or false", str: "a string", dict: "an object", list: "an array"}


def _wrong(name: str, value: Json, wanted: str, remedy: str = "", *, right_type: bool = False) -> InvalidRequest:
    """The refusal of a value; `right_type` where another value of its type would be taken."""
    shown = str(value) if isinstance(value, Decimal) else repr(value)
    if len(shown) > 60:
        shown = f"{shown[:40]}…"
    return InvalidRequest(
        f"{name} must be {wanted}, not {shown}" + (f"; {remedy}" if remedy else ""),
        code="invalid_value" if right_type else "invalid_type",
        param=name,
    )


def _typed(fields: dict[str, Raw], name: str, kind: type[Any]) -> Any:
    """The field's value if it is of that kind, None where absent or null."""
    value = _value(fields, name)
    if value is None or isinstance(value, kind):
        return value
    raise _wrong(name, value, _KINDS[kind])


def _count(fields: dict[str, Raw], name: str, *, least: int) -> int | None:
    value = _value(fields, name)
    if value is None:
        return None
    count = as_count(value)
    if count is None or count < least:
        raise _wrong(name, value, f"a whole number of at least {least}", right_type=count is not None)
    return count


def _model(fields: dict[str, Raw]) -> str:
    model = _typed(fields, "model", str)
    if not model:
        raise InvalidRequest(
            "model is missing; name one that GET /v1/models lists, such as kimi-k3.1-pro",
            code="missing_field",
            param="model",
        )
    return str(model)


def _slices(fields: dict[str, Raw]) -> list[Raw]:
    raw = fields.get("messages")
    if raw is None:
        raise InvalidRequest(
            "messages is missing; send an array with at least one message", code="missing_field", param="messages"
        )
    try:
        messages = _items.decode(raw)
    except msgspec.DecodeError as err:
        raise InvalidRequest(
            "messages must be an array of objects", code="invalid_type", param="messages"
        ) from err
    if not messages:
        raise InvalidRequest(
            "messages is empty; send at least one message", code="invalid_value", param="messages"
        )
    return messages


def _heads(messages: Raw) -> list[MessageHead]:
    try:
        return read_heads(messages)
    except MessageError as err:
        raise InvalidRequest(
            f"{err.path}: {err}; each message is an object with a role and content",
            code="missing_field" if "missing required field" in str(err) else "invalid_type",
            param=err.path,
        ) from err


def _check_prefix(heads: list[MessageHead], fields: dict[str, Raw]) -> None:
    """Partial mode continues the last message, which must be the assistant's, and not in JSON mode."""
    for index, head in enumerate(heads):
        if head.partial is msgspec.UNSET or not is_true(head.partial):
            continue
        path = f"messages[{index}].partial"
        if index != len(heads) - 1 or head.role != "assistant":
            problem = "continues the last message of role assistant only; leave it out elsewhere"
        elif (as_object(_value(fields, "response_format")) or {}).get("type") == "json_object":
            problem = "cannot be used with response_format json_object; leave one of them out"
        else:
            continue
        raise InvalidRequest(f"{path} {problem}", code="invalid_value", param=path)


def _stream_options(fields: dict[str, Raw]) -> JsonObject:
    options = _typed(fields, "stream_options", dict) or {}
    wish = options.get("include_usage")
    if wish is not None and not isinstance(wish, bool):
        raise _wrong("stream_options.include_usage", wish, "true or false")
    return dict(options)


def _effort(fields: dict[str, Raw]) -> EffortWish:
    thinking = as_object(_typed(fields, "thinking", dict)) or {}
    reasoning = as_object(_typed(fields, "reasoning", dict)) or {}
    return EffortWish(
        reasoning_effort=_typed(fields, "reasoning_effort", str),
        thinking_effort=_member("thinking.effort", thinking.get("effort")),
        nested_effort=_member("reasoning.effort", reasoning.get("effort")),
        thinking_type=_member("thinking.type", thinking.get("type")),
    )


def _member(path: str, value: Json) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise _wrong(path, value, "a string")


def _output_limit(fields: dict[str, Raw]) -> tuple[int | None, str]:
    """The newer name wins where both are there; null is absent."""
    newer = _count(fields, "max_completion_tokens", least=1) if "max_completion_tokens" in fields else None
    older = _count(fields, "max_tokens", least=1) if "max_tokens" in fields else None
    if newer is not None:
        return newer, "max_completion_tokens"
    return older, "max_tokens" if older is not None else ""


def _ttl(fields: dict[str, Raw]) -> str:
    options = as_object(_typed(fields, "prompt_cache_options", dict))
    if options is None:
        return ""
    mode = options.get("mode")
    if mode not in (None, "implicit"):
        wanted = '"implicit", the only mode there is'
        raise _wrong("prompt_cache_options.mode", mode, wanted, right_type=isinstance(mode, str))
    ttl = as_str(options.get("ttl"))
    if options.get("ttl") is not None and ttl not in ("5m", "1h"):
        raise _wrong("prompt_cache_options.ttl", options.get("ttl"), '"5m" or "1h"', right_type=ttl is not None)
    return ttl or ""


def _named_tool(fields: dict[str, Raw]) -> str | None:
    choice = _value(fields, "tool_choice")
    if choice is None or isinstance(choice, str):
        return None
    found = as_object(choice)
    if found is None:
        raise _wrong("tool_choice", choice, "auto, none, required or an object that names a function")
    function = as_object(found.get("function")) or {}
    name = as_str(function.get("name"))
    if found.get("type") == "function" and not name:
        raise InvalidRequest(
            "tool_choice.function.name is missing; name one of tools, or send auto, none or required",
            code="missing_field",
            param="tool_choice.function.name",
        )
    return name
