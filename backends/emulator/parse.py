"""A request body: from JSON to a `ChatRequest`."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Literal

from backends.emulator.errors import invalid
from backends.emulator.invoice import Ttl
from backends.emulator.parse_messages import parse_messages, parse_tools
from backends.emulator.profile import Profile
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


def parse_request(body: JsonObject, profile: Profile) -> ChatRequest:
    """The request. Raises `Refusal` naming the first field that cannot be read."""
    stream = flag_field(body, "stream", "stream")
    options = object_field(body, "stream_options", "stream_options") or {}
    tool_choice, chosen_tool = _tool_choice(body)
    limit_field, limit_tokens = _limit(body, profile)
    thinking = profile.read_thinking(body)
    return ChatRequest(
        model=text_field(body, "model", "model") or "",
        messages=parse_messages(body, profile),
        tools=parse_tools(body, "tools"),
        tool_choice=tool_choice,
        chosen_tool=chosen_tool,
        effort=thinking.effort,
        thinks=thinking.on,
        shows_thought=thinking.shown,
        limit_tokens=limit_tokens,
        limit_field=limit_field,
        stop=_stop(body),
        stream=stream,
        include_usage=stream and flag_field(options, "include_usage", "stream_options.include_usage"),
        format=_format(body),
        sampling=_sampling(body),
        top_logprobs=_top_logprobs(body, profile),
        ttl=_ttl(body),
        breakpoint=body.get("prompt_cache_breakpoint") is not None,
        raw=body,
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


def _limit(body: JsonObject, profile: Profile) -> tuple[str, int | None]:
    """The field with the output limit and its value; the newer name wins."""
    least = profile.least_limit_tokens
    newer = count_field(body, "max_completion_tokens", "max_completion_tokens", least=least)
    older = count_field(body, "max_tokens", "max_tokens", least=least)
    return ("max_tokens", older) if newer is None else ("max_completion_tokens", newer)


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


def _top_logprobs(body: JsonObject, profile: Profile) -> int | None:
    top = count_field(body, "top_logprobs", "top_logprobs", least=0)
    most = profile.max_top_logprobs
    if top is not None and top > most:
        raise profile.words.logprobs_too_many(top, most)
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
