"""Callers' keys in the ledger's database: names with what they may do, and digests of their secrets.

A secret is never here, only its SHA-256. A name is for good: budgets and reports hang on it, so it is revoked and
not deleted, and a rotation changes nothing but the secret.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from pricing.ledger.errors import StoreError
from pricing.ledger.store.engine import Database
from pricing.ledger.store.tables import key_secrets, keys


class KeyNameTaken(StoreError):
    """There is, or was, a key of that name."""


class NoSuchKey(StoreError):
    """There is no key of that name that works."""


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """One secret of a key: its SHA-256 as 64 hexadecimal digits. Times are Unix seconds."""

    sha256: str
    created_at: float
    expires_at: float | None = None

    def works_at(self, now_s: float) -> bool:
        """It has not expired."""
        return self.expires_at is None or now_s < self.expires_at


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key, revoked ones too. `policy` is the gateway's JSON; `secrets` are the newest first."""

    name: str
    policy: str
    created_at: float
    revoked_at: float | None
    secrets: tuple[StoredSecret, ...]


class KeyTable:
    """The keys of one ledger. Safe to use from several threads; every call blocks and raises `StoreError`.

    `create=True` makes or migrates the ledger.
    """

    def __init__(self, url: str, *, create: bool = False, busy_timeout_ms: int = 5000) -> None:
        self._database = Database(url, create=create, durable=True, busy_timeout_ms=busy_timeout_ms)
        self.name = self._database.name

    def all(self) -> list[StoredKey]:
        """Every key, by name."""
        with self._database.reading() as connection:
            found = connection.execute(select(keys).order_by(keys.c.name)).all()
            secrets = connection.execute(select(key_secrets).order_by(key_secrets.c.created_at.desc())).all()
        by_name: dict[str, list[StoredSecret]] = {}
        for row in secrets:
            by_name.setdefault(row.name, []).append(StoredSecret(row.sha256, row.created_at, row.expires_at))
        return [
            StoredKey(row.name, row.policy, row.created_at, row.revoked_at, tuple(by_name.get(row.name, ())))
            for row in found
        ]

    def create(self, name: str, policy: str, sha256: str, *, at_s: float) -> None:
        """Adds a key. Raises `KeyNameTaken`."""
        with self._database.writing() as connection:
            known = connection.execute(select(keys.c.revoked_at).where(keys.c.name == name)).one_or_none()
            if known is not None:
                raise KeyNameTaken(_taken(name, is_revoked=known.revoked_at is not None))
            connection.execute(insert(keys).values(name=name, policy=policy, created_at=at_s, revoked_at=None))
            connection.execute(insert(key_secrets).values(sha256=sha256, name=name, created_at=at_s))

    def revoke(self, name: str, *, at_s: float) -> None:
        """Ends a key and every secret of it. Raises `NoSuchKey`."""
        with self._database.writing() as connection:
            _must_work(connection, name)
            connection.execute(update(keys).where(keys.c.name == name).values(revoked_at=at_s))

    def rotate(self, name: str, sha256: str, *, at_s: float, overlap_s: float) -> int:
        """Adds a secret; the older ones work for `overlap_s` seconds more, or less where they end before.

        Says how many older ones still work then. Raises `NoSuchKey`.
        """
        until = at_s + overlap_s
        with self._database.writing() as connection:
            _must_work(connection, name)
            ends_later = key_secrets.c.expires_at.is_(None) | (key_secrets.c.expires_at > until)
            mine = key_secrets.c.name == name
            connection.execute(update(key_secrets).where(mine, ends_later).values(expires_at=until))
            connection.execute(insert(key_secrets).values(sha256=sha256, name=name, created_at=at_s))
            left: Sequence[float] = connection.scalars(
                select(key_secrets.c.expires_at).where(mine, key_secrets.c.expires_at > at_s)
            ).all()
        return len(left)

    def close(self) -> None:
        """Closes every connection."""
        self._database.close()


def _must_work(connection: Connection, name: str) -> None:
    found = connection.execute(select(keys.c.revoked_at).where(keys.c.name == name)).one_or_none()
    if found is None:
        raise NoSuchKey(f"there is no key {name} in the ledger; `kimi-gateway keys list` shows those there are")
    if found.revoked_at is not None:
        raise NoSuchKey(f"the key {name} was revoked; make a new one with `kimi-gateway keys create`")


def _taken(name: str, *, is_revoked: bool) -> str:
    if is_revoked:
        return f"there was a key {name}, and its spend stays under that name; choose another name"
    return f"there is a key {name} already; choose another name, or give it a new secret: keys rotate {name}"
