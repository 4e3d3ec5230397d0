"""`kimi-gateway check --probe`: what came back from each kind of upstream, and what it shows to be missing."""

import asyncio
import time
from pathlib import Path

import pytest

from backends.aiohttp_upstream import AiohttpUpstream
from kimi_gateway.checks.fetch import Tools
from kimi_gateway.checks.findings import Findings, Mistake, Output
from kimi_gateway.checks.probe import OUTPUT_LIMIT, probe_target
from kimi_gateway.checks.show import shown
from kimi_gateway.checks.targets import Look
from kimi_gateway.settings import Target
from pricing.cards import load_cards
from support.checked import (
    COUNTED,
    ENGINE_ID,
    KEY,
    Deployment,
    behind,
    check,
    chunk,
    engine_answer,
    extra,
    listing,
    mistakes,
    probe,
    stream,
    target,
)
from support.exchange import Exchange
from support.scripted import Given

# --- the four kinds -------------------------------------------------------------------------------------------

MOONSHOT = stream(
    chunk({"role": "assistant", "reasoning_content": "The user pings."}),
    chunk({"content": "pong"}),
    chunk({}, "stop", usage_in_choice={"prompt_tokens": 24, "completion_tokens": 21, "cached_tokens": 0}),
)
OPENROUTER = stream(
    chunk(
        {
            "role": "assistant",
            "content": "",
            "reasoning": "The user pings.",
            "reasoning_details": [{"type": "reasoning.text", "text": "The user pings.", "index": 0}],
        }
    ),
    chunk({"content": "pong"}),
    chunk({}, "stop"),
    extra({"prompt_tokens": 24, "completion_tokens": 21, "prompt_tokens_details": {"cached_tokens": 0},
           "cost": 0.000258}),
    before=": OPENROUTER PROCESSING\n\n",
)  # fmt: skip
SGLANG = engine_answer(thought="reasoning_content", headers={})


@pytest.mark.parametrize(
    ("dialect", "answer", "thought", "usage", "cost"),
    [
        ("moonshot", MOONSHOT, "reasoning_content", "choices[0].usage", "0.000258"),
        (
            "openrouter",
            OPENROUTER,
            "reasoning and reasoning_details",
            "an extra chunk without choices",
            "0.000258",
        ),
        ("vllm", engine_answer(), "reasoning", "an extra chunk without choices", "0.000406"),
        ("sglang", SGLANG, "reasoning_content", "an extra chunk without choices", "0.000406"),
    ],
)
def test_each_kind_shows_what_came_back(
    tmp_path: Path, dialect: str, answer: Given, thought: str, usage: str, cost: str
) -> None:
    outcome = probe(tmp_path, answer, dialect=dialect)
    assert outcome.code == 0, outcome.out
    facts = {line[:15].strip(): line[15:].strip() for line in outcome.lines[:16]}
    assert facts["t"] == "kimi"
    assert facts["status"] == "200"
    assert facts["answered by"] == "kimi"
    assert facts["thought"] == f"yes, in {thought} (15 bytes)"
    assert facts["text"] == '"pong"'
    assert facts["finish_reason"] == "stop"
    assert facts["usage"] == f"in {usage}"
    assert facts["cached tokens"] == "reported: 0"
    assert facts["output tokens"] == "21"
    assert facts["cost"] == f"{cost} USD"
    assert facts["first token"].endswith(" ms")
    assert facts["whole answer"].endswith(" ms")
    assert outcome.result("1 probe:").endswith(f"21 output tokens used, {cost} USD.")


def test_openrouters_own_report_of_the_cost_stands_beside_the_prices(tmp_path: Path) -> None:
    outcome = probe(tmp_path, OPENROUTER, dialect="openrouter")
    assert outcome.result("priced by").endswith("the target's own report; 0.000258 USD by the target's own prices")


def test_json_has_the_same_facts_with_exact_money(tmp_path: Path) -> None:
    (found,) = probe(tmp_path, MOONSHOT, dialect="moonshot", output="json").json["probes"]
    assert found.pop("ttft_ms") <= found.pop("total_ms")
    assert found == {
        "target": "t",
        "model": "kimi",
        "version": None,
        "status": 200,
        "fault": None,
        "answered_by": "kimi",
        "thought_names": ["reasoning_content"],
        "thought_bytes": 15,
        "text": "pong",
        "tool_calls": [],
        "finish_reason": "stop",
        "signs": [],
        "usage_places": ["choices[0].usage"],
        "prompt_tokens": 24,
        "cached_tokens": 0,
        "cached_tokens_reported": True,
        "completion_tokens": 21,
        "reasoning_tokens": None,
        "cost_usd": "0.000258",
        "table_cost_usd": None,
        "cost_source": "target",
        "card": "target:t",
        "anomaly": None,
    }


def test_the_request_is_tiny_streamed_and_asks_for_usage(tmp_path: Path) -> None:
    with Deployment([MOONSHOT]) as up:
        check(tmp_path, target(up.base_url, dialect="moonshot"), "--probe")
        (sent,) = up.requests
    body = sent.json
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["max_completion_tokens"] == OUTPUT_LIMIT
    assert body["reasoning_effort"] == "low"
    assert len(sent.body) < 300
    assert sent.headers["authorization"] == f"Bearer {KEY}"


def test_each_model_of_a_target_is_probed_once_and_shown_beside_the_others(tmp_path: Path) -> None:
    with Deployment([MOONSHOT], repeat_last=True, models=behind(KEY, listing("a", "b"))) as up:
        config = target(up.base_url, dialect="moonshot").replace(
            '"kimi" = "kimi"', '"x" = "a", "y" = "b", "z" = "a"'
        )
        outcome = check(tmp_path, config, "--probe")
        assert [sent.json["model"] for sent in up.requests] == ["a", "b"]
    assert outcome.lines[0].split() == ["t", "a", "b"]


