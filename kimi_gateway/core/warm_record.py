"""The record of a conversation: what which target has of it in its cache, and how it was sent there last.

A record knows *lines*: a line is one prefix in one cache, so it has a target, a model, a list of tools and an
effort. A client that alternates between two efforts keeps two lines warm, and a request whose tools are cut down
to one does not disturb the line of the whole list. The *trail* tells at which turns of the conversation how many
tokens stood, densely at its end and sparsely before, to know what is left where it was changed.

At rest a record is a version and MessagePack, at most 1 KB; what cannot be read is no record.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kimi_gateway.core.prefix import MARK_BYTES, Prefix
from kimi_gateway.core.sending import DIGEST_BYTES, RUNS_BYTES_MAX, Sending, first_difference, name_digest

RECORD_BYTES_MAX: Final = 1024
LINES_MAX: Final = 8
TRAIL_MAX: Final = 9
_TRAIL_DENSE: Final = 4  # so many of the newest are never thinned out
_NARROWED_BYTES: Final = 2

_VERSION: Final = 1
_HEAD: Final = bytes([_VERSION])

_Digest = Annotated[bytes, Meta(max_length=DIGEST_BYTES)]
_Mark = Annotated[bytes, Meta(max_length=MARK_BYTES)]
_Turn = Annotated[int, Meta(ge=0, lt=2**16)]
_Tokens = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_Time = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class Line(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One prefix in one target's cache, as of the last request that went there.

    `turn` and `mark` name the newest turn of it: an answer is one as soon as it was given. `prompt_tokens` of it
    are held. Times are Unix seconds; `sent_s` and `took_s` tell when the prompt was taken in and how much later
    the answer ended. `ttl_s` is the lifetime that the first write fixed, 0 where none is promised. `read_tokens`
    is what the upstream said it read, None where it does not say.
    """

    target: _Digest
    model: _Digest
    tools: _Digest
    narrowed: Annotated[bytes, Meta(max_length=_NARROWED_BYTES)]
    effort: Annotated[str, Meta(max_length=8)]
    turn: _Turn
    mark: _Mark
    thoughts: Annotated[bytes, Meta(max_length=RUNS_BYTES_MAX)]
    sent_s: _Time
    took_s: Annotated[int, Meta(ge=0, lt=2**16)]
    ttl_s: Annotated[int, Meta(ge=0, lt=2**16)]
    prompt_tokens: _Tokens
    read_tokens: _Tokens | None = None

    @property
    def ended_s(self) -> int:
        return self.sent_s + self.took_s


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """So many tokens stood in the prompt that this turn answered."""

    turn: _Turn
    mark: _Mark
    tokens: _Tokens


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is known of one conversation. `lines` are in the order of their last use, the newest first.

    `id` stays what it is while the conversation grows, for reports. The others tell whether a request belongs to
    it: what the client calls it, its first turn (b"" where we did not answer it), its newest turn, and that turn
    back to its question. `measured` says with which tools the tokens of the trail were counted; its thoughts are
    those of the newest line.
    """

    id: _Mark
    name: _Mark
    root: _Mark
    answered: _Mark
    anchor: _Mark
    lines: Annotated[tuple[Line, ...], Meta(min_length=1, max_length=LINES_MAX)]
    measured: _Digest
    trail: Annotated[tuple[Checkpoint, ...], Meta(max_length=TRAIL_MAX)]

    @property
    def shown_id(self) -> str:
        """The id as text: `prefix` of a row."""
        return self.id.hex()

    def line(self, sending: Sending) -> Line | None:
        """The line that a request towards a target would continue."""
        wanted = line_key(sending)
        return next((line for line in self.lines if key_of(line) == wanted), None)

    def trail_of(self, line: Line) -> list[Checkpoint]:
        """The checkpoints that lie on a line, as its tokens count. A line with other tools has none."""
        if self.measured != tools_key(line):
            return []
        parted = first_difference(line.thoughts, self.lines[0].thoughts)
        last = line.turn if parted is None else min(line.turn, parted)
        return [one for one in self.trail if one.turn <= last]

    def is_of(self, prefix: Prefix) -> bool:
        """The request belongs to this conversation: by its own name, or by a turn that both have."""
        name, turns = prefix.name, prefix.turns
        if name is not None and name.explicit and name.digest[:MARK_BYTES] == self.name:
            return True
        if not turns:
            return False
        anchor = turns[-1].anchor
        if turns[0].chain[:MARK_BYTES] == self.root or (anchor and anchor[:MARK_BYTES] == self.anchor):
            return True
        return any(keys.chain[:MARK_BYTES] == self.answered for keys in reversed(turns))


LineKey = tuple[bytes, bytes, bytes, bytes, str]


def line_key(sending: Sending) -> LineKey:
    """What makes a line one and no other, for a request."""
    narrowed = name_digest(sending.narrowed)[:_NARROWED_BYTES]
    effort = sending.effort[:8]
    return name_digest(sending.target), name_digest(sending.model), sending.tools, narrowed, effort


def key_of(line: Line) -> LineKey:
    """What makes a line one and no other."""
    return line.target, line.model, line.tools, line.narrowed, line.effort


def tools_key(line: Line) -> bytes:
    """What stands for the tools that a line begins with."""
    return _tools_key(line.tools, line.narrowed)


@lru_cache(maxsize=1024)
def _tools_key(tools: bytes, narrowed: bytes) -> bytes:
    return sha256(tools + b"/" + narrowed).digest()[:DIGEST_BYTES]


def thinned(trail: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    """The trail within its bound. What goes is the checkpoint that is missed least: the one whose neighbours lie
    closest together for how long ago they are."""
    kept = list(trail)
    while len(kept) > TRAIL_MAX:
        end = kept[-1].turn + 1
        inner = range(1, len(kept) - _TRAIL_DENSE)
        gone = min(inner, key=lambda i: (kept[i + 1].turn - kept[i - 1].turn) / (end - kept[i].turn))
        del kept[gone]
    return tuple(kept)


_packer = msgspec.msgpack.Encoder()
_records = msgspec.msgpack.Decoder(Record)


def pack(record: Record) -> bytes:
    """The record as at most 1,024 bytes."""
    return _HEAD + _packer.encode(record)


def unpack(data: bytes | None) -> Record | None:
    """The record of these bytes; None for none, for another version's, and for what is damaged."""
    if data is None or len(data) > RECORD_BYTES_MAX or data[:1] != _HEAD:
        return None
    try:
        return _records.decode(memoryview(data)[1:])
    except (msgspec.DecodeError, UnicodeError):
        return None
