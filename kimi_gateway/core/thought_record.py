"""One thought, whose it is, and its form at rest.

The serialised form knows nothing of where it is kept: an adapter for Redis or Valkey stores these bytes, sealed
where a key for encryption is set, and gives back the same `Thought`s.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import msgspec

from backends.json import JsonObject, encode
from backends.messages import is_null

Raw = msgspec.Raw

_RECORD_VERSION: Final = 1


class Owner(msgspec.Struct, frozen=True, gc=False):
    """Whose thoughts: the key's name, and the digest of the end user that the request names, b"" for none."""

    key: str
    end_user: bytes = b""


def owner_of(key: str, request: Mapping[str, Raw]) -> Owner:
    """The owner of a request's thoughts, by its `safety_identifier` and `user`; null and "" name nobody."""
    if "safety_identifier" not in request and "user" not in request:
        return Owner(key)
    named = [_name(request.get(field)) for field in ("safety_identifier", "user")]
    return Owner(key, sha256(encode(named)).digest()) if any(named) else Owner(key)


def _name(raw: Raw | None) -> str | list[str] | None:
    """A string by what it says; anything else, which the contract does not know, by its bytes."""
    if raw is None or is_null(raw):
        return None
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, RecursionError):
        return [bytes(raw).hex()]


class Thought(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One thought as it goes back into a message: JSON texts, `text` a string, `details` OpenRouter's
    `reasoning_details` whole. `partial`: the answer was cut, this is what was delivered."""

    text: bytes | None = None
    details: bytes | None = None
    partial: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.text or b"") + len(self.details or b"")


def thought_in(message: JsonObject, *, partial: bool = False) -> Thought | None:
    """The thought of an answer, byte for byte; an empty one is one, None where the answer has none at all."""
    text, details = message.get("reasoning_content"), message.get("reasoning_details")
    plain = encode(text) if isinstance(text, str) else None
    structured = encode(details) if isinstance(details, list) and details else None
    return Thought(plain, structured, partial) if plain is not None or structured is not None else None


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A stored thought with all that finds it again, for a store elsewhere. The owner is its place there."""

    thought: Thought
    chain: bytes
    anchor: bytes | None
    conversation: bytes


class RecordError(ValueError):
    """The bytes are no record of this version."""


_records = msgspec.msgpack.Decoder(Record)
_packer = msgspec.msgpack.Encoder()


def pack(record: Record) -> bytes:
    """The record as bytes: its version, then MessagePack. Encryption goes around them."""
    return bytes([_RECORD_VERSION]) + _packer.encode(record)


def unpack(data: bytes) -> Record:
    """The record of these bytes. Raises `RecordError`; its reader takes such a thought as missing."""
    if data[:1] != bytes([_RECORD_VERSION]):
        raise RecordError(f"the record is not of version {_RECORD_VERSION}; it is taken as missing")
    try:
        return _records.decode(memoryview(data)[1:])
    except (msgspec.DecodeError, UnicodeError) as err:
        raise RecordError(f"the record is damaged ({err}); it is taken as missing") from err
