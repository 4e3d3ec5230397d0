"""The cases of kind history and of past tool calls: what would poison a session is mended, and said."""

from typing import Any

import pytest

from support.cases import case
from support.lab import Heard, Lab

OK = {"status": 200, "json_usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
HI: dict[str, Any] = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "hi"}]}
HOSTED = ("moonshot", "openrouter")
ENGINES = ("vllm", "sglang")


def served(lab: Lab, request: Any, target: str) -> tuple[Heard, Any]:
    """The answer to a request that is served at once, and the body the upstream got."""
    before = len(lab.upstreams[target].requests)
    heard = lab.ask(request, OK, target=target)
    assert heard.status == 200, heard.raw
    assert len(lab.upstreams[target].requests) == before + 1
    return heard, lab.sent(target)


def adjusted(heard: Heard) -> list[str]:
    return [path for path in heard.headers.get("x-kimi-adjusted", "").split(",") if path]


def with_content(content: Any) -> dict[str, Any]:
    request: dict[str, Any] = case("tool-05")["given"]["client_request"]
    first, turn, result = request["messages"]
    return {**request, "messages": [first, {**turn, "content": content}, result]}


@pytest.mark.parametrize("target", HOSTED)
@pytest.mark.parametrize("content", [[{"type": "text", "text": ""}], [{"type": "text", "text": "  "}], []])
def test_tool_05_blank_content_beside_calls_is_left_out(shared_lab: Lab, target: str, content: Any) -> None:
    heard, body = served(shared_lab, with_content(content), target)
    assert len(body["messages"]) == 3
    assert body["messages"][1].get("content") in (None, "")
    assert body["messages"][1]["tool_calls"][0]["id"] == "f:0"
    assert "call it" in (body["messages"][1].get("reasoning_content"), body["messages"][1].get("reasoning"))
    assert adjusted(heard) == ["messages[1].content"]


@pytest.mark.parametrize("content", [None, ""])
def test_tool_05_empty_content_is_left_alone(shared_lab: Lab, content: Any) -> None:
    heard, body = served(shared_lab, with_content(content), "moonshot")
    assert body["messages"] == with_content(content)["messages"]
    assert adjusted(heard) == []


def test_tool_05_the_real_part_beside_a_blank_one_is_kept(shared_lab: Lab) -> None:
    real = {"type": "text", "text": "I call f."}
    _, body = served(shared_lab, with_content([{"type": "text", "text": ""}, real]), "moonshot")
    assert body["messages"][1]["content"] == [real]


@pytest.mark.parametrize("target", [*HOSTED, *ENGINES])
def test_tool_06_broken_arguments_never_reach_an_upstream(shared_lab: Lab, target: str) -> None:
    found = case("tool-06")
    request = found["given"]["client_request"]
    heard, body = served(shared_lab, request, target)
    path, value = next(iter(found["expect"]["either"][0]["upstream_body"].items()))
    assert body["messages"][1]["tool_calls"][0]["function"] == {"name": "sh", "arguments": value}
    assert body["messages"][2:] == request["messages"][2:]
    assert adjusted(heard) == [path]


@pytest.mark.parametrize("target", HOSTED)
def test_hist_04_an_empty_turn_is_left_out(shared_lab: Lab, target: str) -> None:
    found = case("hist-04")
    heard, body = served(shared_lab, found["given"]["client_request"], target)
    expected = found["expect"]["either"][1]["upstream_body"]["messages_roles"]
    assert [message["role"] for message in body["messages"]] == expected
    assert adjusted(heard) == ["messages[1]"]
    assert shared_lab.row(heard)["adjusted"] == ["messages[1]"]


@pytest.mark.parametrize("target", ENGINES)
def test_hist_04_an_engine_gets_the_turn_that_it_takes(shared_lab: Lab, target: str) -> None:
    _, body = served(shared_lab, case("hist-04")["given"]["client_request"], target)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]


def test_an_interrupted_call_does_not_poison_the_session(shared_lab: Lab) -> None:
    call = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "I will.", "tool_calls": [call]},
        {"role": "user", "content": "no, wait"},
    ]
    heard, body = served(shared_lab, {**HI, "messages": messages}, "moonshot")
    assert [message.get("tool_calls") for message in body["messages"]] == [None, None, None]
    assert adjusted(heard) == ["messages[1].tool_calls[0]"]
    _, body = served(shared_lab, {**HI, "messages": messages}, "vllm")
    assert body["messages"][1]["tool_calls"] == [call]


def test_a_result_without_its_call_is_refused_by_its_path(shared_lab: Lab) -> None:
    messages = [{"role": "tool", "tool_call_id": "f:0", "content": "1"}, {"role": "user", "content": "and?"}]
    before = len(shared_lab.upstreams["moonshot"].requests)
    heard = shared_lab.ask({**HI, "messages": messages})
    assert (heard.status, heard.error["type"]) == (400, "invalid_request_error")
    assert heard.error["param"] == "messages[0].tool_call_id"
    assert len(shared_lab.upstreams["moonshot"].requests) == before


def test_an_empty_system_prompt_is_left_out_where_it_is_refused(shared_lab: Lab) -> None:
    messages = [{"role": "system", "content": ""}, *HI["messages"]]
    heard, body = served(shared_lab, {**HI, "messages": messages}, "moonshot")
    assert (body["messages"], adjusted(heard)) == (HI["messages"], ["messages[0]"])
    assert served(shared_lab, {**HI, "messages": messages}, "sglang")[1]["messages"] == messages


def test_par_06_a_single_named_tool_loses_no_other(shared_lab: Lab) -> None:
    request = case("par-06")["given"]["client_request"]
    alone = {**request, "tools": request["tools"][:1]}
    heard, body = served(shared_lab, alone, "moonshot")
    assert (body["tool_choice"], body["tools"]) == ("required", alone["tools"])
    assert adjusted(heard) == ["tool_choice"]


def test_par_06_tools_that_a_message_declares_are_mended_too(shared_lab: Lab) -> None:
    loose = case("sch-01")["given"]["client_request"]["tools"]
    messages = [{"role": "system", "tools": loose}, *HI["messages"]]
    heard, body = served(shared_lab, {**HI, "messages": messages}, "moonshot")
    expected = case("sch-01")["expect"]["upstream_body"]["tools[0].function.parameters.properties"]
    assert body["messages"][0]["tools"][0]["function"]["parameters"]["properties"] == expected
    assert all(path.startswith("messages[0].tools[0].function.parameters") for path in adjusted(heard))


def test_several_violations_of_a_field_name_it_where_no_target_is_left(shared_lab: Lab) -> None:
    for fields, param in (
        ({"stop": list("abcdef")}, "stop"),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"tools": [{"type": "function", "function": {"name": "a.b"}}]}, "tools[0].function.name"),
        ({"messages": [{"role": "critic", "content": "no"}]}, "messages[0].role"),
    ):
        heard = shared_lab.ask({**HI, **fields})
        assert (heard.status, heard.error["param"]) == (400, param)
        assert heard.error["code"] == "unsupported_value"
