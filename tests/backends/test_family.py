"""Families of models: K3 with its rules, and K2, whose requests pass as they came."""

import json
from typing import Any

import msgspec
import pytest

from backends.catalog import DIALECTS, foreign_fields
from backends.encode import Incapable, Request, Wish, encode_request
from backends.family import K3, dialect_for, family_of
from backends.messages import read_heads

HI = {"role": "user", "content": "hi"}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("wx", "news")
]
K2 = "kimi-k2.6"


def encoded(fields: dict[str, Any], dialect: str = "moonshot", model: str = K2, **wishes: Any) -> Request:
    body = json.dumps({"messages": [HI], **fields}).encode()
    raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    wish = Wish(
        fields=raw,
        messages=msgspec.json.decode(raw["messages"], type=list[msgspec.Raw]),
        heads=read_heads(raw["messages"]),
        model=model,
        **wishes,
    )
    return encode_request(wish, DIALECTS[dialect], foreign_fields(DIALECTS[dialect]))


@pytest.mark.parametrize(
    ("model", "passes"),
    [
        ("kimi-k2.6", True),
        ("kimi-k2.7-code-highspeed", True),
        ("moonshotai/Kimi-K2-Thinking", True),
        ("kimi-k3.1-pro", False),
        ("kimi-k3", False),
        ("moonshotai/Kimi-K3.1-Pro", False),
        ("kimi-k2/other", False),  # an owner of that name is no family
        ("kimi-latest", False),
        ("", False),
    ],
)
def test_a_family_is_known_by_the_name_without_its_owner(model: str, passes: bool) -> None:
    assert family_of(model).passes_through is passes
    assert (family_of(model) is K3) is not passes


def test_the_dialect_of_k3_is_the_dialect_itself() -> None:
    for dialect in DIALECTS.values():
        assert dialect_for(K3, dialect) is dialect


WISHES: list[dict[str, Any]] = [
    {"thinking": {"type": "disabled"}},
    {"thinking": {"type": "enabled", "keep": "all"}},
    {"thinking": {"type": "enabled"}, "reasoning_effort": "low"},  # together a 400 there: theirs to see
    {"reasoning_effort": "medium"},
    {"reasoning_effort": "ultra"},
    {"temperature": 0.6, "top_p": 0.5, "presence_penalty": 0.5, "frequency_penalty": 1},
    {"n": 3},
    {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "wx"}}},
    {"tool_choice": "required"},
    {"stop": ["1", "2", "3", "4", "5", "6"]},
    {"top_logprobs": 25},
    {"prompt_cache_key": "s-1", "frobnicate": [1]},
]


@pytest.mark.parametrize("wishes", WISHES)
@pytest.mark.parametrize("dialect", ["moonshot", "vllm", "sglang", "openrouter", "llamacpp"])
def test_what_is_said_to_k2_passes_as_it_came(dialect: str, wishes: dict[str, Any]) -> None:
    named = (wishes.get("tool_choice") or {}) if isinstance(wishes.get("tool_choice"), dict) else {}
    request = encoded(
        wishes,
        dialect,
        effort="high",
        thinking_off="thinking" in wishes,
        n=wishes.get("n", 1),
        named_tool=named.get("function", {}).get("name"),
    )
    body = json.loads(request.body)
    told = {
        name: value
        for name, value in body.items()
        if name not in ("model", "messages", "stream", "stream_options")
    }
    assert told == wishes
    assert request.adjusted == ()


def test_the_same_wishes_to_k3_are_held_to_its_rules() -> None:
    held = encoded({"temperature": 0.6, "thinking": {"type": "enabled"}}, model="kimi-k3.1-pro", effort="low")
    body = json.loads(held.body)
    assert (body["reasoning_effort"], "temperature" in body, "thinking" in body) == ("low", False, False)
    for wishes, kept in (({}, {"thinking_off": True}), ({"n": 3}, {"n": 3})):
        with pytest.raises(Incapable):
            encoded(wishes, model="kimi-k3.1-pro", **kept)


def test_a_default_lifetime_is_not_sent_to_k2_and_a_stated_one_passes() -> None:
    assert b"prompt_cache_options" not in encoded({}, ttl="1h").body
    stated = {"prompt_cache_options": {"mode": "implicit", "ttl": "5m"}}
    assert json.loads(encoded(stated, ttl="1h").body)["prompt_cache_options"] == stated["prompt_cache_options"]


def test_a_field_of_another_kind_of_upstream_is_left_out_for_k2_too() -> None:
    request = encoded({"reasoning": {"effort": "low"}, "top_k": 5})
    assert (b"reasoning" in request.body, set(request.adjusted)) == (False, {"reasoning", "top_k"})
    assert json.loads(encoded({"reasoning": {"effort": "low"}}, "openrouter").body)["reasoning"] == {
        "effort": "low"
    }


def test_what_belongs_to_the_service_holds_for_k2_too() -> None:
    history = [
        HI,
        {"role": "assistant", "content": "", "tool_calls": [_call("a:0", "{}"), _call("a:1", '{"x"')]},
        {"role": "tool", "tool_call_id": "a:1", "content": "1"},
        {"role": "user", "content": ""},
        HI,
    ]
    schema = {"type": "object", "properties": {"x": {"anyOf": [{"type": "string"}], "type": "string"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    request = encoded({"messages": history, "tools": [tool]})
    body = json.loads(request.body)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool", "user"]
    (call,) = body["messages"][1]["tool_calls"]
    assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert body["tools"] != [tool]
    image = [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]
    with pytest.raises(Incapable):
        encoded({"messages": [{"role": "user", "content": image}]})


def _call(id: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}
