"""The hot path of a stream: bytes of an upstream in, bytes to the client out, in one callback of the loop.

    socket → `backends.lean.line` → `Pouring.take` → `ChunkReader.plain` → `StreamSink.pass_plain` → socket

Nine of ten reads are one plain chunk, and take this way: no task, no future, no further turn of the loop (20 µs of
a chunk's CPU), and no list of items (10 µs). What is anything else goes through `put`, which is the attempt's own
handling of decoded items; what has to be waited for ends the pouring, and the attempt goes on with it.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from backends.faults import Fault
from backends.reader import ChunkReader, Item
from kimi_gateway.relay.account import Account
from kimi_gateway.relay.pace import Pace
from kimi_gateway.relay.sinks import Sink

Pour: TypeAlias = Callable[[Callable[[bytes], bool], float], Awaitable[None]]
"""`backends.lean.reply.Reply.pour`: hands bytes to a function as they come, for at most so many seconds."""


class Put(Protocol):
    """Puts decoded items into the sink: whether the upstream's end mark was among them, or a fault."""

    def __call__(self, items: list[Item], now: float) -> tuple[bool, Fault | None]: ...


class Pouring:
    """Takes what is poured, and says afterwards how it ended. Times are of the monotonic clock `mono`."""

    __slots__ = ("_account", "_mono", "_pace", "_put", "_reader", "_sink", "_tally", "error", "fault", "is_over")

    def __init__(
        self, reader: ChunkReader, sink: Sink, account: Account, pace: Pace, mono: Callable[[], float], put: Put
    ) -> None:
        self._reader, self._sink, self._account, self._pace = reader, sink, account, pace
        self._tally, self._mono, self._put = account.tally, mono, put
        self.is_over = False
        self.fault: Fault | None = None
        self.error: Exception | None = None

    def take(self, data: bytes) -> bool:
        """Takes some bytes; false where the attempt has to go on. Never raises."""
        now = self._pace.last_byte = self._mono()
        plain = self._reader.plain(data)
        tally = self._tally
        if plain is not None and tally.model == plain.model and self._sink.pass_plain(plain):
            tally.text_bytes += plain.text_bytes
            tally.thought_bytes += plain.thought_bytes
            self._account.content(now)
            if self._sink.streams:
                self._pace.last_sent = now
            return True
        return self._take_all(data if plain is None else [plain], now)

    def _take_all(self, found: bytes | list[Item], now: float) -> bool:
        try:
            items = found if isinstance(found, list) else self._reader.feed(found)
            self.is_over, self.fault = self._put(items, now)
        except Exception as err:  # raised again by the attempt: a callback of the loop has nobody to tell
            self.error = err
            return False
        if self.is_over or self.fault is not None or not self._sink.flush_now():
            return False
        if self._sink.streams:
            self._pace.last_sent = now
        return self._pace.finished is None
