"""Heavy work on the event loop, one request at a time and in small pieces, so that other answers go on in between.

Threads would not help: they compete for the interpreter, and each send of another answer then waits for a switch
(5 ms by default). Measured beside 100 streams, with 8 histories of 4 MB at once: `bench/stall.py`.
"""

import asyncio
from collections.abc import Generator
from typing import Final, TypeVar

HEAVY_BYTES: Final = 262_144
"""Work on as many bytes takes about half a millisecond; below it goes through at once."""

T = TypeVar("T")


class Turnstile:
    """Lets one request through at a time. Belongs to one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        await asyncio.sleep(0)  # what has waited meanwhile goes first

    async def __aexit__(self, *failure: object) -> None:
        self._lock.release()


async def in_pieces(steps: Generator[None, None, T]) -> T:
    """What the steps give back at their end; between two of them everything else that is due runs."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)
