"""Conversations over real sockets: what is sent, what is kept, what is counted."""

import logging
from collections.abc import Iterator
from decimal import Decimal
from threading import Thread as OsThread
from typing import Any

import pytest

from backends.json import JsonObject, as_list, as_object
from kimi_sdk import (
    Chat,
    ConnectionFailed,
    InvalidInput,
    RateLimited,
    SmallOutputLimit,
    ThinkingExhausted,
    TokenUsage,
    ToolCall,
    ToolResult,
)
from support.scripted import ScriptedUpstream

STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
FIRST_THOUGHT = "Let me think.\r\n  Ünïcode \u2028 and “quotes”, a tab\t, 思考 🙂 "


def answer(text: str | None, *, finish: str = "stop", kimi: Any = None, **message: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id": "cmpl-1",
        "object": "chat.completion",
        "created": 1796040000,
        "model": "kimi-k3.1-pro",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish,
                "message": {"role": "assistant", "content": text, **message},
            }
        ],
        "usage": {
            "prompt_tokens": 5000,
            "completion_tokens": 200,
            "total_tokens": 5200,
            "cached_tokens": 4096,
            "prompt_tokens_details": {"cached_tokens": 4096},
        },
    }
    if kimi is not None:
        body["kimi"] = kimi
    return {"status": 200, "json": body}


def booked(cost: str | None) -> JsonObject:
    return {
        "request_id": "kr_01",
        "target": "moonshot",
        "model": "kimi-k3.1-pro",
        "tier": "standard",
        "effort": "high",
        "attempts": 1,
        "cost_usd": cost,
    }


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KIMI_BASE_URL", "KIMI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as server:
        yield server


def sent(upstream: ScriptedUpstream, index: int = -1) -> JsonObject:
    return upstream.requests[index].json


def turns(upstream: ScriptedUpstream, index: int = -1) -> list[JsonObject]:
    return [as_object(turn) or {} for turn in as_list(sent(upstream, index)["messages"])]


def test_a_question_is_answered(upstream: ScriptedUpstream) -> None:
    upstream.add(answer("384,400 km.", reasoning_content=FIRST_THOUGHT, kimi=booked("0.0046272")))

    with Chat(system="Be brief.", effort="high", base_url=upstream.base_url, api_key="sk-test") as chat:
        reply = chat.ask("How far is the Moon?")

    assert (reply.text, str(reply), reply.thinking) == ("384,400 km.", "384,400 km.", FIRST_THOUGHT)
    assert reply.usage == TokenUsage(input=904, cache_read=4096, output=200)
    assert (reply.cost, reply.cost_source) == (Decimal("0.0046272"), "gateway")
    assert (reply.model, reply.tier, reply.effort) == ("kimi-k3.1-pro", "standard", "high")
    assert (reply.target, reply.request_id, reply.finish_reason) == ("moonshot", "kr_01", "stop")
    assert reply.raw["id"] == "cmpl-1"
    assert sent(upstream) == {
        "model": "kimi-k3.1-pro",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "How far is the Moon?"},
        ],
        "reasoning_effort": "high",
        **STREAMED,
    }
    assert upstream.requests[0].headers["authorization"] == "Bearer sk-test"
    assert upstream.requests[0].path == "/v1/chat/completions"


def test_nothing_is_sent_that_was_not_asked_for(upstream: ScriptedUpstream) -> None:
    upstream.add(answer("ok", kimi=booked("0")))

    with Chat(base_url=upstream.base_url) as chat:
        chat.ask("hi")

    messages = [{"role": "user", "content": "hi"}]
    assert sent(upstream) == {"model": "kimi-k3.1-pro", "messages": messages, **STREAMED}
    assert "authorization" not in upstream.requests[0].headers


