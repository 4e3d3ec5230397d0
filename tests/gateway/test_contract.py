"""Strict mode: every violation of Moonshot's contract at once, by path, and none where the platform agrees."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backends.catalog import DIALECTS
from backends.contract import Incapable
from backends.emulator.errors import Refusal
from backends.emulator.moonshot import MOONSHOT
from backends.emulator.parse import parse_request
from backends.encode import Wish, encode_request
from backends.json import as_object, decode, encode
from kimi_gateway.core.contract import LISTED_MAX, refusal, violations
from kimi_gateway.core.view import read
from kimi_gateway.errors import InvalidRequest
from support.cases import case
from support.histories import HI, PARAMETERS, call, calls, histories, result, text, tool, turn


def found(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Path and rule of every violation."""
    whole = {"model": "kimi-k3.1-pro", "messages": [HI], **body}
    return [(one.path, one.rule) for one in violations(read(encode(whole)))]


def is_taken(body: Mapping[str, Any]) -> bool:
    """The strict emulator takes the client's own body."""
    sent = as_object(decode(encode({"model": "kimi-k3.1-pro", "messages": [HI], **body})))
    assert sent is not None
    try:
        parsed = parse_request(sent, MOONSHOT)
        for check in MOONSHOT.checks:
            check(parsed, MOONSHOT)
    except Refusal:
        return False
    return True


BROKEN: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({"temperature": 0.5}, [("temperature", "fixed")]),
    ({"top_p": True}, [("top_p", "fixed")]),
    ({"n": 2}, [("n", "fixed")]),
    (
        {"presence_penalty": 0.1, "frequency_penalty": "0"},
        [("presence_penalty", "fixed"), ("frequency_penalty", "fixed")],
    ),
    ({"stop": list("abcdef")}, [("stop", "stop")]),
    ({"stop": ["x" * 33]}, [("stop", "stop")]),
    ({"stop": ["a", ""]}, [("stop", "stop")]),
    ({"logprobs": 3}, [("logprobs", "logprobs")]),
    ({"logprobs": True, "top_logprobs": 21}, [("top_logprobs", "logprobs")]),
    ({"response_format": {"type": "grammar"}}, [("response_format.type", "format")]),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"strict": "yes"}}},
        [
            ("response_format.json_schema.name", "format"),
            ("response_format.json_schema.strict", "format"),
            ("response_format.json_schema.schema", "format"),
        ],
    ),
    ({"prompt_cache_breakpoint": {}}, [("prompt_cache_breakpoint", "breakpoint")]),
    (
        {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "read"}}},
        [("tool_choice", "choice")],
    ),
    ({"tools": [tool()], "tool_choice": "any"}, [("tool_choice", "choice")]),
    ({"tool_choice": "required"}, [("tool_choice", "choice")]),
    (
        {"tools": [tool("get.it"), tool("get.it")]},
        [
            ("tools[0].function.name", "name"),
            ("tools[1].function.name", "name"),
            ("tools[1].function.name", "duplicate"),
        ],
    ),
    ({"tools": [tool(parameters={"type": "string"})]}, [("tools[0].function.parameters", "root")]),
    ({"tools": {"a": 1}}, [("tools", "tools")]),
    (
        {"tools": [tool()], "messages": [{"role": "system", "tools": [tool(), tool("w.x")]}, HI]},
        [("messages[0].tools[1].function.name", "name"), ("messages[0].tools[0].function.name", "duplicate")],
    ),
    ({"messages": [{"role": "developer", "content": "x"}]}, [("messages[0].role", "role")]),
    ({"messages": [{"role": "critic", "content": "x"}]}, [("messages[0].role", "role")]),
    ({"messages": [{"role": "user", "content": ""}]}, [("messages[0]", "empty")]),
    (
        {"messages": [{"role": "user", "content": [text(""), text("a")]}]},
        [("messages[0].content[0]", "blank_part")],
    ),
    (
        {"messages": [HI, calls(call("a", arguments="[1]")), result("a")]},
        [("messages[1].tool_calls[0].function.arguments", "arguments")],
    ),
    ({"messages": [HI, calls(call("a")), HI]}, [("messages[1].tool_calls[0]", "unanswered")]),
    ({"messages": [HI, calls(call("a"))]}, [("messages[1].tool_calls[0]", "open_call")]),
    ({"messages": [HI, result("a")]}, [("messages[1].tool_call_id", "stray_result")]),
    ({"messages": [HI, calls(call("a")), result("b")]}, [("messages[2].tool_call_id", "result_id")]),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": "https://example.org/a.png"}]}
            ]
        },
        [("messages[0].content[0]", "media")],
    ),
    ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, [("messages[0].content[0]", "part_type")]),
]


