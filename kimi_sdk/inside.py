"""Marks what a chat's tools do, so that a tool that asks its own chat is told so instead of waiting for itself."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from kimi_sdk.errors import InvalidInput

_chats: Final[ContextVar[frozenset[int]]] = ContextVar("kimi_sdk_inside", default=frozenset())


@contextmanager
def tools_of(chat: object) -> Iterator[None]:
    """What runs in here, its threads and tasks included, belongs to a tool of this chat."""
    before = _chats.set(_chats.get() | {id(chat)})
    try:
        yield
    finally:
        _chats.reset(before)


def refuse_inside(chat: object) -> None:
    """Raises `InvalidInput` in a tool of this chat: the call that runs the tool waits for it."""
    if id(chat) in _chats.get():
        raise InvalidInput(
            "a tool asks the chat that runs it, which waits for the tool; let it ask a fork() instead"
        )


def caller() -> object:
    """The task that runs just now, or the thread where there is none."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop here
        task = None
    return threading.current_thread() if task is None else task
