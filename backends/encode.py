"""The client's request in the words of one upstream: spliced from the client's bytes, every change disclosed.

What a target honours is sent as it is; what it would refuse is repaired for this attempt and named in
`adjusted`; what cannot be repaired is a capability, raised as `Incapable` so that another target may serve it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from backends.dialect import Dialect
from backends.json import JsonObject, as_object, decode, encode
from backends.media import media_fault
from backends.messages import MessageHead, encode_messages, narrowed_tools
from backends.schema import normalise_response_format, normalise_tools

Raw = msgspec.Raw

_OURS = frozenset(
    {
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "prompt_cache_options",
        "reasoning",
        "reasoning_effort",
        "service_tier",
        "stream",
        "stream_options",
        "thinking",
    }
)
"""Fields that are not copied: each is decided below."""


class Incapable(ValueError):
    """The target lacks what the request needs; `param` names the field."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Wish:
    """A request after the gateway's own decisions. `fields` and `messages` are slices of the client's body.

    `effort` None sends none; `ttl` "" sends no cache option; `output_limit` None sends no limit.
    """

    fields: Mapping[str, Raw]
    messages: Sequence[Raw]
    heads: Sequence[MessageHead]
    model: str
    stream: bool = True
    stream_options: JsonObject = field(default_factory=dict)
    effort: str | None = None
    thinking_off: bool = False
    ttl: str = ""
    output_limit: int | None = None
    n: int = 1
    named_tool: str | None = None
    conversation: str = ""
    extra_body: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """Body and extra headers of one upstream call, and the request paths that were changed."""

    body: bytes = field(repr=False)
    headers: Mapping[str, str]
    adjusted: tuple[str, ...]


def encode_request(wish: Wish, dialect: Dialect, foreign: frozenset[str]) -> Request:
    """The upstream's request. `foreign` are fields of other dialects: left out, disclosed.

    Raises `Incapable` for n above the dialect's limit, thinking off where it cannot be switched off, and media
    that the dialect does not take.
    """
    _check_capabilities(wish, dialect)
    adjusted: list[str] = []
    encoded = encode_messages(wish.messages, wish.heads, dialect)
    adjusted += encoded.adjusted
    out: dict[str, object] = {"model": wish.model, "messages": encoded.messages}
    for name, raw in wish.fields.items():
        if name in _OURS:
            continue
        if name in foreign:
            adjusted.append(name)
        elif name in dialect.fixed:
            if not _equals(raw, dialect.fixed[name]):
                adjusted.append(name)
        else:
            out[name] = raw
    out |= _stream_fields(wish)
    if wish.output_limit is not None:
        out["max_completion_tokens"] = wish.output_limit
    if encoded.continues:
        out |= {"continue_final_message": True, "add_generation_prompt": False}
    _set_effort(out, wish, dialect)
    _set_cache_options(out, wish, dialect, adjusted)
    _narrow_tool_choice(out, wish, dialect, adjusted)
    _normalise_schemas(out, dialect, adjusted)
    _set_conversation(out, wish, dialect)
    _merge(out, wish.extra_body)
    headers = dict(dialect.extra_headers)
    if wish.conversation and dialect.conversation_header:
        headers[dialect.conversation_header] = wish.conversation
    return Request(encode(out), headers, tuple(adjusted))


def _check_capabilities(wish: Wish, dialect: Dialect) -> None:
    if dialect.max_n is not None and wish.n > dialect.max_n:
        raise Incapable("n", f"n must be {dialect.max_n} here, not {wish.n}; send one request per answer")
    if wish.thinking_off and dialect.thinking_off is None:
        param = "thinking" if "thinking" in wish.fields else "reasoning_effort"
        raise Incapable(param, f"{param} asks for thinking off, but this model always thinks; use effort low")
    fault = media_fault(wish.heads, dialect)
    if fault is not None:
        raise Incapable(fault.path, fault.problem)


def _stream_fields(wish: Wish) -> dict[str, object]:
    """Usage is always asked for: the ledger needs it, whatever the client wants to see."""
    if not wish.stream:
        return {"stream": False}
    return {"stream": True, "stream_options": {**wish.stream_options, "include_usage": True}}


def _set_effort(out: dict[str, object], wish: Wish, dialect: Dialect) -> None:
    if wish.thinking_off:
        _merge(out, dialect.thinking_off or {})
        return
    *outer, name = dialect.effort_path
    if not outer:
        if wish.effort is not None:
            out[name] = wish.effort
        return
    stated = wish.fields.get(outer[0])
    nested: dict[str, object] = dict(as_object(decode(bytes(stated))) or {}) if stated is not None else {}
    if outer[0] in _OURS:
        nested.pop(name, None)  # it was decided already: under a ceiling, or in another spelling
    if wish.effort is not None:
        nested[name] = wish.effort
    if nested:
        out[outer[0]] = nested


def _set_cache_options(out: dict[str, object], wish: Wish, dialect: Dialect, adjusted: list[str]) -> None:
    """Moonshot's cache options; to another kind the client's own are left out, because there they mean
    something else or nothing."""
    if dialect.cache_options:
        if wish.ttl:
            out["prompt_cache_options"] = {"mode": "implicit", "ttl": wish.ttl}
        elif "prompt_cache_options" in wish.fields:
            out["prompt_cache_options"] = wish.fields["prompt_cache_options"]
    elif "prompt_cache_options" in wish.fields:
        adjusted.append("prompt_cache_options")


def _narrow_tool_choice(out: dict[str, object], wish: Wish, dialect: Dialect, adjusted: list[str]) -> None:
    """A named function where only `required` is taken: the tools are cut down to it, which is exact but loses
    the cached prefix."""
    if wish.named_tool is None or dialect.named_tool_choice:
        return
    tools = wish.fields.get("tools")
    narrowed = narrowed_tools(tools, wish.named_tool) if tools is not None else None
    if narrowed is None:
        raise Incapable("tool_choice", f"tool_choice names {wish.named_tool!r}, which is not among tools")
    out["tools"] = narrowed
    out["tool_choice"] = "required"
    adjusted.append("tool_choice")


def _normalise_schemas(out: dict[str, object], dialect: Dialect, adjusted: list[str]) -> None:
    """Tool parameters and answer schemas in Moonshot's flavour, where the target refuses others. What it takes
    keeps its bytes."""
    if not dialect.schema_flavour:
        return
    for name, normalise in (("tools", normalise_tools), ("response_format", normalise_response_format)):
        raw = out.get(name)
        if isinstance(raw, Raw):
            out[name], changed = normalise(raw)
            adjusted += changed


def _set_conversation(out: dict[str, object], wish: Wish, dialect: Dialect) -> None:
    if wish.conversation and dialect.conversation_field:
        out.setdefault(dialect.conversation_field, wish.conversation)


def _merge(out: dict[str, object], extra: Mapping[str, object]) -> None:
    """Further fields win over what is there; objects merge one level deep. So the operator's extra body does."""
    for name, value in extra.items():
        present = out.get(name)
        if isinstance(value, dict) and isinstance(present, Raw):
            present = as_object(decode(bytes(present)))
        out[name] = {**present, **value} if isinstance(value, dict) and isinstance(present, dict) else value


def _equals(raw: Raw, value: object) -> bool:
    """Numeric equality for the fixed sampling values: 1 and 1.0 are the same wish."""
    found = decode(bytes(raw))
    if isinstance(found, bool) or isinstance(value, bool):
        return found is value
    return str(found) == str(value) or (found is not None and found == _number(value))


def _number(value: object) -> object:
    return decode(encode(value))
