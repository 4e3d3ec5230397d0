"""Tools, output limits and formats of the emulator over real sockets."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator

from support.emulated import PRO, chat, emulator, folded, message, stream

ASKED = {"role": "user", "content": "Say hello."}


@pytest.fixture(scope="module")
def shared() -> Iterator[httpx2.Client]:
    with emulator() as client:
        yield client


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = tool("get_weather", city={"type": "string"}, days={"type": "integer", "minimum": 1, "maximum": 7})
TIME = tool("get_time", zone={"type": "string", "enum": ["UTC", "CET"]})


# --- tools ----------------------------------------------------------------------------------------------------


def test_required_calls_a_tool_with_valid_arguments(shared: httpx2.Client) -> None:
    answer = chat(shared, ASKED, tools=[WEATHER], tool_choice="required")
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"]
    [call] = choice["message"]["tool_calls"]
    assert (call["id"], call["type"], call["function"]["name"]) == ("get_weather:0", "function", "get_weather")
    arguments = json.loads(call["function"]["arguments"])
    Draft202012Validator(WEATHER["function"]["parameters"]).validate(arguments)


@pytest.mark.parametrize(
    ("text", "choice", "expected"),
    [
        ("What is the weather in Paris?", "auto", ["get_weather"]),
        ("Call get_time and then get_weather.", "auto", ["get_time", "get_weather"]),
        ("Say hello.", "auto", []),
        ("What is the weather? Do not use any tools.", "auto", []),
        ("天气 weather，不要使用任何工具。", "auto", []),
        ("What is the weather in Paris?", "none", []),
        ("Do not use tools. What time is it?", "required", ["get_time"]),
    ],
)
def test_the_prompt_decides_which_tools_are_called(
    shared: httpx2.Client, text: str, choice: str, expected: list[str]
) -> None:
    held = message(shared, {"role": "user", "content": text}, tools=[WEATHER, TIME], tool_choice=choice)
    assert [call["function"]["name"] for call in held.get("tool_calls", ())] == expected


@pytest.mark.parametrize("text", ["You should use a tool.", "北京今天怎么样？你应当使用工具。"])
def test_a_prompt_that_speaks_of_tools_makes_one_call(shared: httpx2.Client, text: str) -> None:
    held = message(shared, {"role": "user", "content": text}, tools=[WEATHER, TIME])
    assert len(held["tool_calls"]) == 1


def test_several_calls_stream_in_pieces_by_index(shared: httpx2.Client) -> None:
    asked = {"role": "user", "content": "Use get_weather and get_time."}
    chunks = stream(shared, asked, tools=[WEATHER, TIME])
    whole = message(shared, asked, tools=[WEATHER, TIME])
    streamed = folded(chunks)
    assert streamed["finish"] == "tool_calls"
    assert [call["id"] for call in streamed["calls"]] == ["get_weather:0", "get_time:1"]
    assert streamed["calls"] == [{"id": call["id"], **call["function"]} for call in whole["tool_calls"]]
    parts = [chunk for chunk in chunks if chunk["choices"][0]["delta"].get("tool_calls")]
    assert len(parts) > 4


def test_a_directive_sets_calls_arguments_and_lengths(shared: httpx2.Client) -> None:
    wish = '[[emulator {"call": ["get_time", {"name": "get_weather", "arguments": {"city": "Bern", "days": 3}}]}]]'
    held = message(shared, {"role": "user", "content": f"Go. {wish}"}, tools=[WEATHER, TIME])
    assert [call["function"]["name"] for call in held["tool_calls"]] == ["get_time", "get_weather"]
    assert json.loads(held["tool_calls"][1]["function"]["arguments"]) == {"city": "Bern", "days": 3}
    sized = chat(shared, {"role": "user", "content": '[[emulator {"thought_tokens": 7, "text_tokens": 900}]]'})
    assert sized["usage"]["completion_tokens"] == 907
    assert len(sized["choices"][0]["message"]["content"]) == 3600


@pytest.mark.parametrize("wish", ["{oops}", '{"calls": []}', '{"call": ["nope"]}', '{"text_tokens": -1}'])
def test_a_directive_that_cannot_be_followed_is_a_400(shared: httpx2.Client, wish: str) -> None:
    asked = {"role": "user", "content": f"[[emulator {wish}]]"}
    response = shared.post("/v1/chat/completions", json={"model": PRO, "messages": [asked], "tools": [TIME]})
    assert response.status_code == 400


def test_tool_results_are_answered_with_text_that_refers_to_them(shared: httpx2.Client) -> None:
    asked = {"role": "user", "content": "Use get_weather and get_time."}
    called = message(shared, asked, tools=[WEATHER, TIME])
    results = [
        {"role": "tool", "tool_call_id": "get_weather:0", "content": "sunny, 21 degrees"},
        {"role": "tool", "tool_call_id": "get_time:1", "content": "noon"},
    ]
    answer = chat(shared, asked, called, *results, tools=[WEATHER, TIME])
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert 'get_weather returned: "sunny, 21 degrees".' in answer["choices"][0]["message"]["content"]
    assert 'get_time returned: "noon".' in answer["choices"][0]["message"]["content"]


def test_tools_of_a_system_message_can_be_called(shared: httpx2.Client) -> None:
    declared = {"role": "system", "content": "", "tools": [TIME]}
    held = message(shared, declared, ASKED, tool_choice="required")
    assert held["tool_calls"][0]["function"]["name"] == "get_time"


# --- limits and formats ---------------------------------------------------------------------------------------


def test_thinking_eats_the_limit_first(shared: httpx2.Client) -> None:
    answer = chat(shared, ASKED, max_completion_tokens=5)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == ""
    assert len(choice["message"]["reasoning_content"]) == 20
    assert answer["usage"]["completion_tokens"] == 5
    streamed = stream(shared, ASKED, max_completion_tokens=5)
    assert folded(streamed)["finish"] == "length"


@pytest.mark.parametrize("limit", [20, 40, 44, 45, 50])
def test_a_limit_cuts_text_and_calls_exactly(shared: httpx2.Client, limit: int) -> None:
    wish = {"role": "user", "content": '[[emulator {"thought_tokens": 10, "text_tokens": 200}]]'}
    calls = {"role": "user", "content": '[[emulator {"thought_tokens": 30, "call": ["get_weather"]}]]'}
    text = chat(shared, wish, max_tokens=limit)
    assert text["usage"]["completion_tokens"] == limit
    assert len(text["choices"][0]["message"]["content"]) == 4 * (limit - 10)
    called = chat(shared, calls, max_tokens=9_000, max_completion_tokens=limit, tools=[WEATHER])
    assert called["usage"]["completion_tokens"] <= limit
    assert (called["choices"][0]["finish_reason"] == "length") == (called["usage"]["completion_tokens"] == limit)
    streamed = folded(stream(shared, calls, max_completion_tokens=limit, tools=[WEATHER]))
    assert [call["arguments"] for call in streamed["calls"]] == [
        call["function"]["arguments"] for call in called["choices"][0]["message"].get("tool_calls", ())
    ]


def test_a_stop_sequence_ends_the_text_before_it(shared: httpx2.Client) -> None:
    whole = message(shared, ASKED)["content"]
    answer = chat(shared, ASKED, stop=["You wrote", "never there"])
    assert answer["choices"][0]["message"]["content"] == whole[: whole.index("You wrote")]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_json_formats_give_valid_json(shared: httpx2.Client) -> None:
    free = message(
        shared,
        {"role": "user", "content": "Return JSON with a key named 'city'."},
        response_format={"type": "json_object"},
    )
    assert json.loads(free["content"])["city"] == "synthetic city"
    schema = WEATHER["function"]["parameters"]
    wanted = {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema}}
    held = message(shared, ASKED, response_format=wanted)
    Draft202012Validator(schema).validate(json.loads(held["content"]))
    assert folded(stream(shared, ASKED, response_format=wanted))["text"] == held["content"]
