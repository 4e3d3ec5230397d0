"""Server-sent events from bytes and back, by the WHATWG grammar, for any split of the bytes.

    SseError
      SseTooLarge    an event, or a line, is longer than the limit

Bytes are cut into lines before anything is decoded, so a write that ends inside a character, or between CR and LF,
changes nothing; U+2028 and U+0085 are text like any other. Time is linear in the bytes, whatever their split.
"""

from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

DONE: Final = b"[DONE]"
"""The data of the event that ends a chat stream."""

COMMENT: Final = b": keep-alive\n\n"
"""A whole comment frame: shows life, means nothing."""

MAX_EVENT_BYTES: Final = 16 * 1024 * 1024

_BOM: Final = b"\xef\xbb\xbf"
_LF: Final = 0x0A
_CR: Final = 0x0D
_COLON: Final = 0x3A


class SseError(ValueError):
    """The bytes cannot be read as an event stream."""


class SseTooLarge(SseError):
    """An event or a line grew beyond the limit; its bytes are not kept."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event. `data` is its data lines joined by LF, `event` its type ("" for the default), `id` the last event
    id seen so far ("" for none)."""

    data: bytes
    event: str = ""
    id: str = ""


class Comment(msgspec.Struct, frozen=True, gc=False):
    """A line that starts with a colon; `text` is what follows, without one leading space."""

    text: bytes = b""


Frame: TypeAlias = Event | Comment


