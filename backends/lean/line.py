"""The hot path: one connection and the answer that comes over it; `reply` is what its reader holds.

Who does what, in the order of a call: `Line.begin` writes the request; the loop calls `data_received` with
whatever came; the parser (llhttp, strict) calls back into the line and appends body pieces to its `inbox`;
`Reply.read` takes them from there. There is no task, no queue and no stream object in between.

Bounds: an answer's head (interim answers and trailers included), fields in it, the size of one, the bytes that
wait for a slow reader. What the framing does not account for ends the connection: bytes after an answer, before a
request, two lengths, a coding other than `chunked`. An answer whose end is the end of the connection is complete
only where the peer said so: FIN, over TLS close_notify; never by a reset or a bare cut.
"""

import asyncio
import select
import ssl
from asyncio import Future, TimerHandle
from collections.abc import Callable
from math import inf
from typing import Final, Protocol, cast

from httptools import HttpParserError, HttpResponseParser
from typing_extensions import override

from backends.faults import Fault
from backends.lean.faults import closed_fault, cut_fault, head_fault, unanswered_fault
from backends.lean.names import NAMES, learn

READ_LIMIT_BYTES: Final = 128 * 1024
"""Above it a connection is not read on; with one socket read on top (256 KiB) at most 384 KiB wait in memory."""
SLICE_BYTES: Final = 256 * 1024  # a large request body goes out in slices, the buffer's own memory, never copied
SLICES_A_TURN: Final = 4  # then other calls get the loop: 1 MiB into the kernel takes 0.1 to 0.3 ms
ONE_WRITE_BYTES: Final = 64 * 1024  # up to here head and body are one write: 1.2 µs less than two
MAX_FIELD_BYTES: Final = 16 * 1024
MAX_FIELDS: Final = 128
MAX_HEAD_BYTES: Final = 128 * 1024  # also of any stretch of an answer in which no body byte comes
_BODILESS: Final = frozenset((204, 304))
_SWITCHING: Final = 101


class Home(Protocol):
    """Where a line belongs to."""

    def give_back(self, line: "Line") -> None:
        """Takes an idle line."""

    def free(self) -> None:
        """Gives back the slot of a line that held one."""

    def joined(self, line: "Line") -> None:
        """Counts a line that is open now."""

    def lost(self, line: "Line") -> None:
        """Forgets a line that is closed; called once for each."""


class Reader(Protocol):
    """Who reads the answer."""

    def finish(self) -> None:
        """Takes over the rest of an answer that is complete, with `Line.let_go`."""


class _Refused(Exception):
    """Raised in a parser's callback to stop it."""


