"""No call comes to more than was set aside for it, and none is counted as less than it may have cost."""

import asyncio
import decimal
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from backends.json import encode
from kimi_sdk import (
    AsyncChat,
    BadReply,
    Chat,
    ConnectionFailed,
    InvalidInput,
    MaxCostReached,
    Meter,
    NoAnswerInTime,
    StreamCut,
    TextDelta,
    image,
    video,
)
from kimi_sdk.sizes import Counted, prompt_estimate
from support.exchange import Exchange
from support.scripted import ScriptedUpstream

USAGE = {"prompt_tokens": 10, "completion_tokens": 1000, "total_tokens": 1010}
DIRECT: dict[str, Any] = {"base_url": "http://127.0.0.1:9/v1"}


def chunk(delta: dict[str, Any], finish: str | None = None, **fields: Any) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return f"data: {encode({'id': 'c', 'model': 'kimi-k3.1-pro', 'choices': [choice], **fields}).decode()}\n\n"


def counted(cost: str | None) -> str:
    held = {"id": "c", "model": "kimi-k3.1-pro", "choices": [], "usage": USAGE, "kimi": {"cost_usd": cost}}
    return f"data: {encode(held).decode()}\n\n"


def stream(*events: str, then: str = "close", framing: str = "chunked") -> dict[str, Any]:
    return {
        "status": 200,
        "headers": {"content-type": "text/event-stream"},
        "timeline": [[at / 100, event] for at, event in enumerate(events)],
        "then": then,
        "framing": framing,
    }


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as server:
        yield server


# --- before the call ---------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.lists(st.text("abcXYZ019+/=", min_size=0, max_size=400), min_size=1, max_size=4))
def test_no_text_is_estimated_below_its_bytes_whatever_it_looks_like(texts: list[str]) -> None:
    turns = [encode({"role": "tool", "tool_call_id": "c", "content": f";base64,{text}"}) for text in texts]
    parts = encode({"role": "user", "content": [{"type": "text", "text": text} for text in texts]})

    assert prompt_estimate(turns, b"", None).high >= sum(len(text) for text in texts)
    assert prompt_estimate([parts], b"", None).high >= sum(len(text) for text in texts)


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


@pytest.mark.parametrize("address", ["https://example.com/a.png", "ms://file-1", f"data:image/png;base64,{PNG}"])
def test_a_picture_counts_by_its_kind_wherever_it_lies(address: str) -> None:
    with Chat(**DIRECT) as chat:
        plain = chat.estimate("What is it?")
        one = chat.estimate(["What is it?", image(address)])
        two = chat.estimate(["What is it?", image(address), image(address)])

    assert 16_384 <= one.prompt_tokens_max - plain.prompt_tokens_max < 16_500
    assert 16_384 <= two.prompt_tokens_max - one.prompt_tokens_max < 16_500
    assert one.prompt_tokens > 1_024


def test_a_video_counts_for_more_and_large_media_are_no_text() -> None:
    film = b"\0\0\0\x18ftypisom" + bytes(3_000_000)
    with Chat(**DIRECT) as chat:
        assert 131_072 <= chat.estimate(["What is it?", video(film)]).prompt_tokens_max < 132_000


def test_a_text_within_a_media_part_is_counted() -> None:
    part = {"type": "image_url", "image_url": {"url": "ms://a"}, "text": "word " * 1_000}
    turn = encode({"role": "user", "content": [part]})

    assert prompt_estimate([turn], b"", None).high > 16_384 + 5_000


class Long(BaseModel):
    """A type whose schema is long."""

    name: str
    size: int
    __doc__ = "What there is to say of it. " * 200


def test_the_schema_of_an_output_is_part_of_the_prompt() -> None:
    with Chat(**DIRECT) as chat:
        plain, formed = chat.estimate("hi"), chat.estimate("hi", output=Long)
    held = prompt_estimate([], b"", Counted(0, 0), form=b"x" * 500)

    assert formed.prompt_tokens_max - plain.prompt_tokens_max > 5_000
    assert held.high >= 500


