"""Tools, objects and parts over real sockets: what the other side receives, sync and async alike."""

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from backends.json import JsonObject, as_list, as_object, decode
from kimi_sdk import AsyncChat, BadOutput, Chat, Reply, TooManyRounds, image, text_file, tool
from support.scripted import ScriptedUpstream
from support.sdk_places import Place

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 9


class Order(BaseModel):
    """What is ordered."""

    item: str
    count: int = 1
    price: Decimal | None = None


@tool
def place_order(orders: list[Order], note: str | None = None) -> dict[str, Any]:
    """Places orders.

    Args:
        orders: at least one
    """
    return {"placed": [order.item for order in orders], "note": note}


async def stock(item: str) -> int:
    """How many there are."""
    await asyncio.sleep(0)
    return len(item)


def answer(content: str | None, *calls: JsonObject, finish: str = "stop") -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning_content": "hm"}
    if calls:
        message["tool_calls"] = list(calls)
        finish = "tool_calls"
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    kimi = {"request_id": "kr_1", "cost_usd": "0.001"}
    body = {"model": "kimi-k3.1-pro", "choices": [{"finish_reason": finish, "message": message}]}
    return {"status": 200, "json": {**body, "usage": usage, "kimi": kimi}}


def call(id: str, name: str, arguments: str) -> JsonObject:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as server:
        yield server


def turns(upstream: ScriptedUpstream, index: int = -1) -> list[JsonObject]:
    return [as_object(turn) or {} for turn in as_list(upstream.requests[index].json["messages"])]


def asked(
    way: str, upstream: ScriptedUpstream, method: str, *args: Any, chat: dict[str, Any], **options: Any
) -> Reply[Any]:
    """The reply to one call of `ask` or `run`, sync or async."""
    if way == "sync":
        with Chat(base_url=upstream.base_url, **chat) as made:
            reply: Reply[Any] = getattr(made, method)(*args, **options)
            return reply

    async def main() -> Reply[Any]:
        async with AsyncChat(base_url=upstream.base_url, **chat) as made:
            reply: Reply[Any] = await getattr(made, method)(*args, **options)
            return reply

    return asyncio.run(main())


BOTH = pytest.mark.parametrize("way", ["sync", "async"])


@BOTH
def test_calls_of_one_turn_are_run_and_each_result_finds_its_call_also_with_equal_ids(
    upstream: ScriptedUpstream, way: str
) -> None:
    upstream.add(
        answer(None, call("stock:0", "stock", '{"item": "tea"}'), call("stock:0", "stock", '{"item": "coffee"}')),
        answer(None, call("stock:0", "place_order", '{"orders": [{"item": "tea", "count": "2"}]}')),
        answer("Done."),
    )

    reply = asked(way, upstream, "run", "Order tea.", chat={"tools": [stock, place_order]})

    assert reply.text == "Done."
    sent = turns(upstream)
    ids = [as_object(made) or {} for made in as_list(sent[1]["tool_calls"])]
    assert [made["id"] for made in ids] == ["stock:0", "stock:0_2"]
    assert [(turn["tool_call_id"], turn["content"]) for turn in sent if turn["role"] == "tool"] == [
        ("stock:0", "3"),
        ("stock:0_2", "6"),
        ("stock:0", '{"placed":["tea"],"note":null}'),
    ]
    assert [turn.get("reasoning_content") for turn in sent if turn["role"] == "assistant"] == ["hm", "hm"]
    names = [
        as_object((as_object(made) or {})["function"]) or {}
        for made in as_list(upstream.requests[0].json["tools"])
    ]
    assert [made["name"] for made in names] == ["stock", "place_order"]
    assert {request.json["tools"] is not None for request in upstream.requests} == {True}


