"""Performs the steps of the logic, sync and async: the two are the same but for `await`.

A driver gives out the logic's events. When it is closed, or interrupted, the answer under way is left at once and
the logic gets the chance to settle.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from typing import Any, Protocol

from kimi_sdk.errors import KimiError
from kimi_sdk.events import Event
from kimi_sdk.inside import tools_of
from kimi_sdk.steps import STEPS, HangUp, Head, Logic, Post, Read, RunTools, Sleep, Step
from kimi_sdk.tools import ToolBox


class Line(Protocol):
    """One request and its answer at a time, over connections that others share."""

    def post(self, step: Post) -> Head:
        """Sends; the head of the answer. Raises `ConnectionFailed`, as all do."""
        ...

    def read(self, step: Read) -> bytes:
        """The next bytes of the answer."""
        ...

    def hang_up(self) -> None:
        """Leaves the answer; nothing where there is none."""
        ...


class AsyncLine(Protocol):
    """The same, async."""

    async def post(self, step: Post) -> Head:
        """Sends; the head of the answer. Raises `ConnectionFailed`, as all do."""
        ...

    async def read(self, step: Read) -> bytes:
        """The next bytes of the answer."""
        ...

    async def hang_up(self, *, is_over: bool = False) -> None:
        """Leaves the answer; nothing where there is none."""
        ...


def drive(logic: Logic[Any], line: Line, tools: ToolBox, chat: object) -> Generator[Event, None, None]:
    """The events of a call."""
    try:
        step = next(logic)
        while True:
            if not isinstance(step, STEPS):
                yield step
                step = logic.send(None)
                continue
            try:
                outcome = _perform(step, line, tools, chat)
            except KimiError as err:
                step = logic.throw(err)
                continue
            step = logic.send(outcome)
    except StopIteration:
        return
    finally:
        try:
            logic.close()
        finally:
            line.hang_up()


def _perform(step: Step, line: Line, tools: ToolBox, chat: object) -> Any:
    match step:
        case Post():
            return line.post(step)
        case Read():
            return line.read(step)
        case HangUp():
            return line.hang_up()  # to wait a moment for the body's end takes an event loop
        case Sleep(seconds):
            return time.sleep(seconds)
        case RunTools(calls):
            with tools_of(chat):
                return tools.run(calls)


async def drive_async(
    logic: Logic[Any], line: AsyncLine, tools: ToolBox, chat: object
) -> AsyncGenerator[Event, None]:
    """The events of a call."""
    try:
        step = next(logic)
        while True:
            if not isinstance(step, STEPS):
                yield step
                step = logic.send(None)
                continue
            try:
                outcome = await _perform_async(step, line, tools, chat)
            except KimiError as err:
                step = logic.throw(err)
                continue
            step = logic.send(outcome)
    except StopIteration:
        return
    finally:
        try:
            logic.close()
        finally:
            await line.hang_up()


async def _perform_async(step: Step, line: AsyncLine, tools: ToolBox, chat: object) -> Any:
    match step:
        case Post():
            return await line.post(step)
        case Read():
            return await line.read(step)
        case HangUp(is_over):
            return await line.hang_up(is_over=is_over)
        case Sleep(seconds):
            return await asyncio.sleep(seconds)
        case RunTools(calls):
            with tools_of(chat):
                return await tools.run_async(calls)
