"""Tool calls of a stream are told apart and put together, however the upstream labels their pieces."""

from typing import Any

import pytest

from backends.catalog import DIALECTS
from backends.fold import Fold
from backends.json import encode
from backends.reader import Chunk, ChunkReader
from backends.sse import encode_event
from support.cases import case


def read(stream: bytes, dialect: str = "vllm") -> tuple[list[Any], Any]:
    """The tool-call pieces as sent on, and the calls they fold to."""
    reader, fold, sent = ChunkReader(DIALECTS[dialect]), Fold(), []
    for item in reader.feed(stream) + reader.finish():
        if isinstance(item, Chunk):
            fold.add(item.data)
            choices: Any = item.data["choices"]
            sent += [piece for each in choices for piece in each["delta"].get("tool_calls", [])]
    body: Any = fold.body()
    return sent, body["choices"][0]["message"]["tool_calls"]


def calls_of(*pieces: Any) -> tuple[list[Any], Any]:
    deltas = [{"index": 0, "delta": {"tool_calls": each}, "finish_reason": None} for each in pieces]
    return read(b"".join(encode_event(encode({"choices": [delta]})) for delta in deltas))


@pytest.mark.parametrize("case_id", ["tool-01", "tool-02", "tool-03"])
def test_the_calls_of_the_cases_are_put_together_right(case_id: str) -> None:
    row = case(case_id)
    sent, calls = read(row["given"]["upstream"][0]["sse_text"].encode(), row["upstream"])
    assert calls == row["expect"]["client"]["stream"]["tool_calls"]
    assert {piece["index"] for piece in sent} == {0, 1}


def test_null_id_and_name_never_overwrite() -> None:
    sent, calls = calls_of(
        [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": None}}],
        [{"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": "{}"}}],
        [{"index": 0, "id": "", "function": {"name": "", "arguments": ""}}],
    )
    assert sent[1:] == [{"index": 0, "function": {"arguments": "{}"}}, {"index": 0, "function": {"arguments": ""}}]
    assert calls == [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def test_id_and_name_repeated_in_every_piece_are_sent_once() -> None:
    piece = {"index": 0, "id": "a", "type": "function", "function": {"name": "read", "arguments": "1"}}
    sent, calls = calls_of([piece], [piece], [piece])
    assert calls == [{"id": "a", "type": "function", "function": {"name": "read", "arguments": "111"}}]
    assert sent[2] == {"index": 0, "type": "function", "function": {"arguments": "1"}}


def test_pieces_of_relabelled_calls_go_to_the_call_they_belong_to() -> None:
    sent, _ = calls_of(
        [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}],
        [{"index": 0, "id": "b", "function": {"name": "g", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": "to b"}}],
        [{"index": 0, "id": "a", "function": {"arguments": "to a"}}],
        [{"index": 1, "id": "c", "function": {"name": "h", "arguments": ""}}],
    )
    assert [piece["index"] for piece in sent] == [0, 1, 1, 0, 2]


def test_calls_without_index_and_id_begin_with_a_name() -> None:
    _, calls = calls_of(
        [{"function": {"name": "f", "arguments": "{"}}],
        [{"function": {"arguments": "}"}}],
        [{"function": {"name": "f", "arguments": "[]"}}],
    )
    assert [call["function"]["arguments"] for call in calls] == ["{}", "[]"]


def test_an_index_that_is_free_is_kept_and_an_id_may_repeat_at_another() -> None:
    sent, calls = calls_of(
        [{"index": 3, "id": "search:0", "function": {"name": "search", "arguments": "1"}}],
        [{"index": 4, "id": "search:0", "function": {"name": "search", "arguments": "2"}}],
    )
    assert [piece["index"] for piece in sent] == [3, 4]
    assert [call["id"] for call in calls] == ["search:0", "search:0"]
