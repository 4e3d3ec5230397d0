"""A conversation as a thing that is kept: saved, loaded, forked, reset, edited, and one call at a time."""

import asyncio
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from threading import Thread as OsThread
from typing import Any

import pytest

from kimi_sdk import (
    AsyncChat,
    CachePrefixBroken,
    Chat,
    InvalidInput,
    Meter,
    NoEffect,
    Reply,
    SmallOutputLimit,
    TokenUsage,
)
from support.scripted import ScriptedUpstream
from support.sdk_places import KINDS, Talk, talk

THOUGHT = "Let me think.\r\n  Ünïcode \u2028 and “quotes”, a tab\t, 思考 🙂 "


def answer(text: str, **message: Any) -> dict[str, Any]:
    held = {"role": "assistant", "content": text, **message}
    body = {
        "id": "c-1",
        "model": "kimi-k3.1-pro",
        "choices": [{"index": 0, "finish_reason": "stop", "message": held}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107},
        "kimi": {"cost_usd": "0.0000114", "request_id": "kr_1", "target": "moonshot", "tier": "standard"},
    }
    return {"status": 200, "json": body}


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as server:
        yield server


def bodies(upstream: ScriptedUpstream) -> list[Any]:
    return [json.loads(request.body) for request in upstream.requests]


def test_a_saved_chat_goes_on_as_if_it_had_never_stopped(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    upstream.add(answer("one", reasoning_content=THOUGHT), answer("two"), answer("two"))
    path = tmp_path / "chat.json"
    with Chat(system="Be brief.", effort="high", ttl="1h", base_url=upstream.base_url, api_key="sk-9") as chat:
        chat.ask("1?")
        chat.save(path)
        chat.ask("2?")
    with Chat.load(path, base_url=upstream.base_url, max_cost="1") as loaded:
        assert (loaded.effort, loaded.ttl, loaded.model) == ("high", "1h", "kimi-k3.1-pro")
        assert (loaded.cost, loaded.usage) == (Decimal("0.0000114"), TokenUsage(input=100, output=7))
        assert loaded.messages[2]["reasoning_content"] == THOUGHT
        loaded.ask("2?", max_completion_tokens=20_000)
        assert loaded.messages == chat.messages

    sent = bodies(upstream)
    assert sent[2]["messages"] == sent[1]["messages"]
    text = path.read_text("utf-8")
    assert json.loads(text)["schema"] == 1
    assert "sk-9" not in text
    assert upstream.base_url not in text
    assert [each.name for each in tmp_path.iterdir()] == ["chat.json"]


def test_a_chat_saved_by_one_kind_is_loaded_by_the_other(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    upstream.add(answer("one"))
    with Chat(base_url=upstream.base_url) as chat:
        chat.ask("1?")
        chat.save(tmp_path / "chat.json")

    assert AsyncChat.load(tmp_path / "chat.json").messages == chat.messages


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is no saved chat"),
        ("[]", "its kind is not"),
        ('{"kind":"kimi_sdk.chat","schema":2}', "saved with schema 2, and this version reads 1"),
        ('{"kind":"kimi_sdk.chat","schema":1}', "is damaged"),
    ],
)
def test_a_file_that_is_no_saved_chat_is_refused_by_name(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)

    with pytest.raises(InvalidInput, match=reason) as caught:
        Chat.load(path)

    assert str(path) in str(caught.value)


def test_a_saved_chat_that_was_tampered_with_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    Chat(system="s").save(path)
    for field, value in {"messages": [{"role": "king"}], "cost": "much", "effort": "medium"}.items():
        Chat(system="s").save(path)
        path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
        with pytest.raises(InvalidInput):
            Chat.load(path)


def test_a_reply_survives_json_exactly(upstream: ScriptedUpstream) -> None:
    call = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    upstream.add(answer("one", reasoning_content=THOUGHT, tool_calls=[call], weight=0.1))
    with Chat(base_url=upstream.base_url) as chat:
        reply = chat.ask("1?")

    assert Reply.from_json(reply.to_json()) == reply


def test_forks_go_their_own_ways_over_the_same_connections(upstream: ScriptedUpstream) -> None:
    upstream.add(*(answer(text) for text in ("one", "left", "right", "on")))
    with Chat(base_url=upstream.base_url) as chat:
        chat.ask("1?")
        left, right = chat.fork(), chat.fork()
        left.ask("left?")
        left.close()
        right.ask("right?")
        chat.ask("on?")

        assert [each.messages[-1]["content"] for each in (chat, left, right)] == ["on", "left", "right"]
        assert (right.cost, right.usage.output) == (Decimal("0.0000114"), 7)
        assert upstream.connections == 1


