"""Where a chat sends and with which key: argument, variable, default; and what is no address."""

import socket
from contextlib import ExitStack

import pytest

from kimi_sdk import Chat, ConnectionFailed, InvalidInput, NoAnswerInTime
from support.scripted import ScriptedUpstream, dead_port

OK = {
    "status": 200,
    "json": {"model": "m", "choices": [{"finish_reason": "stop", "message": {"content": "ok"}}]},
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KIMI_BASE_URL", "KIMI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_without_anything_the_local_gateway_is_asked() -> None:
    assert "base_url='http://127.0.0.1:8000/v1'" in repr(Chat())


def test_variables_say_where_and_with_which_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedUpstream([OK]) as upstream:
        monkeypatch.setenv("KIMI_BASE_URL", upstream.base_url + "/")
        monkeypatch.setenv("KIMI_API_KEY", " sk-from-variable\n")
        with Chat() as chat:
            chat.ask("hi")

        assert upstream.requests[0].headers["authorization"] == "Bearer sk-from-variable"
        assert upstream.requests[0].path == "/v1/chat/completions"


def test_arguments_win_over_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIMI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("KIMI_API_KEY", "sk-from-variable")
    with ScriptedUpstream([OK]) as upstream:
        with Chat(base_url=upstream.base_url, api_key="sk-argument") as chat:
            chat.ask("hi")

        assert upstream.requests[0].headers["authorization"] == "Bearer sk-argument"


def test_blank_variables_count_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIMI_BASE_URL", " ")

    assert "base_url='http://127.0.0.1:8000/v1'" in repr(Chat(base_url=""))


@pytest.mark.parametrize(
    "base_url",
    ["127.0.0.1:8000", "ftp://host/v1", "http://", "http://[::1/v1", "http://h:99999/v1", "http://h/v1?key=sk-9"],
)
def test_what_is_no_address_is_refused_saying_where_it_came_from(base_url: str) -> None:
    with pytest.raises(InvalidInput, match="the argument base_url") as caught:
        Chat(base_url=base_url)

    assert "sk-9" not in str(caught.value)


def test_a_key_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidInput, match="KIMI_API_KEY") as caught:
        Chat(base_url="https://user:sk-9@host/v1")

    assert "sk-9" not in str(caught.value)


@pytest.mark.parametrize("key", ["sk-9 sk-9", "sk-9\nX: y", "sk-9é"])
def test_a_key_with_impossible_characters_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(InvalidInput, match="the argument api_key") as caught:
        Chat(api_key=key)

    assert "sk-9" not in str(caught.value)


def test_nobody_there_says_where_it_looked_and_what_to_do() -> None:
    with (
        dead_port() as port,
        Chat(base_url=f"http://127.0.0.1:{port}/v1") as chat,
        pytest.raises(ConnectionFailed, match=f"127.0.0.1:{port}/v1.*argument base_url.*KIMI_BASE_URL"),
    ):
        chat.ask("hi")


def test_silence_ends_after_the_timeout_and_says_that_it_may_be_billed() -> None:
    with ScriptedUpstream([{"then": "hold"}]) as upstream:
        with Chat(base_url=upstream.base_url, timeout_s=0.2) as chat:
            with pytest.raises(NoAnswerInTime, match=r"silent for 0.2 s.*may bill"):
                chat.ask("hi")
            assert chat.messages == []

        assert len(upstream.requests) == 1


def test_a_host_that_never_takes_the_connection_was_sent_nothing() -> None:
    with socket.socket() as door, ExitStack() as waiting:
        door.bind(("127.0.0.1", 0))
        door.listen(0)  # a full queue makes the system ignore further connections
        for _ in range(2):
            knock = waiting.enter_context(socket.socket())
            knock.setblocking(False)
            knock.connect_ex(door.getsockname())
        base_url = f"http://127.0.0.1:{door.getsockname()[1]}/v1"
        chat = waiting.enter_context(Chat(base_url=base_url, timeout_s=0.2))
        with pytest.raises(ConnectionFailed, match="timed out") as caught:
            chat.ask("hi")

    assert not isinstance(caught.value, NoAnswerInTime)


def test_an_answer_cut_short_is_a_failed_connection() -> None:
    with (
        ScriptedUpstream([{**OK, "framing": "short", "then": "close"}]) as upstream,
        Chat(base_url=upstream.base_url, max_retries=0) as chat,
        pytest.raises(ConnectionFailed) as caught,
    ):
        chat.ask("hi")

    assert caught.value.was_sent
