"""Running the model's calls: arguments, values, errors, approval, many at once."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from kimi_sdk.tools import ToolBox
from kimi_sdk.tools_calls import ToolCall, ToolResult


def call(name: str, arguments: str = "{}", id: str = "call_1") -> ToolCall:
    return ToolCall(id, name, arguments)


def run(function: Callable[..., Any], arguments: str = "{}") -> ToolResult:
    """The result of one call, the same from sync and async code."""
    box = ToolBox([function])
    one = box.run_one(call(box.names[0], arguments))
    other = asyncio.run(box.run_one_async(call(box.names[0], arguments)))
    assert (one.content, one.is_error, type(one.error)) == (other.content, other.is_error, type(other.error))
    return one


class Size(BaseModel):
    width: int = Field(ge=1, alias="w")
    height: int = 1


@dataclass
class Row:
    name: str
    at: datetime
    price: Decimal


class Colour(Enum):
    RED = "red"


# --- arguments ------------------------------------------------------------------------------------------------


def test_arguments_arrive_as_the_types_say() -> None:
    seen: list[Any] = []

    def take(on: date, price: Decimal, sizes: list[Size], colour: Colour, tags: set[str], count: int) -> None:
        """Take."""
        seen.append((on, price, sizes, colour, tags, count))

    run(
        take,
        '{"on": "2026-12-01", "price": "0.10", "sizes": [{"w": 2}], "colour": "red", "tags": ["a", "a"], '
        '"count": "3"}',
    )

    assert seen[0] == (date(2026, 12, 1), Decimal("0.10"), [Size(w=2)], Colour.RED, {"a"}, 3)


def test_what_is_left_out_is_the_functions_own_default() -> None:
    marker = object()

    def look(where: str = "here", how: Any = marker) -> bool:
        """Look."""
        return how is marker and where == "here"

    assert run(look, "").content == "true"
    assert run(look, " \n").content == "true"
    assert run(look, '{"where": "there"}').content == "false"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"size": {"w": 0}}', "- size.w: Input should be greater than or equal to 1 (given: 0)"),
        ('{"size": {"w": "wide"}}', "- size.w: Input should be a valid integer"),
        ("{}", "- size: Field required"),
        ('{"size": {"w": 1}, "colour": "red"}', "- colour: Extra inputs are not permitted (given: 'red')"),
        ('{"size": {"w": 1}', "- the whole: Invalid JSON: EOF"),
        ("[1]", "- the whole: Input should be an object"),
        ("null", "- the whole: Input should be an object"),
        ('"half \ud83d"', "- the whole: "),
    ],
)
def test_arguments_that_do_not_fit_are_told_with_place_and_value(arguments: str, problem: str) -> None:
    called: list[Size] = []

    def paint(size: Size) -> None:
        """Paint."""
        called.append(size)

    result = run(paint, arguments)

    assert result.is_error
    assert result.content.startswith("Error: paint was not called, its arguments do not fit:\n")
    assert problem in result.content
    assert "pydantic" not in result.content
    assert called == []


def test_long_values_and_many_problems_are_told_in_short() -> None:
    def add(numbers: list[int]) -> int:
        """Add."""
        return sum(numbers)

    result = run(add, '{"numbers": [' + ",".join(['"' + "x" * 500 + '"'] * 30) + "]}")

    assert "- and 20 more" in result.content
    assert len(result.content) < 2500


def test_a_name_that_no_tool_has_is_told_with_those_there_are() -> None:
    def first_one() -> None: ...
    def second_one() -> None: ...

    box = ToolBox([first_one, second_one])

    assert box.run_one(call("third")).content == (
        'Error: there is no tool "third". The tools are: first_one, second_one.'
    )
    assert ToolBox().run_one(call("any")).content == 'Error: there is no tool "any". There are none.'
    assert (len(box), bool(ToolBox()), ToolBox().definitions) == (2, False, [])


# --- values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("plain “text”\n", "plain “text”\n"),
        ("", ""),
        (None, "null"),
        (Decimal("1.10"), '"1.10"'),
        (0.5, "0.5"),
        (float("nan"), '"NaN"'),
        ({"a": [1, True, None]}, '{"a":[1,true,null]}'),
        (Row("x", datetime(2026, 12, 1, tzinfo=UTC), Decimal("2.50")),
         '{"name":"x","at":"2026-12-01T00:00:00Z","price":"2.50"}'),
        ([Size(w=2)], '[{"w":2,"height":1}]'),
        (Colour.RED, '"red"'),
        (Path("a/b"), '"a/b"'),
        ({1: (2, 3)}, '{"1":[2,3]}'),
        (b"bytes", '"bytes"'),
    ],
)  # fmt: skip
def test_any_value_that_json_can_hold_is_a_result(value: object, content: str) -> None:
    def give() -> object:
        """Give."""
        return value

    result = run(give)

    assert (result.content, result.is_error, result.error) == (content, False, None)


@pytest.mark.parametrize("value", [object(), b"\xff\xfe", {"a": object()}, {(1, 2): lambda: 3}])
def test_a_value_that_json_cannot_hold_is_told(value: object) -> None:
    def give() -> object:
        """Give."""
        return value

    result = run(give)

    assert result.is_error
    assert result.content.startswith("Error: give was called, but its result cannot be written as JSON: ")


def test_a_value_that_holds_itself_is_told() -> None:
    ring: list[Any] = []
    ring.append(ring)

    def give() -> object:
        """Give."""
        return ring

    assert "cannot be written as JSON" in run(give).content


def test_an_exception_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    class NoSuchCity(LookupError):
        pass

    def find(city: str) -> str:
        """Find."""
        raise NoSuchCity(city) if city else NoSuchCity

    result = run(find, '{"city": "Atlantis"}')

    assert result.content == "Error: find failed with NoSuchCity: Atlantis"
    assert isinstance(result.error, NoSuchCity)
    assert run(find, '{"city": ""}').content == "Error: find failed with NoSuchCity"
    assert {record.name for record in caplog.records} == {"kimi_sdk.tools"}
    assert caplog.records[0].levelno == logging.WARNING
    assert "NoSuchCity: Atlantis" in caplog.text


def test_an_interrupt_in_a_tool_ends_the_call() -> None:
    def stop() -> None:
        """Stop."""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ToolBox([stop]).run_one(call("stop"))


# --- sync and async -------------------------------------------------------------------------------------------


def test_async_functions_run_from_sync_code_also_within_a_running_loop() -> None:
    async def wait(text: str) -> str:
        """Wait."""
        await asyncio.sleep(0)
        return text

    async def fail() -> None:
        """Fail."""
        raise ValueError("no")

    box = ToolBox([wait, fail])

    async def notebook() -> ToolResult:
        return box.run_one(call("wait", '{"text": "here"}'))

    assert run(wait, '{"text": "there"}').content == "there"
    assert asyncio.run(notebook()).content == "here"
    assert box.run_one(call("fail")).content == "Error: fail failed with ValueError: no"


def test_a_function_that_gives_back_a_coroutine_is_waited_for() -> None:
    async def inner() -> int:
        return 3

    def give() -> Any:
        """Give."""
        return inner()

    assert run(give).content == "3"


def test_sync_calls_come_one_after_the_other_and_async_ones_at_once_with_results_in_order() -> None:
    both = threading.Barrier(2, timeout=10)
    running: list[str] = []

    def meet(name: str) -> str:
        """Comes back when two are there."""
        both.wait()
        return name

    async def note(name: str) -> str:
        """Note."""
        running.append(name)
        await asyncio.sleep(0.05 if name == "a" else 0)
        running.append(name)
        return name

    box = ToolBox([meet, note])
    calls = [call("meet", '{"name": "1"}'), call("meet", '{"name": "2"}')]
    assert [result.content for result in asyncio.run(box.run_async(calls))] == ["1", "2"]
    calls = [call("note", '{"name": "a"}', "1"), call("note", '{"name": "b"}', "2"), call("none", id="3")]
    results = asyncio.run(box.run_async(calls))
    assert [(result.call.id, result.content[:5]) for result in results] == [("1", "a"), ("2", "b"), ("3", "Error")]
    assert running == ["a", "b", "b", "a"]
    running.clear()
    box.run(calls)
    assert running == ["a", "a", "b", "b"]


def test_calls_with_the_same_id_have_each_their_own_result() -> None:
    def echo(text: str) -> str:
        """Echo."""
        return text

    box = ToolBox([echo])
    calls = [call("echo", '{"text": "a"}', "echo:0"), call("echo", '{"text": "b"}', "echo:0")]

    assert [result.content for result in box.run(calls)] == ["a", "b"]
    assert [result.content for result in asyncio.run(box.run_async(calls))] == ["a", "b"]


def test_sync_functions_do_not_hold_up_the_loop() -> None:
    def slow() -> str:
        """Slow."""
        time.sleep(0.1)
        return "done"

    async def main() -> int:
        ticks = 0
        task = asyncio.create_task(ToolBox([slow]).run_one_async(call("slow")))
        while not task.done():
            await asyncio.sleep(0.005)
            ticks += 1
        assert (await task).content == "done"
        return ticks

    assert asyncio.run(main()) > 3


def test_cancelling_ends_the_tools_that_run() -> None:
    ended: list[str] = []

    async def forever() -> None:
        """Never ends."""
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    async def main() -> None:
        task = asyncio.create_task(ToolBox([forever]).run_async([call("forever", id=id) for id in "ab"]))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cancelled", "cancelled"]

    asyncio.run(main())
