"""Adjust mode against the strict emulators: what is sent is taken, and what cannot be mended names its field."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backends.catalog import DIALECTS, foreign_fields
from backends.contract import Incapable
from backends.emulator.errors import Refusal
from backends.emulator.moonshot import MOONSHOT
from backends.emulator.openrouter import OPENROUTER
from backends.emulator.parse import parse_request
from backends.emulator.profile import Profile
from backends.emulator.sglang import SGLANG
from backends.emulator.vllm import VLLM
from backends.encode import Request, Wish, encode_request
from backends.json import JsonObject, as_object, decode, encode
from backends.messages import read_heads
from support.histories import HI, PARAMETERS, call, calls, histories, result, text, tool
from support.shared import shared_path

PROFILES: Mapping[str, Profile] = {
    "moonshot": MOONSHOT,
    "openrouter": OPENROUTER,
    "vllm": VLLM,
    "sglang": SGLANG,
}


def request(dialect: str, body: Mapping[str, Any], **wishes: Any) -> Request:
    fields = msgspec.json.decode(encode({"messages": [HI], **body}), type=dict[str, msgspec.Raw])
    wish = Wish(
        fields=fields,
        messages=msgspec.json.decode(fields["messages"], type=list[msgspec.Raw]),
        heads=read_heads(fields["messages"]),
        model=PROFILES[dialect].models[0].id,
        **wishes,
    )
    return encode_request(wish, DIALECTS[dialect], foreign_fields(DIALECTS[dialect]))


def taken(made: Request, dialect: str) -> JsonObject:
    """The body, after the strict emulator has taken it. Raises `Refusal`."""
    body = as_object(decode(made.body))
    assert body is not None
    profile = PROFILES[dialect]
    parsed = parse_request(body, profile)
    for check in profile.checks:
        check(parsed, profile)
    return body


def refused_raw(body: Mapping[str, Any], dialect: str) -> bool:
    """The strict emulator refuses the client's own body."""
    try:
        taken(Request(encode({"model": "m", "messages": [HI], **body}), {}, ()), dialect)
    except Refusal:
        return True
    return False


MENDED: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("temperature", {"temperature": 0.5}, ("temperature",)),
    ("top_p", {"top_p": 1}, ("top_p",)),
    ("presence", {"presence_penalty": 1}, ("presence_penalty",)),
    ("frequency", {"frequency_penalty": -0.5}, ("frequency_penalty",)),
    ("a blank stop string", {"stop": ["a", ""]}, ("stop",)),
    ("a blank stop", {"stop": ""}, ("stop",)),
    ("breakpoint", {"prompt_cache_breakpoint": {"type": "explicit"}}, ("prompt_cache_breakpoint",)),
    (
        "a choice as an object",
        {"tools": [tool()], "tool_choice": {"type": "auto"}},
        ("tool_choice",),
    ),
    (
        "a schema without a name",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": PARAMETERS}}},
        ("response_format.json_schema.name",),
    ),
    ("the same tool twice", {"tools": [tool(), tool("write"), tool()]}, ("tools[2]",)),
    (
        "a root without an object",
        {"tools": [tool(parameters={"type": ["object", "null"]})]},
        ("tools[0].function.parameters",),
    ),
    ("an empty system message", {"messages": [{"role": "system", "content": ""}, HI]}, ("messages[0]",)),
    ("an empty user message", {"messages": [HI, {"role": "user", "content": []}]}, ("messages[1]",)),
    ("a user message of nothing", {"messages": [HI, {"role": "user"}]}, ("messages[1]",)),
    (
        "a blank part beside a picture",
        {
            "messages": [
                {"role": "user", "content": [text(" "), {"type": "image_url", "image_url": {"url": "ms://a"}}]}
            ]
        },
        ("messages[0].content",),
    ),
    (
        "a result of blank parts",
        {"messages": [HI, calls(call("a")), result("a", [text("")])]},
        ("messages[2].content",),
    ),
    (
        "a blank prefix",
        {"messages": [HI, {"role": "assistant", "content": [text("")], "partial": True}]},
        ("messages[1].content",),
    ),
    (
        "a marked part",
        {"messages": [{"role": "user", "content": [{**text("a"), "prompt_cache_breakpoint": {}}]}]},
        ("messages[0].content[0].prompt_cache_breakpoint",),
    ),
    (
        "a marked message",
        {"messages": [{**HI, "prompt_cache_breakpoint": {}}]},
        ("messages[0].prompt_cache_breakpoint",),
    ),
    (
        "no object as arguments",
        {"messages": [HI, calls(call("a", arguments="[1]")), result("a")]},
        ("messages[1].tool_calls[0].function.arguments",),
    ),
    (
        "an interrupted call",
        {"messages": [HI, calls(call("a"), content="I will"), HI]},
        ("messages[1].tool_calls[0]",),
    ),
    ("an interrupted call and nothing else", {"messages": [HI, calls(call("a")), HI]}, ("messages[1]",)),
    (
        "one of two calls interrupted",
        {"messages": [HI, calls(call("a"), call("b")), result("b"), HI]},
        ("messages[1].tool_calls[0]",),
    ),
    (
        "renamed ids",
        {"messages": [HI, calls(call("a:0"), call("b:1")), result("a_0"), result("b_1")]},
        ("messages[2].tool_call_id", "messages[3].tool_call_id"),
    ),
    (
        "tools beside content",
        {"messages": [{"role": "system", "content": "Be brief.", "tools": [tool()]}, HI]},
        ("messages[0].content",),
    ),
    (
        "a system message without tools",
        {"messages": [{"role": "system", "tools": []}, HI]},
        ("messages[0]",),
    ),
    (
        "a tool declared twice",
        {"tools": [tool()], "messages": [{"role": "system", "tools": [tool()]}, HI]},
        ("messages[0]", "messages[0].tools[0]"),
    ),
]


