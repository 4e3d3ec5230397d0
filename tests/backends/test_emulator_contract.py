"""What the emulated platform refuses, over real sockets: status, type and the documented words."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from backends.emulator.app import Emulator, EmulatorConfig
from support.asgi import serve

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ASKED = {"role": "user", "content": "hi"}
CALL = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "f:0", "content": "1"}
PNG = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture(scope="module")
def strict() -> Iterator[httpx2.Client]:
    with serve(Emulator(EmulatorConfig(pace=0))) as url, httpx2.Client(base_url=url) as client:
        yield client


@pytest.fixture(scope="module")
def permissive() -> Iterator[httpx2.Client]:
    with serve(Emulator(EmulatorConfig(pace=0, permissive=True))) as url, httpx2.Client(base_url=url) as client:
        yield client


def post(client: httpx2.Client, *messages: Any, **fields: Any) -> httpx2.Response:
    return client.post(
        "/v1/chat/completions", json={"model": "kimi-k3.1-pro", "messages": list(messages), **fields}
    )


def properties(**held: Any) -> dict[str, Any]:
    return {"type": "object", "properties": held}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}, **fields}}


def picture(url: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image_url", "image_url": url}]}


SPECIFIED = {"type": "function", "function": {"name": "get_weather"}}
REFUSED: list[tuple[list[Any], dict[str, Any], str]] = [
    # fixed sampling
    ([ASKED], {"temperature": 0.5}, "invalid temperature: only 1 is allowed for this model"),
    ([ASKED], {"temperature": 0}, "invalid temperature: only 1 is allowed for this model"),
    ([ASKED], {"top_p": 1}, "invalid top_p: only 0.95 is allowed for this model"),
    ([ASKED], {"n": 2}, "invalid n: only 1 is allowed for this model"),
    ([ASKED], {"presence_penalty": 0.5}, "invalid presence_penalty: only 0 is allowed for this model"),
    ([ASKED], {"frequency_penalty": -1}, "invalid frequency_penalty: only 0 is allowed for this model"),
    # tools
    ([ASKED], {"tools": [WEATHER], "tool_choice": SPECIFIED}, "'specified' is incompatible with thinking enabled"),
    ([ASKED], {"tool_choice": "required"}, "tool_choice required needs tools"),
    ([ASKED], {"tools": [], "tool_choice": "required"}, "tool_choice required needs tools"),
    ([ASKED], {"tools": [WEATHER], "tool_choice": "any"}, "tool_choice 'any' is not supported"),
    ([ASKED], {"tools": [WEATHER, WEATHER]}, "function name get_weather is duplicated"),
    ([ASKED], {"tools": [tool("1st")]}, "function name is invalid"),
    ([ASKED], {"tools": [tool("a b")]}, "function name is invalid"),
    ([ASKED], {"tools": [tool("x" * 129)]}, "function name is invalid"),
    ([ASKED], {"tools": [tool("")]}, "function name is invalid"),
    ([ASKED], {"tools": [tool("$web_search")]}, "function name is invalid"),
    ([ASKED], {"tools": [{"type": "bogus", "function": {"name": "x"}}]}, "unsupported tool type 'bogus'"),
    ([ASKED], {"tools": [{"type": "function"}]}, "tools[0] must have a type and a function"),
    ([ASKED], {"tools": {"type": "function"}}, "tools must be an array"),
    ([ASKED], {"tools": [tool("abc", parameters={"type": "array"})]}, "root type of parameters must be object"),
    ([ASKED], {"tools": [tool("abc", parameters=properties(any={}))]}, "<At path 'properties.any': type is not"),
    ([ASKED], {"tools": [tool("abc", parameters=properties(mode={"enum": ["a"]}))]}, "'properties.mode': type is"),
    (
        [ASKED],
        {"tools": [tool("abc", parameters=properties(a={"type": "array", "items": properties(b={})}))]},
        "<At path 'properties.a.items.properties.b': type is not defined>",
    ),
    ([{"role": "system", "content": "x", "tools": [WEATHER]}, ASKED], {}, "must not have content"),
    ([{"role": "user", "content": "x", "tools": [WEATHER]}], {}, "only allowed in a system message"),
    ([{"role": "system", "tools": [WEATHER]}, ASKED], {"tools": [WEATHER]}, "get_weather is duplicated"),
    # messages
    ([], {}, "messages must hold at least one message"),
    (["hi"], {}, "messages[0] must be an object"),
    ([{"content": "hi"}], {}, "messages[0].role is missing"),
    ([{"role": "developer", "content": "x"}, ASKED], {}, "messages[0].role 'developer' is not supported"),
    ([{"role": "user", "content": ""}], {}, "the message at position 0 with role 'user' must not be empty"),
    ([{"role": "user", "content": []}], {}, "the message at position 0 with role 'user' must not be empty"),
    (
        [{"role": "system", "content": ""}, ASKED],
        {},
        "the message at position 0 with role 'system' must not be empty",
    ),
    (
        [ASKED, {"role": "assistant", "content": ""}, ASKED],
        {},
        "position 1 with role 'assistant' must not be empty",
    ),
    (
        [ASKED, {"role": "assistant", "content": "", "reasoning_content": "was thinking"}, ASKED],
        {},
        "position 1 with role 'assistant' must not be empty",
    ),
    ([ASKED, {**CALLED, "content": [{"type": "text", "text": " "}]}, RESULT], {}, "text content is empty"),
    ([{"role": "user", "content": 5}], {}, "messages[0].content must be a string or an array of parts"),
    ([{"role": "user", "content": [{"type": "input_audio"}]}], {}, "unsupported content part type 'input_audio'"),
    ([picture({"url": "https://example.org/a.png"})], {}, "only base64 data URLs"),
    ([picture("data:image/avif;base64,AAAA")], {}, "unsupported media type image/avif"),
    (
        [{"role": "user", "content": [{"type": "text", "text": "x", "prompt_cache_breakpoint": {}}]}],
        {},
        "prompt_cache_breakpoint is not supported",
    ),
    # tool history
    ([ASKED, CALLED, {**RESULT, "tool_call_id": "other"}], {}, "tool_call_id other not found"),
    ([ASKED, {"role": "tool", "content": "x"}], {}, "tool_call_id  not found"),
    ([ASKED, CALLED, ASKED], {}, "missing: f:0"),
    ([ASKED, CALLED], {}, "missing: f:0"),
    (
        [ASKED, {**CALLED, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "[1]"}}]}, RESULT],
        {},
        "the arguments of f must be a JSON object",
    ),
    # partial mode
    (
        [{"role": "assistant", "content": "a", "partial": True}, ASKED],
        {},
        "partial is only allowed on the last message",
    ),
    ([{**ASKED, "partial": True}], {}, "partial is only allowed on the last message"),
    (
        [ASKED, {"role": "assistant", "content": "{", "partial": True}],
        {"response_format": {"type": "json_object"}},
        "partial cannot be used with response_format json_object",
    ),
    # other fields
    ([ASKED], {"reasoning_effort": {"effort": "low"}}, "reasoning_effort must be a string"),
    ([ASKED], {"stream": "yes"}, "stream must be true or false"),
    ([ASKED], {"max_completion_tokens": 0}, "max_completion_tokens must be a whole number, 1 or more"),
    ([ASKED], {"max_tokens": 1.5}, "max_tokens must be a whole number, 1 or more"),
    ([ASKED], {"stop": ["a"] * 6}, "stop must hold at most 5 strings"),
    ([ASKED], {"stop": "x" * 33}, "each stop string must be at most 32 bytes"),
    ([ASKED], {"response_format": {"type": "bogus"}}, "response_format.type 'bogus' is not supported"),
    ([ASKED], {"response_format": {"type": "json_schema"}}, "must have a name and a schema"),
    (
        [ASKED],
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": "x"}}},
        "schema must be an object",
    ),
    (
        [ASKED],
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": "yes"}}},
        "strict must be true or false",
    ),
    ([ASKED], {"prompt_cache_options": {"ttl": "30m"}}, "prompt_cache_options.ttl must be 5m or 1h, not 30m"),
    ([ASKED], {"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options.mode must be implicit"),
    ([ASKED], {"logprobs": True, "top_logprobs": 21}, "top_logprobs must be 20 or less"),
]


@pytest.mark.parametrize(("messages", "fields", "words"), REFUSED)
def test_a_request_against_the_contract_is_a_400_in_the_services_shape(
    strict: httpx2.Client, messages: list[Any], fields: dict[str, Any], words: str
) -> None:
    response = post(strict, *messages, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type"}
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"x"', b"\xff"])
def test_a_body_that_is_no_json_object_is_a_400(strict: httpx2.Client, body: bytes) -> None:
    response = strict.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert "the request body" in response.json()["error"]["message"]


def test_a_body_nested_beyond_reason_is_a_400(strict: httpx2.Client) -> None:
    body = b'{"model":"kimi-k3.1-pro","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert strict.post("/v1/chat/completions", content=body).status_code == 400


ACCEPTED: list[tuple[list[Any], dict[str, Any]]] = [
    ([ASKED], {"temperature": 1.0, "top_p": 0.95, "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0}),
    ([ASKED], {"temperature": None, "stop": None, "tools": None, "response_format": None}),
    ([ASKED], {"thinking": {"type": "disabled"}, "foo": {"bar": 1}, "parallel_tool_calls": False, "seed": 3}),
    ([ASKED], {"reasoning_effort": "turbo"}),
    ([ASKED], {"tools": [], "tool_choice": "auto"}),
    ([ASKED], {"tool_choice": "none"}),
    ([ASKED], {"tools": [tool("x" * 128), tool("f")]}),
    ([ASKED], {"tools": [{"type": "builtin_function", "function": {"name": "$web_search"}}]}),
    ([{"role": "system", "content": "", "tools": [WEATHER]}, ASKED], {}),
    ([ASKED, {"role": "system", "tools": [tool("other")]}], {"tools": [WEATHER]}),
    ([ASKED, CALLED, RESULT], {}),
    ([ASKED, {**CALLED, "content": None}, RESULT], {}),
    ([ASKED, {k: v for k, v in CALLED.items() if k != "content"}, RESULT], {}),
    ([ASKED, CALLED, RESULT, ASKED, CALLED, {**RESULT, "content": ""}], {}),  # ids are unique per turn only
    (
        [ASKED, {**CALLED, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{broken"}}]}, RESULT],
        {},
    ),
    ([picture({"url": PNG})], {}),
    ([picture(PNG)], {}),
    ([picture("ms://file-1")], {}),
    ([ASKED, {"role": "assistant", "content": '{"a":', "partial": True, "name": "Kim"}], {}),
    ([{"role": "user", "content": [{"type": "text", "text": "x"}], "name": "Ann"}], {"stop": ["a", "b"]}),
]


@pytest.mark.parametrize(("messages", "fields"), ACCEPTED)
def test_what_the_contract_allows_is_answered(
    strict: httpx2.Client, messages: list[Any], fields: dict[str, Any]
) -> None:
    response = post(strict, *messages, **fields)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([ASKED], {"temperature": 0.2, "top_p": 1, "presence_penalty": 2}),
        ([{"role": "developer", "content": ""}, ASKED], {}),
        ([ASKED, CALLED], {}),
        ([ASKED, {"role": "tool", "tool_call_id": "?", "content": "x"}], {}),
        ([picture("https://example.org/a.png")], {}),
        ([ASKED], {"tools": [WEATHER, WEATHER], "tool_choice": "required"}),
    ],
)
def test_a_permissive_emulator_enforces_nothing(
    permissive: httpx2.Client, messages: list[Any], fields: dict[str, Any]
) -> None:
    response = post(permissive, *messages, **fields)
    assert response.status_code == 200, response.text


def test_a_permissive_emulator_makes_n_answers_and_takes_a_named_tool(permissive: httpx2.Client) -> None:
    several = post(permissive, ASKED, n=3).json()
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in several["choices"]}) == 3
    named = post(permissive, ASKED, tools=[tool("other"), WEATHER], tool_choice=SPECIFIED).json()
    assert [call["function"]["name"] for call in named["choices"][0]["message"]["tool_calls"]] == ["get_weather"]


@pytest.mark.parametrize("n", [0, 1.5, 129, 10**400])
def test_a_permissive_emulator_still_needs_an_n_that_it_can_count(permissive: httpx2.Client, n: Any) -> None:
    assert post(permissive, ASKED, n=n).status_code == 400


def test_an_unknown_model_is_a_404(strict: httpx2.Client) -> None:
    response = strict.post("/v1/chat/completions", json={"model": "kimi-x", "messages": [ASKED]})
    assert response.status_code == 404
    assert response.json() == {
        "error": {
            "message": "Not found the model kimi-x or Permission denied",
            "type": "resource_not_found_error",
        }
    }


def test_prompt_and_limit_must_fit_into_the_window() -> None:
    with (
        serve(Emulator(EmulatorConfig(pace=0, context_tokens=200))) as url,
        httpx2.Client(base_url=url) as client,
    ):
        assert post(client, ASKED, max_completion_tokens=150).status_code == 200
        over = post(client, ASKED, max_completion_tokens=199)
        long = post(client, {"role": "user", "content": "x" * 1000})
        whole = post(client, ASKED).json()
    assert over.status_code == 400
    assert "Your request exceeded model token limit : 200" in over.json()["error"]["message"]
    assert long.status_code == 400
    assert long.json()["error"]["message"] == "Input token length too long"
    # Without a limit the answer has what the window leaves.
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["total_tokens"] == 200
