"""A history of 900 messages and 4 MB whose client lost every thought: each is back in its place.

How long the event loop stands still meanwhile is measured by `bench/stall.py`.
"""

import json
from typing import Any

from support.lab import post
from support.processes import gateway_process
from support.scripted import ScriptedUpstream

TURNS = 300
LINE = "Every figure is read aloud and checked twice, und der Wind kommt aus Westen über den Fluß.\n"
CONFIG = """
[server]
drain_grace_s = 0
[[targets]]
name = "moonshot"
dialect = "moonshot"
base_url = "{url}"
api_key_env = "LONG_KEY"
context_window = 2097152
"""
"""Twice Kimi's window: 4 MB may fill all of that, and thoughts are left out where there is no room."""


def question(turn: int) -> dict[str, Any]:
    return {"role": "user", "content": f"Question {turn}. " + LINE * 40}


def thought(turn: int) -> str:
    return f" Thought {turn}:\n" + LINE * (turn % 20)


def answer(turn: int) -> dict[str, Any]:
    function = {"name": "read", "arguments": json.dumps({"path": f"/{turn}", "lines": [1, 2.5]})}
    return {
        "role": "assistant",
        "content": f"I read {turn}. " + LINE * 20,
        "tool_calls": [{"id": f"read:{turn % 7}", "type": "function", "function": function}],
    }


def result(turn: int) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"read:{turn % 7}", "content": f"Result {turn}. " + LINE * 83}


def answered(message: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"status": 200, "json": {"id": "c", "choices": [choice], "usage": usage}}


def test_nine_hundred_messages_of_four_megabytes_get_every_thought_back() -> None:
    with (
        ScriptedUpstream() as upstream,
        gateway_process(CONFIG.format(url=upstream.base_url), {"LONG_KEY": "sk-long"}) as gateway,
    ):
        for turn in range(TURNS):
            upstream.add(answered({**answer(turn), "reasoning_content": thought(turn)}))
            request = {"model": "kimi-k3.1-pro", "messages": [question(turn)]}
            assert post(gateway.base_url, request, {}).status == 200
        history = [one(turn) for turn in range(TURNS) for one in (question, answer, result)]
        body = json.dumps({"model": "kimi-k3.1-pro", "messages": [*history, question(TURNS)]}).encode()
        upstream.add(answered(answer(TURNS)))
        heard = post(gateway.base_url, body, {})
        sent = upstream.requests[-1].json["messages"]
    assert len(history) == 900
    assert len(body) > 4_000_000
    assert (heard.status, heard.headers["x-kimi-thinking"]) == (200, f"repaired={TURNS}")
    assert isinstance(sent, list)
    whole = [
        {**one, "reasoning_content": thought(place // 3)} if place % 3 == 1 else one
        for place, one in enumerate(history)
    ]
    assert sent[:900] == whole