def test_streamed_answers_follow_each_other_on_one_connection(upstream: ScriptedUpstream) -> None:
    choice = {"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}
    event = json.dumps({"id": "c-1", "model": "kimi-k3.1-pro", "choices": [choice]})
    streamed = {
        "status": 200,
        "headers": {"Content-Type": "text/event-stream"},
        "sse_text": f"data: {event}\n\ndata: [DONE]\n\n",
    }
    upstream.add(streamed, streamed, {**streamed, "then": "hold"})

    async def main() -> None:
        async with AsyncChat(base_url=upstream.base_url) as chat:
            for number in range(3):
                assert (await chat.ask(f"{number}?")).text == "ok"

    asyncio.run(asyncio.wait_for(main(), 10))

    assert upstream.connections == 1


def test_a_reset_chat_has_its_system_message_and_its_totals(upstream: ScriptedUpstream) -> None:
    upstream.add(answer("one"), answer("two"))
    with Chat(system="s", base_url=upstream.base_url) as chat:
        chat.ask("1?")
        chat.reset()
        chat.ask("2?")

        assert [turn["content"] for turn in chat.messages] == ["s", "2?", "two"]
        assert chat.usage.output == 14


def test_what_breaks_the_cached_prefix_warns_and_what_does_not_is_silent(upstream: ScriptedUpstream) -> None:
    upstream.add(answer("one"), answer("two"))
    with Chat(effort="low", base_url=upstream.base_url) as chat:
        chat.effort = "high"
        chat.messages = [{"role": "user", "content": "0?"}, {"role": "assistant", "content": "0"}]
        chat.messages = [*chat.messages, {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
        chat.effort = "high"
        chat.ask("1?")
        with pytest.warns(CachePrefixBroken, match="another effort") as effort:
            chat.effort = "max"
        with pytest.warns(CachePrefixBroken, match="an edited history"):
            chat.messages = chat.messages[2:]
        chat.ask("2?")

    assert effort[0].filename == __file__
    sent = bodies(upstream)
    assert [body["reasoning_effort"] for body in sent] == ["high", "max"]
    assert [turn["content"] for turn in sent[1]["messages"]] == ["x", "y", "1?", "one", "2?"]


def test_a_history_is_checked_before_it_is_taken() -> None:
    chat = Chat()
    for messages in ("hi", [{"role": "king"}], [{"content": "x"}], [{"role": "user", "content": object()}]):
        with pytest.raises(InvalidInput, match="messages"):
            chat.messages = messages  # type: ignore[assignment]
    assert chat.messages == []


def test_a_small_output_limit_warns_once_and_by_effort(upstream: ScriptedUpstream) -> None:
    upstream.add(*(answer("ok") for _ in range(4)))
    with Chat(effort="low", base_url=upstream.base_url) as chat:
        chat.ask("1?", max_completion_tokens=1_000)
        with pytest.warns(SmallOutputLimit, match="at effort low fewer than 1,000"):
            chat.ask("2?", max_completion_tokens=900)
        chat.ask("3?", max_completion_tokens=900)


def test_tier_and_ttl_are_asked_for_where_they_are_understood(upstream: ScriptedUpstream) -> None:
    upstream.add(*(answer("ok") for _ in range(3)))
    for dialect in (None, "moonshot"):
        with Chat(tier="highspeed", ttl="1h", base_url=upstream.base_url, dialect=dialect) as chat:
            chat.ask("hi")

    gateway, moonshot = bodies(upstream)
    assert gateway["prompt_cache_options"] == moonshot["prompt_cache_options"] == {"mode": "implicit", "ttl": "1h"}
    assert (gateway["model"], gateway["service_tier"]) == ("kimi-k3.1-pro", "highspeed")
    assert moonshot["model"] == "kimi-k3.1-pro-highspeed"
    assert "service_tier" not in moonshot
    with pytest.raises(InvalidInput, match=r"highspeed of kimi-k3\.1-pro is not to be had at vllm"):
        Chat(tier="highspeed", dialect="vllm")
    with pytest.raises(InvalidInput, match="contradicts"):
        Chat(tier="standard", model="kimi-k3.1-pro-highspeed")
    with pytest.warns(NoEffect, match="ttl 1h has no effect at openrouter"):
        Chat(ttl="1h", dialect="openrouter")


def test_each_server_is_asked_in_its_own_words(upstream: ScriptedUpstream) -> None:
    upstream.add(*(answer("ok") for _ in range(4)))
    for name in ("moonshot", "openrouter", "vllm", "sglang"):
        with Chat(effort="low", base_url=upstream.base_url, dialect=name) as chat:
            chat.ask("hi", stop=["END"])

    moonshot, openrouter, vllm, sglang = bodies(upstream)
    assert [body["model"] for body in (moonshot, openrouter, vllm)] == [
        "kimi-k3.1-pro",
        "moonshotai/kimi-k3.1-pro",
        "moonshotai/Kimi-K3.1-Pro",
    ]
    assert [body.get("reasoning_effort") for body in (moonshot, openrouter, sglang)] == ["low", None, "low"]
    assert (openrouter["reasoning"], len(openrouter["session_id"])) == ({"effort": "low"}, 32)
    assert upstream.requests[2].headers["x-session-id"]
    assert upstream.requests[3].headers["x-smg-routing-key"]
    assert all("idempotency-key" not in request.headers for request in upstream.requests)
    assert all(body["stop"] == ["END"] for body in bodies(upstream))


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ({"stop": ["a", "b", "c", "d", "e", "f"]}, "stop may be 5 texts at moonshot, not 6"),
        ({"stop": "x" * 33}, "may have 32 bytes"),
        ({"stop": [""]}, "none of them empty"),
        ({"prefix": "a", "output": int}, "exclude one another"),
        ({"prefix": "half \ud83d"}, "half a character"),
        ({"max_completion_tokens": 0}, "at least 1"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_before_it_is_sent(wish: dict[str, Any], reason: str) -> None:
    with (
        Chat(dialect="moonshot", base_url="http://127.0.0.1:1/v1") as chat,
        pytest.raises(InvalidInput, match=reason),
    ):
        chat.ask("hi", **wish)


def test_the_dialect_is_the_hosts_unless_it_is_named() -> None:
    urls = {"https://api.moonshot.ai/v1": "moonshot", "https://openrouter.ai/api/v1": "openrouter"}
    assert {url: Chat(base_url=url).dialect for url in urls} == urls
    assert Chat(base_url="http://10.0.0.1:8000/v1").dialect == "gateway"
    assert Chat(base_url="http://10.0.0.1:8000/v1", dialect="sglang").dialect == "sglang"
    with pytest.raises(InvalidInput, match="dialect must be one of gateway, llamacpp, moonshot"):
        Chat(dialect="anthropic")


def test_an_open_stream_does_not_lock_its_own_thread_out(upstream: ScriptedUpstream) -> None:
    upstream.add(answer("one"), answer("two"))
    with Chat(base_url=upstream.base_url) as chat:
        stream = chat.stream("1?")
        next(stream)
        with pytest.raises(InvalidInput, match="a stream of this chat is still open"):
            chat.ask("2?")
        stream.close()
        assert chat.ask("2?").text == "two"


def test_another_thread_waits_for_an_open_stream(upstream: ScriptedUpstream) -> None:
    upstream.add(answer("one"), answer("two"))
    with Chat(base_url=upstream.base_url) as chat:
        stream = chat.stream("1?")
        next(stream)
        other = OsThread(target=chat.ask, args=("2?",))
        other.start()
        list(stream)
        other.join()

        assert [turn["content"] for turn in chat.messages] == ["1?", "one", "2?", "two"]


def test_tasks_wait_for_one_another_and_an_open_stream_does_not_lock_its_own_out(
    upstream: ScriptedUpstream,
) -> None:
    upstream.add(*(answer("ok") for _ in range(8)))

    async def main() -> None:
        async with AsyncChat(base_url=upstream.base_url) as chat:
            await asyncio.gather(*(chat.ask(f"{number}?") for number in range(4)))
            assert [turn["role"] for turn in chat.messages] == ["user", "assistant"] * 4
            stream = chat.stream("open")
            await anext(stream)
            with pytest.raises(InvalidInput, match="still open"):
                await chat.ask("5?")
            await stream.aclose()
            async for _ in chat.stream("left"):
                break
            assert (await chat.ask("5?")).text == "ok"

    asyncio.run(main())


def test_an_async_chat_serves_one_event_loop_after_another(upstream: ScriptedUpstream) -> None:
    upstream.add(answer("one"), answer("two"))
    chat = AsyncChat(base_url=upstream.base_url)

    async def asked(question: str) -> None:
        async with chat:
            await chat.ask(question)

    asyncio.run(asked("1?"))
    asyncio.run(asked("2?"))

    assert len(chat.messages) == 4


def test_a_shared_meter_sees_what_every_chat_has_cost(upstream: ScriptedUpstream) -> None:
    upstream.add(*(answer("ok") for _ in range(3)))
    meter = Meter()
    for number in range(3):
        with Chat(base_url=upstream.base_url, meter=meter) as chat:
            chat.ask(f"{number}?")

    assert (meter.cost, meter.replies, meter.usage.output) == (Decimal("0.0000342"), 3, 21)


async def replied(chat: Any, question: str) -> Reply:
    asked = chat.ask(question)
    reply: Reply = asked if isinstance(asked, Reply) else await asked
    return reply


@pytest.mark.parametrize("kind", KINDS, ids=["sync", "async"])
def test_a_tool_that_asks_its_own_chat_is_told_so(upstream: ScriptedUpstream, kind: type[Talk]) -> None:
    call = {"id": "again:0", "type": "function", "function": {"name": "again", "arguments": "{}"}}
    upstream.add(answer("", tool_calls=[call]), answer("forked"), answer("done"))
    made: list[Talk] = []

    async def again() -> str:
        """Asks once more."""
        chat: Any = made[0].chat
        with pytest.raises(InvalidInput, match="let it ask a fork"):
            await replied(chat, "me?")
        return (await replied(chat.fork(), "you?")).text

    with talk(kind, tools=[again], base_url=upstream.base_url) as held:
        made.append(held)
        assert held.run("Call again.").text == "done"

        assert [turn["content"] for turn in held.chat.messages] == ["Call again.", "", "forked", "done"]
