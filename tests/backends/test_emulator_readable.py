"""What the emulator writes is what the gateway's own readers read, in every dialect: two parties, one truth."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from backends.catalog import DIALECTS
from backends.emulator.profiles import PROFILES
from backends.fold import Fold
from backends.json import JsonObject
from backends.reader import Chunk, ChunkReader, Done, read_complete
from backends.usage import Measured, read_usage
from support.misbehaving import Heard, Upstream, misbehaving

MODELS = {name: profile.models[0].id for name, profile in PROFILES.items()}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASKED: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hi"}]},
    {"messages": [{"role": "user", "content": "你好 😀"}], "reasoning_effort": "low"},
    {"messages": [{"role": "user", "content": "weather please"}], "tools": [WEATHER]},
    {"messages": [{"role": "user", "content": "word " * 3000}], "max_completion_tokens": 100},
    {"messages": [{"role": "user", "content": "word " * 3000}], "max_completion_tokens": 400},
]


@pytest.fixture(scope="module", params=list(PROFILES))
def upstream(request: pytest.FixtureRequest) -> Iterator[tuple[str, Upstream]]:
    with misbehaving(dialect=request.param) as held:
        yield request.param, held


def read_stream(dialect: str, heard: Heard) -> tuple[Any, JsonObject]:
    """The message and the last usage of a stream."""
    reader, fold, usages = ChunkReader(DIALECTS[dialect]), Fold(), []
    items = [*reader.feed(heard.body), *reader.finish()]
    for item in items:
        if isinstance(item, Chunk):
            fold.add(item.data)
            usages += [item.usage] if item.usage is not None else []
    assert isinstance(items[-1], Done)
    return fold.body(), usages[-1]


def read_body(dialect: str, heard: Heard) -> tuple[Any, JsonObject]:
    found = read_complete(heard.body, DIALECTS[dialect])
    assert isinstance(found, tuple)
    body, usage = found
    assert usage is not None
    return body, usage


def said(body: Any) -> tuple[Any, ...]:
    """What counts of an answer: thought, text, calls (their ids may be the answer's own), end."""
    (choice,) = body["choices"]
    held = choice["message"]
    calls = [call["function"] for call in held.get("tool_calls") or ()]
    return held.get("reasoning_content") or "", held.get("content") or "", calls, choice["finish_reason"]


def measured(dialect: str, heard: Heard, usage: JsonObject) -> Measured:
    return read_usage(usage, dialect=DIALECTS[dialect], headers=heard.headers, ttl="")


@pytest.mark.parametrize("fields", ASKED)
def test_streamed_or_not_the_same_answer_is_read(upstream: tuple[str, Upstream], fields: dict[str, Any]) -> None:
    dialect, held = upstream
    asked = {"model": MODELS[dialect], **fields}
    streamed = held.ask(**asked, stream=True, stream_options={"include_usage": True})
    whole = held.ask(**asked)
    assert said(read_stream(dialect, streamed)[0]) == said(read_body(dialect, whole)[0])


@pytest.mark.parametrize("fields", ASKED)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_measured_is_what_the_invoice_says(
    upstream: tuple[str, Upstream], fields: dict[str, Any], stream: bool
) -> None:
    dialect, held = upstream
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    heard = held.ask(**{"model": MODELS[dialect], **fields, **options})
    _, usage = (read_stream if stream else read_body)(dialect, heard)
    found = measured(dialect, heard, usage)
    line = held.lines()[-1]
    assert found.anomaly == ()
    assert found.prompt_tokens == line["prompt_tokens"]
    assert found.completion_tokens == line["output"]
    assert (found.usage.cache_read or 0) == line["cache_read"]
    if dialect != "openrouter":  # there a write is read from the usage and charged as input
        assert (found.usage.write_5m or 0, found.usage.write_1h or 0) == (line["write_5m"], line["write_1h"])
    assert found.charged == (Decimal(line["usd"]) if dialect == "openrouter" else None)
