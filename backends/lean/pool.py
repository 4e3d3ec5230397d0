"""Kept connections: the freshest idle line of an origin first, none past its time, and bounds on both kinds."""

import asyncio
from collections import deque
from typing import Final

from backends.lean.line import Line

MAX_IDLE_PER_HOST: Final = 256
KEEPALIVE_TLS_S: Final = 45.0  # load balancers close at 60 s and more
KEEPALIVE_PLAIN_S: Final = 4.0  # engines run uvicorn, which closes at 5 s
MAX_AGE_S: Final = 600.0  # then a new connection, so that a changed address of the host is found


class Pool:
    """All lines of one scheme. `max_busy` bounds those in use (0 = no limit); more wait in `slot`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        keepalive_s: float,
        max_idle_per_host: int,
        max_busy: int = 0,
        max_age_s: float = MAX_AGE_S,
    ) -> None:
        self.loop = loop
        self.keepalive_s = keepalive_s
        self.max_idle = max_idle_per_host
        self.max_busy = max_busy
        self.max_age_s = max_age_s
        self.origins: list[Origin] = []
        self.lines: set[Line] = set()
        self._busy = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self.sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    async def slot(self) -> None:
        """Waits for the right to use one more line, first come first served. Give it back with `free`."""
        if self._busy < self.max_busy:
            self._busy += 1
            return
        turn = self.loop.create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.free()  # it was our turn already
            raise

    def free(self) -> None:
        """Gives one right to use a line to who waits longest."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._busy -= 1

    def sweep_later(self) -> None:
        """Sees to it that idle lines are closed when their time is over."""
        if self.sweeper is None and not self._closed:
            self.sweeper = self.loop.call_later(self.keepalive_s, self._sweep)

    def _sweep(self) -> None:
        self.sweeper = None
        before_s = self.loop.time() - self.keepalive_s
        for origin in self.origins:
            origin.close_idle(before_s)
        if any(origin.idle for origin in self.origins):
            self.sweep_later()

    def close(self) -> None:
        """Closes every line; who waits for an answer or a body gets a fault."""
        self._closed = True
        if self.sweeper is not None:
            self.sweeper.cancel()
            self.sweeper = None
        for line in list(self.lines):
            line.abort()


class Origin:
    """The lines to one place: scheme, host, port, and the proxy on the way. See `backends.lean.line.Home`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.idle: dict[Line, None] = {}  # in the order of their return
        pool.origins.append(self)

    def joined(self, line: Line) -> None:
        """Counts a new line."""
        self._pool.lines.add(line)

    def free(self) -> None:
        """Gives back the slot of a line that was in use."""
        self._pool.free()

    def take(self) -> Line | None:
        """An idle line that can be used, the one that came back last; the server is least likely to close it."""
        idle = self.idle
        now_s = self._pool.loop.time() if idle else 0.0
        while idle:
            line, _ = idle.popitem()
            if now_s - line.idle_since_s <= self._pool.keepalive_s and line.is_quiet():
                return line
            line.abort()
        return None

    def give_back(self, line: Line) -> None:
        """Keeps an idle line, or closes it where there are enough, or where it is old."""
        pool = self._pool
        now_s = pool.loop.time()
        if len(self.idle) >= pool.max_idle or now_s - line.born_s > pool.max_age_s:
            line.abort()
            return
        line.idle_since_s = now_s
        self.idle[line] = None
        if pool.sweeper is None:
            pool.sweep_later()

    def lost(self, line: Line) -> None:
        """Forgets a line that is closed."""
        self._pool.lines.discard(line)
        self.idle.pop(line, None)

    def close_idle(self, before_s: float) -> None:
        """Closes the lines that have been idle since then."""
        for line in list(self.idle):
            if line.idle_since_s > before_s:
                return
            del self.idle[line]
            line.abort()
