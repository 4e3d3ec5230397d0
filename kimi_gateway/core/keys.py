"""Callers' keys: what each may do, and finding one by what a client presents.

Only SHA-256 digests are held. The identity is the key's *name*: budgets, thoughts and reports hang on it, so a
secret can change without losing them.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kimi_gateway.core.limits import Limits
from kimi_gateway.core.secret import Secret

OPEN_NAME: Final = "open"
"""The one caller of a gateway without keys; no key may have this name."""

BOTH_TIERS: Final = ("standard", "highspeed")
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}\Z")
_SENDABLE: Final = re.compile(r"[\x21-\x7e]+\Z")


_NO_LIMITS: Final = Limits()


class KeyFormatError(ValueError):
    """A key or digest that could never match; the message says what is expected and never holds the key."""


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """What a caller may do. `max_effort` is the ceiling; "" and 0 in a default mean that the key has none.

    `pin` allows the header x-kimi-target. `max_completion_tokens` applies where the request names no limit.
    """

    name: str
    max_effort: str = "max"
    default_effort: str = ""
    default_ttl: str = ""
    max_completion_tokens: int = 0
    tiers: tuple[str, ...] = BOTH_TIERS
    pin: bool = False
    explain: bool = False
    thinking_repair: bool = True
    limits: Limits = _NO_LIMITS


OPEN_POLICY: Final = KeyPolicy(name=OPEN_NAME, pin=True, explain=True)


_NO_DIGEST: Final = b"\0" * 32


class KeyRing:
    """Finds a key's policy by the secret a client presents. Immutable; a reload makes a new one."""

    __slots__ = ("_by_digest", "_closed")

    def __init__(self, keys: Iterable[tuple[bytes, KeyPolicy]], *, closed: bool = False) -> None:
        """`keys` are pairs of a SHA-256 digest (32 bytes) and its policy; `closed`: without any, nobody may call.

        Raises `KeyFormatError` for a digest of two keys: one secret cannot be two callers.
        """
        by_digest: dict[bytes, tuple[bytes, KeyPolicy]] = {}
        for digest, policy in keys:
            _, other = by_digest.setdefault(digest, (digest, policy))
            if other is not policy:
                raise KeyFormatError(
                    f"keys {other.name} and {policy.name} have the same secret; give each its own"
                )
        self._by_digest = by_digest
        self._closed = closed

    def __len__(self) -> int:
        return len(self._by_digest)

    @property
    def is_open(self) -> bool:
        """No keys are used: open mode. A ring whose keys were all revoked is empty, and not open."""
        return not self._by_digest and not self._closed

    @property
    def names(self) -> frozenset[str]:
        """The names of the keys in it."""
        return frozenset(policy.name for _, policy in self._by_digest.values())

    def with_more(self, keys: Iterable[tuple[bytes, KeyPolicy]], *, closed: bool) -> "KeyRing":
        """This ring and these keys, without those whose name or secret is in it already."""
        names = self.names
        more: dict[bytes, KeyPolicy] = {}
        for digest, policy in keys:
            if policy.name not in names and digest not in self._by_digest:
                more.setdefault(digest, policy)
        return KeyRing([*self._by_digest.values(), *more.items()], closed=closed or self._closed)

    def find(self, presented: str) -> KeyPolicy | None:
        """The policy of a presented key, None where it is unknown."""
        digest = digest_of(presented)
        known, policy = self._by_digest.get(digest, (_NO_DIGEST, OPEN_POLICY))
        # The look-up goes by a digest the caller cannot steer byte by byte; the comparison takes constant time.
        return policy if hmac.compare_digest(known, digest) else None


def digest_of(secret: str) -> bytes:
    """The SHA-256 digest of a secret, 32 bytes. Text that is not UTF-8 (surrogates) has a digest all the same."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def digest_from_hex(text: str) -> bytes:
    """The digest that `key_sha256` states. Raises `KeyFormatError`."""
    if not _DIGEST.match(text):
        raise KeyFormatError(
            'must be the SHA-256 of the key as 64 hexadecimal digits, as `printf %s "$KEY" | sha256sum` prints it'
        )
    return bytes.fromhex(text)


def secret_from_text(text: str) -> Secret:
    """The secret in the text of a variable or key file; one newline at the end is not part of it.

    Raises `KeyFormatError` for an empty one, several lines, and characters that no HTTP header can carry.
    """
    line = text.removesuffix("\n").removesuffix("\r")
    if not line:
        raise KeyFormatError("is empty; put the key there, on one line")
    if not _SENDABLE.match(line):
        raise KeyFormatError(
            "holds spaces, several lines or characters outside ASCII; a key is one printable word"
        )
    return Secret(line)


def same(presented: str, secret: Secret) -> bool:
    """Whether a presented key is this secret, in constant time."""
    return hmac.compare_digest(digest_of(presented), digest_of(secret.reveal()))