def test_the_operators_extra_body_is_part_of_the_request(tmp_path: Path) -> None:
    extra_body = 'extra_body = { provider = { only = ["moonshotai"] } }'
    with Deployment([OPENROUTER]) as up:
        check(tmp_path, target(up.base_url, dialect="openrouter", extra=extra_body), "--probe")
        assert up.requests[0].json["provider"] == {"only": ["moonshotai"]}


def test_a_target_that_refuses_the_key_is_not_probed(tmp_path: Path) -> None:
    refused: Given = {"status": 401, "json": {"error": "Unauthorized"}}
    with Deployment([refused, MOONSHOT], models=listing("kimi")) as up:
        outcome = check(tmp_path, target(up.base_url, dialect="openrouter"), "--probe")
        assert len(up.requests) == 1  # the one without messages
    assert "the key was refused" in outcome.line


def test_without_a_probe_no_token_is_spent(tmp_path: Path) -> None:
    with Deployment([MOONSHOT]) as up:
        assert check(tmp_path, target(up.base_url)).code == 0
        assert up.requests == []


def test_an_answer_that_is_one_json_body_is_taken_too(tmp_path: Path) -> None:
    message = {"role": "assistant", "content": "pong", "reasoning": "The user pings."}
    body = {
        "model": "kimi",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": COUNTED,
    }
    whole: Given = {"status": 200, "json": body, "headers": ENGINE_ID}
    outcome = probe(tmp_path, whole)
    assert outcome.code == 0, outcome.out
    assert "yes, in reasoning (15 bytes)" in outcome.result("thought")
    assert outcome.result("usage").endswith("in the body")


def test_another_model_than_asked_for_is_noted(tmp_path: Path) -> None:
    with Deployment([MOONSHOT], models=behind(KEY, listing("kimi-latest"))) as up:
        outcome = check(tmp_path, target(up.base_url, dialect="moonshot", model="kimi-latest"), "--probe")
    assert outcome.code == 0
    assert "says that it answered" not in outcome.out  # it answers by its public name
    with Deployment([MOONSHOT], models=behind(KEY, listing("other"))) as up:
        config = target(up.base_url, dialect="moonshot", model="other").replace('"kimi"', '"public"')
        outcome = check(tmp_path, config, "--probe")
    assert "note: t: other was asked for and kimi says that it answered" in outcome.lines


# --- probes that fail -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (
            {"status": 401, "json": {"error": {"message": "Invalid", "type": "incorrect_api_key_error"}}},
            'targets["t"].api_key_env: the key was refused (401: Invalid); put the right key',
        ),
        (
            {"status": 429, "json": {"error": {"message": "no money", "type": "exceeded_current_quota_error"}}},
            'targets["t"]: a probe of kimi was answered with 429: no money; top the account up',
        ),
        (
            {"status": 404, "json": {"error": {"message": "The model `kimi` does not exist.", "code": 404}}},
            'targets["t"]: a probe of kimi was answered with 404: The model `kimi` does not exist.; compare ',
        ),
        (
            stream(chunk({"reasoning_content": "The user"})),
            'targets["t"]: the upstream\'s stream ended before the answer was finished',
        ),
        (
            {"status": 200, "sse_text": 'data: {"error": {"message": "queue full", "code": 503}}\n\n'},
            'targets["t"]: a probe of kimi was answered with 503: queue full; look at its log',
        ),
        ({"then": "reset"}, 'targets["t"].base_url: '),
    ],
    ids=["key", "quota", "model", "cut", "error event", "reset"],
)
def test_a_probe_that_fails_is_one_line(tmp_path: Path, answer: Given, line: str) -> None:
    outcome = probe(tmp_path, answer, dialect="moonshot")
    (found,) = mistakes(outcome)
    assert found.startswith(line)
    assert outcome.result("failed")


def test_a_refused_key_ends_the_probes_of_its_target(tmp_path: Path) -> None:
    refused: Given = {"status": 401, "json": {"error": "Unauthorized"}}
    with Deployment([refused], repeat_last=True, models=listing("a", "b")) as up:
        config = target(up.base_url, dialect="moonshot").replace('"kimi" = "kimi"', '"x" = "a", "y" = "b"')
        assert len(mistakes(check(tmp_path, config, "--probe"))) == 1


def test_a_silent_answer_ends_after_bounded_time() -> None:
    async def mute(exchange: Exchange) -> None:
        await exchange.hold()

    async def main(base_url: str) -> Findings:
        upstream = AiohttpUpstream()
        tools = Tools(upstream, wall=time.time, mono=time.monotonic, probe_timeout_s=0.2)
        look = Look(Target("t", "moonshot", base_url), Findings(), usable=("a", "b"))
        found = await probe_target(tools, look, load_cards())
        await upstream.close()
        return found

    with Deployment([mute]) as up:
        found = asyncio.run(main(up.base_url))
    (line,) = [mistake.line for mistake in found.mistakes]
    assert "it gave no whole answer within 0.2 s" in line


def test_a_key_that_looks_like_any_word_is_hidden_in_both_forms() -> None:
    found = Findings()
    found.wrong(Mistake("here", 'it said swordfish and "quo\\"ted', "none"))
    for output in Output:
        made = shown(found, output, ["swordfish", 'quo\\"ted', "sword"])
        assert "fish" not in made
        assert "ted" not in made
        assert "***" in made
