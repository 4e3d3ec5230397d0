"""The keys of the ledger's database in a running gateway: in memory, read anew every few seconds.

What was last read is also in a file beside the journal (mode 0600; digests and limits, no secret), so that a
gateway starts while its database is away. Without either nobody knows whether there are keys: then nobody may
call. Keys that end at a time end at that time, database or not. With a ledger that has had keys there is no open
mode, not even when all are revoked.
"""

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from kimi_gateway.core.key_record import decode_policy
from kimi_gateway.core.keys import KeyFormatError, KeyPolicy, KeyRing, digest_from_hex
from pricing.ledger.address import ledger_id
from pricing.ledger.errors import LedgerError, LedgerMissing
from pricing.ledger.store.keys import KeyTable, StoredKey, StoredSecret

_log: Final = logging.getLogger("kimi_gateway.keys")
_FORMAT: Final = 1


class KeySource(Protocol):
    """Where keys are kept. Every call blocks and raises `LedgerError`."""

    def all(self) -> list[StoredKey]:
        """Every key."""
        ...

    def close(self) -> None:
        """Closes every connection."""
        ...


class _Secret(msgspec.Struct):
    sha256: str
    created_at: float
    expires_at: float | None


class _Key(msgspec.Struct):
    name: str
    policy: str
    created_at: float
    revoked_at: float | None
    secrets: list[_Secret]


class _Snapshot(msgspec.Struct):
    format: int
    ledger: str
    keys: list[_Key]


class KeyStore:
    """The keys of one ledger. Belongs to one event loop; `wall` is Unix seconds.

    `open_source` opens the database, in a thread. `on_change` is called when the keys are other ones than before.
    """

    def __init__(
        self,
        url: str,
        directory: Path,
        *,
        refresh_s: float,
        wall: Callable[[], float],
        on_change: Callable[[], None],
        open_source: Callable[[str], KeySource] = KeyTable,
    ) -> None:
        self._url = url
        self._ledger = ledger_id(url)
        self._file = directory / f"keys-{self._ledger}.json"
        self._refresh_s = refresh_s
        self._wall = wall
        self._on_change = on_change
        self._open_source = open_source
        self._source: KeySource | None = None
        self._keys: list[StoredKey] | None = None
        self._pairs: tuple[tuple[bytes, KeyPolicy], ...] = ()
        self._is_away = False
        self._had_keys = False
        self._complaints: frozenset[str] = frozenset()

    async def start(self) -> None:
        """Reads the keys: from the database, else from the file of what was last read."""
        found = await self._read()
        if found is None:
            found = await asyncio.to_thread(self._load)
            if found is None:
                _log.error("nobody knows which keys there are before the ledger is back: only [[keys]] may call")
        self._take(found)

    async def keep_fresh(self) -> None:
        """Reads them again, for ever."""
        while True:
            await asyncio.sleep(self._refresh_s)
            await self.refresh()

    async def refresh(self) -> None:
        """Reads them again, and looks which have ended by now."""
        was = (self._pairs, self.closes)
        found = await self._read()
        self._take(self._keys if found is None else found)
        if (self._pairs, self.closes) != was:
            self._on_change()

    @property
    def closes(self) -> bool:
        """There is no open mode with this ledger: it has a key, or had one since the start, or nobody knows."""
        return self._keys is None or self._had_keys

    @property
    def policies(self) -> tuple[KeyPolicy, ...]:
        """What the keys that work may do, each name once."""
        return tuple({policy.name: policy for _, policy in self._pairs}.values())

    def merged(self, file_keys: KeyRing) -> KeyRing:
        """The ring of the file's keys and these. A name or secret that both have is the file's."""
        both = sorted(file_keys.names & {policy.name for policy in self.policies})
        self._complain([f"the key {name} of the ledger is hidden by [[keys]] {name} of the file" for name in both])
        return file_keys.with_more(self._pairs, closed=self.closes)

    async def close(self) -> None:
        """Closes the database."""
        source, self._source = self._source, None
        if source is not None:
            await asyncio.to_thread(source.close)

    async def _read(self) -> list[StoredKey] | None:
        """The keys in the database; None, and the reason in the log, where they cannot be read."""
        try:
            found = await asyncio.to_thread(self._read_now)
        except LedgerMissing:
            found = []
        except LedgerError as err:
            if not self._is_away:
                _log.warning("the keys of the ledger cannot be read, those known stay in force: %s", err)
            self._is_away = True
            return None
        if self._is_away:
            _log.warning("the keys of the ledger can be read again")
        self._is_away = False
        if found != self._keys:
            await asyncio.to_thread(self._save, found)
        return found

    def _read_now(self) -> list[StoredKey]:
        try:
            if self._source is None:
                self._source = self._open_source(self._url)
            return self._source.all()
        except LedgerError:
            if self._source is not None:
                self._source.close()
                self._source = None  # opened anew at the next try: it may be another database then
            raise

    def _take(self, keys: list[StoredKey] | None) -> None:
        self._keys = keys
        self._had_keys |= bool(keys)
        self._pairs = self._working()

    def _working(self) -> tuple[tuple[bytes, KeyPolicy], ...]:
        """Digest and policy of every secret that works now."""
        now_s = self._wall()
        pairs: list[tuple[bytes, KeyPolicy]] = []
        broken: list[str] = []
        known = {policy.name: policy for policy in self.policies}
        for key in self._keys or ():
            if key.revoked_at is not None:
                continue
            try:
                policy = decode_policy(key.name, key.policy)
                if known.get(key.name) == policy:
                    policy = known[key.name]
                working = [secret for secret in key.secrets if secret.works_at(now_s)]
                pairs += [(digest_from_hex(secret.sha256), policy) for secret in working]
            except KeyFormatError as err:
                broken.append(f"the key {key.name} does not work: {err}")
        self._complain(broken)
        return tuple(pairs)

    def _complain(self, lines: list[str]) -> None:
        for line in lines:
            if line not in self._complaints:
                _log.warning("%s", line)
        self._complaints |= frozenset(lines)

    def _save(self, keys: list[StoredKey]) -> None:
        """Writes the file, whole or not at all."""
        kept = [
            _Key(
                key.name,
                key.policy,
                key.created_at,
                key.revoked_at,
                [_Secret(one.sha256, one.created_at, one.expires_at) for one in key.secrets],
            )
            for key in keys
        ]
        payload = msgspec.json.encode(_Snapshot(_FORMAT, self._ledger, kept))
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=".keys-", dir=self._file.parent)  # mode 0600
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(payload)
                Path(name).replace(self._file)
            except OSError:
                with suppress(OSError):
                    Path(name).unlink()
                raise
        except OSError as err:
            _log.warning("the keys cannot be kept in %s for a start without the ledger: %s", self._file, err)

    def _load(self) -> list[StoredKey] | None:
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=_Snapshot)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as err:
            _log.warning("the keys in %s cannot be read: %s", self._file, err)
            return None
        if found.format != _FORMAT or found.ledger != self._ledger:
            return None
        _log.warning("the keys are those that %s had when the ledger could last be read", self._file)
        return [
            StoredKey(
                key.name,
                key.policy,
                key.created_at,
                key.revoked_at,
                tuple(StoredSecret(one.sha256, one.created_at, one.expires_at) for one in key.secrets),
            )
            for key in found.keys
        ]
