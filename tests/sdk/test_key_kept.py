"""The key goes to the address it was given for, and into no message."""

import asyncio
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from kimi_sdk import AsyncChat, Chat, ConnectionFailed, KimiError, RequestRefused, ServerFailed
from support.scripted import ScriptedUpstream, dead_port

KEY = "sk-very/secret+1"


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as server:
        yield server


def caught(base_url: str, *, is_async: bool = False) -> KimiError:
    async def asked_async() -> None:
        async with AsyncChat(base_url=base_url, api_key=KEY) as chat:
            await chat.ask("hi")

    def asked() -> None:
        with Chat(base_url=base_url, api_key=KEY) as chat:
            chat.ask("hi")

    with pytest.raises(KimiError) as raised:
        asyncio.run(asked_async()) if is_async else asked()
    return raised.value


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed_and_says_where_it_leads(
    upstream: ScriptedUpstream, status: int, is_async: bool
) -> None:
    with ScriptedUpstream([{"status": 200, "json": {}}]) as other:
        to = f"{other.base_url}/chat/completions"
        upstream.add({"status": status, "headers": {"Location": f"{to}?token=1"}, "text": ""})

        failure = caught(upstream.base_url, is_async=is_async)

        assert type(failure) is ServerFailed
        assert (failure.status, failure.should_retry) == (status, False)
        assert f"redirects to {to}, which is not followed" in str(failure)
        assert "token=1" not in str(failure)
        assert (len(upstream.requests), other.requests) == (1, [])


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_key_is_sent_once_and_as_it_is(upstream: ScriptedUpstream, is_async: bool) -> None:
    upstream.add({"status": 400, "json": {"error": {"type": "invalid_request_error", "message": "no"}}})
    caught(upstream.base_url, is_async=is_async)

    sent = [value for name, value in upstream.requests[0].raw_headers if name.lower() == "authorization"]
    assert sent == [f"Bearer {KEY}"]


@pytest.mark.parametrize("before", [0, 150, 190, 495, 1990])
def test_a_server_that_repeats_the_key_does_not_get_it_into_the_error(
    upstream: ScriptedUpstream, before: int
) -> None:
    fields: dict[str, Any] = {
        "message": f"{'x' * before} unknown key {KEY}",
        "type": KEY,
        "code": KEY,
        "param": KEY,
    }
    upstream.add({"status": 400, "json": {"error": fields}})

    failure = caught(upstream.base_url)

    assert isinstance(failure, RequestRefused)
    for said in (str(failure), failure.type, failure.code, failure.param):
        assert KEY[:9] not in str(said)


def test_an_error_within_a_stream_does_not_hold_the_key_either(upstream: ScriptedUpstream) -> None:
    text = f'data: {{"error": {{"message": "no key {KEY}", "type": "x", "code": "x"}}}}\n\n'
    upstream.add({"status": 200, "sse_text": text})

    assert KEY not in str(caught(upstream.base_url))


def _shown(failure: BaseException) -> str:
    """The traceback as tools show it that print variables, without this test's own."""
    shown = traceback.TracebackException.from_exception(failure, capture_locals=True)
    lines, held = [], [shown]
    while held:
        one = held.pop()
        for frame in one.stack:
            if frame.filename != __file__:
                lines += [f"{name} = {value}" for name, value in (frame.locals or {}).items()]
        held += [each for each in (one.__cause__, one.__context__) if each is not None]
    return "\n".join(lines)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_no_frame_of_a_failed_call_shows_the_key(upstream: ScriptedUpstream, is_async: bool) -> None:
    upstream.add({"status": 500, "json": {}, "headers": {"x-should-retry": "false"}})
    failures = [caught(upstream.base_url, is_async=is_async)]
    with dead_port() as port:
        failures.append(caught(f"http://127.0.0.1:{port}/v1", is_async=is_async))

    for failure in failures:
        shown = _shown(failure)
        assert "endpoint" in shown  # there were variables to be shown
        assert KEY not in shown


def test_only_where_nobody_answers_the_gateway_is_asked_after(upstream: ScriptedUpstream) -> None:
    upstream.add({"status": 200, "json": {"choices": []}, "framing": "short", "then": "close"})
    with Chat(base_url=upstream.base_url, max_retries=0) as chat, pytest.raises(ConnectionFailed) as raised:
        chat.ask("hi")
    assert "broke before the answer was whole" in str(raised.value)
    assert "running there" not in str(raised.value)

    with (
        dead_port() as port,
        Chat(base_url=f"http://127.0.0.1:{port}/v1", max_retries=0) as chat,
        pytest.raises(ConnectionFailed, match="Is the gateway running there"),
    ):
        chat.ask("hi")
