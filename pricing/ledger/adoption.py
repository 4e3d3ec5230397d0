"""Bringing the journals of dead processes into the ledger.

Whoever gets the lock of a file that its process let go reads it to the end, books what it says, turns what was
under way into unsettled rows, and deletes it. Dying in the middle is harmless: the next one starts again at
the place the ledger remembers, and every write may be repeated.
"""

import logging
import os
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from pricing.ledger.framing import Damage
from pricing.ledger.journal import remove
from pricing.ledger.journal_files import (
    NEW_SUFFIX,
    Found,
    JournalFile,
    NewerFormat,
    Reader,
    list_journals,
    lock_left_behind,
)
from pricing.ledger.pending import Pending
from pricing.ledger.records import ToBook, decode_to_book
from pricing.ledger.store import Store

_log: Final = logging.getLogger("pricing.ledger")
_FOREVER: Final = float("inf")


@dataclass(slots=True)
class _Adopted:
    file: JournalFile
    reader: Reader[ToBook]
    damages: int = 0


def adopt(directory: Path, ledger_id: str, store: Store) -> int:
    """Books everything that dead processes left in the directory for this ledger; says how many rows.

    Raises `StoreError`; the files are then still there.
    """
    written = 0
    for owner, files in groupby(list_journals(directory, ledger_id), key=lambda file: file.owner):
        adopted = _lock_all(list(files))
        if not adopted:
            continue
        try:
            written += _drain(owner, adopted, store)
            _remove_all(adopted, store)
        finally:
            for one in adopted:
                one.reader.close()
    return written


def clear_unfinished(directory: Path) -> None:
    """Deletes the files of processes that died while making them; they hold no record."""
    for path in directory.glob(f"*{NEW_SUFFIX}"):
        descriptor = lock_left_behind(path)
        if descriptor is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)


def _lock_all(files: list[JournalFile]) -> list[_Adopted]:
    adopted: list[_Adopted] = []
    for file in files:
        descriptor = lock_left_behind(file.path)
        if descriptor is None:
            continue
        try:
            adopted.append(_Adopted(file, Reader(descriptor, decode_to_book)))
        except NewerFormat as err:
            os.close(descriptor)
            _log.info("journal %s is left to a newer version of kimi-gateway: %s", file.path, err)
    return adopted


def _drain(owner: str, adopted: list[_Adopted], store: Store) -> int:
    pending = Pending()
    written = 0
    for one in adopted:
        one.reader.position = store.drained_bytes(one.file.name)
        while found := one.reader.read():
            written += _book(one, found, pending, store)
        written += _book(one, one.reader.read_rest(), pending, store)
    left = pending.abandon(owner=owner)
    store.upsert(left)
    return written + len(left) + store.unsettle_owner(owner)


def _book(one: _Adopted, found: list[Found[ToBook]], pending: Pending, store: Store) -> int:
    for item in found:
        if type(item) is Damage:
            one.damages += 1
            _log.warning("journal %s: bytes %d to %d are no record", one.file.path, item.start, item.end)
        else:
            pending.take(item.record, (one.file.segment, item.start), now_s=_FOREVER)
    # Only what has ended: the rest is unsettled if its end is not in the files either.
    rows = pending.batch(opened_before_s=0, owner=one.file.owner, lease_until=0)
    segment, offset_bytes = pending.low_water((one.file.segment, one.reader.position))
    drained = {one.file.name: offset_bytes} if segment == one.file.segment else {}
    store.book(rows, drained)
    pending.confirm()
    return len(rows)


def _remove_all(adopted: list[_Adopted], store: Store) -> None:
    store.forget(one.file.name for one in adopted)
    for one in adopted:
        remove(one.file.path, damaged=one.damages > 0)