def test_variables_meant_for_another_service_are_not_sent(
    upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {
        "OPENAI_API_KEY": "sk-other-1",
        "OPENAI_ADMIN_KEY": "sk-other-2",
        "OPENAI_ORG_ID": "org-other-3",
        "OPENAI_PROJECT_ID": "proj-other-4",
        "OPENAI_CUSTOM_HEADERS": "Authorization: Bearer sk-other-5",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/other",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    upstream.add(answer("ok"), answer("ok"))

    for key in (None, "sk-test"):
        with Chat(base_url=upstream.base_url, api_key=key) as chat:
            chat.ask("hi")

    for request, authorization in zip(upstream.requests, (None, "Bearer sk-test"), strict=True):
        assert request.headers.get("authorization") == authorization
        assert "other" not in str(request.raw_headers) + request.body.decode()


@pytest.mark.parametrize(
    "thought",
    [
        {"reasoning_content": FIRST_THOUGHT},
        {"reasoning_content": ""},
        {"reasoning_content": None},
        {},
    ],
)
def test_a_thought_goes_back_byte_for_byte_and_its_absences_stay_apart(
    upstream: ScriptedUpstream, thought: dict[str, Any]
) -> None:
    upstream.add(answer("one", **thought), answer("two"))

    with Chat(base_url=upstream.base_url) as chat:
        first = chat.ask("1?")
        chat.ask("2?")

    assert first.thinking == thought.get("reasoning_content")
    assert turns(upstream) == [
        {"role": "user", "content": "1?"},
        {"role": "assistant", "content": "one", **thought},
        {"role": "user", "content": "2?"},
    ]


def test_a_thought_under_another_name_is_read_and_goes_back_as_moonshot_spells_it(
    upstream: ScriptedUpstream,
) -> None:
    details = [{"type": "reasoning.text", "text": "hm", "index": 0, "signature": "s=="}]
    upstream.add(answer("one", reasoning="hm", reasoning_details=details), answer("two"))

    with Chat(base_url=upstream.base_url) as chat:
        assert chat.ask("1?").thinking == "hm"
        chat.ask("2?")

    assert turns(upstream)[1] == {
        "role": "assistant",
        "content": "one",
        "reasoning_content": "hm",
        "reasoning_details": details,
    }


def test_what_else_a_turn_holds_goes_back_and_its_empty_fields_do_not(upstream: ScriptedUpstream) -> None:
    call = {"id": "search:0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    upstream.add(answer(None, tool_calls=[call], refusal=None, weight=0.25), answer("two", tool_calls=[]))

    with Chat(base_url=upstream.base_url) as chat:
        asked = chat.ask("1?")
        assert asked.tool_calls == (ToolCall("search:0", "f", '{"a": 1}'),)
        with pytest.raises(InvalidInput, match="waits for the results of f"):
            chat.ask("2?")
        chat.ask([ToolResult(asked.tool_calls[0], "found")])
        kept = chat.messages

    assert turns(upstream)[1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [call],
        "weight": Decimal("0.25"),
    }
    assert kept[3] == {"role": "assistant", "content": "two"}


def test_usage_and_cost_add_up_exactly(upstream: ScriptedUpstream) -> None:
    upstream.add(*(answer("ok", kimi=booked("0.0000114")) for _ in range(3)))

    with Chat(base_url=upstream.base_url) as chat:
        for number in range(3):
            chat.ask(f"{number}?")

        assert chat.cost == Decimal("0.0000342")
        assert chat.usage == TokenUsage(input=2712, cache_read=12288, output=600)
        assert chat.unpriced == 0


def test_an_answer_without_a_known_price_is_counted_and_not_free(upstream: ScriptedUpstream) -> None:
    upstream.add(answer("ok", kimi=booked("0.5")), answer("ok", kimi=booked(None)), answer("ok"))

    with Chat(base_url=upstream.base_url) as chat:
        replies = [chat.ask(f"{number}?") for number in range(3)]

    assert [(reply.cost, reply.cost_source) for reply in replies] == [
        (Decimal("0.5"), "gateway"),
        (None, "unknown"),
        (None, "unknown"),
    ]
    assert (chat.cost, chat.unpriced) == (Decimal("0.5"), 2)


def test_a_failed_call_leaves_the_conversation_as_before(upstream: ScriptedUpstream) -> None:
    refused = {"error": {"message": "slow down", "type": "rate_limit_error", "param": None, "code": None}}
    upstream.add(
        answer("one", kimi=booked("1")), {"status": 429, "json": refused}, {"then": "reset"}, answer("two")
    )

    with Chat(system="s", base_url=upstream.base_url, max_retries=0) as chat:
        chat.ask("1?")
        before = (chat.messages, chat.usage, chat.cost, chat.unpriced)
        with pytest.raises(RateLimited):
            chat.ask("lost")
        with pytest.raises(ConnectionFailed):
            chat.ask("lost too")

        assert (chat.messages, chat.usage, chat.cost, chat.unpriced) == before
        chat.ask("2?")

    assert [turn["content"] for turn in turns(upstream)] == ["s", "1?", "one", "2?"]
    assert len(upstream.requests) == 4


def test_an_answer_that_thinking_ate_up_is_shown_counted_and_not_kept(upstream: ScriptedUpstream) -> None:
    upstream.add(
        answer("", finish="length", reasoning_content="So much to say", kimi=booked("0.02")),
        answer("short", kimi=booked("0.01")),
    )

    with Chat(base_url=upstream.base_url, max_completion_tokens=200) as chat:
        with (
            pytest.warns(SmallOutputLimit, match="fewer than 16,000 often leave no answer"),
            pytest.raises(ThinkingExhausted, match=r"limit \(200\)") as caught,
        ):
            chat.ask("Why?")
        second = chat.ask("Why?", max_completion_tokens=16_000)

    first = caught.value.reply
    assert (first.thinking_exhausted, first.text, first.thinking) == (True, "", "So much to say")
    assert not second.thinking_exhausted
    assert chat.cost == Decimal("0.03")
    assert [sent(upstream, index)["max_completion_tokens"] for index in (0, 1)] == [200, 16_000]
    assert turns(upstream) == [{"role": "user", "content": "Why?"}]
    assert [turn["content"] for turn in chat.messages] == ["Why?", "short"]


def test_messages_are_a_copy(upstream: ScriptedUpstream) -> None:
    upstream.add(answer("one", reasoning_content="hm"))

    with Chat(base_url=upstream.base_url) as chat:
        reply = chat.ask("1?")
        chat.messages[1]["reasoning_content"] = "edited"
        reply.raw.clear()

        assert chat.messages[1] == {"role": "assistant", "content": "one", "reasoning_content": "hm"}


def test_connections_are_reused_and_a_closed_chat_opens_new_ones(upstream: ScriptedUpstream) -> None:
    upstream.add(*(answer("ok") for _ in range(3)))

    chat = Chat(base_url=upstream.base_url)
    chat.ask("1?")
    chat.ask("2?")
    assert upstream.connections == 1
    chat.close()
    chat.close()
    chat.ask("3?")
    chat.close()

    assert upstream.connections == 2
    assert len(turns(upstream)) == 5


def test_calls_from_two_threads_do_not_mix_their_turns(upstream: ScriptedUpstream) -> None:
    upstream.add(*(answer("ok") for _ in range(6)))

    with Chat(base_url=upstream.base_url) as chat:
        threads = [OsThread(target=chat.ask, args=(f"{number}?",)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        roles = [turn["role"] for turn in chat.messages]

    assert roles == ["user", "assistant"] * 6
    assert sorted(len(turns(upstream, index)) for index in range(6)) == [1, 3, 5, 7, 9, 11]


@pytest.mark.parametrize("question", ["", "  \n", "half \ud83d", None, 3])
def test_a_question_that_no_server_takes_is_refused_before_it_is_sent(
    upstream: ScriptedUpstream, question: Any
) -> None:
    with Chat(base_url=upstream.base_url) as chat, pytest.raises(InvalidInput):
        chat.ask(question)

    assert upstream.requests == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"effort": "medium"}, "effort must be one of low, high, max, not 'medium'"),
        ({"model": ""}, "model"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": True}, "max_completion_tokens"),
        ({"system": "half \ud83d"}, "half a character at position 5"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        Chat(**arguments)


def test_a_body_that_begins_with_white_space_is_an_answer(upstream: ScriptedUpstream) -> None:
    body = '{"model":"m","choices":[{"finish_reason":"stop","message":{"role":"assistant","content":"late"}}]}'
    upstream.add({"status": 200, "headers": {"Content-Type": "application/json"}, "text": "   \n" + body})

    with Chat(base_url=upstream.base_url) as chat:
        reply = chat.ask("slow?")

    assert (reply.text, reply.usage, reply.cost) == ("late", None, None)


def test_neither_a_chat_nor_its_logs_show_the_key(
    upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    upstream.add(answer("ok"), {"status": 401, "json": {"error": {"message": "no", "type": "x"}}})

    with Chat(base_url=upstream.base_url, api_key="sk-secret-7") as chat:
        chat.ask("hi")
        with pytest.raises(Exception, match="401") as caught:
            chat.ask("hi")

        assert "sk-secret-7" not in f"{chat!r} {caught.value!r} {caplog.text} {vars(caught.value)}"
        assert repr(chat) == f"Chat(model='kimi-k3.1-pro', base_url='{upstream.base_url}', turns=2, cost=0)"
