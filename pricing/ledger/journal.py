"""The writing end of the journal: one locked, append-only file per process, cut into segments.

A request's path touches nothing of the ledger but one `write` here. A segment is deleted only when everything
in it is in the ledger: the drainer says how far that is, and until then a segment that is full stays locked
beside the one being written.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import socket
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pricing.ledger.address import ledger_id, redacted
from pricing.ledger.errors import JournalError, JournalFull
from pricing.ledger.framing import frame
from pricing.ledger.journal_files import DAMAGED_SUFFIX, NEW_SUFFIX, SUFFIX, JournalFile, file_name
from pricing.ledger.records import FORMAT, Head, Opened, Progressed, Record, Settled, encode, encode_into
from pricing.ledger.row import LedgerRow

SEGMENT_BYTES: Final = 8 << 20
_SEGMENTS_THAT_FIT: Final = 16
"""Of what the limit allows, the segment being written is a small part: only whole segments are deleted."""
_ATTEMPTS: Final = 5


@dataclass(slots=True)
class _Segment:
    file: JournalFile
    descriptor: int
    size_bytes: int
    head_bytes: int
    drained_bytes: int = 0


class JournalWriter:
    """The journal of this process. Open it after forking: a lock is shared with a forked child.

    `max_bytes` counts the whole directory. At nine tenths of it progress is refused, at all of it whatever is
    new; the end of a request that was opened here is always taken, so the excess is at most one record and one
    more per open request. A segment is `segment_bytes` long, less where `max_bytes` is small. Appends may come
    from any thread. Raises `JournalError` where the directory cannot be used.
    """

    def __init__(
        self,
        directory: Path,
        ledger_url: str,
        *,
        max_bytes: int,
        fsync: bool,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.directory = directory
        self.ledger_id = ledger_id(ledger_url)
        self.owner = _owner()
        self.fsync = fsync
        self._ledger = redacted(ledger_url)
        self._max_bytes = max_bytes
        self._segment_bytes = min(segment_bytes, max_bytes // _SEGMENTS_THAT_FIT)
        self._lock = threading.Lock()
        self._open: set[str] = set()
        self._buffer = bytearray()
        self._own_bytes = 0
        self._other_bytes = 0
        self._torn = False
        self._closed = False
        self._segments = [self._new_segment(0)]
        self.refresh()

    def append_open(self, row: LedgerRow) -> None:
        """Books that a request is about to go upstream. Raises `JournalFull`, `JournalError`."""
        self._append(Opened(row), self._max_bytes)
        self._open.add(row.request_id)

    def append_progress(self, row: LedgerRow) -> None:
        """Books what an open request has delivered so far; nothing for one that is not open.

        Raises `JournalFull` before anything else does, and `JournalError`.
        """
        if row.request_id in self._open:
            self._append(Progressed(row), self._max_bytes - self._max_bytes // 10)

    def append_settled(self, row: LedgerRow) -> None:
        """Books the end. Raises `JournalFull` only for a request that was not opened here; `JournalError`."""
        self._append(Settled(row), None if row.request_id in self._open else self._max_bytes)
        self._open.discard(row.request_id)

    @property
    def full(self) -> bool:
        """Whether the next request would be refused."""
        return self._used_bytes >= self._max_bytes

    @property
    def _used_bytes(self) -> int:
        return self._own_bytes + self._other_bytes

    def files(self) -> list[JournalFile]:
        """The segments that still exist, in the order written; the last one is being written."""
        with self._lock:
            return [segment.file for segment in self._segments]

    def note_drained(self, segment: int, offset_bytes: int) -> None:
        """Takes note that everything before this place of a segment is in the ledger."""
        with self._lock:
            for held in self._segments:
                if held.file.segment == segment:
                    held.drained_bytes = offset_bytes
            live = self._segments[-1]
            if not self._closed and live.drained_bytes == live.size_bytes >= self._segment_bytes:
                # It could not be cut when it should have been. Where nothing fits in, no append will do it.
                self._rotate()

    def drop(self, segment: int, *, damaged: bool) -> None:
        """Removes a full segment, all of which is in the ledger; a damaged one is set aside instead."""
        with self._lock:
            held = next((one for one in self._segments[:-1] if one.file.segment == segment), None)
            if held is not None:
                self._segments.remove(held)
                self._own_bytes -= held.size_bytes
        if held is not None:
            remove(held.file.path, damaged=damaged)
            os.close(held.descriptor)

    def refresh(self) -> None:
        """Measures what others keep in the directory, and starts anew where our own file was deleted."""
        with self._lock:
            if os.fstat(self._segments[-1].descriptor).st_nlink == 0:
                self._rotate()
            own = {segment.file.path.name for segment in self._segments}
            self._other_bytes = _directory_bytes(self.directory, own)

    def close(self) -> None:
        """Gives the files back. Deletes them if everything in them is in the ledger; else others adopt them."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            done = not self._open and all(_is_drained(segment) for segment in self._segments)
            for segment in self._segments:
                if done:
                    segment.file.path.unlink(missing_ok=True)
                os.close(segment.descriptor)

    def _append(self, record: Record, limit_bytes: int | None) -> None:
        with self._lock:
            if self._closed:
                raise JournalError("the journal is closed")
            if limit_bytes is not None and self._own_bytes + self._other_bytes >= limit_bytes:
                raise JournalFull(
                    f"the journal in {self.directory} has reached its limit of {self._max_bytes} bytes because "
                    f"the ledger {self._ledger} does not take its records, or not fast enough; set that right or "
                    "raise [ledger] max_journal_bytes"
                )
            if self._segments[-1].size_bytes >= self._segment_bytes:
                self._rotate()
            encode_into(record, self._buffer)
            self._write(frame(self._buffer))

    def _write(self, line: bytes) -> None:
        segment = self._segments[-1]
        if self._torn:
            line = b"\n" + line
        try:
            written = os.write(segment.descriptor, line)
            if written < len(line):
                self._take_back(segment, written)
                raise JournalError(f"the disk of {self.directory} is full; make room on it")
            segment.size_bytes += written
            self._own_bytes += written
            self._torn = False
            if self.fsync:
                os.fdatasync(segment.descriptor)
        except OSError as err:
            raise JournalError(f"the journal in {self.directory} cannot be written: {err.strerror}") from err

    def _take_back(self, segment: _Segment, written: int) -> None:
        """Removes half a record, so that the next one stands on a line of its own."""
        try:
            os.ftruncate(segment.descriptor, segment.size_bytes)
        except OSError:
            segment.size_bytes += written
            self._own_bytes += written
            self._torn = True

    def _rotate(self) -> None:
        try:
            self._segments.append(self._new_segment(self._segments[-1].file.segment + 1))
        except JournalError:
            return  # the present one grows on, and the next record tries again

    def _new_segment(self, number: int) -> _Segment:
        head = frame(
            encode(
                Head(
                    format=FORMAT,
                    ledger_id=self.ledger_id,
                    ledger=self._ledger,
                    owner=self.owner,
                    pid=os.getpid(),
                    segment=number,
                )
            )
        )
        path = self.directory / file_name(self.ledger_id, self.owner, number)
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = _create_locked(path, head)
        except OSError as err:
            raise JournalError(
                f"no journal can be made in {self.directory}: {err.strerror}; "
                "[ledger] journal_dir must be a local directory that this process may write"
            ) from err
        self._own_bytes += len(head)
        return _Segment(
            JournalFile(path, self.ledger_id, self.owner, number), descriptor, len(head), head_bytes=len(head)
        )


