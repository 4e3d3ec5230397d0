"""The hot path's other half: what the caller holds while an answer comes. See `line` for who does what."""

import asyncio
from collections.abc import Callable, Mapping

from backends.faults import Fault
from backends.lean.faults import closed_fault
from backends.lean.line import Line
from backends.ports import UpstreamFault


class Reply:
    """An answer whose head is in; see `backends.ports.Reply`."""

    __slots__ = ("_closed", "_fault", "_line", "_loop", "_parts", "_where", "headers", "status")

    def __init__(self, line: Line, loop: asyncio.AbstractEventLoop) -> None:
        self.status: int = line.status
        self.headers: Mapping[str, str] = line.fields
        self._loop = loop
        self._where = line.where
        self._fault: Fault | None = None
        self._closed = False
        self._line: Line | None = line
        self._parts = line.inbox
        line.reply = self
        if line.complete:
            self.finish()

    async def read(self, wait_s: float) -> bytes | None:
        """The next body bytes, b"" at the clean end, None after `wait_s` seconds without any.

        Raises `UpstreamFault` (`reset`) once the bytes that came before the break are handed out.
        """
        deadline_s = 0.0
        while not self._parts:
            line = self._line
            if self._fault is not None or self._closed:
                raise UpstreamFault(self._fault or closed_fault(self._where))
            if line is None:
                return b""
            if line.broken is not None:
                self._fault = line.broken
                continue
            now_s = self._loop.time()
            deadline_s = deadline_s or now_s + wait_s
            if now_s >= deadline_s:
                await asyncio.sleep(0)  # a caller who asks again and again must not hold up the loop
                return None
            await line.wait(deadline_s)
        if self._line is not None:
            return self._line.taken()
        data, self._parts = b"".join(self._parts), []
        return data

    async def pour(self, into: Callable[[bytes], bool], wait_s: float) -> None:
        """Hands body bytes to `into` as they come, in the loop's own callback: no future, no further turn of the
        loop, which are 20 µs of a chunk's CPU. `into` must not raise.

        Returns after `wait_s` seconds, when `into` gives back false, and where the body has ended or broke off:
        what is left then is there for `read`.
        """
        line = self._line
        if line is None or self._parts or line.broken is not None or self._closed:
            return
        line.into = into
        try:
            await line.wait(self._loop.time() + wait_s)
        finally:
            line.into = None

    def close(self) -> None:
        """Ends the exchange at once; an unfinished body closes the connection."""
        self._closed = True
        self._parts = []
        line, self._line = self._line, None
        if line is not None:
            line.abort()

    def finish(self) -> None:
        """The line has the whole answer: what is not read yet comes over to here, the line serves others."""
        line, self._line = self._line, None
        if line is not None:
            self._parts = line.let_go()