@pytest.mark.parametrize(("body", "expected"), BROKEN)
def test_what_the_platform_refuses_is_found_by_its_path(
    body: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert not is_taken(body)
    assert found(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"reasoning_effort": "medium"}, [("reasoning_effort", "effort")]),
        ({"reasoning_effort": "none"}, [("reasoning_effort", "effort")]),
        ({"thinking": {"effort": "strong"}}, [("thinking.effort", "effort")]),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "low"}, [("thinking", "thinking")]),
        ({"max_completion_tokens": 2_000_000}, [("max_completion_tokens", "limit")]),
        ({"provider": {"only": ["x"]}, "top_k": 5}, [("provider", "foreign"), ("top_k", "foreign")]),
        ({"tools": [tool("f")]}, [("tools[0].function.name", "name")]),
        (
            {"tools": [tool("read", parameters={"type": "object", "properties": {"mode": {"enum": ["a"]}}})]},
            [("tools[0].function.parameters.properties.mode", "no_type")],
        ),
        ({"messages": [HI, calls(call("a"), content=[]), result("a")]}, [("messages[1].content", "blank_part")]),
    ],
)
def test_what_the_platform_ignores_or_other_sources_forbid_is_found_too(
    body: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert found(body) == expected


TAKEN: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "top_p": 0.95, "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0},
    {"reasoning_effort": "low", "max_completion_tokens": 16_000, "stop": ["a"], "stream": True},
    {"logprobs": True, "top_logprobs": 20, "prompt_cache_options": {"mode": "implicit", "ttl": "1h"}},
    {"response_format": {"type": "json_object"}, "prompt_cache_key": "s", "safety_identifier": "u"},
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": PARAMETERS, "strict": True},
        }
    },
    {"tools": [tool(), tool("write")], "tool_choice": "required", "parallel_tool_calls": True},
    {"tools": [{"type": "builtin_function", "function": {"name": "$web_search"}}]},
    {"messages": [{"role": "system", "tools": [tool()]}, HI], "tool_choice": "required"},
    {"messages": [HI, calls(call("a"), call("b"), reasoning_content="t"), result("b"), result("a", "")]},
    {"messages": [HI, {"role": "assistant", "content": "{", "partial": True}]},
    {
        "messages": [
            {"role": "user", "content": [text("?"), {"type": "image_url", "image_url": {"url": "ms://a"}}]}
        ]
    },
    {"frobnicate": {"a": 1}, "seed": 7, "user": "u", "service_tier": "highspeed"},
    {"temperature": None, "tools": None, "stop": None},
]


@pytest.mark.parametrize("body", TAKEN)
def test_what_the_platform_takes_has_no_violation(body: dict[str, Any]) -> None:
    assert is_taken({name: value for name, value in body.items() if value is not None})
    assert found(body) == []


def mended(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages as adjust mode sends them to the platform. Raises `Incapable`."""
    view = read(encode({"model": "m", "messages": messages}))
    wish = Wish(view.fields, view.messages, view.heads, "m")
    body: Any = decode(encode_request(wish, DIALECTS["moonshot"], frozenset()).body)
    sent: list[dict[str, Any]] = body["messages"]
    return sent


@settings(max_examples=100)
@given(histories, turn(), st.integers(0, 6))
def test_what_adjust_mode_sends_breaks_nothing_and_what_breaks_something_is_found(
    messages: list[dict[str, Any]], further: list[dict[str, Any]], place: int
) -> None:
    try:
        sent = mended([*messages, HI])
    except Incapable:
        assume(False)
    assert found({"messages": sent}) == []
    spoiled = {"messages": [*sent[:place], *further, *sent[place:]]}
    assert is_taken(spoiled) or found(spoiled)


def test_all_violations_are_in_one_refusal_in_the_requests_order() -> None:
    body = {
        "model": "kimi-k3.1-pro",
        "temperature": 0.5,
        "messages": [{"role": "developer", "content": ""}, HI],
        "reasoning_effort": "xhigh",
        "n": 3,
    }
    error = refusal(violations(read(encode(body))))
    assert isinstance(error, InvalidRequest)
    assert (error.status, error.type) == (400, "invalid_request_error")
    assert (error.code, error.param) == ("contract_violation", "temperature")
    places = [
        error.message.index(f" {path}: ") for path in ("temperature", "messages[0].role", "messages[0]", "n")
    ]
    assert places == sorted(places)
    assert "temperature: only 1 is taken; leave it out." in error.message
    assert error.message.startswith("5 parts of the request")


def test_one_violation_has_the_same_code_and_a_flood_is_counted() -> None:
    (one,) = violations(read(encode({"model": "m", "messages": [HI], "n": 2})))
    error = refusal([one])
    assert (error.code, error.param) == ("contract_violation", "n")
    many = refusal([one] * (LISTED_MAX + 7))
    assert many.message.count("n: only") == LISTED_MAX
    assert many.message.endswith("And 7 more")


def test_a_field_that_cannot_be_read_is_a_violation() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"a"}],"stop":1e9999999999999999999}'
    assert [(one.path, one.rule) for one in violations(read(body))] == [("stop", "json")]


def test_nothing_of_what_is_said_in_messages_is_repeated() -> None:
    secret = "the quick brown fox"
    body = {"messages": [{"role": "user", "content": [text(secret), {"type": "file"}], "name": secret}], "n": 2}
    error = refusal(violations(read(encode({"model": "m", **body}))))
    assert secret not in error.message


@pytest.mark.parametrize("case_id", ["par-01", "par-05", "par-06", "tool-05", "tool-06", "hist-04", "sch-01"])
def test_the_cases_that_adjust_mode_mends_are_violations(case_id: str) -> None:
    assert violations(read(json.dumps(case(case_id)["given"]["client_request"]).encode()))


@pytest.mark.parametrize("case_id", ["tool-04", "hist-01", "hist-03"])
def test_the_cases_that_pass_verbatim_are_not(case_id: str) -> None:
    assert violations(read(json.dumps(case(case_id)["given"]["client_request"]).encode())) == []


def test_tools_declared_in_thousands_of_messages_are_looked_at_once_each() -> None:
    tool = {"type": "function", "function": {"name": "toolx"}}
    messages: list[Any] = [{"role": "system", "tools": [tool]} for _ in range(3_000)]
    body = {"model": "kimi-k3.1-pro", "messages": [*messages, {"role": "user", "content": "x"}]}
    found = [one for one in violations(read(encode(body))) if one.rule == "duplicate"]
    assert len(found) == 2_999
    assert all("messages[0]" in one.what for one in found)
