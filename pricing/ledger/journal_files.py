"""The files of a journal directory: their names, their locks, and reading them from an offset.

    <ledger id>.<owner>.<segment>.journal     being written (locked) or left behind (unlocked)
    ….journal.new                             being made: no record in it yet
    ….journal.damaged                         read, with bytes in it that are no record: kept for a person

The name repeats what the head says, so a file whose head is damaged still belongs to somebody. A lock (flock)
says that the process which wrote the file lives; the kernel takes it back at any death.
"""

import fcntl
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from pricing.ledger.framing import Damage, Piece, scan_lines, scan_rest
from pricing.ledger.records import (
    FORMAT,
    Head,
    RecordError,
    RequestRecord,
    ToBook,
    decode_record,
    decode_to_book,
)

SUFFIX: Final = ".journal"
NEW_SUFFIX: Final = ".journal.new"
DAMAGED_SUFFIX: Final = ".journal.damaged"
READ_BYTES: Final = 1 << 19
"""By 1 MiB reading takes 11 microseconds a request, by half of it 8: the allocator keeps the memory in between."""
_HEAD_BYTES: Final = 4096

_NAME: Final = re.compile(r"([0-9a-f]{16})\.([A-Za-z0-9.-]+)\.(\d{6,})\.journal")


@dataclass(frozen=True, slots=True)
class JournalFile:
    """One segment of one process's journal."""

    path: Path
    ledger_id: str
    owner: str
    segment: int

    @property
    def name(self) -> str:
        """The name by which the ledger remembers how far the file is drained."""
        return self.path.name


def file_name(ledger_id: str, owner: str, segment: int) -> str:
    """The name of a segment."""
    return f"{ledger_id}.{owner}.{segment:06d}{SUFFIX}"


def list_journals(directory: Path, ledger_id: str) -> list[JournalFile]:
    """The segments for one ledger, by owner and in the order written; empty where the directory is absent."""
    found = []
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    for name in names:
        match = _NAME.fullmatch(name)
        if match and match[1] == ledger_id:
            found.append(JournalFile(directory / name, ledger_id, match[2], int(match[3])))
    return sorted(found, key=lambda file: (file.owner, file.segment))


def lock_left_behind(path: Path) -> int | None:
    """A descriptor that holds the lock of a file nobody holds; None where its process lives or it is gone.

    The caller closes it, which gives the lock back.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


_R = TypeVar("_R")


class Located(msgspec.Struct, Generic[_R], frozen=True, gc=False):
    """A record of a request and where it stands in its file, in bytes."""

    record: _R
    start: int
    end: int


Found: TypeAlias = Located[_R] | Damage


class NewerFormat(Exception):
    """The file was written by a newer version; reading it here would lose something."""


class Reader(Generic[_R]):
    """Reads one file from an offset on, in steps, while it may still grow.

    `position` is where the next unread line begins, `at_end` whether the last reading met the file's end. `decode`
    makes a record of a payload, or raises `RecordError`. Takes the descriptor over; `close` closes it. Raises
    `NewerFormat` where the file's head says so.
    """

    def __init__(self, descriptor: int, decode: Callable[[bytes], Head | _R], position: int = 0) -> None:
        head = _head(descriptor)
        if head is not None and head.format > FORMAT:
            raise NewerFormat(f"format {head.format}; this version reads up to {FORMAT}")
        self._descriptor = descriptor
        self._decode = decode
        self.at_end = False
        self.position = position

    def read(self) -> list[Found[_R]]:
        """The next complete lines, about half a MiB of them; empty where there are none yet."""
        size_bytes = READ_BYTES
        while True:
            data = os.pread(self._descriptor, size_bytes, self.position)
            pieces, consumed = scan_lines(data)
            if consumed or len(data) < size_bytes:
                break
            size_bytes *= 4  # one line longer than the buffer
        found = self._located(pieces)
        self.position += consumed
        self.at_end = len(data) < size_bytes
        return found

    def read_rest(self) -> list[Found[_R]]:
        """What stands after the last line feed: for files that nobody writes any more."""
        data = os.pread(self._descriptor, max(self.size_bytes() - self.position, 0), self.position)
        found = self._located(scan_rest(data))
        self.position += len(data)
        return found

    def size_bytes(self) -> int:
        """The size of the file now."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Gives the descriptor back, and with it a lock that it holds."""
        os.close(self._descriptor)

    def _located(self, pieces: list[Piece]) -> list[Found[_R]]:
        found: list[Found[_R]] = []
        for piece in pieces:
            start, end = self.position + piece.start, self.position + piece.end
            try:
                record = None if type(piece) is Damage else self._decode(piece.payload)
            except RecordError:
                record = None
            if record is None:
                found.append(Damage(start, end))
            elif type(record) is not Head:
                found.append(Located(record, start, end))
        return found


def open_reader(path: Path, position: int = 0) -> Reader[RequestRecord]:
    """A reader of whole records. Raises `NewerFormat`, `FileNotFoundError`."""
    return _opened(path, decode_record, position)


def open_to_book(path: Path) -> Reader[ToBook]:
    """A reader for the way into the ledger. Raises `NewerFormat`, `FileNotFoundError`."""
    return _opened(path, decode_to_book, 0)


def _opened(path: Path, decode: Callable[[bytes], Head | _R], position: int) -> Reader[_R]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return Reader(descriptor, decode, position)
    except NewerFormat:
        os.close(descriptor)
        raise


def _head(descriptor: int) -> Head | None:
    """The head; None where it is damaged (the file's name says the rest then)."""
    pieces, _ = scan_lines(os.pread(descriptor, _HEAD_BYTES, 0))
    if not pieces or isinstance(pieces[0], Damage):
        return None
    try:
        record = decode_record(pieces[0].payload)
    except RecordError:
        return None
    return record if isinstance(record, Head) else None
