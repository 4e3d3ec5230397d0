"""Which of several equal targets a conversation goes to, without anybody remembering it: rendezvous hashing.

Every replica of the gateway comes to the same answer, and when a target goes only its own conversations move. With
weights each target gets its share of all keys, and a changed weight moves keys to or from that target alone.
"""

from hashlib import blake2b
from math import log
from typing import Final

_BITS: Final = 52  # so that half a step more than the largest is still below 1


def lot(key: bytes, name: str) -> bytes:
    """The lot of a conversation at a target: the same everywhere, and independent between targets. Of targets with
    equal weights the one with the largest has the conversation."""
    return blake2b(key + b"\n" + name.encode(), digest_size=8).digest()


def pull(key: bytes, name: str, weight: float = 1.0) -> float:
    """How strongly a target pulls a conversation; the strongest has it. 0 for a target without weight."""
    if weight <= 0:
        return 0.0
    return -weight / log(((int.from_bytes(lot(key, name)) >> (64 - _BITS)) + 0.5) / 2.0**_BITS)