def test_an_answer_that_is_begun_counts_as_prompt() -> None:
    tight = Chat(**DIRECT, max_cost="0.17", max_completion_tokens=16_000)
    with tight as chat, pytest.raises(MaxCostReached, match="prompt tokens"):
        chat.ask("hi", prefix="word " * 20_000)


# --- beside an open stream ---------------------------------------------------------------------------------------


def test_a_fork_has_money_of_its_own_beside_an_open_stream(upstream: ScriptedUpstream) -> None:
    whole = stream(chunk({"content": "a"}), chunk({}, "stop"), counted("0.01"), "data: [DONE]\n\n")
    upstream.add(stream(chunk({"content": "One"}), then="hold"), whole)
    with Chat(base_url=upstream.base_url, max_cost="1.00") as chat:
        for event in chat.stream("count"):
            assert event == TextDelta("One")
            assert chat.fork().ask("and this?").text == "a"
            break


def test_a_chat_says_what_is_left(upstream: ScriptedUpstream) -> None:
    upstream.add(stream(chunk({"content": "a"}), chunk({}, "stop"), counted("0.25"), "data: [DONE]\n\n"))
    with Chat(base_url=upstream.base_url, max_cost="1.00", meter=Meter("0.90")) as chat:
        chat.ask("hi")

        assert chat.left == Decimal("0.65")
    assert Chat(**DIRECT).left is None


def test_nobody_waits_for_money_that_they_hold_themselves(upstream: ScriptedUpstream) -> None:
    upstream.add(stream(chunk({"content": "One"}), then="hold"), stream(chunk({"content": "1"}), then="hold"))
    begun_s = time.monotonic()
    with Chat(base_url=upstream.base_url, max_cost="0.20") as chat:
        for _ in chat.stream("count"):
            with pytest.raises(MaxCostReached, match="set aside"):
                chat.fork().ask("and this?")
            break

    async def main() -> None:
        chat = AsyncChat(base_url=upstream.base_url, max_cost="0.20")
        events = chat.stream("count")
        await anext(events)
        with pytest.raises(MaxCostReached, match="set aside"):
            await chat.fork().ask("and this?")
        await events.aclose()
        await chat.close()

    asyncio.run(main())
    assert time.monotonic() - begun_s < 5, "the patience is 600 s"


# --- after it ----------------------------------------------------------------------------------------------------


def test_a_stream_that_is_left_after_its_bill_costs_what_the_bill_says(upstream: ScriptedUpstream) -> None:
    events = [chunk({"content": "a"}), chunk({}, "stop"), counted("0.07")]
    upstream.add(stream("".join([*events, chunk({"content": "b"})]), then="hold"))
    with Chat(base_url=upstream.base_url, max_cost="1.00") as chat:
        heard = chat.stream("hi")
        assert [next(heard), next(heard)] == [TextDelta("a"), TextDelta("b")]
        heard.close()

        assert (chat.cost, chat.estimated_cost, chat.usage.output) == (Decimal("0.07"), Decimal(0), 1000)


@pytest.mark.parametrize("then", ["close", "reset"])
def test_a_connection_that_breaks_after_the_last_word_breaks_nothing(
    upstream: ScriptedUpstream, then: str
) -> None:
    upstream.add(stream(chunk({"content": "a"}), chunk({}, "stop"), counted("0.07"), then=then))
    with Chat(base_url=upstream.base_url) as chat:
        reply = chat.ask("hi")

        assert (reply.text, reply.cost, chat.cost, len(chat.messages)) == ("a", reply.cost, Decimal("0.07"), 2)
    assert len(upstream.requests) == 1


def test_a_bad_answer_with_a_bill_costs_what_the_bill_says(upstream: ScriptedUpstream) -> None:
    choice = {"index": 0, "finish_reason": None, "message": {"role": "assistant", "content": "a"}}
    upstream.add({"status": 200, "json": {"choices": [choice], "usage": USAGE, "kimi": {"cost_usd": "0.03"}}})
    with Chat(base_url=upstream.base_url) as chat:
        with pytest.raises(BadReply):
            chat.ask("hi")

        assert (chat.cost, chat.estimated_cost) == (Decimal("0.03"), Decimal(0))