class Line(asyncio.Protocol):
    """One connection, used for one exchange after the other.

    Of the exchange: `status` is 0 until the head is in; then `complete` or `broken` says how it ended. `heard`
    says that any byte came.
    """

    __slots__ = (
        "_busy",
        "_deadline_s",
        "_fields_seen",
        "_held_bytes",
        "_interim",
        "_loop",
        "_news",
        "_overhead_bytes",
        "_parser",
        "_paused",
        "_rest",
        "_rings_at_s",
        "_stalled",
        "_timer",
        "_until_close",
        "_waiter",
        "born_s",
        "broken",
        "complete",
        "fields",
        "heard",
        "home",
        "idle_since_s",
        "inbox",
        "into",
        "on_body",
        "reply",
        "reusable",
        "slot",
        "status",
        "transport",
        "where",
    )

    def __init__(self, home: Home, where: str, loop: asyncio.AbstractEventLoop) -> None:
        self.home, self.where, self._loop = home, where, loop
        self.inbox: list[bytes] = []
        # The parser calls the list's own method, no Python frame: 0.06 µs less for a body piece.
        self.on_body = self.inbox.append
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(lenient_spaces_after_chunk_size=True)  # padded sizes; harmless
        self.transport: asyncio.Transport
        self._news = select.poll()
        self._timer: TimerHandle | None = None
        self._waiter: Future[None] | None = None
        self._rest: memoryview | None = None  # of the request's body, where that is large
        self._deadline_s = self._rings_at_s = self.idle_since_s = inf
        self.born_s = loop.time()
        self._busy = self._paused = self._stalled = False
        self.slot = False  # holds one of a bounded number of slots
        self.into: Callable[[bytes], bool] | None = None  # takes body bytes at once, see `Reply.pour`
        self.reply: Reader | None = None
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.fields: dict[str, str] = {}
        self.complete = self.heard = self.reusable = self._until_close = self._interim = False
        self.broken: Fault | None = None
        self._fields_seen = self._held_bytes = self._overhead_bytes = 0

    # --- the request ----------------------------------------------------------------------------------------

    def begin(self, head: bytes, body: bytes) -> "Future[None]":
        """Sends a request; done when the answer's head is in or the line is broken. Never fails."""
        self.send(head, body)
        waiter = self._waiter = self._loop.create_future()
        return waiter

    def send(self, head: bytes, body: bytes) -> None:
        self._reset()
        self._busy = True
        self._deadline_s = inf
        if len(body) <= ONE_WRITE_BYTES:
            self.transport.write(head + body if body else head)
        else:
            self.transport.write(head)
            self._rest = memoryview(body)
            self._pump()

    def _pump(self) -> None:
        """Sends on a large body: until the transport has enough, at most so much in one turn of the loop."""
        rest = self._rest
        if rest is None:
            return
        for _ in range(SLICES_A_TURN):
            if self._stalled or not rest:
                break
            self.transport.write(rest[:SLICE_BYTES])
            rest = rest[SLICE_BYTES:]
        self._rest = rest
        if rest and not self._stalled:
            self._loop.call_soon(self._pump)

    @override
    def pause_writing(self) -> None:
        self._stalled = True

    @override
    def resume_writing(self) -> None:
        self._stalled = False
        self._pump()

    # --- the answer -----------------------------------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._news.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self.home.joined(self)

    @override
    def data_received(self, data: bytes) -> None:
        if not self._busy:
            self.abort()  # nobody asked
            return
        self.heard = True
        inbox = self.inbox
        before = len(inbox)
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            self._refuse()
        if len(inbox) > before:
            self._overhead_bytes = 0
            self._held_bytes += len(data)
            if self._held_bytes > READ_LIMIT_BYTES and not self._paused and self._busy:
                self._paused = True
                self.transport.pause_reading()
        else:
            self._overhead_bytes += len(data)
        if self._overhead_bytes > MAX_HEAD_BYTES:
            self._refuse()
        if self.complete and self.reply is not None:
            self.reply.finish()
        elif self.into is not None and inbox and self.broken is None and self.into(self.taken()):
            return
        if self.status or self.broken is not None:
            self._wake()

    @override
    def eof_received(self) -> None:
        """FIN, or close_notify. The rest of an upload is of no use to who has closed."""
        if self._busy and self._until_close and self.broken is None and self._is_said_end():
            self.complete = True
            if self.reply is not None:
                self.reply.finish()
        self._end(None)
        self.abort()

    def _is_said_end(self) -> bool:
        """A TLS connection ends with close_notify; asyncio, not uvloop, gives a bare FIN out as the same."""
        tls: ssl.SSLObject | None = self.transport.get_extra_info("ssl_object")
        if tls is None:
            return True
        try:
            return not tls.read(1)
        except ssl.SSLZeroReturnError:
            return True
        except ssl.SSLError:  # it would like to read on
            return False

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._rest = None
        self.home.lost(self)
        del self._parser  # it holds on to this line, and this line to it

    def _end(self, err: Exception | None) -> None:
        self.reusable = False
        if self._busy and not self.complete and self.broken is None:
            self.broken = cut_fault(self.where) if self.status else unanswered_fault(self.where, err)
        self._wake()

    def _refuse(self) -> None:
        """What came is no answer, or is more than the answer."""
        self.reusable = False
        if not self.complete and self.broken is None:
            self.broken = cut_fault(self.where) if self.status else head_fault(self.where)
            self.abort()

    # --- callbacks of the parser ----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:
            raise _Refused  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields_seen += 1
        if self._fields_seen > MAX_FIELDS or len(value) > MAX_FIELD_BYTES:
            raise _Refused
        if self.status:
            return  # a trailer
        key = NAMES.get(name) or learn(name)
        try:
            text = value.decode().rstrip(" \t")  # without an error handler named: half the time, 0.1 µs
        except UnicodeDecodeError:
            text = value.decode("utf-8", "replace").rstrip(" \t")
        fields = self.fields
        if key in fields:
            text = f"{fields[key]}, {text}"
        fields[key] = text

    def on_headers_complete(self) -> None:
        parser, fields = self._parser, self.fields
        status = parser.get_status_code()
        if 100 <= status < 200 and status != _SWITCHING:
            self._interim = True
            self.fields = {}
            return
        self.reusable = parser.should_keep_alive()
        # Kept alive without a word about it: that is HTTP/1.1, and asking for the version (0.3 µs) is saved.
        is_11 = (self.reusable and "connection" not in fields) or self._is_11()
        coding = fields.get("transfer-encoding")
        if coding is None:
            self._until_close = "content-length" not in fields and status not in _BODILESS
        elif coding.lower() != "chunked" or not is_11:
            raise _Refused
        fields.pop("set-cookie", None)
        if self._rest and status >= 300:  # refused while it goes out: nobody wants the rest
            self._rest = None
            self.reusable = False
        self.status = status

    def _is_11(self) -> bool:
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise _Refused
        return version == "1.1"

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        else:
            self.complete = True

    # --- for the reply and the pool -------------------------------------------------------------------------

    def wait(self, deadline_s: float) -> "Future[None]":
        """Done when something came, or at the deadline (loop time).

        One timer serves many reads and calls: nearly every wait ends long before its deadline, and a timer of its
        own, set and cancelled, costs 1.5 µs (uvloop), more than the rest of a chunk costs here.
        """
        if self._waiter is not None and not self._waiter.done():
            raise RuntimeError("read() was called while another read() of the same reply waits")
        self._deadline_s = deadline_s
        if self._timer is None or self._rings_at_s > deadline_s:
            self._wind()
        waiter = self._waiter = self._loop.create_future()
        return waiter

    def _wind(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at_s = self._deadline_s
        self._timer = self._loop.call_at(self._rings_at_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return  # nobody waits; the next to wait winds it anew
        if self._loop.time() < self._deadline_s:
            self._wind()
        else:
            self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def taken(self) -> bytes:
        """What is in the inbox, which is empty then."""
        inbox = self.inbox
        data = inbox[0] if len(inbox) == 1 else b"".join(inbox)
        inbox.clear()
        self._held_bytes = 0
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        return data

    def let_go(self) -> list[bytes]:
        """What is left of a complete body. The line goes back, or is closed where it cannot serve again."""
        parts = self.inbox[:]
        self.inbox.clear()
        self._busy = False
        self.reply = None
        if self.slot:
            self.slot = False
            self.home.free()
        if self._rest is not None:
            self.reusable = self.reusable and not self._rest and not self.transport.get_write_buffer_size()
            self._rest = None
        if self.reusable and not self.transport.is_closing():
            self.taken()
            self.home.give_back(self)
        else:
            self.abort()
        return parts

    def is_quiet(self) -> bool:
        """Nothing came on an idle line that the loop has not seen yet: its end, or words nobody asked for.

        Asked before each use of a kept line (0.5 µs): what is found here was not sent to, so the call may take
        another; after the first byte it may have been billed, and is not repeated.
        """
        return not self.transport.is_closing() and not self._news.poll(0)

    def abort(self) -> None:
        """Closes the connection at once, unsent bytes dropped; who waits for an answer hears of it."""
        if self._busy and not self.complete and self.broken is None:
            self.broken = closed_fault(self.where)
        self._busy = self.reusable = False
        self.reply = None
        if self.slot:
            self.slot = False
            self.home.free()
        self._rest = None
        self.transport.abort()
        self._wake()
