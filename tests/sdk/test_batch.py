"""Many prompts at once: order, errors, totals, limits, resuming. Real sockets, sync and async alike."""

import asyncio
import os
import pty
import select
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from backends.emulator.app import Emulator, EmulatorConfig
from backends.json import as_list
from kimi_sdk import (
    AuthenticationFailed,
    BadRequest,
    Chat,
    InvalidInput,
    MaxCostReached,
    Meter,
    TokenUsage,
)  # fmt: skip
from support.asgi import serve
from support.batches import Map, answer, async_map, echo, said, sync_map
from support.exchange import Exchange
from support.scripted import ScriptedUpstream, play


@pytest.fixture(params=[sync_map, async_map], ids=["sync", "async"])
def mapped(request: pytest.FixtureRequest) -> Map:
    made: Map = request.param
    return made


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream([echo], repeat_last=True) as server:
        yield server


def test_answers_come_in_the_order_of_the_prompts_with_their_totals(
    upstream: ScriptedUpstream, mapped: Map
) -> None:
    batch = mapped((f"{n}?" for n in range(12)), base_url=upstream.base_url, concurrency=7)

    assert [reply.text for reply in batch.replies] == [f"re: {n}?" for n in range(12)]
    assert [(item.index, item.prompt) for item in batch] == [(n, f"{n}?") for n in range(12)]
    assert (batch.cost, batch.unpriced, batch.errors) == (Decimal("0.012"), 0, [])
    assert batch.usage == TokenUsage(input=120, output=60)
    assert len(batch[3:5]) == 2
    assert repr(batch) == "Batch(12 items, 0 errors, cost=0.012)"


def test_each_prompt_begins_with_the_chats_history_and_leaves_it_as_it_was(upstream: ScriptedUpstream) -> None:
    with Chat(system="s", base_url=upstream.base_url) as chat:
        chat.ask("first")
        before = chat.messages
        chat.map(["a", "b", "c"], concurrency=1, progress=False)

        assert chat.messages == before
    sent = [[turn["content"] for turn in as_list(request.json["messages"])] for request in upstream.requests[1:]]  # type: ignore[index,call-overload]
    assert sent == [["s", "first", "re: first", prompt] for prompt in "abc"]


def test_never_more_at_once_than_asked_for(mapped: Map) -> None:
    open_now, most = 0, 0
    full = asyncio.Event()

    async def count(exchange: Exchange) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        if open_now == 4:
            full.set()
        await asyncio.wait_for(full.wait(), 10)
        open_now -= 1
        await play(answer("ok"), exchange)

    with ScriptedUpstream([count], repeat_last=True) as upstream:
        mapped([str(n) for n in range(9)], base_url=upstream.base_url, concurrency=4)

    assert most == 4


def test_an_item_that_fails_leaves_the_others(upstream: ScriptedUpstream, mapped: Map) -> None:
    batch = mapped(["a", "bad one", "", "b"], base_url=upstream.base_url)

    assert [item.reply.text if item.reply else None for item in batch] == ["re: a", None, None, "re: b"]
    assert [(item.index, type(item.error)) for item in batch.errors] == [(1, BadRequest), (2, InvalidInput)]
    assert batch.cost == Decimal("0.002")
    with pytest.raises(BadRequest):
        _ = batch.replies


def test_nothing_more_is_sent_once_it_is_hopeless(mapped: Map) -> None:
    refused = {"status": 401, "json": {"error": {"type": "invalid_authentication_error", "message": "no"}}}
    with ScriptedUpstream([refused], repeat_last=True) as upstream:
        batch = mapped([str(n) for n in range(50)], base_url=upstream.base_url, concurrency=2)

        assert {type(item.error) for item in batch} == {AuthenticationFailed}
        assert len(batch.errors) == 50
        assert len(upstream.requests) <= 2


SHORT = '[[emulator {"thought_tokens": 8, "text_tokens": 4}]]'
"""Steers the emulator to a short answer."""


def test_the_limit_holds_over_all_items(mapped: Map) -> None:
    with serve(Emulator(EmulatorConfig(pace=0))) as url:
        meter = Meter("0.09")
        chat = {"dialect": "moonshot", "meter": meter, "max_completion_tokens": 2000, "effort": "low"}
        batch = mapped([f"{n}? {SHORT}" for n in range(12)], base_url=f"{url}/v1", chat=chat, concurrency=6)

        assert {type(item.error) for item in batch.errors} <= {MaxCostReached}
        assert 0 < batch.cost <= Decimal("0.09")
        assert meter.cost == batch.cost


