"""The emulated OpenRouter: thought twice, usage with its cost, comments, hosts, and the words of its refusals."""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.emulator.invoice import PromptSplit, charge_nano
from backends.emulator.openrouter import OPENROUTER
from backends.emulator.shape import Counts, Reports
from backends.json import as_object, decode
from support.misbehaving import Heard, Upstream, misbehaving

MODEL = "moonshotai/kimi-k3.1-pro"
SHEETS = {"Moonshot AI": (2000, 200, 10000), "Synthetic Host": (1800, 180, 9000)}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with misbehaving(dialect="openrouter", byok_share=0.0) as held:
        yield held


def ask(upstream: Upstream, **fields: Any) -> Heard:
    return upstream.ask(**{"model": MODEL, **fields})


def answer(upstream: Upstream, **fields: Any) -> Any:
    heard = ask(upstream, **fields)
    assert heard.status == 200, heard.raw
    return json.loads(heard.body, parse_float=Decimal)


def deltas(heard: Heard) -> list[Any]:
    return [choice["delta"] for event in heard.events if event != "[DONE]" for choice in event["choices"]]


# --- thought --------------------------------------------------------------------------------------------------


def test_the_thought_comes_as_reasoning_and_again_in_details(upstream: Upstream) -> None:
    message = answer(upstream)["choices"][0]["message"]
    (piece,) = message["reasoning_details"]
    assert message["reasoning"] == piece["text"]
    assert (piece["type"], piece["index"]) == ("reasoning.text", 0)
    assert "reasoning_content" not in message
    pieces = [delta for delta in deltas(ask(upstream, stream=True)) if "reasoning" in delta]
    assert "".join(delta["reasoning"] for delta in pieces) == message["reasoning"]
    assert all(delta["reasoning"] == delta["reasoning_details"][0]["text"] for delta in pieces)


def test_a_thought_can_be_hidden_and_is_billed_all_the_same(upstream: Upstream) -> None:
    shown, hidden = (answer(upstream, reasoning={"exclude": exclude}) for exclude in (False, True))
    assert hidden["choices"][0]["message"]["reasoning"] is None
    assert "reasoning_details" not in hidden["choices"][0]["message"]
    assert hidden["usage"]["completion_tokens"] == shown["usage"]["completion_tokens"]
    assert not any(
        "reasoning" in delta for delta in deltas(ask(upstream, stream=True, reasoning={"exclude": True}))
    )


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, "max"),
        ({"reasoning": {"effort": "low"}}, "low"),
        ({"reasoning_effort": "high"}, "high"),
        ({"reasoning": {"effort": "medium"}}, "high"),
        ({"reasoning": {"effort": "xhigh"}}, "max"),
        ({"reasoning_effort": "minimal"}, "low"),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "low"}, "low"),
        ({"reasoning": {"enabled": True}}, "max"),
    ],
)
def test_efforts_are_mapped(upstream: Upstream, fields: dict[str, Any], effort: str) -> None:
    answer(upstream, **fields)
    assert upstream.control("/emulator/requests")["requests"][-1]["effort"] == effort


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "Only one of"),
        ({"reasoning": {"enabled": False}}, "Reasoning is mandatory"),
        ({"reasoning_effort": "none"}, "Reasoning is mandatory"),
        ({"reasoning": {"effort": "turbo"}}, "must be one of"),
        ({"reasoning": "low"}, "reasoning must be an object"),
        ({"session_id": "s" * 257}, "session_id must be"),
        ({"stop": ["a"] * 5}, "at most 4"),
        ({"model": "moonshotai/kimi-x"}, "moonshotai/kimi-x is not a valid model ID"),
        ({"max_completion_tokens": 1_048_576}, "This endpoint's maximum context length is 1048576 tokens"),
        ({"provider": {"only": ["nobody"]}}, "No allowed providers"),
    ],
)
def test_a_refusal_has_a_number_as_its_code(upstream: Upstream, fields: dict[str, Any], words: str) -> None:
    heard = ask(upstream, **fields)
    error = heard.json["error"]
    assert words in error["message"]
    assert error["code"] == heard.status == (404 if "provider" in fields else 400)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.3, "top_p": 0.5, "presence_penalty": 1},
        {"session_id": "s" * 256, "provider": {"sort": "price"}, "usage": {"include": True}, "models": [MODEL]},
        {"prompt_cache_options": None, "transforms": []},
    ],
)
def test_its_own_fields_and_free_sampling_are_taken(upstream: Upstream, fields: dict[str, Any]) -> None:
    assert ask(upstream, **fields).status == 200


