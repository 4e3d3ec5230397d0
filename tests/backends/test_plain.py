"""Chunks that need no change: the short way gives what the long way gives, and passes the bytes as they came."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.catalog import DIALECTS
from backends.fold import Fold
from backends.json import decode
from backends.plain import PlainChunk, read_plain
from backends.reader import Chunk, ChunkReader, Item, expanded
from support.transcripts import Exchange, exchanges

FILES = ("vllm-chat-1", "vllm-tools", "sglang-chat", "sglang-tools", "llamacpp-chat-1", "llamacpp-tools")


def recorded(file: str) -> list[Exchange]:
    return [one for one in exchanges(file).values() if one.is_stream and one.is_whole]


HEAD = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "kimi-k3.1-pro"}


def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": None}], **more}


def frame(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def read(data: bytes, dialect: str, cut: int = 0, **options: bool) -> tuple[list[Item], frozenset[Any]]:
    reader = ChunkReader(DIALECTS[dialect], **options)
    items = [*reader.feed(data[:cut]), *reader.feed(data[cut:]), *reader.finish()]
    return items, reader.signs


def long_way(items: list[Item]) -> list[Item]:
    return [expanded(item) if isinstance(item, PlainChunk) else item for item in items]


TEXT = st.sampled_from(["", "Hi", "né\U0001f600", "<", "think>", '"reasoning":', "a\u2028b", "<|open|>tools"])
DELTA = st.fixed_dictionaries(
    {},
    optional={
        "role": st.just("assistant"),
        "content": st.none() | TEXT,
        "reasoning": st.none() | TEXT,
        "reasoning_content": st.none() | TEXT,
        "reasoning_details": st.just([{"type": "reasoning.text", "text": "d", "index": 0}]),
        "tool_calls": st.none()
        | st.just([{"index": 0, "id": "f:0", "function": {"name": "f", "arguments": "{}"}}]),
        "extra": st.integers(0, 1),
    },
)
CHUNK = st.builds(
    chunk,
    DELTA,
    usage=st.none() | st.just({"prompt_tokens": 1}),
    provider=st.just("x"),
)


@given(
    chunks=st.lists(CHUNK, min_size=1, max_size=6),
    cut=st.integers(0, 200),
    dialect=st.sampled_from(["vllm", "openrouter", "moonshot"]),
)
def test_the_short_way_gives_what_the_long_way_gives(chunks: list[dict[str, Any]], cut: int, dialect: str) -> None:
    end = chunk({})
    end["choices"][0]["finish_reason"] = "stop"
    data = b"".join(map(frame, [*chunks, end])) + b"data: [DONE]\n\n"
    short, short_signs = read(data, dialect, cut, gives_plain=True)
    long, long_signs = read(data, dialect, cut)
    assert long_way(short) == long
    assert choices(short) == choices(long)
    assert short_signs == long_signs


def folded(items: list[Item]) -> Any:
    fold = Fold()
    for item in items:
        if isinstance(item, PlainChunk):
            fold.add_plain(item.content, item.thought)
        elif isinstance(item, Chunk):
            fold.add(item.data)
    return fold.body()


def choices(items: list[Item]) -> Any:
    """The folded choices without nulls that say nothing: of other fields only the first chunk's are kept."""
    found = folded(items)["choices"]
    for choice in found:
        kept = {"content", "reasoning_content"}
        choice["message"] = {k: v for k, v in choice["message"].items() if v is not None or k in kept}
    return found


@pytest.mark.parametrize("file", FILES)
def test_recorded_streams_read_alike_on_both_ways(file: str) -> None:
    streams = recorded(file)
    assert streams
    for stream in streams:
        short, short_signs = read(stream.body, stream.engine, gives_plain=True)
        assert (long_way(short), short_signs) == read(stream.body, stream.engine)


def test_most_of_a_recorded_stream_of_text_goes_the_short_way() -> None:
    for file in ("vllm-chat-1", "sglang-chat", "llamacpp-chat-1"):
        shares = []
        for stream in recorded(file):
            items, _ = read(stream.body, stream.engine, gives_plain=True)
            said = [item for item in items if isinstance(item, PlainChunk | Chunk)]
            shares.append(sum(isinstance(item, PlainChunk) for item in said) / max(1, len(said)))
        assert max(shares) > 0.9, file


def test_a_plain_chunk_is_passed_as_the_bytes_that_came() -> None:
    raw = json.dumps(chunk({"content": "né"}), ensure_ascii=False).encode()
    found = read_plain(raw)
    assert found is not None
    assert (found.raw, found.content, found.text_bytes) == (raw, "né", 3)


def test_the_name_of_a_thought_is_put_right_and_nothing_else() -> None:
    raw = json.dumps(chunk({"reasoning": 'the "reasoning": is', "content": None})).encode()
    found = read_plain(raw)
    assert found is not None
    assert decode(found.raw) == chunk({"reasoning_content": 'the "reasoning": is', "content": None})


@pytest.mark.parametrize(
    "value",
    [
        chunk({"content": ""}),
        chunk({"role": "assistant"}),
        chunk({"content": "a"}, usage={"prompt_tokens": 1}),
        chunk({"content": "a", "annotations": []}),
        chunk({"reasoning": "a", "reasoning_content": "a"}),
        chunk({"content": [{"type": "text", "text": "a"}]}),
        {**chunk({"content": "a"}), "error": {"message": "x"}},
        {**chunk({"content": "a"}), "choices": [{"index": 1, "delta": {"content": "a"}, "finish_reason": None}]},
        {**chunk({"content": "a"}), "choices": 2 * chunk({"content": "a"})["choices"]},
        {"choices": chunk({"content": "a"})["choices"]},
    ],
)
def test_what_has_more_to_say_takes_the_long_way(value: dict[str, Any]) -> None:
    assert read_plain(json.dumps(value).encode()) is None
    assert read_plain(json.dumps(value, indent=1).encode()) is None
