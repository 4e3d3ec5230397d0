"""The cases of kinds errors and context, and bill-03: what is tried again, what never, what the client hears."""

import time
from collections.abc import Iterator
from email.utils import formatdate
from itertools import pairwise
from typing import Any

import pytest

from support.cases import case
from support.lab import Heard, Lab, lab, post
from support.scripted import dead_port

OK = {"status": 200, "json_usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}}


def route(*targets: str) -> str:
    """A route that tries these targets in order."""
    names = ", ".join(f'"{name}"' for name in targets)
    return f'[[routes]]\nmodel = "kimi-k3.1-pro"\npolicy = "order"\ntargets = [{names}]\n'


@pytest.fixture(scope="module")
def patient() -> Iterator[Lab]:
    """Three retries; openrouter and sglang fall back to moonshot, moonshot to openrouter."""
    with lab("[retry]\nmax_retries = 3\n") as made:
        yield made


@pytest.fixture(scope="module")
def falling() -> Iterator[Lab]:
    """Three retries in the order moonshot, openrouter."""
    with lab("[retry]\nmax_retries = 3\n" + route("moonshot", "openrouter")) as made:
        yield made


@pytest.fixture(scope="module")
def single() -> Iterator[Lab]:
    """No retries."""
    with lab("[retry]\nmax_retries = 0\n") as made:
        yield made


def calls(made: Lab, target: str) -> int:
    return len(made.upstreams[target].requests)


def billed(made: Lab, heard: Heard) -> bool:
    return made.row(heard)["cost_usd"] not in ("0", None)


def test_err_01_an_empty_account_is_final_and_names_no_account(patient: Lab) -> None:
    given = case("err-01")["given"]
    before = calls(patient, "moonshot")
    heard = patient.ask(given["client_request"], *given["upstream"])
    assert calls(patient, "moonshot") == before + 1
    assert (heard.status, heard.error["type"]) == (402, "exceeded_current_quota_error")
    assert "retry-after" not in heard.headers
    assert heard.headers["x-should-retry"] == "false"
    assert b"org-1a2b" not in heard.raw
    assert b"ak-9z" not in heard.raw
    assert not billed(patient, heard)


def test_err_01_with_a_fallback_the_request_moves_on_at_once(falling: Lab) -> None:
    given = case("err-01")["given"]
    falling.upstreams["moonshot"].add(*given["upstream"])
    falling.upstreams["openrouter"].add(OK)
    began = time.monotonic()
    heard = post(falling.gateway.base_url, given["client_request"], {})
    assert (heard.status, heard.headers["x-kimi-target"], heard.json["kimi"]["attempts"]) == (200, "openrouter", 2)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("stream", [False, True])
def test_err_02_an_overload_is_waited_out_with_growing_pauses(patient: Lab, stream: bool) -> None:
    given = case("err-02")["given"]
    request = given["client_request"] | {"stream": stream}
    upstream = patient.upstreams["moonshot"]
    before = len(upstream.requests)
    heard = patient.ask(request, *given["upstream"])
    content = heard.joined("content") if stream else heard.json["choices"][0]["message"]["content"]
    assert (heard.status, content) == (200, "ok")
    times = [received.at_s for received in upstream.requests[before:]]
    assert len(times) == 3
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits[0] >= 0.25
    assert waits[1] >= 0.5
    assert max(waits) < 60
    row = patient.row(heard)
    assert (row["attempts"], row["cost_usd"]) == (3, "0.00004")
    assert [attempt["fault"] for attempt in row["attempt_log"]] == ["overload", "overload", None]


def test_err_02_when_the_retries_are_spent_the_client_gets_the_429(patient: Lab) -> None:
    given = case("err-02")["given"]
    heard = patient.ask(given["client_request"], *[given["upstream"][0]] * 4)
    assert (heard.status, heard.error["type"]) == (429, "engine_overloaded_error")
    assert int(heard.headers["retry-after"]) >= 1
    assert heard.headers["x-should-retry"] == "false"
    assert not billed(patient, heard)


def test_err_02_a_wait_in_words_is_kept(patient: Lab) -> None:
    given = case("err-02")["given"]
    upstream = patient.upstreams["moonshot"]
    before = len(upstream.requests)
    variant = given["variant_B"]
    wait = variant["json"]["error"]["message"]
    assert "after 3 seconds" in wait
    heard = patient.ask(given["client_request"], variant, OK)
    first, second = (received.at_s for received in upstream.requests[before:])
    assert heard.status == 200
    assert 3 <= second - first < 4.5


def test_err_03_retry_after_as_a_date(single: Lab, patient: Lab) -> None:
    given = case("err-03")["given"]
    limited = {**given["upstream"][0], "headers": {"Retry-After": formatdate(time.time() + 4, usegmt=True)}}
    upstream = patient.upstreams["openrouter"]
    before = len(upstream.requests)
    heard = patient.ask(given["client_request"], limited, given["upstream"][1], target="openrouter")
    first, second = (received.at_s for received in upstream.requests[before:])
    assert heard.status == 200
    assert 2.5 <= second - first <= 5.5
    limited = {**given["upstream"][0], "headers": {"Retry-After": formatdate(time.time() + 7, usegmt=True)}}
    heard = single.ask(given["client_request"], limited, target="openrouter")
    assert (heard.status, heard.error["type"]) == (429, "rate_limit_error")
    assert 5 <= int(heard.headers["retry-after"]) <= 7


BROKEN = [
    case("err-04")["given"]["upstream"][0],
    {"status": 200, "headers": {"Content-Type": "text/html"}, "text": "<html>gateway</html>"},
    {"status": 503, "text": ""},
    {"status": 200, "headers": {"Content-Type": "application/json"}, "text": '{"id": "cmpl-1", "ob'},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("answer", BROKEN)
def test_err_04_an_unreadable_answer_is_a_bad_gateway_in_our_shape(single: Lab, answer: Any, stream: bool) -> None:
    request = case("err-04")["given"]["client_request"] | {"stream": stream}
    heard = single.ask(request, answer, target="vllm")
    assert (heard.status, heard.headers["content-type"]) == (502, "application/json")
    assert (heard.error["type"], heard.error["code"]) == ("upstream_error", "bad_gateway")
    assert b"<html" not in heard.raw
    assert not billed(single, heard)


def test_err_05_an_error_inside_a_200_is_an_error(single: Lab) -> None:
    given = case("err-05")["given"]
    heard = single.ask(given["client_request"], *given["upstream"], target="openrouter")
    assert (heard.status, heard.error["type"]) == (502, "upstream_error")
    assert "no capacity" in heard.error["message"]
    assert b"user_id" not in heard.raw
    assert not billed(single, heard)


def test_err_06_a_content_filter_is_final_and_has_a_string_code(falling: Lab) -> None:
    given = case("err-06")["given"]
    before = calls(falling, "moonshot"), calls(falling, "openrouter")
    falling.upstreams["moonshot"].add(*given["upstream"])
    heard = post(falling.gateway.base_url, given["client_request"], {})
    assert (heard.status, heard.error["type"], heard.error["param"]) == (400, "content_filter", "prompt")
    assert heard.error["code"] in ("content_filter", "400")
    assert (calls(falling, "moonshot"), calls(falling, "openrouter")) == (before[0] + 1, before[1])
    assert not billed(falling, heard)


def test_ctx_01_an_overflow_has_the_standard_code_and_no_second_try(patient: Lab) -> None:
    given = case("ctx-01")["given"]
    before = calls(patient, "sglang")
    heard = patient.ask(given["client_request"], *given["upstream"], target="sglang")
    assert (heard.status, heard.error["type"]) == (400, "invalid_request_error")
    assert heard.error["code"] == "context_length_exceeded"
    assert "1048576" in heard.error["message"]
    assert calls(patient, "sglang") == before + 1
    assert not billed(patient, heard)


def test_bill_03_a_refused_connection_is_tried_again_and_billed_once() -> None:
    given = case("bill-03")["given"]
    with lab("[retry]\nmax_retries = 1\n", first={"moonshot": given["upstream"]}) as made:
        made.upstreams["moonshot"].let_in_after(0.1)
        heard = post(made.gateway.base_url, given["client_request"], {"x-kimi-target": "moonshot"})
        assert heard.status == 200
        row = made.row(heard)
    assert (row["attempts"], row["prompt_tokens"], row["completion_tokens"]) == (2, 900, 100)
    assert row["cost_usd"] == "0.0028"
    assert [attempt["fault"] for attempt in row["attempt_log"]] == ["connect", None]


def test_a_break_after_sending_is_not_repeated_on_the_same_target(patient: Lab) -> None:
    before = calls(patient, "vllm")
    request = case("err-04")["given"]["client_request"]
    heard = patient.ask(request, {"then": "reset"}, target="vllm")
    assert (heard.status, heard.error["code"]) == (502, "bad_gateway")
    assert calls(patient, "vllm") == before + 1
    assert patient.row(heard)["attempt_log"][0]["maybe_billed"] is True


def test_a_failed_first_attempt_leaves_no_trace_in_the_stream(falling: Lab) -> None:
    """Role-only chunks of an attempt that fails before content are dropped: the stream is the second's alone."""
    role = 'data: {"id":"first","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    full = 'data: {"error":{"message":"The request queue is full.","type":"ServiceUnavailable","code":503}}\n\n'
    text = (
        'data: {"id":"second","model":"moonshotai/kimi-k3.1-pro","choices":[{"index":0,"delta":{"content":"hi"},'
        '"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    )
    overload = {"status": 200, "sse_text": role + full}
    falling.upstreams["moonshot"].add(overload, overload)
    falling.upstreams["openrouter"].add({"status": 200, "sse_text": text})
    request = case("err-04")["given"]["client_request"] | {"stream": True}
    heard = post(falling.gateway.base_url, request, {})
    assert (heard.joined("content"), heard.done) == ("hi", True)
    assert {chunk["id"] for chunk in heard.chunks} == {"second"}


def test_with_the_first_target_down_every_request_reaches_the_second() -> None:
    with dead_port() as port:
        dead = (
            f'[[targets]]\nname = "dead"\ndialect = "vllm"\nbase_url = "http://127.0.0.1:{port}/v1"\n'
            'models = { "kimi-k3.1-pro" = "m" }\n'
        )
        with lab(dead + route("dead", "moonshot")) as made:
            request = case("err-04")["given"]["client_request"]
            made.upstreams["moonshot"].add(*[OK] * 30)
            heard = [post(made.gateway.base_url, request, {}) for _ in range(30)]
    assert [answer.status for answer in heard] == [200] * 30
    assert {answer.headers["x-kimi-target"] for answer in heard} == {"moonshot"}


@pytest.mark.parametrize(("window", "calls_elsewhere"), [(1_048_576, 0), (2_000_000, 1)])
def test_ctx_01_only_a_larger_window_is_tried_next(window: int, calls_elsewhere: int) -> None:
    given = case("ctx-01")["given"]
    with dead_port() as port:
        other = (
            f'[[targets]]\nname = "second"\ndialect = "vllm"\nbase_url = "http://127.0.0.1:{port}/v1"\n'
            f'models = {{ "kimi-k3.1-pro" = "m" }}\ncontext_window = {window}\n'
        )
        with lab(other + route("sglang", "second")) as made:
            made.upstreams["sglang"].add(*given["upstream"])
            heard = post(made.gateway.base_url, given["client_request"], {})
            row = made.row(heard)
    tried = [attempt["target"] for attempt in row["attempt_log"]]
    assert ("second" in tried) is bool(calls_elsewhere)
    assert calls_elsewhere or heard.error["code"] == "context_length_exceeded"