@BOTH
def test_a_call_that_does_not_fit_goes_back_to_the_model_which_then_does_better(
    upstream: ScriptedUpstream, way: str
) -> None:
    upstream.add(
        answer(None, call("a", "place_order", '{"orders": "tea"}')),
        answer(None, call("b", "place_order", '{"orders": []}')),
        answer("Nothing ordered."),
    )

    reply = asked(way, upstream, "run", "Order.", chat={"tools": [place_order]})

    assert reply.text == "Nothing ordered."
    told = [str(turn["content"]) for turn in turns(upstream) if turn["role"] == "tool"]
    assert told[0].startswith("Error: place_order was not called, its arguments do not fit:\n- orders: ")
    assert told[1] == '{"placed":[],"note":null}'


@BOTH
def test_a_model_that_calls_for_ever_is_stopped(upstream: ScriptedUpstream, way: str) -> None:
    upstream.add(*(answer(None, call("a", "stock", '{"item": "tea"}')) for _ in range(5)))

    with pytest.raises(TooManyRounds) as caught:
        asked(way, upstream, "run", "Go on.", chat={"tools": [stock]}, max_rounds=2)

    assert len(upstream.requests) == 3
    assert caught.value.reply.has_tool_calls


@BOTH
def test_an_answer_that_does_not_fit_is_repaired_once(upstream: ScriptedUpstream, way: str) -> None:
    upstream.add(answer('{"item": 3}'), answer('{"item": "tea", "price": "1.10"}'))

    reply = asked(way, upstream, "ask", "What?", chat={}, output=Order)

    assert reply.output == Order(item="tea", price=Decimal("1.10"))
    form = as_object(upstream.requests[0].json["response_format"]) or {}
    assert (form["type"], (as_object(form["json_schema"]) or {})["name"]) == ("json_schema", "Order")
    assert upstream.requests[1].json["response_format"] == form
    assert "- item: Input should be a valid string (given: 3)" in str(turns(upstream)[-1]["content"])


@BOTH
@pytest.mark.parametrize(
    ("answers", "requests"),
    [
        ([answer('{"item": 3}'), answer("Sorry.")], 2),
        ([answer('{"item": "te', finish="length")], 1),
    ],
)
def test_an_answer_that_never_fits_is_an_error_with_its_text(
    upstream: ScriptedUpstream, way: str, answers: list[dict[str, Any]], requests: int
) -> None:
    upstream.add(*answers)

    with pytest.raises(BadOutput) as caught:
        asked(way, upstream, "ask", "What?", chat={}, output=Order)

    assert len(upstream.requests) == requests
    assert caught.value.text == answers[-1]["json"]["choices"][0]["message"]["content"]
    assert caught.value.problems


@BOTH
def test_pictures_and_files_go_with_the_question(upstream: ScriptedUpstream, way: str, tmp_path: Any) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    upstream.add(answer("A cat."))

    asked(way, upstream, "ask", ["What?", image(PNG), text_file(tmp_path / "a.txt")], chat={})

    assert turns(upstream)[0]["content"] == [
        {"type": "text", "text": "What?"},
        image(PNG).as_json(),
        {"type": "text", "text": '<file name="a.txt">\none\n</file>'},
    ]


@pytest.mark.parametrize("place", ["moonshot", "openrouter", "vllm", "sglang", "gateway"], indirect=True)
def test_every_server_takes_what_is_made_of_functions_types_and_pictures(place: Place) -> None:
    with Chat(effort="low", tools=[place_order, stock], **place.arguments) as chat:
        reply = chat.run(["Call place_order for this.", image(PNG)])
        assert [turn["role"] for turn in chat.messages] == ["user", "assistant", "tool", "assistant"]
        told = str(chat.messages[2]["content"])
        assert told.startswith('{"placed":') or "do not fit" in told
        assert reply.text
    with Chat(effort="low", **place.arguments) as chat:
        assert isinstance(chat.ask("Which?", output=Order).output, Order)
        assert isinstance(chat.ask("Which?", output=list[Order]).output, list)
    last = decode(chat.messages[-1]["content"].encode())  # type: ignore[union-attr]
    assert list(as_object(last) or {}) == ["value"]
