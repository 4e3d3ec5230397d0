"""Tool calls and empty turns of the history: what one bad message would poison a session with.

Three rules, each from public reports. A content part without text beside tool calls is refused (the vendor's own
client leaves such content out). Engines decode the arguments of past calls while they render the prompt, so a
broken string makes every later request a 400: the vendor's client sends `{}` instead. An assistant turn with
neither content nor calls, left by an interruption, is refused too and says nothing.

The functions on slices answer first and cheaply whether a message has to be looked at; a message that needs
nothing keeps its own bytes.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from backends.json import Json, JsonError, JsonObject, as_object, as_str, decode, encode

Raw = msgspec.Raw
Unset = msgspec.UnsetType
UNSET = msgspec.UNSET

NO_ARGUMENTS: Final = "{}"

_NO_PARTS: Final = re.compile(rb"\s*\[\s*\]\s*")
# White space as it may be written: plain, escaped, or not ASCII (which is looked at then).
_BLANK_TEXT: Final = re.compile(rb'"text"\s*:\s*"(?:[\s\x80-\xff]|\\[nrtbf]|\\u[0-9a-fA-F]{4})*"')


class _Function(msgspec.Struct):
    arguments: str


class _Call(msgspec.Struct):
    function: _Function


_calls: Final = msgspec.json.Decoder(list[_Call])
_arguments: Final = msgspec.json.Decoder(dict[str, Raw])
_members: Final = msgspec.json.Decoder(dict[str, Raw])
_items: Final = msgspec.json.Decoder(list[Raw])


@dataclass(frozen=True, slots=True)
class Mended:
    """New values for members of a message (`UNSET`: left out) and the changed paths within the message."""

    members: Mapping[str, object]
    paths: tuple[str, ...]


# --- decoded messages -----------------------------------------------------------------------------------------


def is_blank_part(part: Json) -> bool:
    """A content part that holds text and no more than white space."""
    held = as_object(part)
    if held is None or held.get("type", "text") != "text":
        return False
    text = as_str(held.get("text"))
    return text is not None and not text.strip()


def content_without_blank_parts(content: Json) -> Json | Unset:
    """The content without blank parts; `UNSET` where no part is left. The same object where there is none."""
    if not isinstance(content, list):
        return content
    kept = [part for part in content if not is_blank_part(part)]
    if not kept:
        return UNSET
    return content if len(kept) == len(content) else kept


def is_empty_turn(message: JsonObject) -> bool:
    """An assistant message without content and without calls. A thought alone does not make it more; the prefix
    of an answer to be continued (`partial`) is never empty, and neither is a refusal."""
    if message.get("role") != "assistant" or message.get("partial") is True:
        return False
    if any(message.get(name) for name in ("tool_calls", "function_call", "refusal", "audio")):
        return False
    content = content_without_blank_parts(message.get("content"))
    return isinstance(content, Unset) or content is None or content == ""


def sound_arguments(arguments: Json) -> str:
    """The arguments of a past call as a string that every engine decodes to an object.

    The same string where it is one. An object that was sent instead of its text becomes its text; what is broken,
    empty or no object becomes `{}`.
    """
    if isinstance(arguments, dict):
        return encode(arguments).decode()
    text = as_str(arguments)
    return text if text is not None and _is_object_text(text) else NO_ARGUMENTS


def _is_object_text(text: str) -> bool:
    try:
        _arguments.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        # The engines' own decoder takes a little more, such as NaN and halves of surrogate pairs.
        try:
            return isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            return False
    return True


# --- slices ---------------------------------------------------------------------------------------------------


def may_hold_blank_parts(content: Raw | Unset) -> bool:
    """Whether the content of an assistant message has to be looked at; a string or null never has."""
    if isinstance(content, Unset) or bytes(memoryview(content)[:1]) != b"[":
        return False
    return _NO_PARTS.fullmatch(content) is not None or _BLANK_TEXT.search(content) is not None


def may_be_empty_turn(content: Raw | Unset, tool_calls: Raw | Unset) -> bool:
    """Whether an assistant message has to be looked at as an empty turn."""
    if isinstance(tool_calls, Raw) and not (_is_null(tool_calls) or _NO_PARTS.fullmatch(tool_calls)):
        return False
    if isinstance(content, Unset) or len(content) <= 4:
        return True
    return may_hold_blank_parts(content)


def are_arguments_sound(tool_calls: Raw | Unset) -> bool:
    """Whether every call's arguments are a string that holds an object; true where there are no calls."""
    if isinstance(tool_calls, Unset):
        return True
    try:
        return all(_is_object_text(call.function.arguments) for call in _calls.decode(tool_calls))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _is_null(tool_calls)


def mended_content(content: Raw | Unset) -> Mended | None:
    """The content of an assistant message with tool calls, without blank parts; None where nothing is to do."""
    if isinstance(content, Unset) or not may_hold_blank_parts(content):
        return None
    parts = _items.decode(content)
    kept = [part for part in parts if not is_blank_part(_decoded(part))]
    if len(kept) == len(parts) and parts:
        return None
    return Mended({"content": kept or UNSET}, ("content",))


def mended_calls(tool_calls: Raw | Unset) -> Mended | None:
    """The calls of an assistant message with sound arguments, every other byte as it was; None where nothing is to
    do. Calls that are no calls at all are left to whoever validates messages."""
    if isinstance(tool_calls, Unset) or are_arguments_sound(tool_calls):
        return None
    calls: list[Raw] = []
    paths: list[str] = []
    for position, call in enumerate(_items_of(tool_calls)):
        mended = _mended_call(call)
        calls.append(mended or call)
        if mended is not None:
            paths.append(f"tool_calls[{position}].function.arguments")
    return Mended({"tool_calls": calls}, tuple(paths)) if paths else None


def _mended_call(call: Raw) -> Raw | None:
    """The call with sound arguments; None where they are, or where there is no function to have any."""
    try:
        members = _members.decode(call)
        function = _members.decode(members["function"])
    except (msgspec.DecodeError, KeyError):
        return None
    stated = _decoded(function["arguments"]) if "arguments" in function else None
    sound = sound_arguments(stated)
    if sound == stated:
        return None
    changed: dict[str, object] = {**function, "arguments": sound}
    return Raw(encode({**members, "function": Raw(encode(changed))}))


def _items_of(raw: Raw) -> list[Raw]:
    try:
        return _items.decode(raw)
    except msgspec.DecodeError:
        return []


def _decoded(raw: Raw) -> Json:
    """The value, halves of surrogate pairs included, which only the standard library takes."""
    try:
        return decode(bytes(raw))
    except JsonError:
        return cast(Json, json.loads(bytes(raw)))


def _is_null(raw: Raw) -> bool:
    return len(raw) == 4 and bytes(raw) == b"null"