def remove(path: Path, *, damaged: bool) -> None:
    """Deletes a drained file; sets it aside under another name where a person may want to look at it."""
    if not damaged:
        path.unlink(missing_ok=True)
        return
    with contextlib.suppress(FileNotFoundError):
        path.rename(path.with_name(path.name.removesuffix(SUFFIX) + DAMAGED_SUFFIX))


def _create_locked(path: Path, head: bytes) -> int:
    """A descriptor of a new file, locked before it bears the name that others look for."""
    for attempt in range(_ATTEMPTS):
        new_path = path.with_name(f"{path.name.removesuffix(SUFFIX)}.{attempt}{NEW_SUFFIX}")
        descriptor = os.open(new_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.write(descriptor, head) < len(head):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            new_path.rename(path)
            return descriptor
        except (BlockingIOError, FileNotFoundError):
            # Somebody who clears leftovers took it in the instant before it was locked.
            os.close(descriptor)
            if attempt == _ATTEMPTS - 1:
                raise
        except OSError:
            os.close(descriptor)
            new_path.unlink(missing_ok=True)
            raise
    raise AssertionError("unreachable")


def _is_drained(segment: _Segment) -> bool:
    return segment.size_bytes in (segment.drained_bytes, segment.head_bytes)


def _directory_bytes(directory: Path, without: set[str]) -> int:
    total = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.name not in without:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _owner() -> str:
    """A name that no other process has had: host, process id, start (UTC), and chance."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname()) or "host"
    return f"{host}.{os.getpid()}.{datetime.now(UTC):%Y%m%dT%H%M%SZ}.{secrets.token_hex(3)}"