def test_an_answer_that_did_not_come_in_time_counts_as_the_most_it_can_have_cost(
    upstream: ScriptedUpstream,
) -> None:
    async def silent(exchange: Exchange) -> None:
        await asyncio.sleep(1)

    upstream.add(silent)
    meter = Meter("0.30")
    limits: dict[str, Any] = {"meter": meter, "timeout_s": 0.1, "max_retries": 0, "max_completion_tokens": 20_000}
    with Chat(base_url=upstream.base_url, **limits) as chat:
        with pytest.raises(NoAnswerInTime):
            chat.ask("hi")
        with pytest.raises(MaxCostReached):
            chat.ask("hi")

        assert chat.estimated_cost < Decimal("0.001") < Decimal("0.20") < meter.spent < Decimal("0.21")
        assert meter.spent == meter.estimated + meter.doubtful


def test_what_a_saved_chat_may_have_cost_counts_when_it_is_loaded(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    upstream.add({"then": "reset"})
    limits: dict[str, Any] = {"base_url": upstream.base_url, "max_retries": 0, "max_cost": "0.30"}
    with Chat(**limits, max_completion_tokens=20_000) as chat:
        with pytest.raises(ConnectionFailed):
            chat.ask("hi")
        chat.save(tmp_path / "chat.json")
    with Chat.load(tmp_path / "chat.json", **limits) as loaded, pytest.raises(MaxCostReached):
        loaded.ask("hi", max_completion_tokens=20_000)


def test_a_stream_that_is_cut_counts_as_the_most_that_came_of_it(upstream: ScriptedUpstream) -> None:
    upstream.add(stream(chunk({"content": "word " * 2_000}), then="close"))
    meter = Meter("1.00")
    with Chat(base_url=upstream.base_url, meter=meter) as chat, pytest.raises(StreamCut):
        chat.ask("hi")

    assert Decimal("0.10") < meter.spent < Decimal("0.11"), "10,000 bytes are at most 10,000 tokens"
    assert Decimal("0.02") < meter.estimated < Decimal("0.03")


def test_a_server_cannot_make_room_with_a_negative_cost(upstream: ScriptedUpstream) -> None:
    upstream.add(stream(chunk({"content": "a"}), chunk({}, "stop"), counted("-5"), "data: [DONE]\n\n"))
    with Chat(base_url=upstream.base_url, max_cost="1.00") as chat:
        reply = chat.ask("hi")

        assert [reply.cost, chat.cost, chat.unpriced] == [None, 0, 1]


def test_sums_are_exact_whatever_the_application_has_set_for_decimals(upstream: ScriptedUpstream) -> None:
    whole = (chunk({"content": "a"}), chunk({}, "stop"), counted("0.123456789"), "data: [DONE]\n\n")
    upstream.add(stream(*whole), stream(*whole))
    with decimal.localcontext() as context:
        context.prec = 2
        context.traps[decimal.Inexact] = True
        with Chat(base_url=upstream.base_url, max_cost="1.00") as chat:
            chat.ask("hi")
            chat.ask("hi")

            assert chat.cost == Decimal("0.246913578")
            assert chat.estimate("hi").cost_max is not None


# --- what cannot be sent -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_s": float("inf")},
        {"timeout_s": 1e12},
        {"timeout_s": "5"},
        {"timeout_s": None},
        {"model": 5},
        {"model": "\ud800"},
        {"tools": 5},
        {"tools": len},
        {"tools": "abc"},
        {"prices": 5},
        {"base_url": 5},
        {"api_key": 5},
        {"dialect": 5},
        {"meter": 5},
        {"approve": 5},
    ],
    ids=lambda wrong: "-".join(f"{name}={value!a:.12}" for name, value in wrong.items()),
)
def test_an_argument_of_a_wrong_kind_is_named(wrong: dict[str, Any]) -> None:
    for kind in (Chat, AsyncChat):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            kind(**wrong)


def test_half_a_character_keeps_no_money_aside() -> None:
    meter = Meter("1.00")
    with Chat(**DIRECT, meter=meter) as chat:
        for wishes in ({"stop": "\ud800"}, {"stop": 5}, {"prefix": "\ud800"}):
            given_wishes: dict[str, Any] = wishes
            with pytest.raises(InvalidInput):
                chat.ask("x", **given_wishes)

    assert meter.reserved == 0
