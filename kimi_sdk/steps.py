"""What the logic of a conversation asks of the world, one step after the other. Pure.

The logic is a generator. It gives out events for the application, and steps that its driver performs, sync or
async; the outcome of a step is sent back into it, what the step raised is thrown into it. So both kinds of chat
share all of it, and it runs without a socket or a clock.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from kimi_sdk.events import Event
from kimi_sdk.tools_calls import ToolCall

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Post:
    """Send a chat request. Outcome: `Head`, whatever its status. Raises `ConnectionFailed`."""

    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Head:
    """The head of an answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Read:
    """Read on in the answer. Outcome: the next bytes, or all the rest where `whole`; b"" at its end. Raises
    `ConnectionFailed`."""

    whole: bool = False


@dataclass(frozen=True, slots=True)
class HangUp:
    """Leave the answer, read or not. `is_over`: it has said all; only the end of its body may be missing, and with
    it the connection can be used again."""

    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run tool calls. Outcome: their results, in this order."""

    calls: Sequence[ToolCall]


Step: TypeAlias = Post | Read | HangUp | Sleep | RunTools
Logic: TypeAlias = Generator[Step | Event, Any, T]
STEPS = (Post, Read, HangUp, Sleep, RunTools)


@dataclass(frozen=True, slots=True)
class World:
    """Time and chance: Unix seconds, a clock that only goes forward, a number in [0, 1), a fresh key. `caller` is
    the thread or task that runs the logic just now, None where nobody knows."""

    now_s: Callable[[], float]
    clock_s: Callable[[], float]
    draw: Callable[[], float]
    new_key: Callable[[], str]
    caller: Callable[[], object] = lambda: None
