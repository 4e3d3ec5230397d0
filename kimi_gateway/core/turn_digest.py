"""What one turn is known by: the canonical digest of a message. `kimi_gateway.core.digest` says what it is for.

Role, text parts joined, other parts by digest, tool calls by name, order and canonical arguments; ids, white space
around and the spelling of the JSON do not count. Stores have records under these digests: new rules need a new
label in the hash.
"""

from hashlib import sha256
from typing import Any, Final

import msgspec

from backends.json import Json, encode
from backends.messages import MessageHead

Raw = msgspec.Raw
UNSET = msgspec.UNSET

SUBSTANTIAL_CHARACTERS: Final = 32
"""A turn without tool calls needs as many characters to be looked up by its anchor: "Ok." means nothing."""

_CACHE_MARKS: Final = frozenset({"cache_control", "prompt_cache_breakpoint"})
"""Members of content parts that say how to cache, not what was said; clients move them from turn to turn."""
_PLAIN_DIGITS: Final = 21  # JavaScript writes whole numbers of up to 21 digits plainly, larger ones as 1e21


def _number(text: str) -> int | Raw:
    """A number with a fraction or exponent, by its value: 1.0 and 1e0 are 1, 0.10 is 0.1, and no digit is lost."""
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    sign = "-" if whole.startswith("-") else ""
    digits = (whole.removeprefix("-") + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return 0
    power = int(exponent or "0") - len(fraction) + len(digits) - len(significant)
    if 0 <= power <= _PLAIN_DIGITS - len(significant):
        return int(sign + significant + "0" * power)
    return Raw(f"{sign}{significant}e{power}".encode())


_values = msgspec.json.Decoder(float_hook=_number)
_sorted = msgspec.json.Encoder(order="sorted")


class TurnDigest(msgspec.Struct, frozen=True, gc=False):
    """The canonical digest of one turn. `substantial`: it has tool calls or 32 characters of text."""

    value: bytes
    substantial: bool


def turn_digest(head: MessageHead) -> TurnDigest:
    """The canonical digest of one message."""
    content, calls = head.content, head.tool_calls
    try:
        return _digested(
            head.role,
            None if content is UNSET else _values.decode(content),
            None if calls is UNSET else _values.decode(calls),
        )
    except _NOT_JSON:
        # A lone surrogate, or nesting deeper than any decoder goes: only the same bytes are the same turn.
        fields = (head.role.encode(), bytes_of(head.content), bytes_of(head.tool_calls))
        return TurnDigest(_hashed(b"bytes/1", *fields), substantial=False)


def _digested(role: str, content: Any, calls: Any) -> TurnDigest:
    """The same by the values of its members. Raises what `_NOT_JSON` names."""
    if isinstance(content, str):
        text, others = content.strip(), b""
    else:
        text, parts = _content(content)
        others = b"".join(parts)
    said, named, called = text.encode(), role.encode(), b"".join(_calls(calls)) if calls else b""
    # What `_hashed` makes of the four, in one go.
    label = b"turn/1 %d %d %d %d\n" % (len(named), len(said), len(others), len(called))
    value = sha256(b"".join((label, named, said, others, called))).digest()
    return TurnDigest(value, len(text) >= SUBSTANTIAL_CHARACTERS or bool(called))


_NOT_JSON: Final = (msgspec.DecodeError, UnicodeError, RecursionError)


def bytes_of(raw: Raw | msgspec.UnsetType) -> bytes | Raw:
    """A member as it stands, b"" where it is absent."""
    return raw if isinstance(raw, Raw) else b""


def _hashed(label: bytes, *fields: bytes | Raw) -> bytes:
    """One digest of several fields, whose lengths are hashed too, so that no two lists of fields are alike."""
    lengths = b"".join([b" %d" % len(item) for item in fields])
    return sha256(b"".join([label, lengths, b"\n", *fields])).digest()


def _decoded(raw: Raw | msgspec.UnsetType) -> Any:
    return _values.decode(raw) if isinstance(raw, Raw) else None


def _content(content: Any) -> tuple[str, list[bytes]]:
    """The text without outer white space, and the digests of what is not text. Null, "" and [] are one."""
    if content is None or isinstance(content, str):
        return (content or "").strip(), []
    texts: list[str] = []
    others: list[bytes] = []
    for part in content if isinstance(content, list) else [content]:
        text = _part_text(part)
        if text is not None:
            texts.append(text)
        else:
            others.append(sha256(_sorted.encode(_without(part, _CACHE_MARKS))).digest())
    return "".join(texts).strip(), others


def _part_text(part: Any) -> str | None:
    if isinstance(part, dict) and part.get("type") == "text":
        part = part.get("text")
    return part if isinstance(part, str) else None


def text_of(content: Any) -> str:
    """The text of a message's content, its white space kept."""
    parts = content if isinstance(content, list) else [content]
    return "".join([_part_text(part) or "" for part in parts])


def text_in(head: MessageHead) -> str:
    """The same of a message's head, "" where it is not JSON."""
    try:
        return text_of(_decoded(head.content))
    except _NOT_JSON:
        return ""


def _without(value: Any, names: frozenset[str]) -> Any:
    if not isinstance(value, dict) or names.isdisjoint(value):
        return value
    return {name: item for name, item in value.items() if name not in names}


_CALL_IDS: Final = frozenset({"id", "index"})


def _calls(calls: Any) -> list[bytes]:
    """One digest per tool call, in order: name and canonical arguments of a function, all but the id of others."""
    digests = []
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(function, dict) and isinstance(name, str):
            digests.append(_hashed(b"call/1", name.encode(), _arguments(function.get("arguments"))))
        else:
            digests.append(_hashed(b"other/1", _sorted.encode(_without(call, _CALL_IDS))))
    return digests


def _arguments(arguments: Any) -> bytes:
    """Canonical JSON of a call's arguments: keys sorted, numbers by value. What is not JSON counts as its text.

    Nothing at all (absent, null, blank) is what engines stream for a call without arguments; clients that parse
    it send back `{}`, so the two are one.
    """
    if not isinstance(arguments, str):
        return b"{}" if arguments is None else _sorted.encode(arguments)
    text = arguments.strip()
    if not text:
        return b"{}"
    try:
        return _sorted.encode(_values.decode(text))
    except _NOT_JSON:
        return text.encode()


def answer_digest(content: Json, calls: Json) -> TurnDigest:
    """The digest of an assistant's message by the values of its members."""
    if calls is None and isinstance(content, str) and (content.isascii() or _is_sound(content)):
        return _digested("assistant", content, None)  # 1 µs less: as JSON it would say the same
    return turn_digest(MessageHead("assistant", Raw(encode(content)), tool_calls=Raw(encode(calls))))


def _is_sound(text: str) -> bool:
    """There are no halves of characters in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
