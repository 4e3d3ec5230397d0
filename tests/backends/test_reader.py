"""Stream bytes of every dialect become chunks in Moonshot's spelling, and every bad end is seen."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.catalog import DIALECTS
from backends.faults import Fault, FaultKind
from backends.fold import Fold
from backends.json import JsonObject, encode
from backends.reader import Chunk, ChunkReader, Done, Failed, Item, Life
from backends.sse import DONE, encode_event
from support.cases import case


def event(*deltas: Any, finish: str | None = None, **top: Any) -> bytes:
    """One chunk event: a delta for each choice, or a whole choice where it has a `delta`."""
    choices = [
        delta if "delta" in delta else {"index": index, "delta": delta, "finish_reason": finish}
        for index, delta in enumerate(deltas)
    ]
    return encode_event(encode({"id": "c-1", "model": "m", "choices": choices, **top}))


def items(*writes: bytes, dialect: str = "moonshot", named_tool: bool = False) -> list[Item]:
    reader = ChunkReader(DIALECTS[dialect], named_tool=named_tool)
    return [item for write in writes for item in reader.feed(write)] + reader.finish()


def chunks(found: Sequence[Item]) -> list[Chunk]:
    return [item for item in found if isinstance(item, Chunk)]


def choice(chunk: Chunk) -> Any:
    (only,) = chunk.data["choices"]  # type: ignore[misc, str-unpack]
    return only


def fault(found: Sequence[Item]) -> Fault:
    last = found[-1]
    assert isinstance(last, Failed)
    return last.fault


def of_case(case_id: str, dialect: str | None = None) -> list[Item]:
    row = case(case_id)
    return items(row["given"]["upstream"][0]["sse_text"].encode(), dialect=dialect or row["upstream"])


def folded(found: Sequence[Item]) -> Any:
    fold = Fold()
    for chunk in chunks(found):
        fold.add(chunk.data)
    return fold.body()


def test_vllms_thought_comes_as_reasoning_content() -> None:
    found = of_case("rsn-01")
    message = folded(found)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Add them.", "4")
    assert sum(bool(choice(chunk)["delta"].get("reasoning_content")) for chunk in chunks(found)[:-1]) == 2
    assert isinstance(found[-1], Done)


def test_text_thought_and_finish_in_one_last_chunk_are_all_read() -> None:
    found = of_case("rsn-05")
    first, last = chunks(found)
    assert choice(last)["delta"] == {"content": ".", "reasoning_content": "Capital of France."}
    assert (last.finished, last.text_bytes, last.thought_bytes) == ((0,), 1, 18)
    assert (first.commits, first.finished) == (True, ())
    assert isinstance(found[-1], Done)


def test_a_null_thought_beside_content_stays_null() -> None:
    (chunk,) = chunks(items(event({"reasoning_content": None, "content": "a"}), dialect="sglang"))
    assert choice(chunk)["delta"] == {"reasoning_content": None, "content": "a"}


def test_details_that_repeat_the_thought_later_do_not_double_it() -> None:
    details = [{"type": "reasoning.text", "text": "Hm.", "index": 0}]
    found = items(event({"reasoning": "Hm."}), event({"reasoning_details": details}), event({}, finish="stop"))
    message = folded(found)["choices"][0]["message"]
    assert (message["reasoning_content"], message["reasoning_details"]) == ("Hm.", details)


@pytest.mark.parametrize(
    ("delta", "commits"),
    [
        ({"role": "assistant"}, False),
        ({"role": "assistant", "content": ""}, False),
        ({"content": None, "reasoning_content": ""}, False),
        ({"tool_calls": []}, False),
        ({}, False),
        ({"content": "a"}, True),
        ({"reasoning": "a"}, True),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "a"}]}, True),
        ({"refusal": "no"}, True),
        ({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f"}}]}, True),
        ({"content": [{"type": "text", "text": "a"}]}, True),
    ],
)
def test_only_what_says_something_commits(delta: JsonObject, commits: bool) -> None:
    (chunk,) = chunks(items(event(delta)))
    assert chunk.commits == commits


def test_a_finish_reason_alone_commits() -> None:
    (chunk,) = chunks(items(event({}, finish="length")))
    assert (chunk.commits, chunk.finished) == (True, (0,))


def test_bytes_are_counted_in_utf8_over_all_choices() -> None:
    call = {"index": 0, "id": "x", "function": {"name": "f", "arguments": '{"a":1}'}}
    (chunk,) = chunks(items(event({"content": "价"}, {"refusal": "no", "tool_calls": [call], "reasoning": "é"})))
    assert (chunk.text_bytes, chunk.thought_bytes) == (3 + 2 + 1 + 7, 2)


def test_id_model_and_unknown_fields_pass() -> None:
    (chunk,) = chunks(items(event({"content": "a", "x": 1}, token_ids=None, provider="P")))
    assert (chunk.id, chunk.model) == ("c-1", "m")
    assert (chunk.data["token_ids"], chunk.data["provider"]) == (None, "P")
    assert choice(chunk)["delta"]["x"] == 1


USAGE = {"prompt_tokens": 9, "completion_tokens": 6}


@pytest.mark.parametrize(
    "stream",
    [
        event({"delta": {}, "finish_reason": "stop", "usage": USAGE}),
        event({}, finish="stop", usage=USAGE),
        event({}, finish="stop") + event(usage=USAGE),
        event({"delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 1}}, usage=USAGE),
        event({"content": "a"}, usage={"prompt_tokens": 1})
        + event({}, finish="stop", usage=USAGE)
        + event(usage=None),
        event({}, finish="stop") + encode_event(encode({"usage": USAGE})),
    ],
)
def test_usage_is_found_wherever_it_stands_and_taken_out(stream: bytes) -> None:
    found = chunks(items(stream + encode_event(DONE)))
    assert [chunk.usage for chunk in found if chunk.usage is not None][-1] == USAGE
    for chunk in found:
        assert "usage" not in chunk.data
        assert all("usage" not in each for each in chunk.data["choices"])  # type: ignore[operator,union-attr]


def test_cumulative_usage_comes_with_every_chunk_and_the_last_is_whole() -> None:
    reports = [chunk.usage for chunk in chunks(of_case("use-03"))]
    assert [report["completion_tokens"] for report in reports if report is not None] == [1, 2, 3, 3, 3]


def test_two_choices_stay_apart_and_both_must_finish() -> None:
    found = of_case("use-08")
    texts = [each["message"]["content"] for each in folded(found)["choices"]]
    assert texts == ["A0", "B1"]
    assert [chunk.finished for chunk in chunks(found)][-3:] == [(1,), (0,), ()]
    assert isinstance(found[-1], Done)


def test_the_finish_reason_after_a_named_tool_choice_is_set_right() -> None:
    stream = event({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}}]}) + event({}, finish="stop")
    assert choice(chunks(items(stream, dialect="vllm", named_tool=True))[-1])["finish_reason"] == "tool_calls"
    assert choice(chunks(items(stream, dialect="vllm"))[-1])["finish_reason"] == "stop"
    assert choice(chunks(items(stream, dialect="sglang", named_tool=True))[-1])["finish_reason"] == "stop"


def test_stop_without_a_call_stays_stop_after_a_named_tool_choice() -> None:
    stream = event({"content": "no"}) + event({}, finish="stop")
    assert choice(chunks(items(stream, dialect="vllm", named_tool=True))[-1])["finish_reason"] == "stop"


def test_comments_and_empty_events_are_life_and_nothing_more() -> None:
    found = items(b": OPENROUTER PROCESSING\n\n", b"data:\n\n", encode_event(b"{}"), event({}, finish="stop"))
    assert [type(item) for item in found] == [Life, Life, Life, Chunk, Done]
    assert [type(item) for item in of_case("sse-03")] == [Life, Life, Chunk, Life, Chunk, Done]


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b'{"error":{"message":"engine died","code":500}}', FaultKind.SERVER, "engine died"),
        (b'{"error":"engine died"}', FaultKind.SERVER, "engine died"),
        (b'{"object":"error","message":"full","code":503}', FaultKind.OVERLOAD, "full"),
        (b'{"error":{"message":"x","type":"rate_limit_reached_error"}}', FaultKind.RATE, "x"),
        (b'{"error":{}}', FaultKind.SERVER, "the upstream gave no reason"),
    ],
)
def test_an_error_event_fails_in_every_shape_and_done_after_it_means_nothing(
    data: bytes, kind: FaultKind, message: str
) -> None:
    found = items(event({"content": "Hel"}), encode_event(data), encode_event(DONE), event({"content": "lo"}))
    assert [type(item) for item in found] == [Chunk, Failed]
    assert (fault(found).kind, fault(found).message) == (kind, message)


@pytest.mark.parametrize("data", [b'{"message":"engine died"}', b"engine died", b'"engine died"'])
def test_an_event_called_error_is_one_whatever_it_holds(data: bytes) -> None:
    found = items(encode_event(data, event="error"))
    assert fault(found).message == "engine died"


def test_openrouters_error_chunk_ends_the_answer_as_failed_and_is_not_passed_on() -> None:
    found = of_case("sse-04")
    assert [type(item) for item in found] == [Chunk, Failed]
    assert (fault(found).kind, fault(found).status) == (FaultKind.SERVER, 502)
    assert "provider went away" in fault(found).message


def test_what_an_error_chunk_still_carries_is_handed_out_without_the_error() -> None:
    last = {"delta": {"content": "tial"}, "finish_reason": "error"}
    found = items(event({"content": "Par"}), event(last, error={"message": "gone", "code": 502}, usage=USAGE))
    assert [type(item) for item in found] == [Chunk, Chunk, Failed]
    chunk = chunks(found)[1]
    assert (chunk.usage, chunk.finished, choice(chunk)["finish_reason"]) == (USAGE, (), None)
    assert "error" not in chunk.data


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_a_finish_reason_that_means_broken_off_is_a_fault(reason: str) -> None:
    found = items(event({"content": "a"}), event({}, finish=reason), encode_event(DONE), dialect="sglang")
    assert [type(item) for item in found] == [Chunk, Failed]
    assert (fault(found).kind, fault(found).code) == (FaultKind.SERVER, reason)


@pytest.mark.parametrize("data", [b'{"choices":[', b"oops", b"[1]", b"null", b'{"a":"\xff"}'])
def test_an_event_that_is_no_json_object_is_the_upstreams_fault(data: bytes) -> None:
    found = items(event({"content": "a"}), encode_event(data), event({}, finish="stop"))
    assert [type(item) for item in found] == [Chunk, Failed]
    assert fault(found).kind is FaultKind.SERVER


def test_an_event_beyond_the_limit_is_the_upstreams_fault() -> None:
    reader = ChunkReader(DIALECTS["vllm"], max_event_bytes=200)
    assert [type(item) for item in reader.feed(event({"content": "a"}) + b"data: " + b"x" * 300)] == [Chunk]
    assert fault(reader.feed(b"x")).kind is FaultKind.SERVER
    assert reader.finish() == []


@pytest.mark.parametrize("end", [b"", encode_event(DONE), b'data: {"choices":[{"del'])
def test_an_end_without_a_finish_reason_is_incomplete(end: bytes) -> None:
    found = items(event({"content": "half"}), end)
    assert [type(item) for item in found] == [Chunk, Failed]
    assert fault(found).kind is FaultKind.INCOMPLETE


def test_a_stream_of_nothing_is_incomplete() -> None:
    assert fault(items(b"")).kind is FaultKind.INCOMPLETE
    assert fault(items(encode_event(DONE))).kind is FaultKind.INCOMPLETE


def test_an_unfinished_second_choice_makes_the_answer_incomplete() -> None:
    first = {"index": 0, "delta": {}, "finish_reason": "stop"}
    second = {"index": 1, "delta": {"content": "a"}, "finish_reason": None}
    assert fault(items(event(first, second), encode_event(DONE))).kind is FaultKind.INCOMPLETE


@pytest.mark.parametrize("end", [b"", encode_event(DONE), b"data: [DONE]", b'data: {"choices":[],"usa'])
def test_after_every_finish_reason_any_end_is_clean(end: bytes) -> None:
    assert [type(item) for item in items(event({}, finish="stop"), end)] == [Chunk, Done]


def test_the_last_event_needs_no_blank_line() -> None:
    found = items(event({}, finish="stop").rstrip(b"\n"))
    assert [type(item) for item in found] == [Chunk, Done]


def test_an_answered_stream_says_so_before_its_end() -> None:
    reader = ChunkReader(DIALECTS["moonshot"])
    reader.feed(event({"content": "a"}))
    assert not reader.is_answered
    reader.feed(event({}, finish="stop"))
    assert reader.is_answered


def test_an_empty_finish_reason_is_none() -> None:
    (chunk,) = chunks(items(event({"content": "a"}, finish="")))
    assert (choice(chunk)["finish_reason"], chunk.finished) == (None, ())


def test_a_choice_without_index_or_delta_gets_them() -> None:
    (chunk,) = chunks(items(encode_event(encode({"choices": [{"finish_reason": "stop"}]}))))
    assert choice(chunk) == {"finish_reason": "stop", "index": 0, "delta": {}}


STREAM_CASES = ["rsn-01", "tool-01", "tool-02", "tool-03", "use-01", "use-03", "use-08", "sse-03", "sse-04"]


@given(st.sampled_from(STREAM_CASES), st.lists(st.integers(0, 3000), max_size=10))
@settings(max_examples=100)
def test_any_split_of_the_bytes_gives_the_same_items(case_id: str, cuts: list[int]) -> None:
    stream = case(case_id)["given"]["upstream"][0]["sse_text"].encode()
    places = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    writes = [stream[start:end] for start, end in itertools.pairwise(places)]
    assert items(*writes, dialect=case(case_id)["upstream"]) == of_case(case_id)


NAMES = ["choices", "index", "delta", "content", "reasoning", "reasoning_content", "reasoning_details"]
NAMES += ["tool_calls", "function", "id", "name", "arguments", "text", "finish_reason", "usage", "error", "object"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "stop", "error"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(st.lists(JSON, max_size=4), st.sampled_from(sorted(DIALECTS)))
@settings(max_examples=200)
def test_no_event_makes_the_reader_raise_and_every_stream_ends_once(values: list[Any], dialect: str) -> None:
    found = items(*(encode_event(encode(value)) for value in values), dialect=dialect, named_tool=True)
    assert [isinstance(item, Done | Failed) for item in found] == [False] * (len(found) - 1) + [True]
    folded(found)
