"""What tools and approval raise, the strangest exceptions among it: told, or raised, and never a silent end."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from typing_extensions import override

from kimi_sdk import AsyncChat, Chat, InvalidInput
from kimi_sdk.tools import ToolBox
from kimi_sdk.tools_calls import ToolCall, ToolResult
from support.scripted import ScriptedUpstream


class Mute(ValueError):
    """Cannot say what it is."""

    @override
    def __str__(self) -> str:
        raise OSError("no text")


class Picky(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def checked(cls, name: str) -> str:
        raise RuntimeError("the list of names is not there")


def both(function: Callable[..., Any], arguments: str = "{}") -> str:
    """What the model is told, the same from sync and async code, which must end."""
    box = ToolBox([function])
    call = ToolCall("call_1", box.names[0], arguments)

    async def main() -> ToolResult:
        async with asyncio.timeout(5):
            return await box.run_one_async(call)

    one, other = box.run_one(call), asyncio.run(main())
    assert (one.content, one.is_error) == (other.content, other.is_error)
    return one.content


@pytest.mark.parametrize(
    "raised", [StopIteration("done"), StopAsyncIteration("done"), asyncio.CancelledError("done")]
)
def test_what_ends_loops_and_tasks_elsewhere_is_told_like_any_other(raised: BaseException) -> None:
    def give() -> None:
        """Give."""
        raise raised

    assert both(give) == f"Error: give failed with {type(raised).__name__}: done"


def test_an_async_tool_that_raises_the_cancellation_itself_is_told() -> None:
    async def give() -> None:
        """Give."""
        raise asyncio.CancelledError("by a library")

    assert both(give) == "Error: give failed with CancelledError: by a library"


def test_an_exception_that_cannot_say_what_it_is_is_told_by_its_name() -> None:
    def give() -> None:
        """Give."""
        raise Mute

    assert both(give) == "Error: give failed with Mute: (its text cannot be had: OSError)"


def test_a_validator_that_breaks_is_told() -> None:
    def take(it: Picky) -> str:
        """Take."""
        return it.name

    told = both(take, '{"it": {"name": "x"}}')
    assert told == "Error: take failed with RuntimeError: the list of names is not there"


# --- approval -------------------------------------------------------------------------------------------------


def work() -> str:
    """Work."""
    return "done"


def refusing(call: ToolCall) -> bool:
    raise StopIteration


WANTS_WORK: dict[str, Any] = {
    "status": 200,
    "json": {
        "model": "kimi-k3.1-pro",
        "choices": [
            {
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "call_1", "type": "function", "function": {"name": "work", "arguments": "{}"}}
                    ],
                },
            }
        ],
    },
}


def test_approval_that_raises_stop_iteration_never_ends_a_call_as_if_all_were_said() -> None:
    async def async_run(base_url: str) -> None:
        async with asyncio.timeout(5), AsyncChat(base_url=base_url, tools=[work], approve=refusing) as chat:
            with pytest.raises(InvalidInput, match="approve raised StopIteration"):
                await chat.run("go")

    with (
        ScriptedUpstream([WANTS_WORK], repeat_last=True) as upstream,
        Chat(base_url=upstream.base_url, tools=[work], approve=refusing) as chat,
    ):
        with pytest.raises(InvalidInput, match="approve raised StopIteration") as caught:
            chat.run("go")
        assert isinstance(caught.value.__cause__, StopIteration)
        with pytest.raises(InvalidInput, match="approve raised StopIteration"):
            list(chat.stream("go"))
        asyncio.run(async_run(upstream.base_url))
