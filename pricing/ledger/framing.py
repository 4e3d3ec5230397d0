"""Lines that carry their own length and checksum: `<length> <crc32 in 8 hex> <payload>` and a line feed.

Both are there because a journal is read after crashes. The length finds the end of a record whose line feed is
damaged, the line feed finds the next record where a length is damaged, the checksum says which of them to
believe. A payload is JSON without raw line feeds, and JSON escapes the quotes of any text in it, so a record
written into a prompt or a tag can never be taken for one.
"""

import re
from typing import Final, TypeAlias, final
from zlib import crc32

import msgspec

_HEADER: Final = re.compile(rb"(\d{1,9}) ([0-9a-f]{8}) ")
# As a lookahead, so that candidates that overlap are all found: `9123 …` holds a header at 9, 1, 2 and 3.
_CANDIDATE: Final = re.compile(rb"(?=(?:\d{1,9}) (?:[0-9a-f]{8}) )")


@final
class Framed(msgspec.Struct, frozen=True, gc=False):
    """One whole record: its place in the data, in bytes, and its payload."""

    start: int
    end: int
    payload: bytes


@final
class Damage(msgspec.Struct, frozen=True, gc=False):
    """Bytes that are no record."""

    start: int
    end: int


Piece: TypeAlias = Framed | Damage


def frame(payload: bytes | bytearray) -> bytes:
    """The payload as one line. The payload must not hold a raw line feed."""
    return b"".join((b"%d %08x " % (len(payload), crc32(payload)), payload, b"\n"))


def scan_lines(data: bytes) -> tuple[list[Piece], int]:
    """The pieces of all complete lines, and where the unfinished last line begins.

    Every record whose own bytes are whole is found, whatever happened to its neighbours.
    """
    end = data.rfind(b"\n") + 1
    return _scan(data, 0, end), end


def scan_rest(data: bytes) -> list[Piece]:
    """The pieces of what stands after the last line feed of a file that nobody writes any more.

    A record that lacks nothing but its line feed counts; anything else is damage, as a rule one torn record.
    """
    return _scan(data, 0, len(data))


def _scan(data: bytes, position: int, end: int) -> list[Piece]:
    pieces: list[Piece] = []
    while position < end:
        if data[position] == 0x0A:  # a blank line: the writer sets one after a write that failed half-way
            position += 1
            continue
        record = _plain_line(data, position, end) or _record_at(data, position, end)
        if record is None:
            resumed = _resume(data, position + 1, end)
            pieces.append(Damage(position, resumed))
            position = resumed
        else:
            pieces.append(record)
            position = record.end
    return pieces


def _plain_line(data: bytes, position: int, end: int) -> Framed | None:
    """The record that is the whole line from here on, as nearly all are; None leaves it to `_record_at`.

    It finds nothing that `_record_at` would not find, in half of its time: 2.0 and 5.0 microseconds for 1 KB.
    """
    line_end = data.find(b"\n", position, end)
    parts = data[position:line_end].split(b" ", 2) if line_end > 0 else ()
    if len(parts) != 3:
        return None
    length, checksum, payload = parts
    if not length.isdigit() or len(length) > 9 or int(length) != len(payload):
        return None
    if b"%08x" % crc32(payload) != checksum:
        return None
    return Framed(position, line_end + 1, payload)


def _record_at(data: bytes, position: int, end: int) -> Framed | None:
    header = _HEADER.match(data, position, end)
    if header is None:
        return None
    start = header.end()
    stop = start + int(header[1])
    if stop > end:
        return None
    payload = data[start:stop]
    if crc32(payload) != int(header[2], 16):
        return None
    return Framed(position, min(stop + 1, end), payload)


def _resume(data: bytes, position: int, end: int) -> int:
    """Where the next whole record of this line begins, else the beginning of the next line."""
    line_end = data.find(b"\n", position - 1, end)
    limit = end if line_end < 0 else line_end + 1
    for candidate in _CANDIDATE.finditer(data, position, limit):
        if _record_at(data, candidate.start(), end) is not None:
            return candidate.start()
    return limit
