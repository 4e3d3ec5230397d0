"""The cases of kind usage, over real sockets."""

import json
from typing import Any

import pytest

from support.cases import case
from support.lab import Heard, Lab

ASK: dict[str, Any] = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "hi"}]}


def money(lab: Lab, heard: Heard) -> tuple[Any, ...]:
    """Prompt, cached, completion tokens and cost of an answer's row."""
    row = lab.row(heard)
    return row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"], row["cost_usd"]


def moved_usage(variant: str) -> str:
    """The stream of use-01 with its usage moved to where the variant wants it."""
    events = [
        line.removeprefix("data: ") for line in case("use-01")["given"]["upstream"][0]["sse_text"].split("\n\n")
    ]
    chunks = [json.loads(event) for event in events if event.strip() and event != "[DONE]"]
    last = next(chunk for chunk in chunks if chunk["choices"] and "usage" in chunk["choices"][0])
    usage = last["choices"][0]["usage"]
    if variant in "BC":
        del last["choices"][0]["usage"]
    if variant in "BD":
        last["usage"] = usage
    if variant == "C":
        chunks.append({**last, "choices": [], "usage": usage})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("variant", "ABCD")
def test_use_01_usage_is_found_wherever_it_stands(shared_lab: Lab, variant: str, asked: bool) -> None:
    request = {**case("use-01")["given"]["client_request"], "stream_options": {"include_usage": asked}}
    heard = shared_lab.ask(request, {"status": 200, "sse_text": moved_usage(variant)})
    assert money(shared_lab, heard) == (2400, 2048, 150, "0.0026136")
    assert shared_lab.row(heard)["estimated"] is False
    finishing = next(
        chunk for chunk in heard.chunks if chunk["choices"] and chunk["choices"][0].get("finish_reason")
    )
    assert finishing["choices"][0]["usage"]["cached_tokens"] == 2048
    extra = [chunk for chunk in heard.chunks if not chunk["choices"]]
    assert len(extra) == (1 if asked else 0)
    if asked:
        usage = extra[0]["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (2400, 150, 2550)
        assert usage["prompt_tokens_details"]["cached_tokens"] == 2048
    assert heard.done


@pytest.mark.parametrize(
    ("drop", "expected"),
    [
        ((), (5000, 4096, 200, "0.0046272")),
        (("prompt_tokens_details",), (5000, 4096, 200, "0.0046272")),
        (("prompt_tokens_details", "cached_tokens"), (5000, 0, 200, "0.012")),
    ],
)
def test_use_02_cached_tokens_at_two_places_count_once(
    shared_lab: Lab, drop: tuple[str, ...], expected: tuple[Any, ...]
) -> None:
    usage = dict(case("use-02")["given"]["upstream"][0]["json_usage"])
    for name in drop:
        del usage[name]
    assert money(shared_lab, shared_lab.ask(ASK, {"status": 200, "json_usage": usage})) == expected


def test_use_03_cumulative_usage_is_not_summed(shared_lab: Lab) -> None:
    given = case("use-03")["given"]
    heard = shared_lab.ask(given["client_request"], *given["upstream"], target="vllm")
    assert money(shared_lab, heard) == (1200, None, 3, "0.00243")
    assert shared_lab.sent("vllm")["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize("details", [None, {"cached_tokens": None}])
def test_use_04_null_details_are_unknown_and_thoughts_are_inside_the_output(shared_lab: Lab, details: Any) -> None:
    usage = {**case("use-04")["given"]["upstream"][0]["json_usage"], "prompt_tokens_details": details}
    heard = shared_lab.ask(ASK, {"status": 200, "json_usage": usage}, target="vllm")
    assert money(shared_lab, heard) == (300, None, 1000, "0.0106")
    assert shared_lab.row(heard)["reasoning_tokens"] == 900
    assert "cached_tokens" not in heard.json["usage"]


def test_use_05_a_stream_without_usage_is_an_estimate_and_says_so(shared_lab: Lab) -> None:
    given = case("use-05")["given"]
    heard = shared_lab.ask(given["client_request"], *given["upstream"], target="sglang")
    row = shared_lab.row(heard)
    assert row["estimated"] is True
    assert row["status"] == "ok"
    assert row["prompt_tokens"] > 0
    assert row["completion_tokens"] > 0
    assert float(row["cost_usd"]) > 0


@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"continuous_usage_stats": False}])
def test_use_06_usage_is_asked_for_upstream_and_kept_from_a_client_that_did_not(
    shared_lab: Lab, options: Any
) -> None:
    given = case("use-06")["given"]
    request = given["client_request"] | ({"stream_options": options} if options else {})
    heard = shared_lab.ask(request, *given["upstream"], target="vllm")
    assert shared_lab.sent("vllm")["stream_options"] == {**(options or {}), "include_usage": True}
    assert (heard.joined("content"), heard.done) == ("ok", True)
    assert all(chunk["choices"] and "usage" not in chunk for chunk in heard.chunks)
    row = shared_lab.row(heard)
    assert (row["prompt_tokens"], row["completion_tokens"], row["estimated"]) == (8, 2, False)


def test_use_07_more_cached_than_prompt_is_clamped_and_an_anomaly(shared_lab: Lab) -> None:
    heard = shared_lab.ask(ASK, *case("use-07")["given"]["upstream"])
    assert money(shared_lab, heard) == (1000, 1000, 10, "0.0003")
    row = shared_lab.row(heard)
    assert row["anomaly"]
    assert heard.json["usage"]["cached_tokens"] == 1000


def test_use_08_usage_of_two_choices_is_their_total(shared_lab: Lab) -> None:
    given = case("use-08")["given"]
    heard = shared_lab.ask(given["client_request"], *given["upstream"], target="vllm")
    assert (heard.joined("content", 0), heard.joined("content", 1)) == ("A0", "B1")
    assert money(shared_lab, heard) == (50, None, 30, "0.0004")
    assert heard.done


def test_use_09_the_reported_cost_wins_and_the_table_value_stays_beside_it(shared_lab: Lab) -> None:
    heard = shared_lab.ask(ASK, *case("use-09")["given"]["upstream"], target="openrouter")
    assert money(shared_lab, heard) == (10000, 2000, 500, "0.0212")
    row = shared_lab.row(heard)
    assert (row["table_cost_usd"], row["cost_source"]) == ("0.0214", "upstream")
    assert b'"cost":0.0212' in heard.raw
    assert heard.headers["x-kimi-cost-usd"] == "0.0212"
