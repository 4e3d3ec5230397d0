"""How a gateway ends: first not ready, then not listening, then nothing open; and at once at a second signal."""

import asyncio
import signal
from collections.abc import Callable
from typing import Final

from kimi_gateway.lifecycle import Lifecycle
from kimi_gateway.logs import Log
from kimi_gateway.server import Listener

GOODBYE_S: Final = 1.0
"""How long the clients of interrupted answers get to take the last words."""
SETTLE_S: Final = 5.0
"""How long what is left may take to end once its connections are cut."""
_AT_ONCE_S: Final = 0.25
_POLL_S: Final = 0.02


class Signals:
    """The signals of this process, as events. `stop` is the first one to end it, `at_once` a further one."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.at_once = asyncio.Event()
        self.hangup = asyncio.Event()
        self.number = 0

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Takes over SIGTERM, SIGINT and SIGHUP."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self.hangup.set)

    def end_with(self, loop: asyncio.AbstractEventLoop, pipe: int) -> None:
        """Takes the end of a pipe, whose other end a supervisor holds, as SIGTERM."""

        def gone() -> None:
            loop.remove_reader(pipe)
            if not self.stop.is_set():
                self._stop(signal.SIGTERM)

        loop.add_reader(pipe, gone)

    def _stop(self, number: int) -> None:
        self.number = number
        (self.at_once if self.stop.is_set() else self.stop).set()

    async def pause(self, seconds: float) -> bool:
        """Waits; true as soon as the process is to end at once."""
        try:
            async with asyncio.timeout(seconds):
                await self.at_once.wait()
        except TimeoutError:
            return False
        return True


async def drain(
    lifecycle: Lifecycle, listener: Listener, signals: Signals, log: Log, *, grace_s: float, timeout_s: float
) -> bool:
    """Ends the serving of a listener; says whether every answer came to an end of its own or a settled one.

    Requests are taken for `grace_s`, answers may go on until `timeout_s` after the call, then they are
    interrupted, and a moment later the connections of clients that do not take that are cut. False: a second
    signal came, or something would not end.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(grace_s, timeout_s)
    lifecycle.begin_drain()
    log.event(
        f"stopping: not ready from now on, requests are taken for {grace_s:g} s more, open answers may take "
        f"{timeout_s:g} s; a second signal ends at once",
        open_answers=lifecycle.open_count,
    )
    if await signals.pause(grace_s):
        return await _end_now(lifecycle, log)
    lifecycle.stop_accepting()
    listener.stop_accepting()
    if await _until(lambda: listener.is_idle, timeout_s=deadline - loop.time(), signals=signals):
        return True
    if signals.at_once.is_set():
        return await _end_now(lifecycle, log)
    count = lifecycle.interrupt_all()
    log.event(f"drain_timeout_s is over: {count} open answers are ended with shutting_down", level="warning")
    if await _until(lambda: listener.is_idle, timeout_s=GOODBYE_S, signals=signals):
        return True
    if not signals.at_once.is_set() and (left := listener.abort()):
        log.event(f"{left} connections are cut: their clients do not take what was sent", level="warning")
    return await _until(lambda: listener.is_idle, timeout_s=SETTLE_S, signals=signals)


async def _end_now(lifecycle: Lifecycle, log: Log) -> bool:
    """Lets open answers be booked in the moment there is; what is not becomes an unsettled row."""
    count = lifecycle.interrupt_all()
    log.event(f"second signal: ending at once with {count} open answers", level="warning")
    await _until(lambda: lifecycle.open_count == 0, timeout_s=_AT_ONCE_S)
    return False


async def _until(ended: Callable[[], bool], *, timeout_s: float, signals: Signals | None = None) -> bool:
    """Whether it came true in time, and before the process is to end at once."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not ended():
        if asyncio.get_running_loop().time() >= deadline:
            return False
        if signals is None:
            await asyncio.sleep(_POLL_S)
        elif await signals.pause(_POLL_S):
            return False
    return True
