"""What a turn, and a history up to it, is known by, whatever a client does to the bytes on their way back.

Clients re-serialise JSON, renumber tool-call ids, turn strings into parts, trim white space and change the system
prompt. The canonical digest of a turn leaves all that out and keeps what was said: role, text parts joined, other
parts by digest, tool calls by name, order and canonical arguments. Two keys are made of these digests:

* the *chain*: all turns that are not the system's, up to and including this one;
* the *anchor*: this turn and everything back to the last user turn, that turn included. It survives a client
  that drops or sums up its oldest turns.

Digests are plain SHA-256 of length-prefixed fields. Without a key, because gateways that share a store must agree
on them across processes and restarts. Collision-resistant and unambiguous, because a caller chooses all the input:
nobody can make two histories with one digest. And no secrecy rests on them: the store looks up under the caller's
own name first. Where a store on another machine must not see digests of prompts, its adapter hashes the keys once
more with the operator's secret. The label in each hash carries a version: new rules change it, and old keys miss.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from backends.json import JsonObject, encode
from backends.messages import MessageHead, is_true

Raw = msgspec.Raw

SUBSTANTIAL_CHARACTERS: Final = 32
"""A turn without tool calls needs as many characters to be looked up by its anchor: "Ok." means nothing."""

_SYSTEM_ROLES: Final = frozenset({"system", "developer"})
_CACHE_MARKS: Final = frozenset({"cache_control", "prompt_cache_breakpoint"})
"""Members of content parts that say how to cache, not what was said; clients move them from turn to turn."""

_QUICK_MESSAGES: Final = 64
_QUICK_BYTES: Final = 65_536
_PIECE_BYTES: Final = 131_072  # about a millisecond
_MESSAGE_BYTES: Final = 1_024  # a message costs as much as so many bytes, however short it is

_CHAIN: Final = b"chain/1\n"
_ANCHOR: Final = b"anchor/1\n"
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


class TurnDigest(NamedTuple):
    """The canonical digest of one turn. `substantial`: it has tool calls or 32 characters of text."""

    value: bytes
    substantial: bool


class TurnKeys(NamedTuple):
    """What a thought of a turn is stored and found under. `anchor` is None where the turn is not substantial or
    no user turn stands before it: then only the chain counts."""

    chain: bytes
    anchor: bytes | None


class _Row(Protocol):
    """The digests of a row of turns, all of one length, hashed as it grows; a hash object of `hashlib`."""

    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...
    def copy(self) -> "_Row": ...


@dataclass(frozen=True, slots=True)
class Tail:
    """Where a history ends: all that is needed of it to know the keys of its answer. `prefix` is the text that
    the answer continues (partial mode)."""

    chain: _Row
    anchor: _Row | None
    prefix: str = ""

    def answer(self, message: JsonObject) -> TurnKeys:
        """The keys of an assistant's message, whole or as far as it was delivered, that follows this history."""
        content = message.get("content")
        if self.prefix:
            content = self.prefix + _text_of(content)
        head = MessageHead(
            role="assistant",
            content=Raw(encode(content)),
            tool_calls=Raw(encode(message.get("tool_calls"))),
        )
        turn = turn_digest(head)
        anchored = _grown(self.anchor, turn) if self.anchor is not None and turn.substantial else None
        return TurnKeys(_grown(self.chain, turn), anchored)


def _grown(row: _Row, turn: TurnDigest) -> bytes:
    """The digest of the row with this turn behind it; the row stays as it is."""
    grown = row.copy()
    grown.update(turn.value)
    return grown.digest()


@dataclass(frozen=True, slots=True)
class History:
    """The keys of the assistant's turns by message index, and where the history ends."""

    keys: Mapping[int, TurnKeys]
    tail: Tail


