"""The emulated engines beyond what was recorded: thinking off, flags that are missing, caches, quirks, paths."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.misbehaving import Heard, Upstream, misbehaving

THOUGHT = {"vllm": "reasoning", "sglang": "reasoning_content"}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}
LONG = [{"role": "user", "content": "word " * 3_000}]


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, Upstream]]:
    with misbehaving(dialect=request.param) as held:
        yield request.param, held


def answer(upstream: Upstream, **fields: Any) -> Any:
    heard = upstream.ask(**fields)
    assert heard.status == 200, heard.raw
    return heard.json


def message(upstream: Upstream, **fields: Any) -> Any:
    return answer(upstream, **fields)["choices"][0]["message"]


def effort(upstream: Upstream) -> str:
    told: str = upstream.control("/emulator/requests")["requests"][-1]["effort"]
    return told


# --- thinking -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "run"),
    [
        ({"reasoning_effort": "low"}, "low"),
        ({"reasoning_effort": "none"}, "none"),
        ({"chat_template_kwargs": {"thinking": False}}, "none"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "none"),
        ({"chat_template_kwargs": {"thinking_effort": "high"}}, "high"),
        ({"thinking": {"type": "disabled"}}, "max"),
        ({"thinking": {"type": "enabled", "effort": "low"}}, "max"),
    ],
)
def test_an_engine_looks_at_its_own_fields_only(
    engine: tuple[str, Upstream], fields: dict[str, Any], run: str
) -> None:
    name, held = engine
    said = message(held, **fields)
    assert effort(held) == run
    assert (said[THOUGHT[name]] is None) is (run == "none")


@pytest.mark.parametrize("word", ["minimal", "medium", "xhigh"])
def test_words_between_are_refused_by_vllm_and_run_as_max_on_sglang(
    engine: tuple[str, Upstream], word: str
) -> None:
    name, held = engine
    heard = held.ask(reasoning_effort=word)
    if name == "vllm":
        assert heard.status == 400
        assert heard.json["error"]["param"] == "thinking_effort"
    else:
        assert heard.status == 200
        assert effort(held) == "max"


def test_sglang_takes_a_number_and_a_reasoning_object_as_well() -> None:
    with misbehaving(dialect="sglang") as held:
        told = []
        for fields in (
            {"reasoning_effort": 0.5},
            {"reasoning": {"effort": "low"}},
            {"reasoning": {"enabled": False}},
        ):
            answer(held, **fields)
            told.append(effort(held))
    assert told == ["max", "low", "none"]


def test_thinking_off_is_another_prompt(engine: tuple[str, Upstream]) -> None:
    name, held = engine
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ho", THOUGHT[name]: "long thought " * 20},
        {"role": "user", "content": "on"},
    ]
    on, off = (answer(held, messages=history, reasoning_effort=word)["usage"] for word in ("low", "none"))
    assert off["prompt_tokens"] + 60 < on["prompt_tokens"]
    assert (off["completion_tokens_details"] or {"reasoning_tokens": 0})["reasoning_tokens"] == 0


def test_vllm_can_hide_a_thought_and_counts_it() -> None:
    with misbehaving(dialect="vllm") as held:
        hidden = answer(held, include_reasoning=False)
        events = held.ask(include_reasoning=False, stream=True).events
    assert hidden["choices"][0]["message"]["reasoning"] is None
    assert hidden["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    assert not any("reasoning" in choice["delta"] for event in events[:-1] for choice in event["choices"])


def test_a_history_thought_counts_by_the_names_that_the_engine_reads() -> None:
    def tokens(held: Upstream, **thought: str) -> int:
        asked = {"role": "user", "content": "hi"}
        history = [asked, {"role": "assistant", "content": "ho", **thought}, asked]
        count: int = answer(held, messages=history)["usage"]["prompt_tokens"]
        return count

    thought = "a thought of some length"
    with misbehaving(dialect="vllm") as held:
        assert tokens(held, reasoning=thought) == tokens(held, reasoning_content=thought) > tokens(held)
    with misbehaving(dialect="sglang") as held:
        assert tokens(held, reasoning_content=thought) > tokens(held, reasoning=thought) == tokens(held)


# --- flags that are missing -----------------------------------------------------------------------------------


def test_without_its_flag_an_engine_does_not_tell_cached_tokens(engine: tuple[str, Upstream]) -> None:
    name, _ = engine
    with misbehaving("[service]\ncached_counts = false", dialect=name) as held:
        assert answer(held)["usage"]["prompt_tokens_details"] is None
        last = held.ask(stream=True, stream_options={"include_usage": True}).events[-2]["usage"]
    assert last.get("prompt_tokens_details") is None
    assert ("prompt_tokens_details" in last) is (name == "sglang")


def test_without_a_reasoning_parser_the_text_holds_everything(engine: tuple[str, Upstream]) -> None:
    name, whole = engine
    parsed = message(whole, messages=LONG)
    with misbehaving("[service]\nreasoning_parser = false", dialect=name) as held:
        raw = answer(held, messages=LONG)
        called = message(held, messages=[{"role": "user", "content": "weather"}], tools=[WEATHER])
    text = raw["choices"][0]["message"]["content"]
    assert raw["choices"][0]["message"][THOUGHT[name]] is None
    marks = f"<|close|>think<|sep|><|open|>response<|sep|>{parsed['content']}<|close|>response<|sep|>"
    assert text == parsed[THOUGHT[name]] + marks
    assert raw["usage"]["completion_tokens_details"] is None
    assert "tool_calls" not in called
    assert '<|open|>call tool="get_weather" index="1"<|sep|>' in called["content"]


def test_without_a_tool_parser_calls_stay_in_the_text(engine: tuple[str, Upstream]) -> None:
    with misbehaving("[service]\ntool_parser = false", dialect=engine[0]) as held:
        asked = {"messages": [{"role": "user", "content": "weather"}], "tools": [WEATHER]}
        body = answer(held, **asked)
    choice = body["choices"][0]
    assert (choice["finish_reason"], "tool_calls" in choice["message"]) == ("stop", False)
    assert "<|open|>tools<|sep|>" in choice["message"]["content"]


def test_leaking_marks_is_a_setting(engine: tuple[str, Upstream]) -> None:
    asked = {"messages": [{"role": "user", "content": "weather"}], "tools": [WEATHER], "tool_choice": "none"}
    for leaks in (True, False):
        with misbehaving(f"[service]\nleaks_calls = {str(leaks).lower()}", dialect=engine[0]) as held:
            assert ("<|open|>tools" in message(held, **asked)["content"]) is leaks


# --- cache and usage ------------------------------------------------------------------------------------------


def cached(body: Any) -> int:
    count: int = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


@pytest.mark.parametrize(("dialect", "block"), [("vllm", 1536), ("sglang", 256)])
def test_a_cache_has_blocks_of_its_size_and_is_everybodys(dialect: str, block: int) -> None:
    body = json.dumps({"messages": LONG}).encode()
    with misbehaving(dialect=dialect) as held:
        first = held.send(body, headers="authorization: Bearer one\r\n").json
        held.control("/emulator/clock", '{"advance_s": 1000000}')
        second = held.send(body, headers="authorization: Bearer two\r\n").json
        salted = answer(held, messages=LONG, cache_salt="tenant")
    prompt = first["usage"]["prompt_tokens"]
    assert cached(first) == cached(salted) == 0
    assert cached(second) == prompt // block * block
    if dialect == "vllm":
        created = [held["usage"]["prompt_tokens_details"]["created_cache_tokens"] for held in (first, second)]
        assert created == [cached(second), 0]


def test_a_block_size_can_be_set() -> None:
    with misbehaving("[service]\nblock_tokens = 128", dialect="vllm") as held:
        answer(held, messages=LONG)
        assert cached(answer(held, messages=LONG)) % 1536 != 0


def test_sglang_leaves_a_part_of_the_prompt_out_and_can_report_more_cached_than_prompt() -> None:
    with misbehaving("[service]\nblock_tokens = 1", dialect="sglang") as held:
        answer(held)
        usage = answer(held)["usage"]
        line = held.lines()[-1]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] + 2  # recorded: 952 of 950
    assert (line["prompt_tokens"], line["cache_read"], line["input"]) == (usage["prompt_tokens"],) * 2 + (0,)


def test_an_engine_costs_nothing_and_its_invoice_counts_as_its_usage(engine: tuple[str, Upstream]) -> None:
    held = engine[1]
    usage = answer(held, messages=LONG)["usage"]
    line = held.lines()[-1]
    assert (line["usd"], line["ttl"], line["write_5m"], line["write_1h"]) == ("0", "", 0, 0)
    assert line["prompt_tokens"] == usage["prompt_tokens"] == line["input"] + line["cache_read"]
    assert line["output"] == usage["completion_tokens"]


def test_usage_can_be_on_every_chunk(engine: tuple[str, Upstream]) -> None:
    name, held = engine
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, done = held.ask(stream=True, stream_options=options).events
    usages = [chunk["usage"] for chunk in chunks if "usage" in chunk]
    outputs = [usage["completion_tokens"] for usage in usages]
    assert done == "[DONE]"
    assert len(usages) == len(chunks) - (name == "sglang")  # the role chunk
    assert outputs == sorted(outputs)
    thoughts = [usage["completion_tokens_details"]["reasoning_tokens"] for usage in usages]
    assert thoughts == sorted(thoughts)
    assert all(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in usages)


def test_usage_is_in_a_stream_only_where_it_was_asked_for(engine: tuple[str, Upstream]) -> None:
    chunks = engine[1].ask(stream=True).events[:-1]
    assert not any(chunk.get("usage") for chunk in chunks)


# --- requests -------------------------------------------------------------------------------------------------


def test_sampling_is_free_and_answers_can_be_several(engine: tuple[str, Upstream]) -> None:
    body = answer(engine[1], n=2, temperature=0.7, top_p=0.5, presence_penalty=1)
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    events = engine[1].ask(n=2, stream=True).events[:-1]
    assert {choice["index"] for event in events for choice in event["choices"]} == {0, 1}
    if engine[0] == "vllm":
        assert engine[1].ask(n=2, temperature=0).status == 400


def test_calls_are_whole_and_can_be_told_to_be_one(engine: tuple[str, Upstream]) -> None:
    name, held = engine
    asked = [{"role": "user", "content": "use get_weather and get_time"}]
    tools = [WEATHER, TIME]
    both, one = (message(held, messages=asked, tools=tools, parallel_tool_calls=many) for many in (True, False))
    assert [call["function"]["name"] for call in both["tool_calls"]] == ["get_weather", "get_time"]
    assert len(one["tool_calls"]) == 1
    ids = [call["id"] for call in both["tool_calls"]]
    if name == "vllm":
        assert all(id.startswith("chatcmpl-tool-") for id in ids)
        assert len(set(ids)) == 2
    else:
        assert ids == ["get_weather:0", "get_time:1"]
    events = held.ask(stream=True, messages=asked, tools=tools).events[:-1]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    whole = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [json.loads(call["function"]["arguments"]) for call in whole] == [
        json.loads(call["function"]["arguments"]) for call in both["tool_calls"]
    ]


def test_a_limit_over_the_window_is_refused_and_one_over_what_is_left_is_lowered_by_vllm_alone(
    engine: tuple[str, Upstream],
) -> None:
    name, held = engine
    assert held.ask(max_completion_tokens=1_048_577).status == 400
    assert held.ask(max_completion_tokens=1_048_576).status == {"vllm": 200, "sglang": 400}[name]


def test_a_permissive_engine_lowers_what_it_would_refuse(engine: tuple[str, Upstream]) -> None:
    with misbehaving(dialect=engine[0], permissive=True) as held:
        fields: list[dict[str, Any]] = [
            {"max_completion_tokens": 2_000_000},
            {"reasoning_effort": "medium"},
            {"top_p": 7},
            {"stream_options": {"include_usage": True}},
            {"n": 2, "temperature": 0},
        ]
        assert [held.ask(**given).status for given in fields] == [200] * len(fields)


@pytest.mark.parametrize("prompt", [True, None, False])
def test_a_last_message_is_continued_where_the_request_says_so(
    engine: tuple[str, Upstream], prompt: bool | None
) -> None:
    name, held = engine
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The answer is"}]
    fields: dict[str, Any] = {"messages": messages, "continue_final_message": True}
    if prompt is not None:
        fields["add_generation_prompt"] = prompt
    heard = held.ask(**fields)
    if name == "vllm" and prompt is not False:
        assert heard.status == 400
        assert "`add_generation_prompt`" in heard.json["error"]["message"]
    else:
        assert "continuation" in heard.json["choices"][0]["message"]["content"]


def test_moonshots_partial_means_nothing_to_an_engine(engine: tuple[str, Upstream]) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So", "partial": True}]
    assert "continuation" not in message(engine[1], messages=messages)["content"]


# --- paths ----------------------------------------------------------------------------------------------------


def test_models_are_listed_with_their_window_and_served_by_their_names(engine: tuple[str, Upstream]) -> None:
    name, held = engine
    listed = held.get("/v1/models").json["data"]
    assert {model["max_model_len"] for model in listed} == {1_048_576}
    assert all(answer(held, model=model["id"])["model"] == model["id"] for model in listed)
    other = held.ask(model="nope")
    assert other.status == {"vllm": 404, "sglang": 200}[name]
    assert name == "vllm" or other.json["model"] == "nope"


def test_the_tokenizer_counts_what_a_chat_is_billed(engine: tuple[str, Upstream]) -> None:
    name, held = engine
    asked = {"messages": LONG, "tools": [WEATHER]}
    counted = held.send(json.dumps(asked).encode(), path="/tokenize").json
    billed = answer(held, **asked)["usage"]["prompt_tokens"]
    assert counted["count"] == len(counted["tokens"]) == billed + (3 if name == "sglang" else 0)
    assert held.send(b'{"prompt": "12345678"}', path="/tokenize").json["count"] == 2
    assert held.send(b"{}", path="/tokenize").status == 400


@pytest.mark.parametrize(("dialect", "open_tokenizer"), [("vllm", True), ("sglang", False)])
def test_some_paths_are_open_without_a_key(dialect: str, open_tokenizer: bool) -> None:
    def status(held: Upstream, path: str, body: bytes = b"") -> Heard:
        return held.send(body, path=path, method="POST" if body else "GET")

    with misbehaving(dialect=dialect, api_keys=("good",)) as held:
        assert (status(held, "/health").status, status(held, "/health").body) == (200, b"")
        assert status(held, "/v1/models").json == {"error": "Unauthorized"}
        assert status(held, "/tokenize", b'{"prompt": "a"}').status == (200 if open_tokenizer else 401)


def test_paths_of_the_platforms_are_not_there(engine: tuple[str, Upstream]) -> None:
    held = engine[1]
    assert held.get("/v1/users/me/balance").json == {"detail": "Not Found"}
    wrong = held.get("/v1/chat/completions")
    assert (wrong.status, wrong.json, wrong.headers["allow"]) == (405, {"detail": "Method Not Allowed"}, "POST")