@pytest.mark.parametrize(("way", "count"), [(sync_map, 40), (async_map, 200)], ids=["sync", "async"])
def test_two_hundred_prompts_fan_out_and_cost_what_the_invoice_says(way: Map, count: int) -> None:
    with serve(Emulator(EmulatorConfig(pace=0))) as url:
        batch = way(
            [f"Number {n}? {SHORT}" for n in range(count)],
            base_url=f"{url}/v1",
            chat={"dialect": "moonshot", "effort": "low"},
            concurrency=50,
        )
        invoice = httpx2.get(f"{url}/emulator/invoice").json()

    assert len(batch.replies) == count
    assert batch.cost == Decimal(invoice["total_usd"])
    assert batch.unpriced == 0


class City(BaseModel):
    name: str


def test_each_answer_can_be_an_object(mapped: Map) -> None:
    async def city(exchange: Exchange) -> None:
        await play(answer(f'{{"name": "{said(exchange)[-1]["content"]}"}}'), exchange)

    with ScriptedUpstream([city], repeat_last=True) as upstream:
        batch = mapped(["Oslo", "Bergen"], base_url=upstream.base_url, output=City)

    assert [reply.output for reply in batch.replies] == [City(name="Oslo"), City(name="Bergen")]


def double(number: int) -> int:
    """Twice."""
    return 2 * number


def test_a_chat_with_tools_runs_them_for_each_item(mapped: Map) -> None:
    async def tools(exchange: Exchange) -> None:
        turns = said(exchange)
        if turns[-1]["role"] == "tool":
            await play(answer(f"it is {turns[-1]['content']}"), exchange)
            return
        call = {"id": "double:0", "type": "function"}
        function = {"name": "double", "arguments": f'{{"number": {turns[-1]["content"]}}}'}
        made = answer("")
        made["json"]["choices"][0]["message"]["tool_calls"] = [{**call, "function": function}]
        made["json"]["choices"][0]["finish_reason"] = "tool_calls"
        await play(made, exchange)

    with ScriptedUpstream([tools], repeat_last=True) as upstream:
        batch = mapped(["1", "2", "3"], base_url=upstream.base_url, chat={"tools": [double]})

    assert [reply.text for reply in batch.replies] == ["it is 2", "it is 4", "it is 6"]
    assert batch.cost == Decimal("0.006"), "the rounds before the answer cost as well"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"prompts": "one"}, "map takes a list"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(
    upstream: ScriptedUpstream, mapped: Map, options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "batch.jsonl"
    with pytest.raises(InvalidInput, match=reason):
        mapped(**{"prompts": ["a"], "base_url": upstream.base_url, "resume": file, **options})

    assert upstream.requests == []
    assert not file.exists()
    assert list(mapped([], base_url=upstream.base_url)) == []


def test_an_error_of_the_application_costs_one_prompt_and_not_the_batch(mapped: Map) -> None:
    class Mine(Exception):
        pass

    def approve(call: object) -> bool:
        raise Mine("the window is closed")

    call = {"id": "x", "type": "function", "function": {"name": "double", "arguments": '{"number": 1}'}}
    made = answer("")
    made["json"]["choices"][0] = {
        "finish_reason": "tool_calls",
        "message": {"role": "assistant", "tool_calls": [call]},
    }
    with ScriptedUpstream([made], repeat_last=True) as asking:
        batch = mapped(["a"] * 3, base_url=asking.base_url, chat={"tools": [double], "approve": approve})

    for item in batch:
        assert item.error is not None
        assert "Mine was raised while this prompt was asked (by approve?): the window is closed" in str(item.error)
        assert isinstance(item.error.__cause__, Mine)
        assert item.cost == Decimal("0.001")  # what it had cost by then


# --- progress -------------------------------------------------------------------------------------------------


def test_progress_is_drawn_on_terminals_only(
    upstream: ScriptedUpstream, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Chat(base_url=upstream.base_url) as chat:
        chat.map(["a", "b"])
        assert capfd.readouterr() == ("", "")

        screen, terminal = pty.openpty()
        with open(terminal, "w") as stderr, monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", stderr)
            patched.setenv("TERM", "xterm")
            chat.map(["a", "bad", "c"])
            shown = ""
            while select.select([screen], [], [], 0)[0]:
                shown += os.read(screen, 65536).decode()
            chat.map(["a"], progress=False)
            assert not select.select([screen], [], [], 0)[0]
        os.close(screen)

    assert capfd.readouterr() == ("", "")
    assert "3/3" in shown
    assert "0.0020 USD, 1 failed" in shown