@dataclass(slots=True)
class TurnMemo:
    """Digests of messages already seen, by the hash of their raw bytes: a long history is the same but for its
    end from one request to the next.

    Holds at most twice `max_entries` (about 250 bytes each): when the younger half is full the older is dropped.
    May be shared by threads: a lost entry is computed again, a wrong one cannot be.
    """

    max_entries: int = 16_384
    _young: dict[bytes, TurnDigest] = field(default_factory=dict)
    _old: dict[bytes, TurnDigest] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def digest(self, head: MessageHead) -> TurnDigest:
        """The canonical digest of a message. Thoughts of the message play no part, not even in the memo."""
        content, calls = _bytes(head.content), _bytes(head.tool_calls)
        # Two lengths tell the fields apart: the role is what is left.
        lengths = b"%d %d " % (len(content), len(calls))
        key = sha256(b"".join((lengths, head.role.encode(), content, calls))).digest()
        known = self._young.get(key)
        if known is None:
            known = self._old.get(key) or turn_digest(head)
            if len(self._young) >= self.max_entries:
                self._young, self._old = {}, self._young
            self._young[key] = known
        return known


def read_history(heads: Sequence[MessageHead], memo: TurnMemo) -> History:
    """The keys of every assistant turn in a list of messages. Touches the bytes once; what is large belongs in
    pieces. Never raises: what is not JSON is known by its bytes."""
    steps = history_steps(heads, memo)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            history: History = end.value
            return history


def history_steps(heads: Sequence[MessageHead], memo: TurnMemo) -> Generator[None, None, History]:
    """The same in pieces of about a millisecond."""
    seen_bytes = 0
    chain: _Row = sha256(_CHAIN)
    anchor: _Row | None = None
    keys: dict[int, TurnKeys] = {}
    tail: Tail | None = None
    for index, head in enumerate(heads):
        role = head.role
        if role in _SYSTEM_ROLES:
            continue
        seen_bytes += len(_bytes(head.content)) + len(_bytes(head.tool_calls)) + _MESSAGE_BYTES
        if seen_bytes > _PIECE_BYTES:
            yield
            seen_bytes = 0
        value, substantial = memo.digest(head)
        if role == "user":
            anchor = sha256(_ANCHOR)
        elif role == "assistant" and index == len(heads) - 1 and is_true(head.partial):
            tail = Tail(chain.copy(), anchor.copy() if anchor is not None else None, _prefix(head))
        chain.update(value)
        if anchor is not None:
            anchor.update(value)
        if role == "assistant":
            keys[index] = TurnKeys(chain.digest(), anchor.digest() if anchor is not None and substantial else None)
    return History(keys, tail or Tail(chain, anchor))


def is_large(heads: Sequence[MessageHead]) -> bool:
    """The history takes more than about a millisecond to digest."""
    if len(heads) > _QUICK_MESSAGES:
        return True
    return sum([len(_bytes(head.content)) + len(_bytes(head.tool_calls)) for head in heads]) > _QUICK_BYTES


def turn_digest(head: MessageHead) -> TurnDigest:
    """The canonical digest of one message."""
    try:
        text, parts = _content(_decoded(head.content))
        calls = _calls(_decoded(head.tool_calls))
    except _NOT_JSON:
        # A lone surrogate, or nesting deeper than any decoder goes: only the same bytes are the same turn.
        fields = (head.role.encode(), _bytes(head.content), _bytes(head.tool_calls))
        return TurnDigest(_hashed(b"bytes/1", *fields), substantial=False)
    value = _hashed(b"turn/1", head.role.encode(), text.encode(), b"".join(parts), b"".join(calls))
    return TurnDigest(value, bool(calls) or len(text) >= SUBSTANTIAL_CHARACTERS)


_NOT_JSON: Final = (msgspec.DecodeError, UnicodeError, RecursionError)


def _hashed(label: bytes, *fields: bytes | Raw) -> bytes:
    """One digest of several fields, whose lengths are hashed too, so that no two lists of fields are alike."""
    lengths = b"".join([b" %d" % len(item) for item in fields])
    return sha256(b"".join([label, lengths, b"\n", *fields])).digest()


def _bytes(raw: Raw | msgspec.UnsetType) -> bytes | Raw:
    return raw if isinstance(raw, Raw) else b""


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


def _text_of(content: Any) -> str:
    """The text of a message's content, its white space kept."""
    parts = content if isinstance(content, list) else [content]
    return "".join([_part_text(part) or "" for part in parts])


def _prefix(head: MessageHead) -> str:
    try:
        return _text_of(_decoded(head.content))
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
