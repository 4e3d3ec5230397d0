"""Signs of a broken engine are seen in its answers, however these are cut; a good answer shows none."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.catalog import DIALECTS
from backends.dialect import Dialect
from backends.json import JsonObject
from backends.reader import ChunkReader, read_complete
from backends.sentinel import Sign, Watch, usage_signs
from backends.usage import read_usage
from support.answers import event, pieces, read, streamed, whole
from support.transcripts import exchanges

CALL = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def signs(content: str, finish: str = "stop") -> set[Sign]:
    return set(streamed([content], finish, dialect="vllm").signs)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("Hi.", set()),
        ("if a < b or <|x|> or <tools>: </div>", set()),
        ("<|open|>tools<|sep|>", {Sign.TOOL_MARKUP}),
        ('a<|open|>call tool="f"', {Sign.TOOL_MARKUP}),
        ("<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0", {Sign.TOOL_MARKUP}),
        ("Hi.<|close|>message<|sep|>", {Sign.TEMPLATE_MARKUP}),
        ("Hi.<|end_of_msg|><|end_of_msg|>", {Sign.TEMPLATE_MARKUP}),
        ("Hi.<|open|>too", {Sign.TEMPLATE_MARKUP}),
        ("Hi.<|im_end|>", {Sign.TEMPLATE_MARKUP}),
        ("<think>Hm.</think>Hi.", {Sign.THINK_TAGS}),
        (" \n<think>Hm.", {Sign.THINK_TAGS}),
        ("Hm.</think>Hi.", {Sign.THINK_TAGS}),
        # a pair inside the answer is what the answer is about
        ("Write <think>Hm.</think> for it.", set()),
        ("<think>Hm.</think><|close|>response<|sep|>Hi.", {Sign.THINK_TAGS, Sign.TEMPLATE_MARKUP}),
    ],
)
def test_marks_in_the_content(content: str, found: set[Sign]) -> None:
    assert signs(content) == found
    assert whole({"content": content}).signs == found


TEXTS = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "<|open|>",
            "tools",
            "call",
            "<|close|>",
            "<|tool_call",
            "<",
            "|",
            "/",
            "t",
            "a",
            " ",
        ]
    ),
    max_size=9,
).map("".join)


@given(TEXTS, st.lists(st.integers(0, 60), max_size=20), st.sampled_from(["content", "reasoning_content"]))
@settings(max_examples=100)
def test_where_a_text_is_cut_changes_no_sign(text: str, cuts: list[int], field: str) -> None:
    in_pieces = read(*[event({field: part}) for part in pieces(text, cuts)], event({}, "length"))
    assert in_pieces.signs == read(event({field: text}), event({}, "length")).signs


@pytest.mark.parametrize(
    ("message", "finish", "found"),
    [
        ({"content": "Hi."}, "tool_calls", {Sign.CALLS_MISSING}),
        ({"content": "", "tool_calls": []}, "tool_calls", {Sign.CALLS_MISSING}),
        ({"content": "", "tool_calls": [CALL]}, "tool_calls", set()),
        ({"content": None, "tool_calls": [CALL]}, "stop", {Sign.STOP_WITH_CALLS}),
        ({"content": ""}, "stop", {Sign.EMPTY_ANSWER}),
        ({"content": None, "reasoning_content": "Hm."}, "stop", {Sign.EMPTY_ANSWER}),
        ({"content": "", "refusal": "No."}, "stop", set()),
        ({"content": [{"type": "text", "text": "Hi."}]}, "stop", set()),
        # the output limit was spent thinking: an outcome of its own
        ({"content": ""}, "length", set()),
        ({"content": ""}, "content_filter", set()),
        (
            {"content": "", "reasoning_content": "Then <|open|>tools<|sep|>"},
            "length",
            {Sign.TOOL_MARKUP_IN_THOUGHT},
        ),
        ({"content": "Hi.", "reasoning_content": "A <think> in <|close|>"}, "stop", set()),
    ],
)
def test_the_end_of_an_answer_and_its_thought(message: dict[str, Any], finish: str, found: set[Sign]) -> None:
    assert whole(message, finish).signs == found
    delta = dict(message)
    if calls := message.get("tool_calls"):
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
    assert read(event(delta), event({}, finish)).signs == found
    assert read(event(delta, finish)).signs == found


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_stop_after_a_named_choice_is_counted_whether_or_not_it_is_set_right(dialect: str) -> None:
    delta = {"tool_calls": [{"index": 0, **CALL}]}
    found = read(event(delta), event({}, "stop"), dialect=dialect, named_tool=True)
    assert found.signs == {Sign.STOP_WITH_CALLS}
    told = found.body["choices"][0]["finish_reason"]
    assert told == ("tool_calls" if dialect == "vllm" else "stop")
    message = {"content": "", "tool_calls": [dict(CALL)]}
    assert whole(message, "stop", dialect, named_tool=True).signs == {Sign.STOP_WITH_CALLS}


def test_one_bad_choice_of_two_is_enough() -> None:
    found = read(event({"content": "Hi."}, "stop"), event({"content": ""}, "stop", 1))
    assert found.signs == {Sign.EMPTY_ANSWER}


def test_an_answer_that_broke_off_is_not_judged_by_its_end() -> None:
    found = read(event({"reasoning_content": "Hm."}))
    assert found.has_failed
    assert found.signs == frozenset()


def measured(usage: JsonObject) -> frozenset[Sign]:
    return usage_signs(read_usage(usage, dialect=Dialect(name="plain"), headers={}, ttl=""))


def test_usage_that_is_missing_or_does_not_add_up() -> None:
    assert usage_signs(None) == {Sign.USAGE_MISSING}
    assert measured({"prompt_tokens": 9}) == {Sign.USAGE_MISSING}
    assert measured({"prompt_tokens": 9, "completion_tokens": 1}) == frozenset()
    over: JsonObject = {"prompt_tokens": 950, "completion_tokens": 4, "cached_tokens": 952}
    assert measured(over) == {Sign.CACHED_OVER_PROMPT}


RECORDED: dict[tuple[str, str], set[Sign]] = {
    ("vllm-tools", "tools-named"): {Sign.STOP_WITH_CALLS},
    ("sglang-tools", "tools-none"): {Sign.TOOL_MARKUP},
}


@pytest.mark.parametrize("file", ["vllm-chat-1", "vllm-tools", "sglang-chat", "sglang-tools", "llamacpp-tools"])
def test_recorded_answers_show_what_is_known_of_them_and_nothing_else(file: str) -> None:
    for name, exchange in exchanges(file).items():
        if exchange.path != "/v1/chat/completions" or exchange.status != 200 or not exchange.is_whole:
            continue
        dialect = DIALECTS[exchange.engine]
        if exchange.is_stream:
            reader = ChunkReader(dialect)
            reader.feed(exchange.body)
            found = set(reader.signs)
        else:
            found = set()
            read_complete(exchange.body, dialect, signs=found)
        assert found == RECORDED.get((file, name), set()), name


def test_watching_costs_next_to_nothing_and_does_not_grow_with_the_text() -> None:
    watch, start = Watch(), time.perf_counter()
    for _ in range(100_000):
        watch.see("for (i = 0; i < n; i++) ")
    # About 0.05 s here; keeping the text would copy 240 GB.
    assert time.perf_counter() - start < 3
    assert watch.found == frozenset()
