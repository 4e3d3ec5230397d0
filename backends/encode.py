"""The client's request in the words of one upstream: spliced from the client's bytes, every change disclosed.

What a target honours is sent as it is; what it would refuse is repaired for this attempt and named in
`adjusted`; what cannot be repaired is a capability, raised as `Incapable` so that another target may serve it.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from backends.contract import Incapable as Incapable
from backends.contract_fields import choice_in_words, hold_fields
from backends.contract_mending import mend
from backends.contract_messages import Look, look_steps
from backends.contract_tools import ToolLists
from backends.dialect import Dialect
from backends.family import dialect_for, family_of
from backends.json import JsonObject, as_object, decode, encode
from backends.media import media_fault
from backends.messages import MessageHead, encode_messages
from backends.pieces import whole
from backends.schema import Kind, is_remembered, normalise_response_format
from backends.tool_ids import ToolIds

Raw = msgspec.Raw

_CHEAP_SCHEMA_BYTES: Final = 8_192
_MANY_MESSAGES: Final = 64
_CHEAP_MESSAGE_BYTES: Final = 8 * 1024 * 1024

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

_THINKING: Final = frozenset({"reasoning", "reasoning_effort", "thinking"})
"""Those of them that say how much is thought."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A request after the gateway's own decisions. `fields` and `messages` are slices of the client's body.

    `model` is its name at the target and says its family. `effort` None sends none, `ttl` "" no cache option,
    `output_limit` None no limit. `warm_tokens` are those of the conversation that the target is thought to
    have cached: above `narrow_tools_above` (0: no limit) the tools are not narrowed to the one that `tool_choice`
    names, because that loses them.
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
    warm_tokens: int = 0
    narrow_tools_above: int = 0
    conversation: str = ""
    extra_body: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """Body and extra headers of one upstream call, and the request paths that were changed.

    `narrowed`: tools were left out so that `required` means the one that was named, which loses the cached prefix.
    `tool_ids`, where the upstream takes only ids of a certain form, turns those of its answer back (`to_client`).
    """

    body: bytes = field(repr=False)
    headers: Mapping[str, str]
    adjusted: tuple[str, ...]
    narrowed: bool = False
    tool_ids: ToolIds | None = None


def encode_request(wish: Wish, dialect: Dialect, foreign: frozenset[str]) -> Request:
    """The upstream's request. `foreign` are fields of other dialects: left out, disclosed.

    Raises `Incapable` for what this target lacks and no repair brings: n above the dialect's limit, thinking off
    where it cannot be switched off, media, roles, tools or formats that it does not take. For a family that passes
    through, the client's own words for thinking and the cache are sent; `effort`, `thinking_off` and `ttl` mean
    nothing then. A pure function: what `is_costly` calls so may run in a thread.
    """
    return whole(encode_steps(wish, dialect, foreign))


def encode_steps(wish: Wish, dialect: Dialect, foreign: frozenset[str]) -> Generator[None, None, Request]:
    """The same in pieces of a millisecond or two, for large histories."""
    family = family_of(wish.model)
    if family.passes_through:
        wish, dialect = replace(wish, effort=None, thinking_off=False, ttl=""), dialect_for(family, dialect)
    _check_capabilities(wish, dialect)
    look = yield from look_steps(wish.heads, dialect.contract)
    yield
    _check_media(wish, dialect, look)
    adjusted: list[str] = []
    out = _copied(wish, dialect, foreign, adjusted, ours=_OURS - _THINKING if family.passes_through else _OURS)
    tools = ToolLists(dialect)
    narrowed = _hold_tools(out, wish, tools, declared=look.declares_tools)
    ids = ToolIds(dialect.tool_id_pattern) if dialect.tool_id_pattern else None
    mending = mend(wish.messages, wish.heads, look, tools, ids)
    yield
    encoded = encode_messages(wish.messages, wish.heads, dialect, mending)
    out["messages"] = encoded.messages
    yield
    out |= _stream_fields(wish)
    if wish.output_limit is not None:
        out["max_completion_tokens"] = wish.output_limit
    if encoded.continues:
        out |= {"continue_final_message": True, "add_generation_prompt": False}
    if not family.passes_through:
        _set_effort(out, wish, dialect)
    _set_cache_options(out, wish, dialect, adjusted)
    _hold_choice(out, wish, dialect, adjusted)
    hold_fields(out, dialect.contract, tools=tools.count, adjusted=adjusted)
    adjusted += tools.adjusted
    _normalise_format(out, dialect, adjusted)
    _set_conversation(out, wish, dialect)
    _merge(out, wish.extra_body)
    headers = dict(dialect.extra_headers)
    if wish.conversation and dialect.conversation_header:
        headers[dialect.conversation_header] = wish.conversation
    yield
    body = _written(out, encoded.messages)
    return Request(body, headers, tuple(dict.fromkeys((*encoded.adjusted, *adjusted))), narrowed, ids)


