"""The emulator over a real socket, and its answers in a form that tests can compare."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from backends.emulator.app import Emulator, EmulatorConfig
from support.asgi import serve

PRO = "kimi-k3.1-pro"
FAST = "kimi-k3.1-pro-highspeed"


@contextmanager
def emulator(**config: Any) -> Iterator[httpx2.Client]:
    """A client of a fresh emulator; at pace 0 unless `config` says otherwise."""
    with (
        serve(Emulator(EmulatorConfig(**{"pace": 0, **config}))) as url,
        httpx2.Client(base_url=url, timeout=30) as client,
    ):
        yield client


def chat(client: httpx2.Client, *messages: Any, **fields: Any) -> dict[str, Any]:
    """The body of an unstreamed answer."""
    body = {"model": PRO, "messages": list(messages), **fields}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def message(client: httpx2.Client, *messages: Any, **fields: Any) -> dict[str, Any]:
    """The message of an unstreamed answer."""
    held: dict[str, Any] = chat(client, *messages, **fields)["choices"][0]["message"]
    return held


def stream(client: httpx2.Client, *messages: Any, **fields: Any) -> list[dict[str, Any]]:
    """The chunks of a streamed answer; the frame of every event is checked on the way."""
    body = {"model": PRO, "messages": list(messages), "stream": True, **fields}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events.pop() == ""
    assert events.pop() == "data: [DONE]"
    assert all(event.startswith("data: {") for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def folded(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the deltas add up to, and the finish reason."""
    text, thought, calls, finish = "", "", [], None
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            thought += delta.get("reasoning_content", "")
            text += delta.get("content", "")
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                calls[call["index"]]["arguments"] += call["function"]["arguments"]
            finish = choice["finish_reason"] or finish
    return {"text": text, "thought": thought, "calls": calls, "finish": finish}
