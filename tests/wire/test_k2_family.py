"""K2 models pass through the gateway as they are, even where it is strict: on the wire, to Moonshot's dialect."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from support.lab import Heard, Lab, lab
from support.scripted import Given, ScriptedUpstream

USAGE = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100, "cached_tokens": 400}
OK = {"status": 200, "json_usage": USAGE}
HI = {"role": "user", "content": "hi"}
CONFIG = """
[contract]
mode = "strict"
[[routes]]
model = "kimi-k2.6"
default_effort = "low"
default_ttl = "1h"
[[targets]]
name = "k2"
dialect = "moonshot"
base_url = "BASE_URL"
api_key_env = "LAB_KEY"
models = { "kimi-k2.6" = "kimi-k2.6", "kimi-k2-thinking" = "kimi-k2-thinking" }
"""


@pytest.fixture(scope="module")
def k2() -> Iterator[Lab]:
    """A strict gateway with a target `k2`, whose route has a policy for efforts."""
    with (
        ScriptedUpstream(models=["kimi-k2.6", "kimi-k2-thinking"]) as upstream,
        lab(CONFIG.replace("BASE_URL", upstream.base_url)) as made,
    ):
        yield Lab(made.gateway, {**made.upstreams, "k2": upstream})


def ask(k2: Lab, answer: Given = OK, **fields: Any) -> tuple[Heard, Any]:
    """The answer to a request that is served, and the body that the upstream got."""
    heard = k2.ask({"model": "kimi-k2.6", "messages": [HI], **fields}, answer, target="k2")
    assert heard.status == 200, heard.raw
    return heard, k2.sent("k2")


def call(number: int, **thought: Any) -> list[dict[str, Any]]:
    """A tool-call turn and its result."""
    made = {"id": f"f:{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "content": "", "tool_calls": [made], **thought}
    return [turn, {"role": "tool", "tool_call_id": f"f:{number}", "content": str(number)}]


def test_lost_and_empty_thoughts_of_tool_calls_become_a_space_and_thinking_off_passes(k2: Lab) -> None:
    messages = [
        HI,
        *call(0),
        *call(1, reasoning_content=""),
        *call(2, reasoning_content="kept"),
        {"role": "assistant", "content": "done", "reasoning_content": ""},
        HI,
    ]
    heard, body = ask(k2, messages=messages, thinking={"type": "disabled"})
    assert body["thinking"] == {"type": "disabled"}
    thoughts = [turn.get("reasoning_content") for turn in body["messages"] if turn["role"] == "assistant"]
    assert thoughts == [" ", " ", "kept", ""]
    assert heard.headers["x-kimi-thinking"] == "missing=2"
    assert heard.headers["x-kimi-effort"] == "none"
    assert "x-kimi-adjusted" not in heard.headers
    assert b'"reasoning_content":" "' in k2.upstreams["k2"].requests[-1].body


def test_what_k3_would_refuse_or_lose_reaches_k2(k2: Lab) -> None:
    wishes = {
        "temperature": 0,
        "presence_penalty": 1,
        "n": 2,
        "reasoning_effort": "ultra",
        "max_completion_tokens": 500,
    }
    two = [{"index": at, "finish_reason": "stop", "message": {"content": "ok"}} for at in (0, 1)]
    heard, body = ask(k2, {"status": 200, "json": {"choices": two, "usage": USAGE}}, **wishes)
    assert [choice["index"] for choice in heard.json["choices"]] == [0, 1]
    told = {
        name: value
        for name, value in body.items()
        if name not in ("model", "messages", "stream", "stream_options")
    }
    assert told == wishes
    assert heard.headers["x-kimi-effort"] == "unset"
    assert "x-kimi-adjusted" not in heard.headers
    refused = k2.ask({"model": "kimi-k3.1-pro", "messages": [HI], "temperature": 0.6}, target="moonshot")
    assert (refused.status, refused.error["code"]) == (400, "contract_violation")


def test_a_policy_for_efforts_does_not_reach_k2(k2: Lab) -> None:
    heard, body = ask(k2)
    assert not {"reasoning_effort", "thinking", "prompt_cache_options"} & body.keys()
    assert heard.headers["x-kimi-effort"] == "unset"


def test_what_k2_refuses_is_the_clients_to_see(k2: Lab) -> None:
    said = "cannot specify both 'thinking' and 'reasoning_effort'"
    refusal = {"status": 400, "json": {"error": {"message": said, "type": "invalid_request_error"}}}
    both = {"thinking": {"type": "enabled"}, "reasoning_effort": "low"}
    heard = k2.ask({"model": "kimi-k2.6", "messages": [HI], **both}, refusal, target="k2")
    assert (heard.status, heard.error["message"]) == (400, said)
    sent = k2.sent("k2")
    assert {name: sent[name] for name in both} == both


def test_k2_is_priced_by_its_card_and_unpriced_without_one(k2: Lab) -> None:
    heard, _ = ask(k2)
    # 600 fresh, 400 read and 100 output tokens at 0.95, 0.16 and 4.00 USD per million.
    assert Decimal(heard.headers["x-kimi-cost-usd"]) == Decimal("0.001034")
    heard, _ = ask(k2, model="kimi-k2-thinking")
    assert "x-kimi-cost-usd" not in heard.headers
    assert k2.row(heard)["cost_usd"] is None
