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

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, Protocol

import msgspec

from backends.json import JsonObject
from backends.messages import MessageHead, is_true
from backends.pieces import whole
from kimi_gateway.core.turn_digest import TurnDigest as TurnDigest
from kimi_gateway.core.turn_digest import answer_digest, bytes_of, text_in, text_of
from kimi_gateway.core.turn_digest import turn_digest as turn_digest

Raw = msgspec.Raw
UNSET = msgspec.UNSET

_SYSTEM_ROLES: Final = frozenset({"system", "developer"})
_QUICK_MESSAGES: Final = 128
_QUICK_BYTES: Final = 196_608  # about a millisecond
_PIECE_BYTES: Final = 131_072
_MESSAGE_BYTES: Final = 1_024  # a message costs as much as so many bytes, however short it is

_CHAIN: Final = sha256(b"chain/1\n")
_ANCHOR: Final = sha256(b"anchor/1\n")
_LONG_MESSAGES: Final = 12
_BEGINNING_MESSAGES: Final = 3
_BEGINNING_BYTES: Final = 4_096


class TurnKeys(msgspec.Struct, frozen=True, gc=False):
    """What a thought of a turn is stored and found under. `anchor` is None where the turn is not substantial or
    no user turn stands before it: then only the chain counts."""

    chain: bytes
    anchor: bytes | None


class _Row(Protocol):
    """The digests of a row of turns, all of one length, hashed as it grows; a hash object of `hashlib`."""

    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...
    def copy(self) -> "_Row": ...


class Tail(msgspec.Struct, frozen=True, gc=False):
    """Where a history ends: all that is needed of it to know the keys of its answer. `prefix` is the text that
    the answer continues (partial mode)."""

    chain: _Row
    anchor: _Row | None
    prefix: str = ""

    def answer(self, message: JsonObject) -> TurnKeys:
        """The keys of an assistant's message, whole or as far as it was delivered, that follows this history."""
        content, calls = message.get("content"), message.get("tool_calls")
        if self.prefix:
            content = self.prefix + text_of(content)
        turn = answer_digest(content, calls)
        anchored = _grown(self.anchor, turn) if self.anchor is not None and turn.substantial else None
        return TurnKeys(_grown(self.chain, turn), anchored)


def _grown(row: _Row, turn: TurnDigest) -> bytes:
    """The digest of the row with this turn behind it; the row stays as it is."""
    grown = row.copy()
    grown.update(turn.value)
    return grown.digest()


class History(msgspec.Struct, frozen=True, gc=False):
    """The keys of the assistant's turns by message index, where the history ends, and the canonical digests of all
    messages, the system's too."""

    keys: dict[int, TurnKeys]
    tail: Tail
    digests: Sequence[bytes] = ()


@dataclass(slots=True)
class TurnMemo:
    """Digests of messages already seen, by the hash of their raw bytes: a long history is the same but for its
    end from one request to the next.

    Holds at most twice `max_entries` (about 250 bytes each): when the younger half is full the older is dropped.
    May be shared by threads: a lost entry is computed again, a wrong one cannot be.

    Long histories are known as wholes too, as they stood when a request came: at most so many that they have
    `max_readings` messages twice (about 100 bytes each, and what they share with each other).
    """

    max_entries: int = 16_384
    max_readings: int = 65_536
    _young: dict[bytes, TurnDigest] = field(default_factory=dict)
    _old: dict[bytes, TurnDigest] = field(default_factory=dict)
    _readings: dict[bytes, "_Reading"] = field(default_factory=dict)
    _old_readings: dict[bytes, "_Reading"] = field(default_factory=dict)
    _readings_messages: int = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    @property
    def readings(self) -> int:
        """How many histories are known as wholes."""
        return len(self._readings) + len(self._old_readings)

    def digest(self, head: MessageHead) -> TurnDigest:
        """The canonical digest of a message. Thoughts of the message play no part, not even in the memo."""
        content, calls = bytes_of(head.content), bytes_of(head.tool_calls)
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

    def reading(self, key: bytes) -> "_Reading | None":
        """A history that was read before, to be read on; `key` is the digest of its messages as they stand."""
        known = self._readings.get(key) or self._old_readings.get(key)
        return known.copy() if known is not None else None

    def keep_reading(self, key: bytes, reading: "_Reading") -> None:
        """Remembers a history, which is not read on in place from now on."""
        if key in self._readings:
            return
        if self._readings_messages > self.max_readings:
            self._readings, self._old_readings, self._readings_messages = {}, self._readings, 0
        self._readings[key] = reading
        self._readings_messages += len(reading.digests)