@pytest.mark.parametrize(("body", "adjusted"), [row[1:] for row in MENDED], ids=[row[0] for row in MENDED])
def test_what_moonshot_refuses_is_mended_said_and_taken(body: dict[str, Any], adjusted: tuple[str, ...]) -> None:
    assert refused_raw(body, "moonshot")
    made = request("moonshot", body)
    taken(made, "moonshot")
    assert set(made.adjusted) == set(adjusted)


INCAPABLE: list[tuple[dict[str, Any], str]] = [
    ({"stop": list("abcdef")}, "stop"),
    ({"stop": "x" * 33}, "stop"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"response_format": {"type": "grammar"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ({"tools": [tool("get.weather")]}, "tools[0].function.name"),
    ({"tools": [tool("$find")]}, "tools[0].function.name"),
    ({"tools": [{"type": "plugin", "function": {"name": "read"}}]}, "tools[0].type"),
    ({"tools": [tool(), tool(description="other")]}, "tools[1].function.name"),
    ({"tools": [tool(parameters={"type": "string"})]}, "tools[0].function.parameters"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [tool()], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"messages": [{"role": "critic", "content": "no"}]}, "messages[0].role"),
    ({"messages": [HI, result("a")]}, "messages[1].tool_call_id"),
    ({"messages": [HI, calls(call("a")), result("a"), result("b")]}, "messages[3].tool_call_id"),
    ({"messages": [HI, {"role": "assistant", "content": None, "refusal": "no"}]}, "messages[1]"),
    (
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        "messages[0].content[0]",
    ),
    ({"messages": [{"role": "user", "content": "", "tools": [tool()]}]}, "messages[0].tools"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages"),
]


@pytest.mark.parametrize(("body", "param"), INCAPABLE)
def test_what_cannot_be_mended_names_its_field(body: dict[str, Any], param: str) -> None:
    assert refused_raw(body, "moonshot")
    with pytest.raises(Incapable) as caught:
        request("moonshot", body)
    assert caught.value.param == param
    assert str(caught.value).startswith(param.partition("[")[0])


UNTOUCHED: list[dict[str, Any]] = [
    {
        "messages": [
            HI,
            calls(call("a:0"), call("a:1")),
            result("a:1"),
            {"role": "system", "content": "x"},
            result("a:0"),
        ]
    },
    {"messages": [HI, calls(call("a")), result("a"), calls(call("a")), result("a"), HI]},
    {"messages": [HI, calls(call("a"), content=""), result("a", None), {"role": "assistant", "content": "done"}]},
    {"messages": [{"role": "system", "tools": [tool()]}, HI], "tool_choice": "required"},
    {"tools": [tool(), tool("write")], "tool_choice": "required", "stop": ["a", "b"], "top_logprobs": 20},
    {"tools": [{"type": "builtin_function", "function": {"name": "$web_search"}}], "tool_choice": "none"},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": PARAMETERS}}},
    {"messages": [HI, {"role": "assistant", "content": "", "partial": True}]},
    {"user": "u", "seed": 7, "metadata": {"a": "b"}, "frobnicate": 1, "parallel_tool_calls": False},
]


@pytest.mark.parametrize("body", UNTOUCHED)
def test_what_moonshot_takes_is_sent_as_it_is(body: dict[str, Any]) -> None:
    made = request("moonshot", body)
    sent = taken(made, "moonshot")
    assert made.adjusted == ()
    assert {name: sent[name] for name in body} == body


def test_an_empty_list_of_tools_is_left_out_and_a_choice_of_none_too() -> None:
    for dialect in ("moonshot", "openrouter"):
        assert "tools" not in taken(request(dialect, {"tools": []}), dialect)
    for dialect in ("vllm", "sglang"):
        body = {"tools": [], "tool_choice": "auto"}
        sent = taken(request(dialect, body), dialect)
        assert sent.get("tool_choice") == ("auto" if dialect == "sglang" else None)
        with pytest.raises(Incapable):
            request(dialect, {"tool_choice": "required"})


def test_engines_get_what_they_honour_untouched() -> None:
    messages = [
        {"role": "system", "content": ""},
        {"role": "assistant", "content": [text(" ")], "reasoning_content": "was thinking"},
        {"role": "user", "content": [{**text("a"), "prompt_cache_breakpoint": {}}, {"type": "input_audio"}]},
        calls(call("a")),
        HI,
        result("b"),
    ]
    body = {"messages": messages, "stop": list("abcdefg"), "tools": [tool("get.weather"), tool("get.weather")]}
    made = request("sglang", body)
    sent = as_object(decode(made.body)) or {}
    assert made.adjusted == ()
    assert {name: sent[name] for name in body} == body


def test_openrouter_keeps_four_stop_strings_and_its_own_kinds_of_tools() -> None:
    with pytest.raises(Incapable):
        request("openrouter", {"stop": list("abcde")})
    plugin = {"type": "openrouter:datetime", "function": {"name": "now"}}
    assert (as_object(decode(request("openrouter", {"tools": [plugin]}).body)) or {})["tools"] == [plugin]


def test_a_request_that_ends_with_calls_is_left_to_the_upstream() -> None:
    messages = [HI, calls(call("a"), call("b")), result("b")]
    for dialect in PROFILES:
        made = request(dialect, {"messages": messages})
        assert (as_object(decode(made.body)) or {})["messages"] == messages
        assert made.adjusted == ()


# --- any history ----------------------------------------------------------------------------------------------


@given(st.sampled_from(sorted(PROFILES)), histories, st.booleans())
def test_whatever_the_history_the_strict_emulator_takes_what_is_sent(
    dialect: str, messages: list[dict[str, Any]], prefix: bool
) -> None:
    if prefix and messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
        messages[-1]["partial"] = True
    else:
        messages = [*messages, HI]
    try:
        made = request(dialect, {"messages": messages, "tools": [tool()]})
    except Incapable:
        assume(False)
    sent = taken(made, dialect)
    again = request(dialect, sent)
    assert [path for path in again.adjusted if path.startswith("messages")] == []
    assert (as_object(decode(again.body)) or {})["messages"] == sent["messages"]


def encoded_messages(messages: list[dict[str, Any]], dialect: str) -> list[bytes]:
    body = msgspec.json.decode(request(dialect, {"messages": messages}).body, type=dict[str, msgspec.Raw])
    return [bytes(raw) for raw in msgspec.json.decode(body["messages"], type=list[msgspec.Raw])]


@settings(max_examples=60)
@given(st.sampled_from(["moonshot", "openrouter", "vllm"]), histories, histories)
def test_a_history_that_grows_keeps_its_bytes(
    dialect: str, before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    """Whatever follows a user's message, what stands before it is sent as it was."""
    base = [*before, HI]
    try:
        first, second = encoded_messages(base, dialect), encoded_messages([*base, *after], dialect)
    except Incapable:
        assume(False)
    assert second[: len(first)] == first


def recorded_bodies() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(shared_path("transcripts").glob("client-*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if row.get("body") and row.get("path", "").endswith("/chat/completions"):
                body = {name: value for name, value in row["body"].items() if value is not None}
                if "tools" in body:  # long lists were cut, and end with a remark
                    body["tools"] = [one for one in body["tools"] if isinstance(one, dict)]
                yield f"{path.stem}-{row['seq']}", body


def test_what_real_clients_send_is_taken_by_every_kind_of_target() -> None:
    seen: dict[str, tuple[str, ...]] = {}
    for name, body in recorded_bodies():
        for dialect in PROFILES:
            made = request(dialect, body)
            taken(made, dialect)
            seen[name] = made.adjusted if dialect == "moonshot" else seen.get(name, ())
    assert len(seen) > 20
    adjusted = {path for paths in seen.values() for path in paths}
    assert {path for path in adjusted if not path.startswith("tools[")} <= {"temperature"}
