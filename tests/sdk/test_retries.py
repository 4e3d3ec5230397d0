"""What is sent again and what is not: the rules, the keys that go with it, and both kinds of chat by one logic."""

import inspect
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_sdk import (
    AsyncChat,
    BadReply,
    Chat,
    ConnectionFailed,
    ContextTooLong,
    KimiError,
    MaxCostReached,
    NoAnswerInTime,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    ServerFailed,
)
from kimi_sdk.retry import MAX_WAIT_S, Standing, pause_before_retry_s
from support.scripted import ScriptedUpstream
from support.sdk_places import KINDS, Place, Talk, talk

KIND_IDS = ["sync", "async"]
both = pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
NETWORK = {"ask", "run", "resume", "map", "close"}


def refused(kind: type[RequestRefused], status: int, **fields: Any) -> RequestRefused:
    return kind("no", status=status, **fields)


def pause(error: KimiError, *, repeats: int = 0, guarded: bool = False, draw: float = 0.5) -> float | None:
    return pause_before_retry_s(error, Standing(repeats, 2, guarded, draw))


HELPED = [
    ConnectionFailed("never sent"),
    refused(RateLimited, 429),
    refused(Overloaded, 503),
    refused(ServerFailed, 500),
    refused(ServerFailed, 502),
    refused(RateLimited, 429, should_retry=True, retry_after_s=1.0),
]
HOPELESS = [
    NoAnswerInTime("silent", was_sent=True),
    refused(QuotaExhausted, 402),
    refused(ContextTooLong, 400),
    refused(ServerFailed, 502, should_retry=False),
    refused(RateLimited, 429, should_retry=True, retry_after_s=MAX_WAIT_S + 1),
    MaxCostReached("no", max_cost=Decimal(1), spent=Decimal(1), reserved=Decimal(0), bound=None),
    BadReply("html"),
]
HELPED_WITH_A_KEY = [
    ConnectionFailed("cut", was_sent=True),
    refused(ServerFailed, 504),
    refused(ServerFailed, 408, should_retry=True),
]


@pytest.mark.parametrize("error", HELPED, ids=repr)
def test_what_time_may_mend_is_sent_again(error: KimiError) -> None:
    assert pause(error) is not None
    assert pause(error, guarded=True) is not None
    assert pause(error, repeats=2) is None, "but not for ever"


@pytest.mark.parametrize("error", HOPELESS, ids=repr)
def test_what_no_time_mends_is_not_sent_again(error: KimiError) -> None:
    assert pause(error) is None
    assert pause(error, guarded=True) is None


@pytest.mark.parametrize("error", HELPED_WITH_A_KEY, ids=repr)
def test_what_may_have_been_billed_is_sent_again_only_with_a_key(error: KimiError) -> None:
    assert pause(error) is None
    assert pause(error, guarded=True) is not None


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 1), st.none() | st.floats(0, MAX_WAIT_S))
def test_a_pause_keeps_what_was_named_and_is_bounded(draw: float, repeats: int, named_s: float | None) -> None:
    found = pause(refused(RateLimited, 429, retry_after_s=named_s), repeats=repeats, draw=draw)

    assert found is not None
    assert (named_s or 0) <= found <= (named_s or 0) + 1


OK = {
    "status": 200,
    "json": {"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}]},
}


@both
def test_repeats_carry_one_key_and_new_questions_a_new_one(kind: type[Talk]) -> None:
    busy = {"status": 503, "headers": {"x-should-retry": "true", "retry-after": "0"}, "json": {"error": "full"}}
    with (
        ScriptedUpstream([{"then": "reset"}, busy, OK, OK]) as upstream,
        talk(kind, base_url=upstream.base_url) as made,
    ):
        made.ask("one")
        made.ask("two")

    keys = [request.headers["idempotency-key"] for request in upstream.requests]
    assert (keys[0] == keys[1] == keys[2], keys[3] != keys[0]) == (True, True)
    assert [request.headers["x-stainless-retry-count"] for request in upstream.requests] == ["0"] * 4
    assert len({request.body for request in upstream.requests[:3]}) == 1


@both
def test_without_retries_one_call_is_one_request(kind: type[Talk]) -> None:
    with (
        ScriptedUpstream([{"status": 503, "json": {"error": "full"}}]) as upstream,
        talk(kind, base_url=upstream.base_url, max_retries=0) as made,
        pytest.raises(Overloaded),
    ):
        made.ask("one")

    assert len(upstream.requests) == 1


@both
def test_an_answer_lost_on_its_way_from_the_gateway_is_paid_for_once(
    gateway_place: Place, kind: type[Talk]
) -> None:
    gateway_place.reset()
    with (
        losing_first(gateway_place.arguments["base_url"]) as base_url,
        talk(kind, base_url=base_url, timeout_s=10) as made,
    ):
        reply = made.ask("What is due?")

    lines = gateway_place.invoice()["lines"]
    assert [Decimal(line["usd"]) for line in lines] == [reply.cost]
    assert reply.text.startswith("Synthetic answer")
    assert len(gateway_place.seen()) == 1


@contextmanager
def losing_first(base_url: str) -> Iterator[str]:
    """A way to a server on which the first answer is made in full and lost. Its URL."""
    far = urlsplit(base_url)
    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=_serve, args=(door, (far.hostname, far.port)), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{door.getsockname()[1]}{far.path}"
    thread.join(10)


def _serve(door: socket.socket, far: Any) -> None:
    for is_lost in (True, False):
        near, _ = door.accept()
        with near, socket.create_connection(far, timeout=10) as there:
            request = b""
            while not request.endswith(b"}"):
                request += near.recv(65536)
            there.sendall(re.sub(rb"(?i)connection: keep-alive", b"connection: close", request, count=1))
            answer = b""
            while piece := there.recv(65536):
                answer += piece
            if not is_lost:
                near.sendall(answer)


def test_both_kinds_of_chat_offer_the_same() -> None:
    names = {name for name in dir(Chat) if not name.startswith("_")}
    assert names == {name for name in dir(AsyncChat) if not name.startswith("_")}
    for name in names:
        plain, waiting = inspect.getattr_static(Chat, name), inspect.getattr_static(AsyncChat, name)
        if plain is waiting:
            continue  # of their common base
        assert inspect.signature(plain).parameters == inspect.signature(waiting).parameters, name
        assert inspect.iscoroutinefunction(waiting) is (name in NETWORK), name
        assert not inspect.iscoroutinefunction(plain)
    differing = {
        name for name in names if inspect.getattr_static(Chat, name) is not inspect.getattr_static(AsyncChat, name)
    }
    assert differing == NETWORK | {"stream"}
