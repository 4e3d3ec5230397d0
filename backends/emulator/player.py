"""An answer as a script of bytes and pauses, and the one loop that plays it to the client.

Everything an upstream can do is a script, the right answer as much as a wrong one: a fault changes the script
(`FaultHook`), the loop knows nothing of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, runtime_checkable

from backends.emulator.shape import Part

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]

CONNECTION_EXTENSION: Final = "kimi.connection"
_SHORT_S: Final = 0.25
"""A pause up to here is slept through before the client is looked at again: much cheaper for every chunk."""
_FLUSH_S: Final = 0.02
"""Between the last bytes and a reset, so that the bytes are on their way: a reset drops what is not."""


@dataclass(frozen=True, slots=True)
class Step:
    """Bytes to send after a pause; `tokens` is the output generated once they are out, in all choices."""

    data: bytes
    delay_s: float = 0.0
    tokens: int = 0
    part: Part = "body"


@dataclass(frozen=True, slots=True)
class Script:
    """A whole answer. Status and headers go out with the first step.

    It ends complete; or after `ending_after_s` with the connection closed in mid-body (`cut`) or reset (`reset`);
    or in silence until the client leaves. `billed` says whether it is charged, `fault` names what has been done to
    it. For `refuse_s` from its end on, new connections are refused.
    """

    status: int
    headers: Headers
    steps: tuple[Step, ...]
    ending: Literal["complete", "cut", "reset", "silent"] = "complete"
    billed: bool = False
    fault: str = ""
    ending_after_s: float = 0.0
    refuse_s: float = 0.0


@runtime_checkable
class Connection(Protocol):
    """What a server lets an emulated upstream do to its connection: the value of `scope["extensions"]` under
    `CONNECTION_EXTENSION`."""

    def close(self) -> None:
        """Ends the connection at once after the bytes already sent, whatever the answer's framing says."""

    def reset(self) -> None:
        """Ends the connection with a TCP reset."""

    def refuse(self, seconds: float) -> None:
        """Stops listening for a while: new connections are refused, idle ones are closed."""


class NoConnectionError(RuntimeError):
    """The server gives no hold on its connections, so this fault cannot be played on it."""


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


async def play(
    script: Script,
    *,
    send: Send,
    departure: Departure,
    settle: Callable[[int, bool], None],
    connection: Connection | None,
) -> None:
    """Plays the script. `settle(tokens, left)` is called once: just before the last bytes go out, so that whoever
    has read them finds the invoice written, or when the client leaves, with what was generated until then.

    Raises `NoConnectionError` where the script needs a hold on the connection and the server gives none.
    """
    if connection is None and _needs_connection(script):
        raise NoConnectionError(
            f"the fault {script.fault} needs the server of `kimi-gateway emulate`: this one has no scope "
            f"extension {CONNECTION_EXTENSION}"
        )
    if not script.steps:
        settle(0, False)
    elif not await _send_steps(script, send, departure, settle):
        return
    if script.refuse_s and connection is not None:
        connection.refuse(script.refuse_s)
    await _end(script, departure, connection)


def _needs_connection(script: Script) -> bool:
    started_cut = script.ending == "cut" and bool(script.steps)  # a server closes where an answer stays incomplete
    return bool(script.refuse_s) or (script.ending in ("cut", "reset") and not started_cut)


async def _send_steps(
    script: Script, send: Send, departure: Departure, settle: Callable[[int, bool], None]
) -> bool:
    """Sends all steps; whether the client was there to the end."""
    loop = asyncio.get_running_loop()
    tokens = 0
    last = len(script.steps) - 1
    for at, step in enumerate(script.steps):
        begun_s = loop.time()
        left = await departure.wait(step.delay_s)
        if left:
            share = min(1.0, (loop.time() - begun_s) / step.delay_s) if step.delay_s > 0 else 0.0
            settle(tokens + int((step.tokens - tokens) * share), True)
            return False
        tokens = step.tokens
        if at == last:
            settle(tokens, False)
        if at == 0:
            await send({"type": "http.response.start", "status": script.status, "headers": script.headers})
        complete = at == last and script.ending == "complete"
        await send({"type": "http.response.body", "body": step.data, "more_body": not complete})
    return True


async def _end(script: Script, departure: Departure, connection: Connection | None) -> None:
    if script.ending == "silent":
        await departure.wait_forever()
    elif script.ending != "complete" and not await departure.wait(script.ending_after_s):
        if connection is None:
            return  # the server closes it, because the answer is not complete
        if script.ending == "cut":
            connection.close()
        elif not await departure.wait(_FLUSH_S):
            connection.reset()
        await departure.wait_forever()


def joined(script: Script, steps_each: int) -> Script:
    """The same script with fewer writes: up to `steps_each` steps in one where nothing is waited for, and `[DONE]`
    with what comes before it in any case."""
    steps = script.steps
    at_once = all(step.delay_s == 0 for step in steps)
    made: list[Step] = []
    run: list[Step] = []
    for step in steps:
        joins = step.delay_s == 0 and (step.part == "done" or (at_once and len(run) < steps_each))
        if run and not joins:
            made.append(_one_step(run))
            run = []
        run.append(step)
    return replace(script, steps=(*made, *((_one_step(run),) if run else ())))


def _one_step(run: Sequence[Step]) -> Step:
    if len(run) == 1:
        return run[0]
    return Step(b"".join(step.data for step in run), run[0].delay_s, run[-1].tokens, run[-1].part)
