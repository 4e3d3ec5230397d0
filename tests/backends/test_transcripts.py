"""Every recorded chat answer of four real engines passes through reader, fold, usage and faults.

The samples are `recorded`, 2026-11-30: vLLM 0.32.0, SGLang 0.5.23, llama.cpp b11549, transformers serve 5.19.0,
all with a tiny model of scripted answers behind them.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from backends.catalog import DIALECTS
from backends.dialect import Dialect
from backends.faults import Fault, FaultKind
from backends.fold import Fold, as_chunks
from backends.json import encode
from backends.reader import Chunk, ChunkReader, Done, Failed, Item, read_complete
from backends.sse import encode_event
from backends.usage import Measured, read_usage
from support.transcripts import Exchange, exchanges, tail_bytes

CHAT_FILES = {  # how many chat answers each file holds: none may be lost on the way
    "vllm-cache": 5,
    "vllm-chat-1": 28,
    "vllm-chat-2": 2,
    "vllm-errors": 24,
    "vllm-tools": 14,
    "sglang-cache": 5,
    "sglang-chat": 30,
    "sglang-errors": 24,
    "sglang-tools": 14,
    "llamacpp-cache": 5,
    "llamacpp-chat-1": 12,
    "llamacpp-chat-2": 18,
    "llamacpp-errors": 24,
    "llamacpp-tools": 14,
    "transformers-serve": 12,
    "vllm-failures": 1,
    "sglang-failures": 1,
    "llamacpp-failures": 1,
}
NO_DIALECT = Dialect(name="plain")


def dialect_of(exchange: Exchange) -> Dialect:
    return DIALECTS.get(exchange.engine, NO_DIALECT)


def chats(file: str) -> Iterator[Exchange]:
    """The answers to chat requests (POST, with a body that is whole or was too long to record whole)."""
    for exchange in exchanges(file).values():
        if exchange.path == "/v1/chat/completions" and exchange.name != "err-method":
            yield exchange


def named_tool(exchange: Exchange) -> bool:
    return isinstance((exchange.request or {}).get("tool_choice"), dict)


def streamed(exchange: Exchange, *writes: bytes) -> list[Item]:
    reader = ChunkReader(dialect_of(exchange), named_tool=named_tool(exchange))
    return [item for write in writes for item in reader.feed(write)] + reader.finish()


def folded(items: list[Item]) -> Any:
    fold = Fold()
    for item in items:
        if isinstance(item, Chunk):
            fold.add(item.data)
    return fold.body()


def last_usage(items: list[Item]) -> Any:
    reports = [item.usage for item in items if isinstance(item, Chunk) and item.usage is not None]
    return reports[-1] if reports else None


def measured(exchange: Exchange, usage: Any) -> Measured:
    return read_usage(usage, dialect=dialect_of(exchange), headers=exchange.headers, ttl="")


def recorded_events(data: bytes) -> list[Any]:
    """The events by the plainest reading of the bytes, to compare with."""
    return [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: {")]


def recorded_text(events: list[Any], index: int, *names: str) -> str:
    deltas = [each["delta"] for event in events for each in event["choices"] if each["index"] == index]
    return "".join(delta.get(name) or "" for delta in deltas for name in names)


@pytest.mark.parametrize("file", CHAT_FILES)
def test_every_chat_answer_was_found(file: str) -> None:
    assert len(list(chats(file))) == CHAT_FILES[file]


@pytest.mark.parametrize("file", CHAT_FILES)
def test_every_recorded_body_is_the_length_that_its_head_says(file: str) -> None:
    for exchange in chats(file):
        length = exchange.headers.get("content-length")
        replaced = any(word in exchange.parts[0] for word in (b"SITE_PACKAGES", b"MODEL_DIR"))
        if exchange.is_whole and length is not None and not replaced:
            assert len(exchange.body) == int(length), exchange.name


@pytest.mark.parametrize("file", CHAT_FILES)
def test_every_whole_json_answer_is_read_with_what_it_says(file: str) -> None:
    for exchange in chats(file):
        if exchange.status != 200 or exchange.is_stream or not exchange.is_whole:
            continue
        raw = json.loads(exchange.body)
        found = read_complete(exchange.body, dialect_of(exchange), named_tool=named_tool(exchange))
        assert not isinstance(found, Fault), exchange.name
        answer: Any = found[0]
        assert found[1] == raw["usage"]
        for choice, before in zip(answer["choices"], raw["choices"], strict=True):
            message, said = choice["message"], before["message"]
            thought = said.get("reasoning_content", said.get("reasoning"))
            assert message.get("reasoning_content") == thought, exchange.name
            assert ("reasoning_content" in message) == ("reasoning_content" in said or "reasoning" in said)
            assert "reasoning" not in message
            assert message["content"] == said["content"]
            assert len(message.get("tool_calls", [])) == len(said.get("tool_calls", []))
        check_usage(exchange, raw["usage"])
        check_streams_alike(answer)


def check_usage(exchange: Exchange, raw: Any) -> None:
    report = measured(exchange, raw)
    cached = (raw.get("prompt_tokens_details") or {}).get("cached_tokens")
    assert report.wire["total_tokens"] == raw["total_tokens"]
    assert report.usage.prompt == report.prompt_tokens == raw["prompt_tokens"]
    assert report.usage.output == report.completion_tokens == raw["completion_tokens"]
    assert report.usage.cache_read == (None if cached is None else min(cached, raw["prompt_tokens"]))
    assert ("cache_exceeds_prompt" in report.anomaly) == ((cached or 0) > raw["prompt_tokens"])
    assert (report.usage.write_5m, report.assumed, report.charged) == (None, False, None)


def with_role(message: Any) -> Any:
    return {"role": "assistant", **message}


def check_streams_alike(answer: Any) -> None:
    """As a stream, through the reader again, the answer folds to itself."""
    reader, items = ChunkReader(NO_DIALECT), []
    for data in as_chunks(answer):
        items += reader.feed(encode_event(encode(data)))
    assert isinstance(reader.finish()[-1], Done)
    body = folded(items)
    assert body == {
        **answer,
        "choices": [{**each, "message": with_role(each["message"])} for each in answer["choices"]],
    }


@pytest.mark.parametrize("file", CHAT_FILES)
def test_every_whole_stream_folds_to_what_it_says_however_it_is_split(file: str) -> None:
    for exchange in chats(file):
        if not exchange.is_stream or not exchange.is_whole:
            continue
        items = streamed(exchange, exchange.body)
        assert isinstance(items[-1], Done), exchange.name
        events = recorded_events(exchange.body)
        (choice,) = folded(items)["choices"]
        message = choice["message"]
        assert (message["content"] or "") == recorded_text(events, 0, "content")
        assert message["reasoning_content"] == recorded_text(events, 0, "reasoning_content", "reasoning")
        usages = [event["usage"] for event in events if event.get("usage")]
        assert last_usage(items) == (usages[-1] if usages else None)
        size = 97
        pieces = [exchange.body[start : start + size] for start in range(0, len(exchange.body), size)]
        assert streamed(exchange, *pieces) == items


@pytest.mark.parametrize("file", CHAT_FILES)
def test_every_stream_with_its_middle_left_out_is_read_on_both_sides(file: str) -> None:
    for exchange in chats(file):
        if not exchange.is_stream or exchange.is_whole:
            continue
        head, tail = exchange.parts
        whole = head[: head.rindex(b"\n\n") + 2]
        items = ChunkReader(dialect_of(exchange)).feed(head)
        assert len(items) == len(recorded_events(whole)) > 0
        end = tail[tail.index(b"\n\n") + 2 :]
        assert isinstance(streamed(exchange, end)[-1], Done if b'finish_reason":"' in end else Failed)


WEATHER = [("get_weather", '{"city": "Paris"}'), ("get_weather", '{"city": "Tokyo"}')]


@pytest.mark.parametrize(
    ("file", "ids"),
    [
        ("vllm-tools", r"chatcmpl-tool-[0-9a-f]{16}"),
        ("sglang-tools", r"get_weather:[01]"),
        ("llamacpp-tools", r"[A-Za-z0-9]{32}"),
    ],
)
@pytest.mark.parametrize("name", ["tools-parallel", "tools-parallel-stream"])
def test_two_recorded_calls_arrive_whole(file: str, ids: str, name: str) -> None:
    exchange = exchanges(file)[name]
    if exchange.is_stream:
        body = folded(streamed(exchange, exchange.body))
    else:
        found = read_complete(exchange.body, dialect_of(exchange))
        assert not isinstance(found, Fault)
        body = found[0]
    (choice,) = body["choices"]
    calls = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [
        json.loads(text) for _, text in WEATHER
    ]
    assert [call["function"]["name"] for call in calls] == [name for name, _ in WEATHER]
    assert all(re.fullmatch(ids, call["id"]) for call in calls)
    assert len({call["id"] for call in calls}) == 2
    assert choice["message"]["reasoning_content"].startswith(
        "The user asks for something that get_weather can do."
    )


def test_vllms_finish_reason_after_a_named_tool_choice_is_set_right() -> None:
    exchange = exchanges("vllm-tools")["tools-named"]
    assert b'"finish_reason":"stop"' in exchange.body
    found: Any = read_complete(exchange.body, DIALECTS["vllm"], named_tool=True)
    assert found[0]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("file", "thought"),
    [
        ("vllm-chat-1", "The user wants Chinese. 用中文回答。"),
        ("sglang-chat", "The user wants Chinese. 用中文回答。"),
    ],
)
def test_recorded_chinese_and_emoji_arrive_whole_for_every_split(file: str, thought: str) -> None:
    exchange = exchanges(file)["chat-unicode-stream"]
    for size in (1, 2, 3, 5, 1000):
        pieces = [exchange.body[start : start + size] for start in range(0, len(exchange.body), size)]
        message = folded(streamed(exchange, *pieces))["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == (thought, "你好，世界！很高兴见到你。🌙")


def test_recorded_log_probabilities_keep_their_digits() -> None:
    exchange = exchanges("sglang-chat")["logprobs"]
    found: Any = read_complete(exchange.body, DIALECTS["sglang"])
    tokens = found[0]["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in tokens] == ["The", " user"]
    assert str(tokens[0]["logprob"]) == "-0.0002982171718031168"


@pytest.mark.parametrize(
    ("file", "name", "wire"),
    [
        ("vllm-cache", "cache-2-same", {"prompt_tokens": 953, "completion_tokens": 4, "cached_tokens": 896}),
        # 952 cached tokens of 950: the clamped numbers reach the client
        ("sglang-cache", "cache-2-same", {"prompt_tokens": 950, "completion_tokens": 4, "cached_tokens": 950}),
        ("llamacpp-cache", "cache-2-same", {"prompt_tokens": 953, "completion_tokens": 4, "cached_tokens": 952}),
    ],
)
def test_recorded_cache_hits(file: str, name: str, wire: dict[str, int]) -> None:
    exchange = exchanges(file)[name]
    found: Any = read_complete(exchange.body, dialect_of(exchange))
    report = measured(exchange, found[1])
    assert {key: report.wire[key] for key in wire} == wire
    assert report.usage.input == wire["prompt_tokens"] - wire["cached_tokens"]


def test_a_killed_vllm_engine_fails_the_stream_although_done_follows() -> None:
    data = tail_bytes("vllm-failures", "engine core killed in the middle of a stream")
    assert data.endswith(b"data: [DONE]\n\n")
    items = ChunkReader(DIALECTS["vllm"]).feed(data)
    assert [type(item) for item in items] == [Chunk] * (len(items) - 1) + [Failed]
    last = items[-1]
    assert isinstance(last, Failed)
    assert (last.fault.kind, last.fault.status) == (FaultKind.SERVER, 500)
    assert last.fault.message.startswith("EngineCore encountered an issue.")


def test_a_killed_sglang_engine_leaves_an_incomplete_stream() -> None:
    reader = ChunkReader(DIALECTS["sglang"])
    items = reader.feed(tail_bytes("sglang-failures", "engine core killed in the middle of a stream"))
    (end,) = reader.finish()
    assert items
    assert isinstance(end, Failed)
    assert end.fault.kind is FaultKind.INCOMPLETE


@pytest.mark.parametrize(("file", "position"), [("vllm-failures", 1), ("sglang-failures", 0)])
def test_a_stream_that_an_engine_finishes_while_draining_is_whole(file: str, position: int) -> None:
    data = tail_bytes(file, "SIGTERM in the middle of a stream", position)
    items = ChunkReader(DIALECTS[file.partition("-")[0]]).feed(data)
    assert isinstance(items[-1], Done)
    assert isinstance(items[-2], Chunk)
    assert items[-2].finished == (0,)


def test_an_sglang_stream_that_is_a_503_in_a_200_fails_before_anything_was_said() -> None:
    exchange = exchanges("sglang-failures")["an answer that began with 200"]
    assert exchange.status == 200
    (only,) = streamed(exchange, exchange.body)
    assert isinstance(only, Failed)
    assert (only.fault.kind, only.fault.status, only.fault.code) == (FaultKind.OVERLOAD, 503, "503")


def test_an_answer_whose_recording_was_cut_is_a_fault_and_no_answer() -> None:
    exchange = exchanges("sglang-failures")["a new request 0.3 s after SIGTERM"]
    found = read_complete(exchange.body, DIALECTS["sglang"])
    assert isinstance(found, Fault)
    assert found.kind is FaultKind.SERVER


@pytest.mark.parametrize("name", ["chat-plain", "chat-stream-usage", "tools-parallel-stream"])
def test_llamacpp_is_read_behind_the_vllm_dialect_as_well(name: str) -> None:
    file = "llamacpp-tools" if name.startswith("tools") else "llamacpp-chat-1"
    exchange = exchanges(file)[name]
    for dialect in (DIALECTS["vllm"], DIALECTS["llamacpp"]):
        if exchange.is_stream:
            reader = ChunkReader(dialect)
            body = folded(reader.feed(exchange.body))
        else:
            found: Any = read_complete(exchange.body, dialect)
            body = found[0]
        assert body["choices"][0]["message"]["reasoning_content"].startswith("The user ")
