"""The emulated engines beside the recorded ones: the same requests, the same statuses, fields and error texts.

The samples are `recorded`, 2026-11-30: vLLM 0.32.0 and SGLang 0.5.23, both with a window of 8,192 tokens and a
model without pictures. What they say differs (theirs is a tiny model's), how they say it must not.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx2
import pytest

from support.emulated import emulator
from support.transcripts import Exchange, exchanges

FILES = {"vllm": ("chat-1", "chat-2", "tools", "errors", "meta"), "sglang": ("chat", "tools", "errors", "meta")}
PATHS = ("/v1/chat/completions", "/v1/models", "/v1/nope", "/health", "/version", "/tokenize", "/")
LONG = {"err-too-long-prompt", "err-too-long-prompt-stream"}  # recorded without their middle
KEY = "sk-emulated"
# What the emulator does otherwise, and why.
UNLIKE = {
    ("sglang", "err-not-an-object"): "there it crashes and answers 500 as text",
    ("vllm", "get-root"): "only SGLang has something at /",
}
CASES = {"vllm": 76, "sglang": 74}  # how many exchanges are compared: none may be lost on the way


@cache
def recorded(engine: str) -> dict[str, Exchange]:
    held: dict[str, Exchange] = {}
    for file in FILES[engine]:
        held |= {exchange.name: exchange for exchange in exchanges(f"{engine}-{file}").values()}
    return {
        name: exchange
        for name, exchange in held.items()
        if exchange.path in PATHS and (engine, name) not in UNLIKE and (exchange.is_whole or name in LONG)
    }


@pytest.fixture(scope="module", params=sorted(FILES))
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, httpx2.Client]]:
    config = {"context_tokens": 8192, "text_only": True, "block_tokens": 128, "api_keys": (KEY,)}
    with emulator(dialect=request.param, **config) as client:
        yield request.param, client


def fields(value: Any, path: str = "") -> set[str]:
    """Every field by its path; members of a list count as one."""
    match value:
        case dict():
            return {path, *(found for name, held in value.items() for found in fields(held, f"{path}.{name}"))}
        case list():
            return {path, *(found for held in value for found in fields(held, f"{path}[]"))}
        case _:
            return {path}


def chunks(body: bytes) -> list[Any]:
    found = [line.removeprefix("data: ") for line in body.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(text) for text in found if text != "[DONE]"]


def kinds(body: bytes) -> set[tuple[str, ...]]:
    """The kinds of chunk in a stream: the paths of the fields of each."""
    return {tuple(sorted(fields(chunk))) for chunk in chunks(body)}


def ask(client: httpx2.Client, exchange: Exchange) -> httpx2.Response:
    """The same request; one that was too long to record whole is made up again."""
    name = exchange.name
    key = {"err-wrong-key": "wrong"}.get(name, "" if name.endswith("-no-key") else KEY)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    method = "GET" if name == "err-method" or name.startswith("get-") or exchange.request is None else "POST"
    body: Any = exchange.request
    if name in LONG:
        method, body = "POST", {"messages": [{"role": "user", "content": "word " * 9000}]}
        body["stream"] = name.endswith("stream")
    if name in ("err-bad-json", "err-empty-body", "err-not-an-object", "err-content-type"):
        method = "POST"
    if name == "err-content-type":
        headers["content-type"] = "text/plain"
    data = {"err-bad-json": b'{"model": "x", "messages": [}', "err-not-an-object": b"[1,2]"}.get(name)
    if data is None and body is not None:
        data = json.dumps(body, default=float).encode()
        headers.setdefault("content-type", "application/json")
    return client.request(method, exchange.path, content=data or b"", headers=headers)


def test_every_recorded_request_gets_the_recorded_status(engine: tuple[str, httpx2.Client]) -> None:
    name, client = engine
    found = {case: ask(client, exchange).status_code for case, exchange in recorded(name).items()}
    assert found == {case: exchange.status for case, exchange in recorded(name).items()}
    assert len(found) == CASES[name]


def test_every_recorded_body_has_the_same_fields(engine: tuple[str, httpx2.Client]) -> None:
    name, client = engine
    for case, exchange in recorded(name).items():
        if exchange.is_stream or not exchange.headers.get("content-type", "").startswith("application/json"):
            continue
        if exchange.name in LONG:
            continue
        assert fields(ask(client, exchange).json()) == fields(json.loads(exchange.body)), case


def test_every_recorded_stream_has_the_same_kinds_of_chunk(engine: tuple[str, httpx2.Client]) -> None:
    name, client = engine
    streams = {case: exchange for case, exchange in recorded(name).items() if exchange.is_stream}
    assert len(streams) > 5
    for case, exchange in streams.items():
        answer = ask(client, exchange)
        assert kinds(answer.content) == kinds(exchange.body), case
        assert answer.headers["content-type"] == exchange.headers["content-type"]
        assert answer.content.endswith(b"data: [DONE]\n\n")


def said(body: Any) -> tuple[Any, ...]:
    """Message (without one prompt's numbers, and only its start where a library wrote it), type, param, code."""
    error = body.get("error", body)
    if isinstance(error, str) or "message" not in error:
        return (body,)
    message = re.sub(r"\b(9052|112\d\d)\b", "N", error["message"])
    if "validation error" in message:
        message = "validation errors"
    return message, error["type"], str(error["param"]).split(".")[0], error["code"]


def test_every_recorded_refusal_says_the_same(engine: tuple[str, httpx2.Client]) -> None:
    name, client = engine
    refused = {case: exchange for case, exchange in recorded(name).items() if exchange.status >= 400}
    assert len(refused) > 15
    for case, exchange in refused.items():
        theirs = json.loads(exchange.body)
        if case == "err-content-type":
            theirs.get("error", theirs)["param"] = ask(client, exchange).json().get("error", {}).get("param")
        assert said(ask(client, exchange).json()) == said(theirs), case


@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("max-completion-tokens", ("stop_reason", "matched_stop", "finish_reason")),
        ("tools-auto", ("matched_stop", "finish_reason")),
        ("tools-named", ("matched_stop", "finish_reason")),
        ("tools-required", ("matched_stop", "finish_reason")),
    ],
)
def test_how_an_answer_ended_is_told_as_recorded(
    engine: tuple[str, httpx2.Client], case: str, names: tuple[str, ...]
) -> None:
    name, client = engine
    exchange = recorded(name)[case]
    ours, theirs = (answer["choices"][0] for answer in (ask(client, exchange).json(), json.loads(exchange.body)))
    assert {field: ours.get(field) for field in names} == {field: theirs.get(field) for field in names}


