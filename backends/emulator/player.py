"""An answer as a script of bytes and pauses, and the one loop that plays it to the client.

Everything an upstream can do is a script, the right answer as much as a wrong one: a fault changes the script
(`FaultHook`), the loop knows nothing of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from backends.json import JsonObject

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]

_SHORT_S = 0.25
"""A pause up to here is slept through before the client is looked at again: much cheaper for every chunk."""


@dataclass(frozen=True, slots=True)
class Step:
    """Bytes to send after a pause; `tokens` is the output generated once they are out, in all choices."""

    data: bytes
    delay_s: float = 0.0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Script:
    """A whole answer. It ends complete, cut (the connection closes in mid-body) or in silence until the client
    leaves; `billed` says whether it is charged. Status and headers go out with the first step."""

    status: int
    headers: Headers
    steps: tuple[Step, ...]
    ending: Literal["complete", "cut", "silent"] = "complete"
    billed: bool = False


class FaultHook(Protocol):
    """Turns the right answer into what a faulty upstream sends. `number` counts chat requests from 1."""

    def __call__(self, number: int, body: JsonObject, script: Script) -> Script: ...


class Departure:
    """Notices that the client has left, while an answer is under way."""

    def __init__(self, receive: Receive) -> None:
        self._watch = asyncio.create_task(_until_disconnect(receive))

    @property
    def noticed(self) -> bool:
        """Whether the client is gone."""
        return self._watch.done()

    async def wait(self, seconds: float) -> bool:
        """Pauses, at most until the client leaves; whether it has left."""
        if seconds <= _SHORT_S:
            await asyncio.sleep(seconds)
        else:
            await asyncio.wait((self._watch,), timeout=seconds)
        return self.noticed

    async def wait_forever(self) -> None:
        """Returns when the client has left."""
        await asyncio.wait((self._watch,))

    async def stop(self) -> None:
        """Ends the watch."""
        self._watch.cancel()
        await asyncio.wait((self._watch,))


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def play(script: Script, *, send: Send, departure: Departure, settle: Callable[[int, bool], None]) -> None:
    """Plays the script. `settle(tokens, left)` is called once: just before the last bytes go out, so that whoever
    has read them finds the invoice written, or when the client leaves, with what was generated until then."""
    loop = asyncio.get_running_loop()
    tokens = 0
    last = len(script.steps) - 1
    started = False
    for at, step in enumerate(script.steps):
        begun_s = loop.time()
        left = await departure.wait(step.delay_s)
        if left:
            share = min(1.0, (loop.time() - begun_s) / step.delay_s) if step.delay_s > 0 else 0.0
            settle(tokens + int((step.tokens - tokens) * share), True)
            return
        tokens = step.tokens
        if at == last:
            settle(tokens, False)
        if not started:
            await send({"type": "http.response.start", "status": script.status, "headers": script.headers})
            started = True
        complete = at == last and script.ending == "complete"
        await send({"type": "http.response.body", "body": step.data, "more_body": not complete})
    if script.ending == "silent":
        await departure.wait_forever()
