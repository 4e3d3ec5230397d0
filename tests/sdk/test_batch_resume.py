"""A batch that is taken up again from its file. Real sockets, sync and async alike."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from kimi_sdk import AsyncChat, InvalidInput, image
from kimi_sdk.batch_file import BatchFile
from support.batches import Map, answer, async_map, echo, said, sync_map
from support.exchange import Exchange
from support.scripted import ScriptedUpstream, play


class City(BaseModel):
    name: str


def double(number: int) -> int:
    """Twice."""
    return 2 * number


@pytest.fixture(params=[sync_map, async_map], ids=["sync", "async"])
def mapped(request: pytest.FixtureRequest) -> Map:
    made: Map = request.param
    return made


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream([echo], repeat_last=True) as server:
        yield server


def test_what_was_finished_is_not_asked_again(upstream: ScriptedUpstream, mapped: Map, tmp_path: Path) -> None:
    file = tmp_path / "batch.jsonl"
    first = mapped(["a", "bad b", "c", "a"], base_url=upstream.base_url, resume=file)
    upstream.requests.clear()
    second = mapped(["a", "bad b", "c", "a"], base_url=upstream.base_url, resume=file)

    assert [request.json["messages"] for request in upstream.requests] == [[{"role": "user", "content": "bad b"}]]
    assert [item.resumed for item in second] == [True, False, True, True]
    for one, other in zip(first, second, strict=True):
        assert (one.reply, one.usage, one.cost) == (other.reply, other.usage, other.cost)
    assert second.cost == Decimal("0.003")
    assert len(file.read_bytes().splitlines()) == 3
    assert oct(file.stat().st_mode & 0o777) == "0o600"


def test_a_changed_prompt_is_asked_anew_and_a_moved_one_is_not(
    upstream: ScriptedUpstream, mapped: Map, tmp_path: Path
) -> None:
    file = tmp_path / "batch.jsonl"
    picture = image(b"\x89PNG\r\n\x1a\n" + b"\0" * 9)
    mapped(["a", "b", ["c", picture]], base_url=upstream.base_url, resume=file)
    upstream.requests.clear()
    batch = mapped(["new", ["c", picture], "b!", "a", "a"], base_url=upstream.base_url, resume=file)

    assert [item.resumed for item in batch] == [False, True, False, True, False]
    assert len(upstream.requests) == 3


def test_other_circumstances_are_another_question(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    file = tmp_path / "batch.jsonl"
    others: list[dict[str, Any]] = [
        {"max_completion_tokens": 20_000},
        {"system": "other"}, {"effort": "low"}, {"model": "kimi-k3"}, {"tier": "highspeed"}, {"tools": [double]},
    ]  # fmt: skip
    ways: list[dict[str, Any]] = [{}, {"stop": "x"}, *({"chat": other} for other in others)]
    for is_resumed in (False, True):
        for way in ways:
            assert sync_map(["a"], base_url=upstream.base_url, resume=file, **way)[0].resumed is is_resumed


def test_objects_are_read_again_from_the_file(mapped: Map, tmp_path: Path) -> None:
    file = tmp_path / "batch.jsonl"
    with ScriptedUpstream([answer('{"name": "Oslo"}')], repeat_last=True) as upstream:
        mapped(["a"], base_url=upstream.base_url, output=City, resume=file)
        batch = mapped(["a"], base_url=upstream.base_url, output=City, resume=file)

        assert (batch[0].resumed, batch.replies[0].output) == (True, City(name="Oslo"))
        assert len(upstream.requests) == 1


def test_a_line_that_was_cut_by_the_end_of_the_process_is_asked_again(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    file = tmp_path / "batch.jsonl"
    sync_map(["a", "b"], base_url=upstream.base_url, resume=file, concurrency=1)
    whole = file.read_bytes()
    first = whole.splitlines(keepends=True)[0]
    for size in (len(first) + 1, len(first) + 10, len(first) + 40, len(whole) - 1):
        file.write_bytes(whole[:size])
        batch = sync_map(["a", "b"], base_url=upstream.base_url, resume=file)

        assert [item.resumed for item in batch] == [True, False]
        assert len(file.read_bytes().splitlines()) == 2


@pytest.mark.parametrize("content", [b"my notes", b"my notes\n", b'{"v": 2}\n', b'{"v":1,"key":7}\n', b"\n"])
def test_a_file_of_something_else_is_left_alone(
    upstream: ScriptedUpstream, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(content)

    with pytest.raises(InvalidInput, match=r"line 1 of .*notes.txt is no finished item"):
        sync_map(["a"], base_url=upstream.base_url, resume=file)

    assert (file.read_bytes(), upstream.requests) == (content, [])


def test_what_was_answered_before_a_cancellation_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "batch.jsonl"
    seen = threading.Event()

    async def slow_after_two(exchange: Exchange) -> None:
        if said(exchange)[-1]["content"] in ("0", "1"):
            await play(answer("ok"), exchange)
            return
        seen.set()
        await exchange.hold()

    async def main(base_url: str) -> None:
        async with AsyncChat(base_url=base_url) as chat:
            task = asyncio.create_task(
                chat.map([str(n) for n in range(6)], concurrency=2, resume=file, progress=False)
            )
            await asyncio.to_thread(seen.wait, 10)
            while len(file.read_bytes().splitlines()) < 2:  # noqa: ASYNC110  # a file has no event
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with ScriptedUpstream([slow_after_two], repeat_last=True) as upstream:
        asyncio.run(main(upstream.base_url))
        upstream.wait_for_disconnect()
    with ScriptedUpstream([answer("later")], repeat_last=True) as upstream:
        batch = sync_map([str(n) for n in range(6)], base_url=upstream.base_url, resume=file)

        assert [item.resumed for item in batch] == [True, True] + [False] * 4
        assert len(upstream.requests) == 4


def test_ctrl_c_keeps_the_answers_under_way_and_asks_nothing_more(tmp_path: Path) -> None:
    file = tmp_path / "batch.jsonl"
    main = threading.main_thread().ident
    assert main is not None

    async def interrupting(exchange: Exchange) -> None:
        if said(exchange)[-1]["content"] == "1":
            signal.pthread_kill(main, signal.SIGINT)
            await asyncio.sleep(0.2)
        await play(answer("ok"), exchange)

    with ScriptedUpstream([interrupting], repeat_last=True) as upstream:
        with pytest.raises(KeyboardInterrupt):
            sync_map([str(n) for n in range(9)], base_url=upstream.base_url, resume=file, concurrency=1)
        assert len(upstream.requests) == len(file.read_bytes().splitlines()) == 2


def test_a_second_ctrl_c_does_not_wait_and_the_answers_under_way_are_kept_when_they_come(tmp_path: Path) -> None:
    file, other = tmp_path / "batch.jsonl", tmp_path / "other"
    main = threading.main_thread().ident
    assert main is not None
    go_on = threading.Event()

    async def interrupting(exchange: Exchange) -> None:
        for _ in range(2):
            signal.pthread_kill(main, signal.SIGINT)
            await asyncio.sleep(0.2)
        await asyncio.to_thread(go_on.wait, 5)
        await play(answer("late"), exchange)

    with ScriptedUpstream([interrupting], repeat_last=True) as upstream:
        with pytest.raises(KeyboardInterrupt):
            sync_map(["0", "1", "2"], base_url=upstream.base_url, resume=file, concurrency=1)
        with other.open("wb"):  # would have the number of the file, were that closed
            with pytest.raises(InvalidInput, match="in use by another batch"):
                sync_map(["0"], base_url=upstream.base_url, resume=file)
            go_on.set()
            until_s = time.monotonic() + 5
            while not file.read_bytes().endswith(b"\n") and time.monotonic() < until_s:
                time.sleep(0.01)
            time.sleep(0.05)  # for the thread to let go of the file
        assert (len(file.read_bytes().splitlines()), other.read_bytes()) == (1, b"")
        batch = sync_map(["0"], base_url=upstream.base_url, resume=file)

        assert (batch[0].resumed, len(upstream.requests)) == (True, 1)


def test_two_batches_do_not_share_a_file_and_none_adds_to_a_closed_one(tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    with BatchFile(path) as file:
        with pytest.raises(InvalidInput, match="in use by another batch"):
            BatchFile(path)
        file.append("k", {"index": 0})
        with file.hold():
            pass
        file.append("k", {"index": 1})
    with pytest.raises(InvalidInput, match="is closed"):
        file.append("k", {"index": 2})

    with BatchFile(path) as again:
        assert [(again.take("k") or {}).get("index") for _ in range(3)] == [0, 1, None]


def test_an_answer_that_its_limit_cut_is_asked_for_again(mapped: Map, tmp_path: Path) -> None:
    file = tmp_path / "batch.jsonl"
    cut = answer("half of")
    cut["json"]["choices"][0]["finish_reason"] = "length"
    with ScriptedUpstream([cut, answer("the whole")]) as upstream:
        first = mapped(["a"], base_url=upstream.base_url, resume=file)
        second = mapped(["a"], base_url=upstream.base_url, resume=file)
        third = mapped(["a"], base_url=upstream.base_url, resume=file)

    assert [batch.replies[0].text for batch in (first, second, third)] == ["half of", "the whole", "the whole"]
    assert [batch[0].resumed for batch in (first, second, third)] == [False, False, True]