def test_what_the_host_refuses_comes_wrapped(upstream: Upstream) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    error = ask(upstream, tools=[WEATHER], tool_choice=named).json["error"]
    assert (error["message"], error["code"]) == ("Provider returned error", 400)
    assert error["metadata"]["provider_name"] == "Moonshot AI"
    assert "incompatible with thinking" in json.loads(error["metadata"]["raw"])["error"]["message"]


def test_a_permissive_one_refuses_nothing_that_it_can_read() -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    with misbehaving(dialect="openrouter", permissive=True) as held:
        called = answer(held, tools=[WEATHER], tool_choice=named)["choices"][0]
        assert ask(held, session_id="s" * 300, stop=["a"] * 9).status == 200
        assert ask(held, max_completion_tokens=2_000_000).status == 200
    assert (called["finish_reason"], called["message"]["tool_calls"][0]["id"]) == (
        "tool_calls",
        "functions.get_weather:0",
    )


def test_a_thought_is_taken_back_by_details_or_by_name(upstream: Upstream) -> None:
    def prompt_tokens(**thought: Any) -> int:
        asked = {"role": "user", "content": "hi"}
        said = {"role": "assistant", "content": "ho", **thought}
        tokens: int = answer(upstream, messages=[asked, said, asked])["usage"]["prompt_tokens"]
        return tokens

    thought = "a thought of some length"
    details = [{"type": "reasoning.text", "text": thought[:9]}, {"type": "reasoning.text", "text": thought[9:]}]
    told = {prompt_tokens(reasoning=thought), prompt_tokens(reasoning_details=details)}
    assert told == {prompt_tokens(reasoning_content=thought)}
    assert prompt_tokens() < told.pop()


# --- usage and cost -------------------------------------------------------------------------------------------


def cost(usage: Any, host: str) -> Decimal:
    """The host's price, by the numbers of the usage alone."""
    per_input, per_read, per_output = SHEETS[host]
    read = usage["prompt_tokens_details"]["cached_tokens"]
    nano = (usage["prompt_tokens"] - read) * per_input + read * per_read + usage["completion_tokens"] * per_output
    return Decimal(nano).scaleb(-9)


@pytest.mark.parametrize("host", list(SHEETS))
@pytest.mark.parametrize("stream", [False, True])
def test_the_cost_is_exact_and_what_the_invoice_says(upstream: Upstream, host: str, stream: bool) -> None:
    asked = {"messages": [{"role": "user", "content": "word " * 700}], "provider": {"only": [host]}}
    for _ in range(2):  # the second one reads from the cache
        heard = ask(upstream, stream=stream, **asked)
        text = heard.body.decode().split("data: ")[-2] if stream else heard.body.decode()
        held = json.loads(text, parse_float=Decimal)
        usage = held["usage"]
        assert held["provider"] == host
        assert usage["cost"] == usage["cost_details"]["upstream_inference_cost"] == cost(usage, host)
        assert upstream.lines()[-1]["usd"] == f"{usage['cost']:f}".rstrip("0")
    assert usage["prompt_tokens_details"]["cached_tokens"] == 768
    assert usage["is_byok"] is False


def test_every_stream_ends_with_usage_asked_for_or_not(upstream: Upstream) -> None:
    for options in (None, {"include_usage": False}, {"include_usage": True}):
        *_, last, done = ask(upstream, stream=True, stream_options=options).events
        assert done == "[DONE]"
        assert last["choices"] == []
        assert last["usage"]["cost"] > 0


def test_with_a_key_of_ones_own_the_cost_is_the_fee_and_the_invoice_holds_both() -> None:
    with misbehaving(dialect="openrouter", byok_share=1.0) as held:
        usage = answer(held)["usage"]
        (line,) = held.lines()
    whole = usage["cost_details"]["upstream_inference_cost"]
    assert usage["is_byok"] is True
    assert usage["cost"] * 20 == whole == cost(usage, "Moonshot AI")
    assert (Decimal(line["usd"]), line["byok"]) == (usage["cost"] + whole, True)