@dataclass(slots=True)
class _Reading:
    """A history as far as it is read."""

    chain: _Row
    anchor: _Row | None
    keys: dict[int, TurnKeys]
    digests: list[bytes]

    def copy(self) -> "_Reading":
        anchor = self.anchor.copy() if self.anchor is not None else None
        return _Reading(self.chain.copy(), anchor, self.keys.copy(), self.digests.copy())

    def take(self, role: str, turn: TurnDigest) -> None:
        """Reads on, by one message."""
        index, value = len(self.digests), turn.value
        self.digests.append(value)
        if role in _SYSTEM_ROLES:
            return
        if role == "user":
            self.anchor = _ANCHOR.copy()
        self.chain.update(value)
        if self.anchor is not None:
            self.anchor.update(value)
        if role == "assistant":
            anchored = self.anchor.digest() if self.anchor is not None and turn.substantial else None
            self.keys[index] = TurnKeys(self.chain.digest(), anchored)

    def tail(self, prefix: str = "") -> Tail:
        """The history ends here; what comes next may be read on."""
        return Tail(self.chain.copy(), self.anchor.copy() if self.anchor is not None else None, prefix)


def read_history(heads: Sequence[MessageHead], memo: TurnMemo, messages: Sequence[Raw] = ()) -> History:
    """The keys of every assistant turn in a list of messages. Touches the bytes once; what is large belongs in
    pieces. Never raises: what is not JSON is known by its bytes.

    With `messages`, the same as slices of the body, a long history is known as a whole that was read before its
    last answer came: 100 messages of 900 bytes take 50 µs instead of 250.
    """
    return whole(history_steps(heads, memo, messages))


def history_steps(
    heads: Sequence[MessageHead], memo: TurnMemo, messages: Sequence[Raw] = ()
) -> Generator[None, None, History]:
    """The same in pieces of about a millisecond."""
    last = len(heads) - 1
    reading, key = _Reading(_CHAIN.copy(), None, {}, []), b""
    if last >= _LONG_MESSAGES and len(messages) == len(heads):
        early, key = yield from _keys_of(messages, _last_answer(heads))
        reading = memo.reading(key) or memo.reading(early) or reading
    seen_bytes = 0
    tail: Tail | None = None
    for index in range(len(reading.digests), len(heads)):
        head = heads[index]
        size_bytes = _size(head)
        seen_bytes += size_bytes + _MESSAGE_BYTES
        if seen_bytes > _PIECE_BYTES:
            yield
            seen_bytes = 0
        if index == last and head.role == "assistant" and is_true(head.partial):
            tail = reading.tail(text_in(head))
        # What a conversation begins with is new: to look it up would take 1.5 µs besides.
        is_new = last < _BEGINNING_MESSAGES and size_bytes <= _BEGINNING_BYTES
        reading.take(head.role, turn_digest(head) if is_new else memo.digest(head))
    if key and tail is None:
        memo.keep_reading(key, reading)
    return History(reading.keys, tail or Tail(reading.chain, reading.anchor), reading.digests)


def _last_answer(heads: Sequence[MessageHead]) -> int:
    """The index of the last message that is the assistant's, 0 where none is: what came before was a request."""
    return next((index for index in range(len(heads) - 1, -1, -1) if heads[index].role == "assistant"), 0)


def _keys_of(messages: Sequence[Raw], early: int) -> Generator[None, None, tuple[bytes, bytes]]:
    """What so many messages are known by as they stand, and all of them. Where one ends is in their braces."""
    row = sha256()
    keys = []
    for begin, end in ((0, early), (early, len(messages))):
        for start in range(begin, end, _QUICK_MESSAGES):
            row.update(b"".join(messages[start : min(start + _QUICK_MESSAGES, end)]))
            if start + _QUICK_MESSAGES < end:
                yield
        keys.append(row.digest())
    return keys[0], keys[1]


def is_large(heads: Sequence[MessageHead]) -> bool:
    """The history takes more than about a millisecond to digest."""
    quick_bytes = _QUICK_BYTES - len(heads) * _MESSAGE_BYTES
    return quick_bytes < 0 or sum(map(_size, heads)) > quick_bytes


def _size(head: MessageHead) -> int:
    """Bytes of a message that are digested."""
    content, calls = head.content, head.tool_calls
    size = 0 if content is UNSET else len(content)
    return size if calls is UNSET else size + len(calls)
