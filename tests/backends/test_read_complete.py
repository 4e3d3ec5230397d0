"""A JSON answer is read like a stream: one spelling, usage apart, and what is no answer is a fault."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.catalog import DIALECTS
from backends.faults import Fault, FaultKind
from backends.json import JsonObject, encode
from backends.reader import read_complete
from support.cases import case

USAGE = {"prompt_tokens": 9, "completion_tokens": 6}


def body(*, finish: str = "stop", message: Any = None, **top: Any) -> bytes:
    choice = {"index": 0, "message": message or {"role": "assistant", "content": "ok"}, "finish_reason": finish}
    return encode({"id": "c-1", "object": "chat.completion", "choices": [choice], **top})


def read(data: bytes, dialect: str = "moonshot", *, named_tool: bool = False) -> tuple[Any, JsonObject | None]:
    found = read_complete(data, DIALECTS[dialect], named_tool=named_tool)
    assert not isinstance(found, Fault)
    return found


def refused(data: bytes) -> Fault:
    found = read_complete(data, DIALECTS["moonshot"])
    assert isinstance(found, Fault)
    return found


def test_usage_is_handed_out_beside_the_answer() -> None:
    answer, usage = read(body(usage=USAGE))
    assert usage == USAGE
    assert "usage" not in answer
    assert read(body(usage=None))[1] is None
    assert read(body())[1] is None


def test_usage_inside_the_choice_counts_and_is_taken_out() -> None:
    choice = {"index": 0, "message": {"content": "ok"}, "finish_reason": "stop", "usage": USAGE}
    answer, usage = read(encode({"choices": [choice]}))
    assert usage == USAGE
    assert "usage" not in answer["choices"][0]
    assert read(encode({"choices": [choice], "usage": {"prompt_tokens": 1}}))[1] == {"prompt_tokens": 1}


def test_a_thought_told_three_ways_comes_once_and_its_details_stay() -> None:
    given_answer = case("rsn-02")["given"]["upstream"][0]["json"]
    answer, _ = read(encode(given_answer), "openrouter")
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == "Need data."
    assert message["reasoning_details"] == given_answer["choices"][0]["message"]["reasoning_details"]
    assert [call["id"] for call in message["tool_calls"]] == ["wx:0"]


def test_an_empty_thought_is_kept() -> None:
    answer, _ = read(encode(case("rsn-03")["given"]["turn_1_upstream"]))
    assert answer["choices"][0]["message"]["reasoning_content"] == ""


def test_an_answer_that_was_all_thought_passes_unchanged() -> None:
    given_answer = case("rsn-04")["given"]["upstream"][0]["json"]
    answer, usage = read(encode(given_answer))
    assert answer == {name: value for name, value in given_answer.items() if name != "usage"}
    assert usage == given_answer["usage"]


def test_the_finish_reason_after_a_named_tool_choice_is_set_right() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    data = body(message={"content": "", "tool_calls": [call]})
    assert read(data, "vllm", named_tool=True)[0]["choices"][0]["finish_reason"] == "tool_calls"
    assert read(data, "vllm")[0]["choices"][0]["finish_reason"] == "stop"
    assert read(body(), "vllm", named_tool=True)[0]["choices"][0]["finish_reason"] == "stop"


def test_the_index_of_a_stream_is_taken_out_of_whole_calls() -> None:
    call = {"id": "get_weather:0", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer, _ = read(body(message={"content": "", "tool_calls": [call]}, finish="tool_calls"), "sglang")
    assert "index" not in answer["choices"][0]["message"]["tool_calls"][0]


@pytest.mark.parametrize("before", [b" ", b"\n\n \n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_blanks_before_the_json_are_keep_alives(before: bytes) -> None:
    assert read(before + body() + b"\n")[0]["id"] == "c-1"


def test_an_error_object_inside_a_200_is_what_it_says() -> None:
    fault = refused(encode(case("err-05")["given"]["upstream"][0]["json"]))
    assert (fault.kind, fault.status, fault.message) == (FaultKind.SERVER, 502, "no capacity (33/32)")
    assert refused(b'{"error":{"type":"content_filter","message":"no"},"choices":[]}').kind is FaultKind.FILTER
    assert refused(b'{"error":"Unauthorized"}').message == "Unauthorized"
    assert refused(b'{"object":"error","message":"full","code":503}').kind is FaultKind.OVERLOAD


def test_a_null_error_is_none() -> None:
    assert read(body(error=None))[0]["id"] == "c-1"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"  \n",
        b"<html><head><title>502</title></head></html>",
        b"\n<!DOCTYPE html>",
        body()[:20],
        body()[:-1],
        b"null",
        b"[]",
        b'"text"',
        b"{}",
        b'{"choices":[]}',
        b'{"choices":{}}',
        b'{"choices":[1]}',
        b'{"choices":[{"index":0,"finish_reason":"stop"}]}',
        body(finish="error"),
        body(finish="abort"),
        b'{"choices":[{"error":{"message":"gone","code":502},"message":{"content":""}}]}',
    ],
)
def test_what_is_no_whole_answer_is_the_upstreams_fault(data: bytes) -> None:
    fault = refused(data)
    assert fault.kind is FaultKind.SERVER
    assert "<" not in fault.message


JSON = st.recursive(
    st.none() | st.integers(-2, 2) | st.sampled_from(["", "a", "stop"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "message", "content", "reasoning", "tool_calls", "finish_reason", "usage", "error"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON, st.sampled_from(sorted(DIALECTS)))
def test_any_json_is_an_answer_without_usage_or_a_fault(value: Any, dialect: str) -> None:
    found = read_complete(encode(value), DIALECTS[dialect], named_tool=True)
    if not isinstance(found, Fault):
        answer, usage = found
        assert "usage" not in answer
        assert usage is None or isinstance(usage, dict)