def test_some_answers_are_paid_by_a_key_of_ones_own_and_the_total_agrees() -> None:
    with misbehaving(dialect="openrouter") as held:
        usages = [answer(held)["usage"] for _ in range(60)]
        invoice = held.control("/emulator/invoice")
    own = [usage for usage in usages if usage["is_byok"]]
    assert 0 < len(own) < 30
    total = sum(usage["cost"] for usage in usages)
    total += sum(usage["cost_details"]["upstream_inference_cost"] for usage in own)
    assert Decimal(invoice["total_usd"]) == total


@settings(max_examples=150, deadline=None)
@given(st.tuples(*[st.integers(0, 10**7)] * 5), st.booleans())
def test_costs_are_exact_whatever_the_counts(counts: tuple[int, int, int, int, int], byok: bool) -> None:
    fresh, read, write_5m, write_1h, output = counts
    split = PromptSplit(fresh, read, write_5m, write_1h)
    prices = OPENROUTER.models[0].prices
    usage = OPENROUTER.shape.usage(Counts(split, output, 0, True, prices, byok), Reports(), streamed=True)
    nano = charge_nano(split, output, prices)
    details = as_object(usage["cost_details"]) or {}
    assert usage["cost"] == Decimal(nano).scaleb(-9) / (20 if byok else 1)
    parts = (details["upstream_inference_prompt_cost"], details["upstream_inference_completions_cost"])
    assert sum(Decimal(str(part)) for part in parts) == Decimal(nano).scaleb(-9)


# --- around the answer ----------------------------------------------------------------------------------------


def test_comments_and_white_space_come_first(upstream: Upstream) -> None:
    stream = ask(upstream, stream=True).body
    assert stream.startswith(b": OPENROUTER PROCESSING\n\ndata: {")
    body = ask(upstream).body
    assert body[:1].isspace()
    assert as_object(decode(body)) is not None


def test_comments_go_on_while_nothing_else_comes() -> None:
    pace: dict[str, Any] = {"pace": 1, "first_token_s": 0.5, "tokens_per_s": 1e6, "comment_interval_s": 0.1}
    with misbehaving(dialect="openrouter", **pace) as held:
        stream = ask(held, stream=True, listen_s=2)
        plain = ask(held, listen_s=2)
    assert stream.body.count(b": OPENROUTER PROCESSING\n\n") >= 4
    assert len(plain.body) - len(plain.body.lstrip()) >= 4 * 10
    assert plain.status == 200


def test_ids_models_and_paths_are_its_own(upstream: Upstream) -> None:
    heard = ask(upstream, path="/api/v1/chat/completions")
    assert heard.json["id"].startswith("gen-")
    assert heard.headers["x-generation-id"] == heard.json["id"]
    (model,) = upstream.get("/api/v1/models").json["data"]
    assert (model["id"], model["context_length"]) == (MODEL, 1_048_576)
    assert model["pricing"] == {"prompt": "0.000002", "completion": "0.00001", "input_cache_read": "0.0000002"}
    assert upstream.get("/v1/users/me/balance").status == 404


def test_credits_fall_by_the_invoice() -> None:
    with misbehaving(dialect="openrouter", balance_usd="10.00") as held:
        ask(held)
        data = json.loads(held.get("/v1/credits").body, parse_float=Decimal)["data"]
        assert data["total_credits"] == 10
        assert data["total_usage"] == Decimal(held.control("/emulator/invoice")["total_usd"]) > 0


@pytest.mark.parametrize(
    ("headers", "words"), [("", "No auth credentials"), ("authorization: Bearer x\r\n", "User not")]
)
def test_a_key_is_missing_or_unknown(headers: str, words: str) -> None:
    with misbehaving(dialect="openrouter", api_keys=("good",)) as held:
        heard = held.send(b"{}", headers=headers)
    assert heard.status == heard.json["error"]["code"] == 401
    assert words in heard.json["error"]["message"]
