"""The usual chunk, which needs no change: read without making Python objects of what only passes through.

Nine of ten chunks of a stream carry one piece of text or thought of choice 0 and nothing else. They are checked
against a narrow type and go on as the bytes that they came as; at most the thought's name is put right. Whatever
has more to say (a call, a finish reason, usage, log probabilities, a field of an engine that is not null) is no
plain chunk and takes the long way. A folded answer has no null for a field that is null and first named in a plain
chunk. Measured with CPython 3.11 for a chunk of 150 bytes: 0.9 µs instead of 5.1.
"""

from typing import Final, TypeAlias

import msgspec

Piece: TypeAlias = str | msgspec.UnsetType | None
"""A text in a delta: absent, null and "" are three things."""


class PlainChunk(msgspec.Struct, frozen=True, gc=False):
    """One chunk that carries text or thought. `raw` is its JSON in one line, in Moonshot's spelling.

    Byte counts are UTF-8.
    """

    raw: bytes
    content: Piece
    thought: Piece
    model: str
    id: str
    text_bytes: int
    thought_bytes: int


class _Delta(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    role: str | None = None
    content: Piece = msgspec.UNSET
    reasoning_content: Piece = msgspec.UNSET
    reasoning: Piece = msgspec.UNSET
    tool_calls: None = None
    refusal: None = None
    function_call: None = None


class _Choice(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    delta: _Delta
    index: int = 0
    finish_reason: None = None
    native_finish_reason: None = None
    logprobs: None = None
    matched_stop: None = None
    stop_reason: None = None
    token_ids: None = None


class _Chunk(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    id: str
    object: str
    created: int
    model: str
    choices: tuple[_Choice]
    usage: None = None
    system_fingerprint: str | None = None
    provider: str | None = None
    prompt_token_ids: None = None
    service_tier: None = None


_decode: Final = msgspec.json.Decoder(_Chunk).decode
_NO_PLAIN: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_plain(data: bytes) -> PlainChunk | None:
    """The chunk in the data of an event, None where it is no plain one."""
    try:
        chunk = _decode(data)
    except _NO_PLAIN:
        return None
    choice = chunk.choices[0]
    delta = choice.delta
    content, thought = delta.content, delta.reasoning_content
    if choice.index or b"\n" in data:
        return None
    if delta.reasoning is not msgspec.UNSET:
        # Outside of a text there is no such sequence but the name: inside, its quotes would be escaped.
        if thought is not msgspec.UNSET or data.count(b'"reasoning"') != 1:
            return None
        thought = delta.reasoning
        data = data.replace(b'"reasoning"', b'"reasoning_content"')
    text_bytes, thought_bytes = _size_bytes(content), _size_bytes(thought)
    if not text_bytes and not thought_bytes:
        return None
    return PlainChunk(data, content, thought, chunk.model, chunk.id, text_bytes, thought_bytes)


def _size_bytes(piece: Piece) -> int:
    if not isinstance(piece, str):
        return 0
    return len(piece) if piece.isascii() else len(piece.encode())
