"""The narrow view of a request body: the fields the gateway acts on, decoded; everything else as raw bytes.

The body is scanned once. Top-level fields and messages stay slices of the client's bytes and are spliced into
the upstream's body, so what we do not touch arrives unchanged and a million-token prompt is never decoded.
A wrong type or value in a field we read is a 400 that names it; about other fields the view says nothing.
"""

import re
from collections.abc import Generator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import msgspec

from backends.json import Json, JsonError, JsonObject, as_count, as_object, as_str, decode
from backends.messages import MessageError, MessageHead, is_null, is_true, read_heads
from kimi_gateway.core.effort import EffortWish
from kimi_gateway.errors import InvalidRequest
from pricing.estimate import TextSize

Raw = msgspec.Raw

_fields = msgspec.json.Decoder(dict[str, Raw])
_BASE64: Final = re.compile(rb";base64,[A-Za-z0-9+/=\\s]*")
_items = msgspec.json.Decoder(list[Raw])


@dataclass(slots=True)
class RequestView:
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
    steps = read_steps(body)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            view: RequestView = end.value
            return view


def read_steps(body: bytes) -> Generator[None, None, RequestView]:
    """The same in pieces, for large bodies. Raises `InvalidRequest`."""
    fields, characters = _top_level(body)
    yield
    text = _text_size(body, characters)
    yield
    stream = _typed(fields, "stream", bool) or False
    limit, limit_field = _output_limit(fields)
    messages = _slices(fields)
    yield
    heads = _heads(fields["messages"])
    yield
    _check_prefix(heads, fields)
    return RequestView(
        fields=fields,
        messages=messages,
        heads=heads,
        text=text,
        model=_model(fields),
        stream=stream,
        stream_options=_stream_options(fields),
        n=_count(fields, "n", least=1) or 1,
        effort=_effort(fields),
        output_limit=limit,
        limit_field=limit_field,
        ttl=_ttl(fields),
        service_tier=_typed(fields, "service_tier", str),
        named_tool=_named_tool(fields),
    )


def _top_level(body: bytes) -> tuple[dict[str, Raw], int]:
    try:
        characters = len(body.decode())
        fields = _fields.decode(body)
    except UnicodeDecodeError as err:
        raise InvalidRequest(
            f"the body is not UTF-8 at byte {err.start}; send JSON encoded as UTF-8", code="invalid_json"
        ) from err
    except (msgspec.DecodeError, RecursionError) as err:
        raise InvalidRequest(
            f"the body is not a JSON object ({_short(err)}); send one with model and messages", code="invalid_json"
        ) from err
    return {name: raw for name, raw in fields.items() if name not in _NULLABLE or not is_null(raw)}, characters


def _text_size(body: bytes, characters: int) -> TextSize:
    """The size of the text in a body, without the base64 of its media, from its bytes and characters.

    A character of 2, 3 or 4 bytes adds 1, 2 or 3 to the difference of the two; counting 4 bytes for every 3 of it
    never counts too many bytes outside ASCII, so the lower bound of an estimate stays one.
    """
    media = sum(match.end() - match.start() for match in _BASE64.finditer(body)) if b";base64," in body else 0
    extra = len(body) - characters
    other = extra * 4 // 3
    return TextSize(len(body) - media, min(other, len(body) - media), min(extra // 2, other // 3))


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
        if not is_true(head.partial):
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
    newer = _count(fields, "max_completion_tokens", least=1)
    older = _count(fields, "max_tokens", least=1)
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
