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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from pricing.ledger.framing import Damage, Framed, Piece, scan_lines, scan_rest
from pricing.ledger.records import FORMAT, Head, Opened, Progressed, RecordError, Settled, decode_record

SUFFIX: Final = ".journal"
NEW_SUFFIX: Final = ".journal.new"
DAMAGED_SUFFIX: Final = ".journal.damaged"
READ_BYTES: Final = 1 << 20
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


@dataclass(frozen=True, slots=True)
class Located:
    """A record of a request and where it stands in its file, in bytes."""

    record: Opened | Progressed | Settled
    start: int
    end: int


Found: TypeAlias = Located | Damage


class NewerFormat(Exception):
    """The file was written by a newer version; reading it here would lose something."""


class Reader:
    """Reads one file from an offset on, in steps, while it may still grow.

    `position` is where the next unread line begins. Takes the descriptor over; `close` closes it. Raises
    `NewerFormat` where the file's head says so.
    """

    def __init__(self, descriptor: int, position: int = 0) -> None:
        head = _head(descriptor)
        if head is not None and head.format > FORMAT:
            raise NewerFormat(f"format {head.format}; this version reads up to {FORMAT}")
        self._descriptor = descriptor
        self.position = position

    def read(self) -> list[Found]:
        """The next complete lines, about 1 MiB of them; empty where there are none yet."""
        size_bytes = READ_BYTES
        while True:
            data = os.pread(self._descriptor, size_bytes, self.position)
            pieces, consumed = scan_lines(data)
            if consumed or len(data) < size_bytes:
                break
            size_bytes *= 4  # one line longer than the buffer
        found = list(self._located(pieces))
        self.position += consumed
        return found

    def read_rest(self) -> list[Found]:
        """What stands after the last line feed: for files that nobody writes any more."""
        data = os.pread(self._descriptor, max(self.size_bytes() - self.position, 0), self.position)
        found = list(self._located(scan_rest(data)))
        self.position += len(data)
        return found

    def size_bytes(self) -> int:
        """The size of the file now."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Gives the descriptor back, and with it a lock that it holds."""
        os.close(self._descriptor)

    def _located(self, pieces: list[Piece]) -> Iterator[Found]:
        for piece in pieces:
            start, end = self.position + piece.start, self.position + piece.end
            match piece:
                case Damage():
                    yield Damage(start, end)
                case Framed(payload=payload):
                    yield from _decoded(payload, start, end)


def open_reader(path: Path, position: int = 0) -> Reader:
    """A reader of the file. Raises `NewerFormat`, `FileNotFoundError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return Reader(descriptor, position)
    except NewerFormat:
        os.close(descriptor)
        raise


def _decoded(payload: bytes, start: int, end: int) -> Iterator[Found]:
    try:
        record = decode_record(payload)
    except RecordError:
        yield Damage(start, end)
        return
    if not isinstance(record, Head):
        yield Located(record, start, end)


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
