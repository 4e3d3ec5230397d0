"""Chunks become one answer, a whole answer becomes chunks, and neither loses anything."""

import copy
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.fold import Delivered, Fold, as_chunks


def folded(*chunks: Any) -> Any:
    fold = Fold()
    for chunk in chunks:
        fold.add(chunk)
    return fold.body()


def chunk(delta: Any, index: int = 0, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": None, **choice}]}


def message(*deltas: Any) -> Any:
    return folded(*map(chunk, deltas))["choices"][0]["message"]


def test_texts_are_joined_and_the_stream_names_the_answer() -> None:
    base = {"id": "c-1", "object": "chat.completion.chunk", "created": 7, "model": "m", "service_tier": None}
    body = folded(
        {**base, **chunk({"role": "assistant", "content": ""})},
        {**base, **chunk({"reasoning_content": "Hm"})},
        {**base, **chunk({"reasoning_content": "m."})},
        {**base, **chunk({"content": "O"})},
        {**base, **chunk({"content": "k"}), "system_fingerprint": "fp"},
        {**base, **chunk({}, finish_reason="stop")},
        {**base, "choices": []},
    )
    assert body == {
        "id": "c-1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "service_tier": None,
        "system_fingerprint": "fp",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Ok", "reasoning_content": "Hmm."},
                "finish_reason": "stop",
            }
        ],
    }


def test_empty_null_and_absent_texts_stay_three_things() -> None:
    assert message({"reasoning_content": None, "content": "a"})["reasoning_content"] is None
    assert message({"reasoning_content": None}, {"reasoning_content": ""})["reasoning_content"] == ""
    assert message({"reasoning_content": "a"}, {"reasoning_content": None})["reasoning_content"] == "a"
    assert "reasoning_content" not in message({"content": "a"})


def test_a_message_has_role_and_content_even_where_no_chunk_named_them() -> None:
    assert message({}) == {"role": "assistant", "content": None}
    assert message({"role": "assistant"}, {"role": None})["role"] == "assistant"


def test_line_breaks_of_every_kind_pass_byte_for_byte() -> None:
    assert message({"content": "a\r"}, {"content": "\nb\rc\u2028"})["content"] == "a\r\nb\rc\u2028"


def test_choices_are_put_in_order_and_kept_apart() -> None:
    body = folded(
        chunk({"content": "B"}, 1), chunk({"content": "A"}, 0), chunk({"content": "2"}, 1, finish_reason="length")
    )
    assert [(each["index"], each["message"]["content"], each["finish_reason"]) for each in body["choices"]] == [
        (0, "A", None),
        (1, "B2", "length"),
    ]


def test_calls_are_put_together_by_index_and_lose_it() -> None:
    calls = message(
        {"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}]},
        {
            "tool_calls": [
                {"index": 1, "function": {"arguments": "[]"}},
                {"index": 0, "function": {"arguments": "}"}},
            ]
        },
    )["tool_calls"]
    assert calls == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "[]"}},
    ]


def test_log_probabilities_of_content_and_refusal_are_appended() -> None:
    token = {"token": "a", "logprob": Decimal("-0.000298217"), "bytes": None, "top_logprobs": []}
    body = folded(
        chunk({"content": "a"}, logprobs=None),
        chunk({"content": "a"}, logprobs={"content": [token], "refusal": None}),
        chunk({"content": "a"}, logprobs={"content": [token, token], "refusal": None}),
        chunk({"refusal": "n"}, logprobs={"content": None, "refusal": [token]}),
    )
    assert body["choices"][0]["logprobs"] == {"content": [token] * 3, "refusal": [token]}


def test_pieces_of_details_are_joined_by_index_and_type() -> None:
    text = {"type": "reasoning.text", "index": 0, "format": "unknown"}
    details = message(
        {"reasoning_details": [{**text, "text": "Need "}]},
        {"reasoning_details": [{**text, "text": "data.", "signature": None}]},
        {"reasoning_details": [{"type": "reasoning.summary", "index": 0, "summary": "In "}]},
        {"reasoning_details": [{**text, "text": "", "signature": "sig"}]},
        {"reasoning_details": [{"type": "reasoning.summary", "index": 0, "summary": "short."}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "AA", "id": "r"}]},
    )["reasoning_details"]
    assert details == [
        {**text, "text": "Need data.", "signature": "sig"},
        {"type": "reasoning.summary", "index": 0, "summary": "In short."},
        {"type": "reasoning.encrypted", "index": 1, "data": "AA", "id": "r"},
    ]


