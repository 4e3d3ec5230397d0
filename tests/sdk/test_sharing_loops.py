"""Chats in several threads and event loops, rounds of tools without an answer, histories that are damaged."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backends.json import encode
from kimi_sdk import AsyncChat, Chat, InvalidInput, TextDelta, ToolCall, ToolResult
from kimi_sdk.questions import tool_turn
from support.exchange import Exchange
from support.scripted import ScriptedUpstream
from support.sdk_places import KINDS, Talk, talk

both = pytest.mark.parametrize("kind", KINDS, ids=["sync", "async"])


def body(content: str | None, calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return {"id": "c", "model": "kimi-k3.1-pro", "choices": [choice], "usage": usage}


def answer(content: str | None, calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"status": 200, "json": body(content, calls)}


def call(name: str) -> dict[str, Any]:
    return {"id": f"{name}:0", "type": "function", "function": {"name": name, "arguments": "{}"}}


def sent(upstream: ScriptedUpstream, at: int) -> list[dict[str, Any]]:
    held: Any = upstream.requests[at].json["messages"]
    return list(held)


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as server:
        yield server


# --- threads and loops -------------------------------------------------------------------------------------------


async def held_stream(exchange: Exchange) -> None:
    await exchange.head(200, [("content-type", "text/event-stream"), ("connection", "close")])
    for text in ("a", "b", "c"):
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        await exchange.write(b"data: " + encode({"id": "c", "choices": [choice]}) + b"\n\n")
        await asyncio.sleep(0.02)
    await asyncio.sleep(30)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_stream_that_goes_on_in_another_thread_belongs_to_that_one(upstream: ScriptedUpstream) -> None:
    upstream.add(held_stream, answer("later"))
    chat = Chat(base_url=upstream.base_url)
    events = chat.stream("count")
    assert next(events) == TextDelta("a")
    refused: list[InvalidInput] = []
    answered: list[str] = []

    def go_on() -> None:
        assert next(events) == TextDelta("b")
        try:
            chat.ask("me too")
        except InvalidInput as err:
            refused.append(err)

    other = in_thread(go_on)
    other.join(5)
    assert not other.is_alive(), "it waits for itself"
    assert "still open" in str(refused[0])

    waiting = in_thread(lambda: answered.append(chat.ask("and I?").text))
    waiting.join(0.1)
    assert waiting.is_alive(), "a third one waits for the stream's end"
    events.close()
    waiting.join(5)
    assert answered == ["later"]
    chat.close()


def test_a_stream_that_goes_on_in_another_task_belongs_to_that_one(upstream: ScriptedUpstream) -> None:
    upstream.add(held_stream)

    async def main() -> None:
        async with AsyncChat(base_url=upstream.base_url) as chat:
            events = chat.stream("count")
            await anext(events)

            async def go_on() -> None:
                await anext(events)
                with pytest.raises(InvalidInput, match="still open"):
                    await chat.ask("me too")

            await asyncio.wait_for(asyncio.create_task(go_on()), 5)
            await events.aclose()

    asyncio.run(main())


def test_forks_in_several_loops_at_once_each_have_connections_of_their_own() -> None:
    async def slowly(exchange: Exchange) -> None:
        await asyncio.sleep(0.01)
        content = encode(body("ok"))
        size = str(len(content))
        await exchange.head(
            200, [("content-type", "application/json"), ("content-length", size), ("connection", "close")]
        )
        await exchange.write(content)

    with ScriptedUpstream([slowly], repeat_last=True) as upstream:
        chat = AsyncChat(base_url=upstream.base_url, max_retries=0)
        texts: list[str] = []
        errors: list[BaseException] = []

        async def main(fork: AsyncChat) -> None:
            for _ in range(8):
                texts.append((await fork.ask("hi")).text)

        def work() -> None:
            try:
                asyncio.run(main(chat.fork()))
            except BaseException as err:  # shown by the test's own thread
                errors.append(err)

        threads = [in_thread(work) for _ in range(4)]
        for thread in threads:
            thread.join(10)
        asyncio.run(chat.close())

    assert errors == []
    assert texts == ["ok"] * 32


def test_one_chat_in_two_loops_at_once_is_refused(upstream: ScriptedUpstream) -> None:
    upstream.add(held_stream, answer("after"))
    chat = AsyncChat(base_url=upstream.base_url)
    is_open, may_end = threading.Event(), threading.Event()

    async def hold() -> None:
        events = chat.stream("count")
        await anext(events)
        is_open.set()
        await asyncio.to_thread(may_end.wait, 5)
        await events.aclose()
        await chat.close()

    holder = in_thread(lambda: asyncio.run(hold()))
    assert is_open.wait(5)
    with pytest.raises(InvalidInput, match="another event loop"):
        asyncio.run(chat.ask("me too"))
    may_end.set()
    holder.join(5)

    async def after() -> str:
        async with chat:
            return (await chat.ask("now?")).text

    assert asyncio.run(after()) == "after"


# --- rounds of tools ---------------------------------------------------------------------------------------------


@both
def test_rounds_of_tools_are_kept_where_no_answer_follows_them(
    upstream: ScriptedUpstream, kind: type[Talk]
) -> None:
    upstream.add(answer(None, [call("pay")]), answer(" "), answer("It is paid."))
    paid: list[int] = []

    def pay() -> str:
        """Pays."""
        paid.append(1)
        return "done"

    with talk(kind, base_url=upstream.base_url, tools=[pay]) as made:
        assert made.run("Pay.").text == " "
        assert [turn["role"] for turn in made.chat.messages] == ["user", "assistant", "tool"]
        assert made.resume().text == "It is paid."
        assert [turn["role"] for turn in made.chat.messages] == ["user", "assistant", "tool", "assistant"]

    assert (len(paid), len(upstream.requests)) == (1, 3)


@both
def test_a_result_with_half_a_character_loses_no_round(upstream: ScriptedUpstream, kind: type[Talk]) -> None:
    upstream.add(answer(None, [call("name")]), answer("ok"))

    def name() -> str:
        """A file's name that is no UTF-8."""
        return "caf\udce9 \ud83d\ude00"

    with talk(kind, base_url=upstream.base_url, tools=[name]) as made:
        assert made.run("Which?").text == "ok"
    assert sent(upstream, 1)[-1]["content"].startswith("caf")


