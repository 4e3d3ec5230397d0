"""Thoughts, their keys and small stores, for tests of thinking repair."""

from hashlib import sha256

import msgspec

from kimi_gateway.core.digest import TurnKeys
from kimi_gateway.core.thought_record import Owner, Thought
from kimi_gateway.core.thoughts import CONVERSATION_OVERHEAD_BYTES, THOUGHT_OVERHEAD_BYTES, Bounds, ThoughtStore

ANNE, BOB = Owner("team-a", b"anne"), Owner("team-a", b"bob")
OTHER = Owner("team-b")
OVERHEAD = THOUGHT_OVERHEAD_BYTES + CONVERSATION_OVERHEAD_BYTES


def keys(name: object, anchor: object = None) -> TurnKeys:
    return TurnKeys(
        sha256(str(name).encode()).digest(), sha256(f"anchor {anchor}".encode()).digest() if anchor else None
    )


def thought(text: str = "Because.") -> Thought:
    return Thought(msgspec.json.encode(text))


def sized(size_bytes: int) -> Thought:
    """A thought that takes so many bytes with its overhead, in a conversation of its own."""
    return Thought(b"x" * (size_bytes - OVERHEAD))


def store(max_bytes: int = 1 << 30, max_bytes_per_key: int = 1 << 30, retention_s: float = 100.0) -> ThoughtStore:
    return ThoughtStore(Bounds(max_bytes, max_bytes_per_key, retention_s))


def found(where: ThoughtStore, owner: Owner, wanted: TurnKeys, now_s: float = 0.0) -> Thought | None:
    (hit,) = where.find(owner, [wanted], now_s)
    return hit.thought if hit is not None else None