def test_pieces_without_an_index_continue_the_last_of_their_type() -> None:
    text, sealed = {"type": "reasoning.text"}, {"type": "reasoning.encrypted", "data": "AA"}
    details = message(
        {"reasoning_details": [{**text, "text": "a"}]},
        {"reasoning_details": [{**text, "text": "b"}]},
        {"reasoning_details": [sealed]},
        {"reasoning_details": [{**text, "text": "c"}]},
    )["reasoning_details"]
    assert details == [{**text, "text": "ab"}, sealed, {**text, "text": "c"}]


def test_sealed_items_with_ids_of_their_own_are_not_welded_together() -> None:
    sealed = {"type": "reasoning.encrypted", "index": 0, "format": "unknown"}
    first, second = {**sealed, "id": "r-1", "data": "AA"}, {**sealed, "id": "r-2", "data": "BB"}
    for deltas in ([[first], [second]], [[first, second]]):
        assert message(*({"reasoning_details": each} for each in deltas))["reasoning_details"] == [first, second]
    more: list[dict[str, Any]] = [
        {"reasoning_details": [{**sealed, "id": "r-1", "data": "aa"}]},
        {"reasoning_details": [{**sealed, "data": "bb"}]},
    ]
    details = message({"reasoning_details": [first]}, {"reasoning_details": [second]}, *more)["reasoning_details"]
    assert details == [{**first, "data": "AAaa"}, {**second, "data": "BBbb"}]


def test_two_pieces_of_one_kind_in_a_delta_each_continue_their_own_item() -> None:
    text = {"type": "reasoning.text", "index": 0}
    deltas = [[{**text, "text": "a"}, {**text, "text": "b"}], [{**text, "text": "A"}, {**text, "text": "B"}]]
    details = message(*({"reasoning_details": each} for each in deltas))["reasoning_details"]
    assert details == [{**text, "text": "aA"}, {**text, "text": "bB"}]


def test_details_that_are_no_objects_are_kept() -> None:
    assert message({"reasoning_details": ["x", {"type": "reasoning.text", "text": "a"}, None]})[
        "reasoning_details"
    ] == ["x", {"type": "reasoning.text", "text": "a"}, None]


def test_of_unknown_fields_the_last_value_that_is_not_null_counts() -> None:
    body = folded(
        {**chunk({"x": 1}, matched_stop=None), "timings": None, "provider": "P"},
        {**chunk({"x": 2}, matched_stop=6), "timings": {"n": 1}, "provider": None},
        {**chunk({"x": None}, matched_stop=None), "timings": {"n": 2}},
    )
    assert (body["timings"], body["provider"]) == ({"n": 2}, "P")
    assert (body["choices"][0]["matched_stop"], body["choices"][0]["message"]["x"]) == (6, 2)


def test_what_was_delivered_is_counted_in_utf8_bytes_by_choice() -> None:
    fold = Fold()
    fold.add(chunk({"content": "价", "reasoning_content": "é"}))
    fold.add(
        chunk({"refusal": "no", "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}, 1)
    )
    assert fold.delivered == {
        0: Delivered(text_bytes=3, thought_bytes=2),
        1: Delivered(text_bytes=2, argument_bytes=3),
    }


def test_a_whole_answer_streams_as_thought_text_calls_and_finish() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = {
        "id": "c-1",
        "object": "chat.completion",
        "model": "m",
        "provider": "P",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "ok",
                    "reasoning_content": "Hm.",
                    "tool_calls": [call],
                },
                "finish_reason": "tool_calls",
            }
        ],
    }
    chunks: Any = as_chunks(body)  # type: ignore[arg-type]
    assert [each["choices"][0]["delta"] for each in chunks] == [
        {"role": "assistant", "reasoning_content": "Hm."},
        {"content": "ok"},
        {"tool_calls": [{"index": 0, **call}]},
        {},
    ]
    assert [each["choices"][0]["finish_reason"] for each in chunks] == [None, None, None, "tool_calls"]
    assert {each["object"] for each in chunks} == {"chat.completion.chunk"}
    assert [each.get("provider") for each in chunks] == ["P", None, None, None]
    assert all((each["id"], each["model"]) == ("c-1", "m") for each in chunks)


SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.decimals(-9, 9, places=6) | st.text(max_size=5)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2)
)
TEXT = st.none() | st.text(max_size=12)
NAMES = st.sampled_from(["x_one", "x_two", "annotations", "audio"])
CALLS = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": st.text(max_size=4), "arguments": TEXT}, optional={"x": JSON})},
    optional={"id": TEXT, "type": st.just("function"), "x": JSON},
)
DETAILS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["reasoning.text", "reasoning.summary", "reasoning.encrypted"]),
        "index": st.integers(0, 2),
        **dict.fromkeys(["text", "summary", "data", "signature"], TEXT),
        "id": st.none() | st.sampled_from(["r-1", "r-2"]),
    },
)
LOGPROBS = st.none() | st.dictionaries(
    st.sampled_from(["content", "refusal", "x"]), st.none() | st.lists(JSON, max_size=3), max_size=3
)
MESSAGES = st.tuples(
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": TEXT},
        optional={
            "reasoning_content": TEXT,
            "refusal": TEXT,
            "tool_calls": st.none() | st.lists(CALLS, max_size=3),
            "reasoning_details": st.none() | st.lists(DETAILS | SCALARS, max_size=4),
        },
    ),
    st.dictionaries(NAMES, JSON, max_size=2),
).map(lambda parts: {**parts[1], **parts[0]})
CHOICES = st.fixed_dictionaries(
    {"message": MESSAGES, "finish_reason": st.sampled_from(["stop", "length", "tool_calls", None])},
    optional={"logprobs": LOGPROBS, "matched_stop": JSON},
)
BODIES = st.tuples(
    st.fixed_dictionaries(
        {"object": st.just("chat.completion"), "choices": st.lists(CHOICES, max_size=3)},
        optional={"id": st.text(max_size=3), "created": st.integers(0), "model": st.text(max_size=3)},
    ),
    st.dictionaries(NAMES, JSON, max_size=2),
).map(lambda parts: {**parts[1], **parts[0]})


def indexed(body: Any) -> Any:
    body["choices"] = [{"index": place, **each} for place, each in enumerate(body["choices"])]
    return body


@given(BODIES.map(indexed))
@settings(max_examples=100)
def test_a_body_taken_apart_and_folded_is_the_same_body(body: Any) -> None:
    before = copy.deepcopy(body)
    assert folded(*as_chunks(body)) == before
    assert body == before


PIECES = st.lists(
    st.tuples(
        st.sampled_from(["content", "reasoning_content", "refusal", "arguments", "details"]), st.text(max_size=6)
    ),
    max_size=8,
)


def delta(kind: str, text: str) -> dict[str, Any]:
    if kind == "arguments":
        return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
    if kind == "details":
        return {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": text}]}
    return {kind: text}


@given(PIECES, st.data())
@settings(max_examples=150)
def test_how_a_text_is_split_over_chunks_changes_nothing(
    pieces: list[tuple[str, str]], data: st.DataObject
) -> None:
    split = []
    for kind, text in pieces:
        cut = data.draw(st.integers(0, len(text)))
        split += [delta(kind, text[:cut]), delta(kind, text[cut:])]
    assert folded(*map(chunk, split)) == folded(*(chunk(delta(kind, text)) for kind, text in pieces))


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": None}, {"choices": [{}, 1]}])
def test_odd_bodies_still_make_chunks(body: Any) -> None:
    for each in as_chunks(body):
        assert each["object"] == "chat.completion.chunk"
        assert isinstance(each["choices"], list)


def test_a_long_answer_folds_in_linear_time() -> None:
    piece, fold, start = chunk({"content": "x" * 100, "reasoning_content": "y" * 100}), Fold(), time.perf_counter()
    for _ in range(100_000):
        fold.add(piece)
    content: Any = fold.body()["choices"][0]["message"]["content"]  # type: ignore[index,call-overload]
    # About 0.4 s here; joining strings each time would copy 1 TB.
    assert time.perf_counter() - start < 15
    assert len(content) == 10_000_000
