"""A chat request as the emulator understands it, and what its JSON must be to get that far.

Parsing refuses only what cannot be read: wrong types and missing parts. What a dialect forbids although it can be
read is checked afterwards (`contract`), so that a permissive engine parses alike and checks nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from backends.emulator.errors import invalid
from backends.emulator.invoice import Ttl
from backends.json import Json, JsonObject, as_count

SAMPLING = ("temperature", "top_p", "n", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, slots=True)
class Media:
    """An image or video part; `url` is a data URL, a file id (`ms://…`) or an address."""

    kind: Literal["image_url", "video_url"]
    url: str


Part = str | Media


@dataclass(frozen=True, slots=True)
class Tool:
    """A declared tool. `declared` is the whole declaration, `where` its path in the request."""

    name: str
    kind: str
    description: str
    parameters: JsonObject | None
    declared: JsonObject
    where: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call in the history; `arguments` is the text as it came."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `parts` are its text and media, `thought` is None where the field was absent or null."""

    role: str
    parts: tuple[Part, ...] = ()
    name: str = ""
    thought: str | None = None
    calls: tuple[Call, ...] = ()
    tools: tuple[Tool, ...] = ()
    call_id: str | None = None
    partial: bool = False
    blank_part: bool = False  # its content was an array with a blank text part
    breakpoint: bool = False  # it, or one of its parts, carries prompt_cache_breakpoint

    @property
    def text(self) -> str:
        """Its text parts joined."""
        return "".join(part for part in self.parts if isinstance(part, str))


@dataclass(frozen=True, slots=True)
class Format:
    """A response format; `schema` only where the kind is `json_schema`."""

    kind: Literal["text", "json_object", "json_schema"]
    name: str = ""
    schema: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A parsed request. `effort` is the effort that the prompt names, None where it names none; `thinks` is False
    where thinking is switched off and `shows_thought` where it is only hidden. `limit_tokens` is None where none
    was given, else `limit_field` says in which field; `sampling` holds the given sampling values; `top_logprobs`
    None where none were asked for; `chosen_tool` is the name in a `specified` tool choice. `raw` is the whole
    body, for what only one dialect looks at."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    tool_choice: Literal["auto", "none", "required", "specified"]
    chosen_tool: str
    effort: str | None
    thinks: bool
    shows_thought: bool
    limit_tokens: int | None
    limit_field: str
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    format: Format
    sampling: Mapping[str, Decimal]
    top_logprobs: int | None
    ttl: Ttl
    breakpoint: bool
    raw: JsonObject

    @property
    def all_tools(self) -> tuple[Tool, ...]:
        """Tools of the request and of its system messages, in order."""
        return self.tools + tuple(tool for message in self.messages for tool in message.tools)

    @property
    def n(self) -> int:
        """How many answers are asked for; 0 where it is no such number."""
        return as_count(self.sampling.get("n", Decimal(1))) or 0


def text_field(body: JsonObject, name: str, where: str) -> str | None:
    """A string, or None where it is absent or null. Raises `Refusal` for anything else."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise invalid(f"{where} must be a string", param=where)
    return value


def flag_field(body: JsonObject, name: str, where: str) -> bool:
    """A boolean, False where it is absent or null. Raises `Refusal` for anything else."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{where} must be true or false", param=where)
    return bool(value)


def object_field(body: JsonObject, name: str, where: str) -> JsonObject | None:
    """An object, or None where it is absent or null. Raises `Refusal` for anything else."""
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise invalid(f"{where} must be an object", param=where)
    return value


def list_field(body: JsonObject, name: str, where: str) -> list[Json]:
    """An array, empty where it is absent or null. Raises `Refusal` for anything else."""
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid(f"{where} must be an array", param=where)
    return value


def count_field(body: JsonObject, name: str, where: str, *, least: int) -> int | None:
    """A whole number of at least `least`, or None where it is absent or null. Raises `Refusal`."""
    value = body.get(name)
    if value is None:
        return None
    number = as_count(value)
    if number is None or number < least:
        raise invalid(f"{where} must be a whole number, {least} or more", param=where)
    return number
