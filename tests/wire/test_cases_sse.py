"""The cases of kind sse, over real sockets."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.cases import case
from support.lab import Lab, lab

SLOW = 0.02  # the timelines' 95 s become 1.9 s, and the limits below shrink alike


def test_sse_01_crlf_split_between_writes(shared_lab: Lab) -> None:
    given = case("sse-01")["given"]
    heard = shared_lab.ask(given["client_request"], *given["upstream"])
    assert (heard.joined("content"), heard.finish_reason(), heard.done) == ("ab", "stop", True)


def test_sse_02_a_character_cut_by_a_write(shared_lab: Lab) -> None:
    given = case("sse-02")["given"]
    heard = shared_lab.ask(given["client_request"], *given["upstream"])
    assert heard.joined("content") == "价格 🚀 ok"
    assert "\N{REPLACEMENT CHARACTER}" not in heard.raw.decode()


def test_sse_03_comments_are_no_events(shared_lab: Lab) -> None:
    given = case("sse-03")["given"]
    heard = shared_lab.ask(given["client_request"], *given["upstream"], target="openrouter")
    assert (heard.joined("content"), heard.finish_reason()) == ("x", "stop")


def test_sse_03_white_space_before_a_body_is_a_keep_alive(shared_lab: Lab) -> None:
    body = ' \n \n {"choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"x"}}]}'
    request = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "hi"}]}
    answer = {"status": 200, "headers": {"content-type": "application/json"}, "text": body}
    heard = shared_lab.ask(request, answer, target="openrouter")
    assert heard.json["choices"][0]["message"]["content"] == "x"


def test_sse_04_an_error_in_the_stream_ends_it_as_an_error(shared_lab: Lab) -> None:
    given = case("sse-04")["given"]
    before = len(shared_lab.upstreams["moonshot"].requests)
    heard = shared_lab.ask(given["client_request"], *given["upstream"], target="openrouter")
    assert heard.joined("content") == "Par"
    assert heard.error["type"] == "upstream_error"
    assert "provider went away" in heard.error["message"]
    assert (heard.finish_reason(), heard.done) in ((None, False), ("error", False))
    assert len(shared_lab.upstreams["moonshot"].requests) == before
    row = shared_lab.row(heard)
    assert (row["status"], row["estimated"], row["completion_tokens"] > 0) == ("error", True, True)


def variant(name: str) -> Any:
    return {"status": 200, **case("sse-05")["given"]["variants"][name]}


def test_sse_05_a_close_without_finish_reason_is_incomplete(shared_lab: Lab) -> None:
    heard = shared_lab.ask(case("sse-05")["given"]["client_request"], variant("A"))
    assert (heard.joined("content"), heard.error["type"]) == ("half", "upstream_error")
    assert (heard.finish_reason(), heard.done) == (None, False)
    row = shared_lab.row(heard)
    assert (row["status"], row["estimated"]) == ("incomplete", True)


@pytest.mark.parametrize("framing", ["chunked", "until-close"])
def test_sse_05_a_clean_end_of_the_connection_without_finish_reason_is_incomplete_too(
    shared_lab: Lab, framing: str
) -> None:
    answer = {**variant("A"), "framing": framing, "then": None}
    heard = shared_lab.ask(case("sse-05")["given"]["client_request"], answer)
    assert (heard.error["type"], heard.done) == ("upstream_error", False)
    assert shared_lab.row(heard)["status"] == "incomplete"


@pytest.mark.parametrize("name", "BC")
def test_sse_05_a_finish_reason_without_end_mark_is_a_whole_answer(shared_lab: Lab, name: str) -> None:
    began = time.monotonic()
    heard = shared_lab.ask(case("sse-05")["given"]["client_request"], variant(name))
    assert time.monotonic() - began < 5
    assert (heard.joined("content"), heard.finish_reason(), heard.done) == ("all", "stop", True)
    row = shared_lab.row(heard)
    assert (row["status"], row["prompt_tokens"], row["completion_tokens"]) == ("ok", 5, 1)
    assert row["cost_usd"] == "0.00002"


@pytest.fixture(scope="module")
def slow_lab() -> Iterator[Lab]:
    """Periods at 1/50: a keep-alive each 0.3 s (15 s), an idle limit of 3 s on each target."""
    with lab(server="drain_grace_s = 0\nkeepalive_interval_s = 0.3", time_factor=SLOW, idle_timeout_s=3) as made:
        yield made


def test_sse_06_silence_in_a_healthy_stream_is_bridged_by_keep_alives(slow_lab: Lab) -> None:
    given = case("sse-06")["given"]
    heard = slow_lab.ask(given["client_request"], *given["upstream"], target="vllm")
    assert heard.finish_reason() == "tool_calls"
    assert heard.error is None
    assert heard.comments >= 4
    assert len(heard.tool_calls()) == 1


def test_sse_06_silence_beyond_the_idle_limit_is_a_timeout_event(slow_lab: Lab) -> None:
    given = case("sse-06")["given"]
    first = given["upstream"][0]["timeline"][0][1].replace('"content":""', '"content":"a"')
    heard = slow_lab.ask(
        given["client_request"], {"status": 200, "timeline": [[0, first], [500, first]]}, target="vllm"
    )
    assert (heard.error["type"], heard.error["status"], heard.done) == ("upstream_timeout", 504, False)
    assert slow_lab.row(heard)["attempt_log"][0]["maybe_billed"] is True


def test_sse_06_upstream_comments_count_as_life_and_nothing_caps_the_whole(slow_lab: Lab) -> None:
    given = case("sse-06")["given"]
    head, _, tail = given["upstream"][0]["timeline"]
    comments = [[at, ": keep-alive\n\n"] for at in range(50, 300, 50)]
    answer = {"status": 200, "timeline": [head, *comments, [300, tail[1]]]}
    heard = slow_lab.ask(given["client_request"], answer, target="vllm")
    assert (heard.finish_reason(), heard.error) == ("tool_calls", None)
