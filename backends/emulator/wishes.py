"""What the prompt makes the emulator do: which tools it calls, and what a directive says.

A directive is a JSON object in double brackets in the last user message, `[[emulator {…}]]`, with any of
`call` (tool names, or objects with `name` and `arguments`), `thought_tokens` and `text_tokens` (exact lengths).

Without one, a message that follows tool results is answered with text. Otherwise tools are called, with
`tool_choice` auto, where the last user message

1. names tools by their whole names: all of them, in the order of mention;
2. or shares a telling word with a tool's name: the tool that shares most ("weather" calls get_weather);
3. or speaks of tools at all: one of them;

and not where it says that tools must not be used. `required` calls one in any case.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from backends.emulator.dice import Dice
from backends.emulator.errors import invalid
from backends.emulator.request import ChatRequest, Message, Tool
from backends.json import Json, JsonError, JsonObject, as_count, as_list, as_object, decode

_DIRECTIVE = re.compile(r"\[\[emulator\s+(\{.*\})\s*\]\]", re.DOTALL)
_FORBIDS = re.compile(
    r"\b(?:do not|don't|must not|never|without)\s+(?:us(?:e|ing)\s+|call(?:ing)?\s+)?(?:(?:any|a|the)\s+)?tools?\b"
    r"|(?:不要|不应|不得|不可|不能|无需|禁止|别)(?:使用|调用|用)?(?:任何)?工具",
    re.IGNORECASE,
)
_SPEAKS_OF_TOOLS = re.compile(r"\btools?\b|工具", re.IGNORECASE)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_DULL = frozenset(
    {
        "a",
        "an",
        "and",
        "by",
        "call",
        "do",
        "fetch",
        "find",
        "for",
        "from",
        "function",
        "get",
        "in",
        "into",
        "is",
        "it",
    }
    | {"list", "make", "of", "on", "put", "run", "set", "show", "the", "to", "tool", "tools", "use", "with"}
)
_KEYS = frozenset({"call", "thought_tokens", "text_tokens"})
_MAX_TOKENS = 1_048_576


@dataclass(frozen=True, slots=True)
class WantedCall:
    """A call to make; `arguments` None means that they are made up from the tool's schema."""

    tool: Tool
    arguments: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the answer is to hold; lengths None where nothing was said about them."""

    calls: tuple[WantedCall, ...] = ()
    thought_tokens: int | None = None
    text_tokens: int | None = None


def read_wishes(request: ChatRequest, dice: Dice, *, though_forbidden: bool = False) -> Wishes:
    """What the request makes the emulator do; `though_forbidden` gives the calls that it would make if
    `tool_choice` were not `none`. Raises `Refusal` for a directive that cannot be followed."""
    directive = _directive(request)
    forbidden = request.tool_choice == "none" and not though_forbidden
    calls = () if forbidden else _wanted_calls(request, directive, dice)
    return Wishes(
        calls=calls,
        thought_tokens=_length(directive, "thought_tokens"),
        text_tokens=_length(directive, "text_tokens"),
    )


def last_user_text(messages: Sequence[Message]) -> str:
    """The text of the last user message, empty where there is none."""
    return next((message.text for message in reversed(messages) if message.role == "user"), "")


def follows_results(messages: Sequence[Message]) -> bool:
    """Whether the last message, system messages aside, is a tool's result."""
    return next((message.role == "tool" for message in reversed(messages) if message.role != "system"), False)


def _directive(request: ChatRequest) -> JsonObject:
    found = _DIRECTIVE.search(last_user_text(request.messages))
    if found is None or follows_results(request.messages):
        return {}
    try:
        directive = as_object(decode(found[1].encode("utf-8", "surrogatepass")))
    except JsonError as err:
        raise invalid(f"the emulator directive is not JSON: {err}", param="messages") from err
    unknown = sorted(set(directive or {}) - _KEYS)
    if unknown:
        raise invalid(
            f"the emulator directive knows {', '.join(sorted(_KEYS))}, not {unknown[0]}", param="messages"
        )
    return directive or {}


def _length(directive: JsonObject, key: str) -> int | None:
    if key not in directive:
        return None
    tokens = as_count(directive[key])
    if tokens is None or not 0 <= tokens <= _MAX_TOKENS:
        raise invalid(f"the emulator directive's {key} must be a number from 0 to {_MAX_TOKENS}", param="messages")
    return tokens


def _wanted_calls(request: ChatRequest, directive: JsonObject, dice: Dice) -> tuple[WantedCall, ...]:
    if "call" in directive:
        return tuple(_directed(item, request.all_tools) for item in as_list(directive["call"]))
    tools = [tool for tool in request.all_tools if tool.kind == "function"]
    if not tools:
        return ()
    if request.tool_choice == "specified":
        return (_directed(request.chosen_tool, tools),)
    forced = request.tool_choice == "required"
    text = last_user_text(request.messages)
    if not forced and (follows_results(request.messages) or _FORBIDS.search(text)):
        return ()
    named = _named(text, tools) or _hinted(text, tools)
    if not named and (forced or _SPEAKS_OF_TOOLS.search(text)):
        named = [tools[dice.below(len(tools))]]
    return tuple(WantedCall(tool) for tool in named)


def _directed(item: Json, tools: Sequence[Tool]) -> WantedCall:
    wish = as_object(item)
    name = item if wish is None else wish.get("name")
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        raise invalid(f"{name!r} is not a tool of the request", param="tools")
    return WantedCall(tool, None if wish is None else as_object(wish.get("arguments")))


def _named(text: str, tools: Sequence[Tool]) -> list[Tool]:
    """Tools whose whole name of three letters or more is in the text, in the order of their first mention."""
    found: list[tuple[int, Tool]] = []
    for tool in tools:
        if len(tool.name) < 3 or not ("_" in tool.name or "-" in tool.name or tool.name not in _DULL):
            continue
        match = re.search(rf"(?<![\w-]){re.escape(tool.name)}(?![\w-])", text)
        if match:
            found.append((match.start(), tool))
    return [tool for _, tool in sorted(found, key=lambda pair: pair[0])]


def _hinted(text: str, tools: Sequence[Tool]) -> list[Tool]:
    """The tool whose name shares most telling words with the text; the first declared among equals."""
    said = {word.lower() for word in re.findall(r"[A-Za-z0-9]+", text)}
    best: tuple[int, Tool | None] = (0, None)
    for tool in tools:
        words = {word.lower() for word in _WORD.findall(tool.name)} - _DULL
        score = len(words & said)
        if score > best[0]:
            best = (score, tool)
    return [] if best[1] is None else [best[1]]
