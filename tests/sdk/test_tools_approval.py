"""Who may say no to a call before it is run."""

import asyncio
import threading
from typing import Any

import pytest

from kimi_sdk.errors import InvalidInput
from kimi_sdk.tools import ToolBox
from kimi_sdk.tools_calls import ToolCall


def call(name: str, arguments: str = "{}", id: str = "call_1") -> ToolCall:
    return ToolCall(id, name, arguments)


def delete(path: str) -> str:
    """Delete."""
    return f"deleted {path}"


def decided(approve: Any, *paths: str) -> list[str]:
    """What the calls come to, the same from sync and async code."""
    box = ToolBox([delete], approve=approve)
    calls = [call("delete", f'{{"path": "{path}"}}') for path in paths]
    one = [result.content for result in box.run(calls)]
    assert [result.content for result in asyncio.run(box.run_async(calls))] == one
    return one


def test_a_call_runs_only_if_it_is_approved() -> None:
    def approve(call: ToolCall) -> bool | str:
        held = call.parsed
        assert isinstance(held, dict)
        return {"a": True, "b": False}.get(str(held["path"]), "ask again tomorrow")

    assert decided(approve, "a", "b", "c") == [
        "deleted a",
        "Error: delete was not called: the user does not allow it.",
        "Error: delete was not called: ask again tomorrow",
    ]


def test_approval_may_be_async() -> None:
    async def approve(call: ToolCall) -> bool:
        await asyncio.sleep(0)
        return '"a"' in call.arguments

    assert decided(approve, "a", "b")[0] == "deleted a"
    assert decided(lambda call: approve(call), "b")[0].startswith("Error")


def test_nobody_is_asked_about_calls_that_cannot_run() -> None:
    asked: list[ToolCall] = []

    def approve(call: ToolCall) -> bool:
        asked.append(call)
        return True

    box = ToolBox([delete], approve=approve)

    results = box.run([call("delete", "{}"), call("nothing")])

    assert [result.is_error for result in results] == [True, True]
    assert asked == []


@pytest.mark.parametrize("answer", [None, 1, "raise"])
def test_what_approval_raises_or_answers_wrongly_ends_the_call(answer: object) -> None:
    def approve(call: ToolCall) -> Any:
        if answer == "raise":
            raise InvalidInput("the window is closed")
        return answer

    box = ToolBox([delete], approve=approve)
    calls = [call("delete", '{"path": "a"}')]
    with pytest.raises(InvalidInput, match=r"approve must return|window is closed"):
        box.run(calls)
    with pytest.raises(InvalidInput, match=r"approve must return|window is closed"):
        asyncio.run(box.run_async(calls))


def test_an_approved_call_runs_while_the_next_is_asked_about() -> None:
    begun = threading.Event()

    def work(name: str) -> str:
        """Work."""
        begun.set()
        return name

    def approve(call: ToolCall) -> bool:
        return call.id == "1" or begun.wait(10)

    calls = [call("work", '{"name": "a"}', "1"), call("work", '{"name": "b"}', "2")]
    results = asyncio.run(ToolBox([work], approve=approve).run_async(calls))

    assert [result.content for result in results] == ["a", "b"]
