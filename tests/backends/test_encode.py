"""Requests in the words of each dialect: what is sent, what is left out, and what is disclosed."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.catalog import DIALECTS, foreign_fields
from backends.encode import Incapable, Request, Wish, encode_request, is_costly
from backends.json import decode, encode
from backends.messages import MessageError, read_heads

HI = {"role": "user", "content": "hi"}


def wish_of(body: Mapping[str, Any] | bytes, **wishes: Any) -> Wish:
    raw = body if isinstance(body, bytes) else encode({"messages": [HI], **body})
    fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return Wish(
        fields=fields,
        messages=msgspec.json.decode(fields["messages"], type=list[msgspec.Raw]),
        heads=read_heads(fields["messages"]),
        model="upstream-model",
        **wishes,
    )


def request(dialect: str, body: Mapping[str, Any] | bytes, **wishes: Any) -> Request:
    return encode_request(wish_of(body, **wishes), DIALECTS[dialect], foreign_fields(DIALECTS[dialect]))


def sent(dialect: str, body: Mapping[str, Any] | bytes, **wishes: Any) -> Any:
    return decode(request(dialect, body, **wishes).body)


def test_usage_is_always_asked_for_and_other_stream_options_stay() -> None:
    options = {"include_usage": False, "continuous_usage_stats": True}
    assert sent("vllm", {"stream_options": options}, stream_options=options)["stream_options"] == {
        "include_usage": True,
        "continuous_usage_stats": True,
    }


def test_an_unstreamed_call_has_no_stream_options() -> None:
    body = sent("vllm", {"stream_options": {"include_usage": True}}, stream=False)
    assert (body["stream"], "stream_options" in body) == (False, False)


@pytest.mark.parametrize(
    ("fields", "kept", "adjusted"),
    [
        ({"temperature": 0.5}, {}, ("temperature",)),
        ({"temperature": 1.0, "top_p": 0.95, "n": 1}, {}, ()),
        ({"presence_penalty": 0.0, "frequency_penalty": 1}, {}, ("frequency_penalty",)),
        ({"seed": 7, "frobnicate": {"a": [1]}}, {"seed": 7, "frobnicate": {"a": [1]}}, ()),
    ],
)
def test_moonshot_gets_no_sampling_and_is_told_what_it_does_not_know(
    fields: dict[str, Any], kept: dict[str, Any], adjusted: tuple[str, ...]
) -> None:
    made = request("moonshot", fields)
    body: Any = decode(made.body)
    assert made.adjusted == adjusted
    assert {name: value for name, value in body.items() if name in (*fields, *kept)} == kept


def test_engines_sample_freely() -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "n": 2, "presence_penalty": 1}
    made = request("vllm", fields, n=2)
    body: Any = decode(made.body)
    assert {name: float(body[name]) for name in fields} == fields
    assert made.adjusted == ()


def test_what_cannot_be_repaired_is_a_capability() -> None:
    for wishes, param in (({"n": 2}, "n"), ({"thinking_off": True}, "reasoning_effort")):
        with pytest.raises(Incapable) as caught:
            request("moonshot", wishes if "n" in wishes else {}, **wishes)
        assert caught.value.param == param
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    with pytest.raises(Incapable) as remote:
        request(
            "moonshot", {"messages": [HI, {"role": "user", "content": [{"type": "text", "text": "?"}, image]}]}
        )
    assert remote.value.param == "messages[1].content[1]"
    assert "image_url" in str(sent("vllm", {"messages": [{"role": "user", "content": [image]}]}))


def test_thinking_off_is_spelt_as_the_engine_spells_it() -> None:
    assert sent("vllm", {"thinking": {"type": "disabled"}}, thinking_off=True)["reasoning_effort"] == "none"


def test_effort_goes_where_the_dialect_reads_it_and_thinking_never_travels() -> None:
    body = {"thinking": {"type": "enabled", "keep": "all"}, "reasoning": {"exclude": True}}
    assert sent("moonshot", body, effort="low")["reasoning_effort"] == "low"
    assert not {"thinking", "reasoning"} & set(sent("moonshot", body, effort="low"))
    assert sent("openrouter", body, effort="low")["reasoning"] == {"exclude": True, "effort": "low"}
    assert "reasoning_effort" not in sent("moonshot", body)


def test_the_output_limit_has_one_name_and_an_absent_one_stays_absent() -> None:
    assert sent("moonshot", {"max_tokens": 900}, output_limit=900)["max_completion_tokens"] == 900
    assert "max_tokens" not in sent("moonshot", {"max_tokens": 900}, output_limit=900)
    assert not {"max_tokens", "max_completion_tokens"} & set(sent("moonshot", {}))


def test_the_cache_ttl_is_moonshots_alone() -> None:
    options = {"prompt_cache_options": {"mode": "implicit", "ttl": "1h"}, "prompt_cache_key": "s-1"}
    assert sent("moonshot", options, ttl="1h")["prompt_cache_options"] == {"mode": "implicit", "ttl": "1h"}
    for other in ("openrouter", "vllm", "sglang"):
        made = request(other, options, ttl="1h")
        assert "prompt_cache_options" not in decode(made.body)  # type: ignore[operator]
        assert made.adjusted == ("prompt_cache_options",)


def test_fields_of_another_dialect_are_left_out_and_said() -> None:
    body = {"chat_template_kwargs": {"thinking": False}, "provider": {"order": ["x"]}, "frobnicate": 1}
    moonshot, vllm, openrouter = (request(name, body) for name in ("moonshot", "vllm", "openrouter"))
    assert set(moonshot.adjusted) == {"chat_template_kwargs", "provider"}
    assert (vllm.adjusted, openrouter.adjusted) == (("provider",), ("chat_template_kwargs",))
    for made in (moonshot, vllm, openrouter):
        assert decode(made.body)["frobnicate"] == 1  # type: ignore[index,call-overload]


def test_a_developer_message_becomes_a_system_message() -> None:
    messages = [{"role": "developer", "content": "Be brief."}, HI]
    for name in DIALECTS:
        assert sent(name, {"messages": messages})["messages"][0] == {"role": "system", "content": "Be brief."}


def test_a_named_tool_is_narrowed_where_only_required_is_taken() -> None:
    parameters = {"type": "object", "properties": {}}
    tools = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in ("wx", "news")]
    choice = {"type": "function", "function": {"name": "wx"}}
    made = request("moonshot", {"tools": tools, "tool_choice": choice}, named_tool="wx")
    body: Any = decode(made.body)
    assert (body["tool_choice"], body["tools"], made.adjusted) == ("required", tools[:1], ("tool_choice",))
    assert sent("vllm", {"tools": tools, "tool_choice": choice}, named_tool="wx")["tool_choice"] == choice
    with pytest.raises(Incapable):
        request("moonshot", {"tools": tools, "tool_choice": choice}, named_tool="other")


def tools_named(*names: str) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {}}
    return [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in names]


def naming(name: str, *tools: str) -> dict[str, Any]:
    return {"tools": tools_named(*tools), "tool_choice": {"type": "function", "function": {"name": name}}}


@pytest.mark.parametrize(
    ("tools", "warm", "above", "narrowed"),
    [
        (("wx", "news"), 0, 100_000, True),
        (("wx", "news"), 100_000, 100_000, True),
        (("wx", "news"), 900_000, 0, True),
        (("wx",), 900_000, 100_000, False),
    ],
)
def test_narrowing_says_whether_it_costs_the_cache(
    tools: tuple[str, ...], warm: int, above: int, narrowed: bool
) -> None:
    made = request("moonshot", naming("wx", *tools), named_tool="wx", warm_tokens=warm, narrow_tools_above=above)
    assert (made.narrowed, made.adjusted) == (narrowed, ("tool_choice",))
    assert [tool["function"]["name"] for tool in decode(made.body)["tools"]] == ["wx"]  # type: ignore[index,call-overload,union-attr]


def test_above_the_limit_of_warm_tokens_a_named_tool_is_refused_with_the_counts() -> None:
    body = naming("wx", "wx", "news")
    wishes = {"named_tool": "wx", "warm_tokens": 123_456, "narrow_tools_above": 100_000}
    with pytest.raises(Incapable) as caught:
        request("moonshot", body, **wishes)
    assert caught.value.param == "tool_choice"
    for said in ("'wx'", "123,456", "100,000", "narrow_tools_above", "required"):
        assert said in str(caught.value)
    assert not request("vllm", body, **wishes).narrowed


def test_a_named_tool_beside_declared_ones_cannot_be_narrowed() -> None:
    messages = [{"role": "system", "tools": tools_named("news")}, HI]
    with pytest.raises(Incapable, match="messages declare"):
        request("moonshot", {**naming("wx", "wx"), "messages": messages}, named_tool="wx")


def test_only_the_changes_of_the_tool_that_is_sent_are_said() -> None:
    loose = {"type": "object", "properties": {"mode": {"enum": ["a"]}}}
    body = naming("wx", "news", "wx")
    for tool in body["tools"]:
        tool["function"]["parameters"] = loose
    made = request("moonshot", body, named_tool="wx")
    assert made.adjusted == ("tool_choice", "tools[1].function.parameters.properties.mode")


def test_tools_that_messages_declare_are_normalised_like_the_others() -> None:
    loose = tools_named("wx")
    loose[0]["function"]["parameters"] = {"properties": {"mode": {"enum": ["a"]}}}
    messages = [{"role": "system", "tools": loose}, HI]
    made = request("moonshot", {"messages": messages})
    parameters = decode(made.body)["messages"][0]["tools"][0]["function"]["parameters"]  # type: ignore[index,call-overload]
    assert parameters == {"properties": {"mode": {"enum": ["a"], "type": "string"}}, "type": "object"}
    assert made.adjusted == (
        "messages[0].tools[0].function.parameters",
        "messages[0].tools[0].function.parameters.properties.mode",
    )
    assert decode(request("vllm", {"messages": messages}).body)["messages"] == messages  # type: ignore[index,call-overload]


def test_large_schemas_are_costly_until_they_are_known() -> None:
    tools = tools_named(*(f"tool_{number}" for number in range(200)))
    tools[0]["function"]["description"] = "of the test for costly requests"
    wish = wish_of({"tools": tools})
    assert not is_costly(wish, DIALECTS["vllm"])
    assert is_costly(wish, DIALECTS["moonshot"])
    request("moonshot", {"tools": tools})
    assert not is_costly(wish, DIALECTS["moonshot"])
    declared = wish_of({"messages": [{"role": "system", "tools": [*tools, *tools_named("other")]}, HI]})
    assert is_costly(declared, DIALECTS["moonshot"])
    schema = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(500)}}
    wanted = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
    assert is_costly(wish_of(wanted), DIALECTS["moonshot"])
    assert not is_costly(wish_of({"tools": tools[:3]}), DIALECTS["moonshot"])


def test_very_long_messages_are_costly_for_every_target() -> None:
    long = wish_of({"messages": [{"role": "user", "content": "a" * (9 << 20)}]})
    assert all(is_costly(long, dialect) for dialect in DIALECTS.values())


def test_a_prefix_to_continue_is_spelt_for_engines() -> None:
    messages = [HI, {"role": "assistant", "content": '{"a":', "partial": True}]
    body = sent("vllm", {"messages": messages})
    assert body["messages"][1] == {"role": "assistant", "content": '{"a":'}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert sent("moonshot", {"messages": messages})["messages"][1]["partial"] is True


def test_the_operators_extra_body_wins_and_merges() -> None:
    body = sent(
        "openrouter", {"provider": {"order": ["x"]}}, extra_body={"provider": {"only": ["y"]}, "route": "z"}
    )
    assert (body["provider"], body["route"]) == ({"order": ["x"], "only": ["y"]}, "z")


@pytest.mark.parametrize("text", ["  I will call f.\n", "", "价格 \\u2028 🚀"])
def test_a_thought_is_sent_under_every_name_the_dialect_reads(text: str) -> None:
    for name in ("reasoning_content", "reasoning"):
        messages = [HI, {"role": "assistant", "content": "a", name: text}]
        vllm = sent("vllm", {"messages": messages})["messages"][1]
        assert (vllm["reasoning_content"], vllm["reasoning"], vllm["content"]) == (text, text, "a")
        moonshot = sent("moonshot", {"messages": messages})["messages"][1]
        assert moonshot == {"role": "assistant", "content": "a", "reasoning_content": text}


def test_an_absent_thought_stays_absent_and_null_stays_null() -> None:
    absent = [HI, {"role": "assistant", "content": "a"}]
    null = [HI, {"role": "assistant", "content": "a", "reasoning_content": None}]
    assert sent("vllm", {"messages": absent})["messages"] == absent
    assert sent("moonshot", {"messages": null})["messages"] == null


def test_details_are_read_where_they_are_all_there_is() -> None:
    details = [
        {"type": "reasoning.text", "text": "Need ", "index": 0},
        {"type": "reasoning.text", "text": "data."},
    ]
    messages = [HI, {"role": "assistant", "content": "a", "reasoning_details": details}]
    assert sent("moonshot", {"messages": messages})["messages"][1] == {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "Need data.",
    }
    assert sent("openrouter", {"messages": messages})["messages"][1]["reasoning_details"] == details


def test_untouched_bytes_reach_the_upstream_unchanged() -> None:
    body = b'{"messages":[{"role":"user","content":"\\u00e9 \\/"}],"frob" : { "b":1.50,"a" :1e2}}'
    made = request("moonshot", body).body
    assert b'{"role":"user","content":"\\u00e9 \\/"}' in made
    assert b'{ "b":1.50,"a" :1e2}' in made


def test_a_shared_history_always_has_the_same_bytes() -> None:
    turn = {"role": "assistant", "content": "a", "reasoning": "t", "tool_calls": []}
    first = request("vllm", {"messages": [HI, turn, HI]}).body
    second = request("vllm", {"messages": [HI, turn, HI, turn, HI], "temperature": 0.1}).body
    start, end = first.index(b'"messages":['), first.index(b"]", first.index(b"messages"))
    assert first[start:end] in second


@pytest.mark.parametrize(
    ("messages", "path"),
    [
        (b'[{"role":"user"},{"content":1}]', "messages[1]"),
        (b'[{"role":null}]', "messages[0].role"),
        (b"[1]", "messages[0]"),
    ],
)
def test_a_malformed_message_is_named_by_its_path(messages: bytes, path: str) -> None:
    with pytest.raises(MessageError) as caught:
        read_heads(msgspec.Raw(messages))
    assert caught.value.path == path


member = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(sorted(DIALECTS)),
    st.text(max_size=30),
    st.dictionaries(st.text(max_size=8), member, max_size=4),
)
def test_whatever_a_message_holds_its_thought_and_unknown_members_survive(
    dialect: str, thought: str, extra: dict[str, Any]
) -> None:
    known = ("role", "content", "reasoning", "reasoning_content", "reasoning_details", "tool_calls", "partial")
    unknown = {name: value for name, value in extra.items() if name not in known}
    turn = {"role": "assistant", "content": "a", "reasoning_content": thought, **unknown}
    made = sent(dialect, {"messages": [HI, turn, HI]})["messages"]
    assert (made[0], made[2]) == (HI, HI)
    assert {name: made[1][name] for name in unknown} == unknown
    assert thought in [made[1].get(name) for name in DIALECTS[dialect].thought_in]


def test_effort_beside_the_clients_own_template_arguments_on_llamacpp() -> None:
    body = {"chat_template_kwargs": {"foo": 1}}
    made = sent("llamacpp", body, effort="low")
    assert made["chat_template_kwargs"] == {"foo": 1, "thinking_effort": "low"}
    off = sent("llamacpp", body, thinking_off=True)
    assert off["chat_template_kwargs"]["foo"] == 1
    assert len(off["chat_template_kwargs"]) == 2
