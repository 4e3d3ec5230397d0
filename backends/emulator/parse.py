"""A request body: from JSON to a `ChatRequest`."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Literal

from backends.emulator.errors import invalid
from backends.emulator.invoice import Ttl
from backends.emulator.parse_messages import parse_messages, parse_tools
from backends.emulator.request import (
    SAMPLING,
    ChatRequest,
    Format,
    count_field,
    flag_field,
    list_field,
    object_field,
    text_field,
)
from backends.json import JsonObject

_MAX_TOP_LOGPROBS = 20


def parse_request(body: JsonObject, *, thought_fields: Sequence[str], efforts: Sequence[str]) -> ChatRequest:
    """The request. Raises `Refusal` naming the first field that cannot be read."""
    stream = flag_field(body, "stream", "stream")
    options = object_field(body, "stream_options", "stream_options") or {}
    tool_choice, chosen_tool = _tool_choice(body)
    return ChatRequest(
        model=text_field(body, "model", "model") or "",
        messages=parse_messages(body, thought_fields),
        tools=parse_tools(body, "tools"),
        tool_choice=tool_choice,
        chosen_tool=chosen_tool,
        effort=_effort(body, efforts),
        limit_tokens=_limit(body),
        stop=_stop(body),
        stream=stream,
        include_usage=stream and flag_field(options, "include_usage", "stream_options.include_usage"),
        format=_format(body),
        sampling=_sampling(body),
        top_logprobs=_top_logprobs(body),
        ttl=_ttl(body),
        breakpoint=body.get("prompt_cache_breakpoint") is not None,
    )


def _tool_choice(body: JsonObject) -> tuple[Literal["auto", "none", "required", "specified"], str]:
    """The choice, and the function's name where it names one."""
    match body.get("tool_choice"):
        case None | "auto":
            return "auto", ""
        case "none":
            return "none", ""
        case "required":
            return "required", ""
        case dict(named):
            function = object_field(named, "function", "tool_choice.function") or {}
            return "specified", text_field(function, "name", "tool_choice.function.name") or ""
        case other:
            raise invalid(
                f"tool_choice {other!r} is not supported: use auto, none or required", param="tool_choice"
            )


def _effort(body: JsonObject, efforts: Sequence[str]) -> str | None:
    """The word that decides; `thinking.effort` goes before `reasoning_effort` (the vendor's own verifier)."""
    word = body.get("reasoning_effort")
    if word is not None and not isinstance(word, str):
        raise invalid(f"reasoning_effort must be a string: {', '.join(efforts)}", param="reasoning_effort")
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("effort") in efforts:
        return str(thinking["effort"])
    return word


def _limit(body: JsonObject) -> int | None:
    newer = count_field(body, "max_completion_tokens", "max_completion_tokens", least=1)
    older = count_field(body, "max_tokens", "max_tokens", least=1)
    return older if newer is None else newer


def _stop(body: JsonObject) -> tuple[str, ...]:
    value = body.get("stop")
    given = [value] if isinstance(value, str) else list_field(body, "stop", "stop")
    words = tuple(word for word in given if isinstance(word, str) and word)
    if len(words) != len(given):
        raise invalid("stop must be a string or an array of strings, none of them empty", param="stop")
    return words


def _sampling(body: JsonObject) -> Mapping[str, Decimal]:
    found: dict[str, Decimal] = {}
    for name in SAMPLING:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            raise invalid(f"{name} must be a number", param=name)
        found[name] = Decimal(value)
    return found


def _top_logprobs(body: JsonObject) -> int | None:
    top = count_field(body, "top_logprobs", "top_logprobs", least=0)
    if top is not None and top > _MAX_TOP_LOGPROBS:
        raise invalid(f"top_logprobs must be {_MAX_TOP_LOGPROBS} or less", param="top_logprobs")
    return (top or 0) if flag_field(body, "logprobs", "logprobs") else None


def _ttl(body: JsonObject) -> Ttl:
    options = object_field(body, "prompt_cache_options", "prompt_cache_options") or {}
    mode = text_field(options, "mode", "prompt_cache_options.mode")
    if mode not in (None, "implicit"):
        raise invalid("prompt_cache_options.mode must be implicit", param="prompt_cache_options")
    match text_field(options, "ttl", "prompt_cache_options.ttl"):
        case None | "5m":
            return "5m"
        case "1h":
            return "1h"
        case other:
            raise invalid(f"prompt_cache_options.ttl must be 5m or 1h, not {other}", param="prompt_cache_options")


def _format(body: JsonObject) -> Format:
    wanted = object_field(body, "response_format", "response_format")
    if wanted is None:
        return Format("text")
    match text_field(wanted, "type", "response_format.type"):
        case "text":
            return Format("text")
        case "json_object":
            return Format("json_object")
        case "json_schema":
            return _schema_format(wanted)
        case other:
            raise invalid(
                f"response_format.type {other!r} is not supported: use text, json_object or json_schema",
                param="response_format",
            )


def _schema_format(wanted: JsonObject) -> Format:
    where = "response_format.json_schema"
    held = object_field(wanted, "json_schema", where) or {}
    name = text_field(held, "name", f"{where}.name")
    schema = object_field(held, "schema", f"{where}.schema")
    flag_field(held, "strict", f"{where}.strict")
    if not name or schema is None:
        raise invalid(f"{where} must have a name and a schema", param="response_format")
    return Format("json_schema", name, schema)