class SseDecoder:
    """Bytes in, events and comments out, in their order.

    An event or a line of more than `max_event_bytes` raises `SseTooLarge` once everything before it has been
    handed out, and again on every later call.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_event_bytes
        self._bom_possible = True
        self._skip_lf = False  # the last byte was a CR that ended a line: an LF now belongs to it
        self._tail: list[bytes] = []  # pieces of the line in progress
        self._tail_bytes = 0
        self._data: list[bytes] = []  # data lines of the event in progress
        self._data_bytes = 0
        self._name = ""
        self._id = ""
        self._failed = False
        self._idle = False  # between events, with nothing kept: the next write may be one whole event
        self.retry_ms: int | None = None
        """The last `retry:` field, milliseconds."""

    def only_event(self, data: bytes) -> bytes | None:
        """The data of the one unnamed event that these bytes are, None where they are anything else; nothing is
        taken then."""
        if (
            self._idle
            and data[:6] == b"data: "
            and data[-1] == _LF
            and data.find(b"\n") == len(data) - 2 <= self._max_bytes
            and b"\r" not in data
        ):
            return data[6:-2]
        return None

    def feed(self, data: bytes) -> list[Frame]:
        """The events and comments that these bytes complete. Raises `SseTooLarge`."""
        # Engines write one whole event at a time; that write must cost next to nothing.
        only = self.only_event(data)
        if only is not None:
            return [Event(only, "", self._id)]
        self._raise_if_failed()
        frames: list[Frame] = []
        if self._bom_possible:
            data = self._without_bom(data)
        if self._skip_lf and data:
            self._skip_lf = False
            if data[0] == _LF:
                data = data[1:]
        if b"\r" in data:
            self._skip_lf = data[-1] == _CR
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._tail or self._data or self._name:
            data = self._rest_of_event(data, frames)
        data = self._whole_events(data, frames)
        self._pieces(data, frames)
        if self._failed and not frames:
            self._raise_if_failed()
        busy = self._failed or self._bom_possible or self._skip_lf or self._tail or self._data or self._name
        self._idle = not busy
        return frames

    def finish(self) -> list[Frame]:
        """The last event where the stream ended without a blank line. Raises `SseTooLarge`.

        Call it once, after the last byte. The event may have been cut; whoever reads its data will see.
        """
        self._raise_if_failed()
        frames: list[Frame] = []
        self._lines((self._take_tail(b""), b""), frames)
        self._raise_if_failed()
        return frames

    def _raise_if_failed(self) -> None:
        if self._failed:
            raise SseTooLarge(f"an event of the stream is larger than the limit of {self._max_bytes} bytes")

    def _without_bom(self, data: bytes) -> bytes:
        """The bytes without a leading BOM; b"" while they may still become one."""
        data = self._take_tail(data)
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._keep(data)
            return b""
        self._bom_possible = False
        return data.removeprefix(_BOM)

    def _rest_of_event(self, data: bytes, frames: list[Frame]) -> bytes:
        """Completes the event in progress and gives back what follows it."""
        end = data.find(b"\n\n") + 2
        if end < 2:
            end = len(data)
        self._pieces(data[:end], frames)
        return data[end:]

    def _whole_events(self, data: bytes, frames: list[Frame]) -> bytes:
        """Hands out the events that stand whole in `data` and gives back what is left over.

        The common case, a write that holds whole events of one data line each, is a `split` and a slice each.
        """
        if self._failed or self._tail or self._data or self._name:
            return data
        end = data.rfind(b"\n\n")
        if end < 0:
            return data
        for block in data[:end].split(b"\n\n"):
            if block.startswith(b"data: ") and b"\n" not in block and len(block) <= self._max_bytes:
                frames.append(Event(block[6:], "", self._id))
            else:
                taken = self._lines((*block.split(b"\n"), b""), frames)
                if not taken:
                    return b""
        return data[end + 2 :]

    def _pieces(self, data: bytes, frames: list[Frame]) -> None:
        """Takes bytes that may begin and end inside a line."""
        if self._failed or not data:
            return
        lines = data.split(b"\n")
        last = lines.pop()
        if lines:
            lines[0] = self._take_tail(lines[0])
            self._lines(lines, frames)
        self._keep(last)

    def _keep(self, piece: bytes) -> None:
        """Keeps the piece of a line whose end has not come yet."""
        if piece and not self._failed:
            self._tail.append(piece)
            self._tail_bytes += len(piece)
            if self._tail_bytes + self._data_bytes > self._max_bytes:
                self._fail()

    def _take_tail(self, piece: bytes) -> bytes:
        if not self._tail:
            return piece
        self._tail.append(piece)
        line = b"".join(self._tail)
        self._tail.clear()
        self._tail_bytes = 0
        return line

    def _fail(self) -> None:
        self._failed = True
        self._tail.clear()
        self._data.clear()

    def _lines(self, lines: Iterable[bytes], frames: list[Frame]) -> bool:
        """Takes whole lines, without their ends. False, and the end of it, at one that is too long."""
        for line in lines:
            if not line:
                self._dispatch(frames)
            elif self._data_bytes + len(line) > self._max_bytes:
                self._fail()
                return False
            elif line[0] == _COLON:
                frames.append(Comment(line[1:].removeprefix(b" ")))
            else:
                name, _, value = line.partition(b":")
                self._field(name, value.removeprefix(b" "))
        return True

    def _field(self, name: bytes, value: bytes) -> None:
        match name:
            case b"data":
                self._data.append(value)
                self._data_bytes += len(value) + 1
            case b"event":
                self._name = value.decode("utf-8", "replace")
            case b"id":
                if b"\0" not in value:  # the standard ignores such an id
                    self._id = value.decode("utf-8", "replace")
            case b"retry":
                if value.isdigit() and len(value) < 16:
                    self.retry_ms = int(value)
            case _:
                pass  # the standard ignores fields of other names

    def _dispatch(self, frames: list[Frame]) -> None:
        """Ends the event in progress; without a data line there is none, and its type is forgotten."""
        if self._data:
            frames.append(Event(b"\n".join(self._data), self._name, self._id))
            self._data.clear()
            self._data_bytes = 0
        self._name = ""


def encode_event(data: bytes, *, event: str = "") -> bytes:
    """One whole event frame with LF line ends. A line break inside `data` (LF, CRLF or CR) arrives as LF."""
    head = f"event: {event}\n".encode() if event else b""
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
    return head + b"data: " + data + b"\n\n"