def _written(out: dict[str, object], messages: Sequence[Raw]) -> bytes:
    """The body. Long lists of messages are copied to their place once: an encoder grows its buffer, which takes
    three times as long (5 ms for 4 MB)."""
    if len(messages) < _MANY_MESSAGES or out.get("messages") is not messages:
        return encode(out)
    rest = encode({**out, "messages": 0})
    start = len(encode({"model": out["model"], "messages": 0})) - len(b"0}")  # the first two members, in order
    parts: list[bytes | Raw] = [rest[:start], b"["]
    for message in messages:
        parts += (message, b",")
    parts[-1] = b"]"
    parts.append(rest[start + 1 :])
    return b"".join(parts)


def is_costly(wish: Wish, dialect: Dialect) -> bool:
    """`encode_request` would take more than about a millisecond: large schemas that are not remembered, or
    messages of many megabytes. Takes microseconds itself."""
    if sum(map(len, wish.messages)) > _CHEAP_MESSAGE_BYTES:
        return True
    if not dialect.schema_flavour:
        return False
    lists = [wish.fields.get("tools"), *(head.tools for head in wish.heads if isinstance(head.tools, Raw))]
    if any(_is_new("tools", raw) for raw in lists):
        return True
    return _is_new("format", wish.fields.get("response_format"))


def _is_new(kind: Kind, raw: object) -> bool:
    return isinstance(raw, Raw) and len(raw) > _CHEAP_SCHEMA_BYTES and not is_remembered(kind, raw)


def _copied(
    wish: Wish, dialect: Dialect, foreign: frozenset[str], adjusted: list[str], *, ours: frozenset[str]
) -> dict[str, object]:
    """Model, messages and the fields that pass as they are; `ours` do not."""
    out: dict[str, object] = {"model": wish.model, "messages": wish.messages}
    for name, raw in wish.fields.items():
        if name in ours:
            continue
        if name in foreign:
            adjusted.append(name)
        elif name in dialect.fixed:
            if not _equals(raw, dialect.fixed[name]):
                adjusted.append(name)
        else:
            out[name] = raw
    return out


def _check_capabilities(wish: Wish, dialect: Dialect) -> None:
    if dialect.max_n is not None and wish.n > dialect.max_n:
        raise Incapable("n", f"n must be {dialect.max_n} here, not {wish.n}; send one request per answer")
    if wish.thinking_off and dialect.thinking_off is None:
        param = "thinking" if "thinking" in wish.fields else "reasoning_effort"
        raise Incapable(param, f"{param} asks for thinking off, but this model always thinks; use effort low")


def _check_media(wish: Wish, dialect: Dialect, look: Look) -> None:
    fault = media_fault(wish.heads, dialect) if look.has_media else None
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


def _hold_tools(out: dict[str, object], wish: Wish, tools: ToolLists, *, declared: bool) -> bool:
    """Puts the tools in as the target takes them; whether some were left out for a named choice.

    A named function where only `required` is taken: the tools are cut down to it, which is exact but loses the
    cached prefix.
    """
    only = wish.named_tool if not tools.dialect.named_tool_choice else None
    stated = out.get("tools")
    if not isinstance(stated, Raw):
        if only is not None:
            raise Incapable("tool_choice", f"tool_choice names {only!r}, but there are no tools")
        return False
    if only is None:
        held, narrowed = tools.held(stated, "tools"), False
    else:
        held = tools.held(stated, "tools", only=only)
        narrowed = tools.left_out > 0
        _check_narrowing(wish, only, narrowed=narrowed, declared=declared)
    if held is None:
        del out["tools"]
    else:
        out["tools"] = held
    return narrowed


def _check_narrowing(wish: Wish, only: str, *, narrowed: bool, declared: bool) -> None:
    """Raises `Incapable` where narrowing is not exact, or loses more of the cache than the route allows."""
    if declared:
        raise Incapable(
            "tool_choice",
            f"tool_choice names {only!r}, but this target takes no name and messages declare further tools; send "
            "required, or declare all tools in tools",
        )
    if narrowed and 0 < wish.narrow_tools_above < wish.warm_tokens:
        raise Incapable(
            "tool_choice",
            f"tool_choice names {only!r}: this target takes no name, so the other tools would be left out and "
            f"{wish.warm_tokens:,} cached tokens be read anew, more than the {wish.narrow_tools_above:,} of the "
            "route's narrow_tools_above; send auto or required, or raise narrow_tools_above (0: always narrow)",
        )


def _hold_choice(out: dict[str, object], wish: Wish, dialect: Dialect, adjusted: list[str]) -> None:
    """The choice in words where the target takes no object."""
    choice = out.get("tool_choice")
    if dialect.named_tool_choice or not isinstance(choice, Raw):
        return
    word = "required" if wish.named_tool is not None else choice_in_words(choice)
    if word is not None:
        out["tool_choice"] = word
        adjusted.append("tool_choice")


def _normalise_format(out: dict[str, object], dialect: Dialect, adjusted: list[str]) -> None:
    """The schema of the answer in Moonshot's flavour, where the target refuses others. What it takes keeps its
    bytes."""
    raw = out.get("response_format")
    if dialect.schema_flavour and isinstance(raw, Raw):
        out["response_format"], changed = normalise_response_format(raw)
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