@pytest.mark.parametrize(
    "case", ["chat-plain", "max-completion-tokens", "tools-auto", "tools-named", "effort-none"]
)
def test_what_is_null_and_what_is_empty_is_as_recorded(engine: tuple[str, httpx2.Client], case: str) -> None:
    name, client = engine

    def shape(message: Any) -> dict[str, Any]:
        return {field: value if value in (None, "") else type(value) for field, value in message.items()}

    exchange = recorded(name)[case]
    ours, theirs = (
        answer["choices"][0]["message"] for answer in (ask(client, exchange).json(), json.loads(exchange.body))
    )
    assert shape(ours) == shape(theirs)


def test_a_stop_sequence_is_named_where_the_engine_names_it(engine: tuple[str, httpx2.Client]) -> None:
    name, client = engine
    field, natural = {"vllm": ("stop_reason", None), "sglang": ("matched_stop", 6)}[name]
    body = {"messages": [{"role": "user", "content": "hi"}], "stop": ["wrote"]}
    headers = {"authorization": f"Bearer {KEY}"}
    stopped, whole = (
        client.post("/v1/chat/completions", json=asked, headers=headers).json()["choices"][0]
        for asked in (body, {**body, "stop": ["never said"]})
    )
    assert (stopped["finish_reason"], stopped[field]) == ("stop", "wrote")
    assert stopped["message"]["content"].endswith("You ")
    assert (whole["finish_reason"], whole[field]) == ("stop", natural)


def test_a_forbidden_call_leaks_its_marks_on_sglang_alone(engine: tuple[str, httpx2.Client]) -> None:
    name, client = engine
    exchange = recorded(name)["tools-none"]
    body = {key: value for key, value in (exchange.request or {}).items() if key != "max_tokens"}
    answer = client.post(exchange.path, json=body, headers={"authorization": f"Bearer {KEY}"}).json()
    text = answer["choices"][0]["message"]["content"]
    start = '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city"'
    assert text.startswith(start) is (name == "sglang")
    if name == "sglang":
        assert json.loads(exchange.body)["choices"][0]["message"]["content"] == start