def test_a_result_is_written_whatever_halves_are_in_it() -> None:
    result = ToolResult(ToolCall("a", "f", "{}"), "caf\udce9 \ud83d\ude00 é")

    assert json.loads(tool_turn(result))["content"] == "caf\ufffd \U0001f600 é"


def test_a_result_given_by_hand_must_be_one() -> None:
    with Chat(base_url="http://127.0.0.1:9/v1") as chat:
        wrong: Any = ToolResult(ToolCall("a", "f", "{}"), "\ud800")
        with pytest.raises(InvalidInput, match="half a character"):
            chat.ask([wrong])
        wrong = ToolResult(ToolCall("a", "f", "{}"), 5)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="text"):
            chat.ask([wrong])
        wrong = ToolResult("a", "done")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="ToolCall"):
            chat.ask([wrong])
        with pytest.raises(InvalidInput, match="nobody made"):
            chat.ask([ToolResult(ToolCall("a", "f", "{}"), "done")])


def test_an_answer_with_a_mark_before_it_and_half_an_emoji_is_read(upstream: ScriptedUpstream) -> None:
    text = json.dumps(body("a\ud83d")).encode()
    upstream.add(
        {"status": 200, "headers": {"content-type": "application/json"}, "text": "\ufeff" + text.decode()}
    )
    with Chat(base_url=upstream.base_url) as chat:
        assert chat.ask("hi").text == "a\ufffd"


# --- damaged histories -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cost", "-1"),
        ("cost", "NaN"),
        ("cost", 5),
        ("estimated", "-0.1"),
        ("estimated", None),
        ("doubtful", "Infinity"),
        ("replies", None),
        ("replies", "3"),
        ("unpriced", -1),
        ("unpriced", True),
        ("usage", None),
        ("usage", {"input": None}),
        ("usage", {"input": "5"}),
        ("usage", {"nonsense": 5}),
        ("counted", {"messages": "1", "tokens": 5}),
        ("counted", {"messages": 1, "tokens": -5}),
        ("counted", 5),
        ("model", 5),
        ("effort", 5),
        ("conversation", None),
        ("conversation", "a\nb"),
        ("max_completion_tokens", "many"),
        ("messages", [{"role": "assistant", "tool_calls": 5}]),
        ("messages", [{"role": "assistant", "tool_calls": [5]}]),
        ("messages", [{"role": "assistant", "tool_calls": [{"id": "a", "function": None}]}]),
        ("messages", [{"role": "user", "content": 5}]),
        ("messages", [{"role": "user", "content": ["a"]}]),
    ],
)
def test_a_damaged_chat_is_refused_when_it_is_loaded(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "chat.json"
    Chat(base_url="http://127.0.0.1:9/v1").save(path)
    held = json.loads(path.read_text())
    assert Chat.load(path).messages == []
    path.write_text(json.dumps({**held, field: value}))

    with pytest.raises(InvalidInput):
        Chat.load(path)


def test_a_chat_saved_before_there_were_doubts_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    Chat(base_url="http://127.0.0.1:9/v1").save(path)
    held = json.loads(path.read_text())
    del held["doubtful"]
    path.write_text(json.dumps(held))

    assert Chat.load(path).cost == 0


def test_a_damaged_history_is_refused_when_it_is_set() -> None:
    chat = Chat(base_url="http://127.0.0.1:9/v1")
    for wrong in (
        {"tool_calls": 5},
        {"tool_calls": [{"function": None}]},
        {"content": 5},
        {"reasoning_content": 5},
    ):
        turn: Any = {"role": "assistant", **wrong}
        with pytest.raises(InvalidInput, match=r"messages\[0\]"):
            chat.messages = [turn]
    assert chat.messages == []
