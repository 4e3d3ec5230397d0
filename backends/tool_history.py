"""Past calls and blank texts of a history: what one bad message would poison a session with.

Engines decode the arguments of past calls while they render the prompt, so a broken string makes every later
request a 400 (public reports): the vendor's own client sends `{}` instead. A text part of nothing but white space
is refused by the platform.

All is asked of slices; what needs nothing keeps its own bytes.
"""

import json
import re
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from backends.json import Json, JsonError, as_str, decode, encode

Raw = msgspec.Raw

NO_ARGUMENTS: Final = "{}"

_QUOTE: Final = ord('"')
_ESCAPE: Final = ord("\\")
_ASCII_END: Final = 0x80
_ESCAPED: Final = re.compile(r"\\(?:([nrtbf])|u([0-9a-fA-F]{4}))")
_LOOK_BYTES: Final = 256  # a text that begins with so much white space is looked at whole
_ESCAPE_BYTES: Final = 6


class PastFunction(msgspec.Struct):
    """What a past call was made with; `arguments` is the text as it came."""

    arguments: str


class PastCall(msgspec.Struct):
    """A call of the history, as far as rules look at it."""

    function: PastFunction
    id: str | None = None


_calls: Final = msgspec.json.Decoder(list[PastCall])
_arguments: Final = msgspec.json.Decoder(dict[str, Raw])
_members: Final = msgspec.json.Decoder(dict[str, Raw])
_items: Final = msgspec.json.Decoder(list[Raw])


@dataclass(frozen=True, slots=True)
class Mended:
    """The calls of a message with sound arguments, and the paths within the message that were changed."""

    calls: list[Raw]
    paths: tuple[str, ...]


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
        _arguments.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        # The engines' own decoder takes a little more, such as NaN and halves of surrogate pairs.
        try:
            return isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            return False
    return True


def is_blank_text(text: Raw) -> bool:
    """The slice is a string of white space, or an empty one; a long text costs no more than a short one."""
    view = memoryview(text)
    if len(view) < 2 or view[0] != _QUOTE:
        return False
    first = view[1]
    if (_QUOTE < first < _ASCII_END and first != _ESCAPE) or _begins_with_more(view):
        return False
    value = as_str(_decoded(text))
    return value is not None and not value.strip()


def _begins_with_more(text: memoryview) -> bool:
    """The first bytes of a string hold something besides white space, plain or escaped."""
    is_long = len(text) > _LOOK_BYTES
    # What may be cut, a character or an escape, is left out of the look.
    head = bytes(text[1 : _LOOK_BYTES - _ESCAPE_BYTES] if is_long else text[1:-1]).decode("utf-8", "ignore")
    plain = _ESCAPED.sub(lambda found: chr(int(found[2], 16)) if found[2] else " ", head)
    return bool(plain.strip().rstrip("\\u" + "0123456789abcdefABCDEF" if is_long else ""))


def read_calls(tool_calls: Raw) -> list[PastCall] | None:
    """The calls, None where one of them has another shape (an id that is no string, arguments that are none)."""
    try:
        return _calls.decode(tool_calls)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def call_ids(tool_calls: Raw) -> list[str]:
    """The id of each call whatever its shape, "" where it has none."""
    ids: list[str] = []
    for call in items_of(tool_calls):
        try:
            ids.append(as_str(_decoded(_members.decode(call)["id"])) or "")
        except (msgspec.DecodeError, KeyError):
            ids.append("")
    return ids


def is_sound(call: PastCall) -> bool:
    """The call's arguments hold an object."""
    return _is_object_text(call.function.arguments)


def mended_calls(tool_calls: Raw) -> Mended | None:
    """The calls of an assistant message with sound arguments, every other byte as it was; None where nothing is to
    do. Calls that are no calls at all are left to whoever validates messages."""
    calls: list[Raw] = []
    paths: list[str] = []
    for position, call in enumerate(items_of(tool_calls)):
        mended = _mended_call(call)
        calls.append(mended or call)
        if mended is not None:
            paths.append(f"tool_calls[{position}].function.arguments")
    return Mended(calls, tuple(paths)) if paths else None


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


def items_of(raw: Raw) -> list[Raw]:
    """The items of an array; none where it is no array."""
    try:
        return _items.decode(raw)
    except msgspec.DecodeError:
        return []


def _decoded(raw: Raw) -> Json:
    """The value, halves of surrogate pairs included, which only the standard library takes."""
    try:
        return decode(bytes(raw))
    except JsonError:
        try:
            return cast(Json, json.loads(bytes(raw)))
        except (ValueError, RecursionError):  # a number of thousands of digits, say
            return None
