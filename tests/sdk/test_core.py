"""The logic of a call without a socket or a clock: its steps are performed by the test."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from backends.json import encode
from kimi_sdk import (
    Chat,
    ConnectionFailed,
    KimiError,
    Overloaded,
    RateLimited,
    Reply,
    StreamCut,
    TextDelta,
    ThinkingDelta,
    ToolCall,
)
from kimi_sdk.exchange import Call, Exchange, Settings
from kimi_sdk.meter import Account, Meter
from kimi_sdk.place import place_of
from kimi_sdk.prices import Tariff
from kimi_sdk.reply import Opening
from kimi_sdk.request import Manner, Wish, request_body
from kimi_sdk.steps import STEPS, HangUp, Head, Post, Read, Sleep, World
from kimi_sdk.thread import checked_turns
from kimi_sdk.wire import Endpoint
from pricing.cards import load_cards

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
CARDS = load_cards()
SSE = {"content-type": "text/event-stream", "x-request-id": "req-1"}


def event(**delta: Any) -> str:
    finish = delta.pop("finish", None)
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return f"data: {json.dumps({'id': 'c-1', 'model': 'kimi-k3.1-pro', 'choices': [choice]})}\n\n"


USAGE = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150, "cached_tokens": 0}
CALL = {"index": 0, "id": "f:0", "type": "function", "function": {"name": "f", "arguments": '{"a"'}}
REST = {"index": 0, "function": {"arguments": ": 1}"}}
WHOLE = "".join(
    [
        event(role="assistant", content=""),
        event(reasoning_content="Hm … 思考"),
        event(reasoning_content=" 🙂"),
        event(content="On"),
        ": keep-alive\n\n",
        event(content="ce"),
        event(tool_calls=[CALL]),
        event(tool_calls=[REST]),
        event(finish="tool_calls"),
        f"data: {json.dumps({'choices': [], 'usage': USAGE})}\n\n",
        "data: [DONE]\n\n",
    ]
).encode()

Outcome = tuple[int, dict[str, str], Sequence[bytes]] | KimiError
"""What a request meets: status, head and pieces of the body, or an error instead of them."""


@dataclass
class Played:
    """A call that was played through."""

    events: list[Any] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    posted: list[Post] = field(default_factory=list)
    reply: Reply | None = None
    error: KimiError | None = None
    meter: Meter = field(default_factory=Meter)


def play(*outcomes: Outcome, dialect: str = "moonshot", wish: Wish | None = None, leave_after: int = -1) -> Played:
    played = Played()
    place = place_of("localhost", dialect)
    world = World(
        lambda: NOON, lambda: sum(played.slept), lambda: 0.5, iter(f"key-{n}" for n in range(9)).__next__
    )
    endpoint = Endpoint("http://localhost/v1", "", "test", "test")
    settings = Settings(endpoint, Tariff(CARDS, place.dialect.seller), Account(played.meter), world, 2, 5.0)
    turns = checked_turns([{"role": "user", "content": "hi"}])
    logic = Exchange(Call(Manner(place, "kimi-k3.1-pro"), turns, wish or Wish(), None), settings).run()
    waiting, pieces = list(outcomes), iter([b""])
    answer: Any = None
    try:
        while True:
            error, answer = (answer, None) if isinstance(answer, KimiError) else (None, answer)
            step = logic.throw(error) if error is not None else logic.send(answer)
            answer = None
            match step:
                case Post():
                    played.posted.append(step)
                    outcome = waiting.pop(0)
                    if isinstance(outcome, KimiError):
                        answer = outcome
                    else:
                        answer, pieces = Head(outcome[0], outcome[1]), iter(outcome[2])
                case Read(whole):
                    answer = b"".join(pieces) if whole else next(pieces, b"")
                case Sleep(seconds):
                    played.slept.append(seconds)
                case HangUp():
                    pieces = iter(())
                case _:
                    assert not isinstance(step, STEPS)
                    played.events.append(step)
                    if len(played.events) == leave_after:
                        logic.close()
                        return played
    except StopIteration as end:
        played.reply = end.value
    except KimiError as err:
        played.error = err
    return played


@settings(max_examples=60)
@given(st.lists(st.integers(1, len(WHOLE) - 1), max_size=12))
def test_any_split_of_the_bytes_gives_the_same_answer(cuts: list[int]) -> None:
    ends = sorted({0, *cuts, len(WHOLE)})
    pieces = [WHOLE[start:end] for start, end in pairwise(ends)]

    played = play((200, SSE, pieces))

    reply = played.reply
    assert reply is not None
    assert (reply.text, reply.thinking) == ("Once", "Hm … 思考 🙂")
    assert reply.tool_calls == (ToolCall("f:0", "f", '{"a": 1}'),)
    assert "".join(each.text for each in played.events if isinstance(each, TextDelta)) == "Once"
    assert "".join(each.text for each in played.events if isinstance(each, ThinkingDelta)) == reply.thinking
    assert (reply.cost, reply.cost_source) == (Decimal("0.0007"), "cards")
    assert (played.meter.cost, played.meter.replies) == (Decimal("0.0007"), 1)


@settings(max_examples=60)
@given(st.integers(0, len(WHOLE) - 1))
def test_a_stream_cut_anywhere_is_an_error_that_has_what_came(cut: int) -> None:
    played = play((200, SSE, [WHOLE[:cut]]))

    assert played.reply is None or cut > WHOLE.index(b'tool_calls"}')
    given_out = "".join(each.text for each in played.events)
    if isinstance(played.error, StreamCut):
        reply = played.error.reply
        assert given_out == (reply.thinking or "") + reply.text
        assert played.meter.estimated == reply.cost
        assert reply.cost is not None
    elif played.error is not None:
        assert isinstance(played.error, ConnectionFailed)
        assert given_out == ""
        assert played.meter.estimated > 0, "its prompt was read"
    assert len(played.posted) == 1


def test_a_wait_that_was_named_is_kept_and_the_key_stays() -> None:
    busy = (429, {"retry-after": "7"}, [b'{"error":{"type":"rate_limit_error","message":"busy"}}'])
    full: Outcome = (503, {}, [b'{"error":"full"}'])

    played = play(busy, full, (200, SSE, [WHOLE]), dialect="gateway")

    assert played.reply is not None
    assert 7 <= played.slept[0] < 7.1
    assert 0.5 <= played.slept[1] <= 1
    assert {post.headers["Idempotency-Key"] for post in played.posted} == {"key-0"}
    assert len({post.body for post in played.posted}) == 1


def test_what_never_helps_is_raised_and_what_helps_not_enough_too() -> None:
    full: Outcome = (503, {}, [b'{"error":"full"}'])
    long = (429, {"retry-after": "100"}, [b'{"error":{"type":"rate_limit_error","message":"busy"}}'])

    assert isinstance(play(full, full, full).error, Overloaded)
    assert isinstance(play(long).error, RateLimited)
    assert isinstance(play(ConnectionFailed("cut", was_sent=True)).error, ConnectionFailed)
    assert play(ConnectionFailed("nobody"), (200, SSE, [WHOLE])).reply is not None


@pytest.mark.parametrize("leave_after", [1, 2, 3])
def test_a_call_that_is_left_is_counted_as_what_it_has_probably_cost(leave_after: int) -> None:
    played = play((200, SSE, [WHOLE[: WHOLE.index(b"On")], WHOLE[WHOLE.index(b"On") :]]), leave_after=leave_after)

    assert (played.reply, played.error) == (None, None)
    assert played.meter.estimated > 0
    assert (played.meter.replies, played.meter.cost) == (0, Decimal(0))


def test_an_answer_of_a_server_that_does_not_stream_is_an_answer() -> None:
    message = {"role": "assistant", "content": "Once", "reasoning_content": "Hm"}
    body = {"model": "m", "choices": [{"finish_reason": "stop", "message": message}]}

    played = play((200, {"content-type": "application/json; charset=utf-8"}, [b"  \n", encode(body)]))

    assert played.events == [ThinkingDelta("Hm"), TextDelta("Once")]
    assert played.reply is not None
    assert played.reply.text == "Once"


@settings(max_examples=60)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=20)},
            optional={"reasoning_content": st.text(max_size=20) | st.none()},
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_longer_history_begins_with_the_same_bytes(messages: list[dict[str, Any]]) -> None:
    for name in ("gateway", "moonshot", "openrouter", "vllm", "sglang"):
        manner = Manner(place_of("localhost", name), "kimi-k3.1-pro")
        turns = checked_turns(messages)
        end = b"}]"
        shorter = request_body(manner, turns[:-1], Wish()).split(end)[0] if len(turns) > 1 else b""
        longer = request_body(manner, turns, Wish())

        assert longer.startswith(shorter)
        held = json.loads(longer)["messages"]
        thoughts = [turn.get("reasoning_content", turn.get("reasoning")) for turn in held]
        kept = [
            turn.get("reasoning_content") if turn["role"] == "assistant" else thought
            for turn, thought in zip(messages, thoughts, strict=True)
        ]
        assert thoughts == kept


def test_the_beginning_that_was_given_comes_first_and_only_once() -> None:
    played = play((200, SSE, [WHOLE]), wish=Wish(opening=Opening("Upon ")))

    assert played.reply is not None
    assert played.reply.text == "Upon Once"
    assert "".join(each.text for each in played.events if isinstance(each, TextDelta)) == "Upon Once"
    assert json.loads(played.posted[0].body)["messages"][-1] == {
        "role": "assistant",
        "content": "Upon ",
        "partial": True,
    }


def test_a_reply_is_drawn_and_says_what_it_is() -> None:
    reply = play((200, SSE, [WHOLE])).reply
    assert reply is not None
    drawn = StringIO()
    Console(file=drawn, width=80).print(reply)

    footer = "kimi-k3.1-pro · standard · effort unset · tool_calls · 100 + 50 tokens · 0.0007 USD (cards), calls f"
    assert reply.footer == footer
    assert repr(reply) == f"<Reply 'Once', thinking of 9 characters · {footer}>"
    assert "Once" in drawn.getvalue()
    assert "思考" in drawn.getvalue()
    assert reply._repr_markdown_().endswith(f"Once\n\n<sub>{footer}</sub>")
    assert str(reply) == "Once"


def test_a_chat_shows_where_it_asks() -> None:
    assert repr(Chat(base_url="http://10.0.0.1/v1")) == (
        "Chat(model='kimi-k3.1-pro', base_url='http://10.0.0.1/v1', turns=0, cost=0)"
    )
