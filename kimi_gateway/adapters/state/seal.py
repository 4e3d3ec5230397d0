"""The one door to `cryptography`: what leaves the process for a store is sealed there, and its places are hidden.

With a secret, data is encrypted with AES-256-GCM under a key derived from it, bound to its owner and its place: a
record that somebody moves elsewhere does not open. Places (digests of prompts, names of keys and end users) are
HMACs under a second key: who reads the store sees neither texts nor anything to compare texts with. A third value
names the secret, so that what an older one has sealed is told from what is damaged; both are missing to a reader.

Without a secret data lies there as it is, with a checksum against accidents, and places are plain SHA-256 digests.

Nonces are random, 96 bits: after 2^32 records under one secret the odds of a repeated one reach 2^-33. At a
hundred records a second that takes more than a year; then the secret is worth changing anyway.
"""

import os
from hashlib import blake2b, sha256
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from kimi_gateway.core.secret import Secret

SECRET_CHARACTERS_MIN: Final = 16
SEALED_OVERHEAD_BYTES: Final = 33  # version, key, nonce, tag

_PLAIN: Final = b"\x01"
_SEALED: Final = b"\x02"
_SALT: Final = b"kimi-gateway/state/1"
_KEY_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_SUM_BYTES: Final = 16


class WeakSecret(ValueError):
    """The secret is too short to be one."""


class SealError(Exception):
    """The data does not open here: damaged, moved, of another version or under another secret."""


class Seal(Protocol):
    """How data and places look outside the process."""

    def digest(self, label: bytes, *fields: bytes) -> bytes:
        """32 bytes for these fields; the same fields under another label, or otherwise cut, give others."""
        ...

    def seal(self, data: bytes, place: bytes) -> bytes:
        """The data as it lies at that place, at most `SEALED_OVERHEAD_BYTES` longer."""
        ...

    def open(self, data: bytes, place: bytes) -> bytes:
        """What was sealed for that place. Raises `SealError`."""
        ...


def seal_of(secret: Secret | None) -> Seal:
    """The seal of a secret, or the plain one without. Raises `WeakSecret`."""
    return Sealed(secret) if secret is not None else Plain()


class Plain:
    """No secret: data is readable to who can read the store."""

    def digest(self, label: bytes, *fields: bytes) -> bytes:
        return sha256(_framed(label, fields)).digest()

    def seal(self, data: bytes, place: bytes) -> bytes:
        return b"".join((_PLAIN, _sum(data, place), data))

    def open(self, data: bytes, place: bytes) -> bytes:
        if data[:1] != _PLAIN:
            raise SealError("not plain data of this version")
        body = data[1 + _SUM_BYTES :]
        if data[1 : 1 + _SUM_BYTES] != _sum(body, place):
            raise SealError("damaged, or of another place")
        return body


class Sealed:
    """Sealed with keys that are derived from a secret."""

    def __init__(self, secret: Secret) -> None:
        text = secret.reveal()
        if len(text) < SECRET_CHARACTERS_MIN:
            raise WeakSecret(
                f"the secret that thinking.encrypt_key_env names has {len(text)} characters; it needs "
                f"{SECRET_CHARACTERS_MIN} or more, for example from: openssl rand -base64 32"
            )
        material = text.encode("utf-8", "surrogateescape")
        self._cipher = AESGCM(_derived(material, b"seal", 32))
        self._places = hmac.HMAC(_derived(material, b"places", 32), hashes.SHA256())
        self._head = _SEALED + _derived(material, b"name of the key", _KEY_ID_BYTES)

    def digest(self, label: bytes, *fields: bytes) -> bytes:
        keyed = self._places.copy()
        keyed.update(_framed(label, fields))
        return keyed.finalize()

    def seal(self, data: bytes, place: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return b"".join((self._head, nonce, self._cipher.encrypt(nonce, data, self._head + place)))

    def open(self, data: bytes, place: bytes) -> bytes:
        head = len(self._head)
        if data[:head] != self._head:
            raise SealError("not sealed with this secret, or of another version")
        try:
            nonce, body = data[head : head + _NONCE_BYTES], memoryview(data)[head + _NONCE_BYTES :]
            return self._cipher.decrypt(nonce, body, self._head + place)
        except (InvalidTag, ValueError):  # ValueError: a nonce cut short
            raise SealError("damaged, or of another place") from None


def _derived(material: bytes, use: bytes, length: int) -> bytes:
    return HKDF(hashes.SHA256(), length, salt=_SALT, info=use).derive(material)


def _framed(label: bytes, fields: tuple[bytes, ...]) -> bytes:
    """One text of several fields: their lengths stand before them, so that no two lists give the same."""
    lengths = b"".join([b" %d" % len(item) for item in fields])
    return b"".join((label, lengths, b"\n", *fields))


def _sum(data: bytes, place: bytes) -> bytes:
    summed = blake2b(place, digest_size=_SUM_BYTES)
    summed.update(data)
    return summed.digest()
