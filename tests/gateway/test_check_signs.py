"""`kimi-gateway check --probe` and the engine sentinel: signs in words, with the version and without repeats."""

from pathlib import Path
from typing import Any

import pytest

from support.checked import (
    COUNTED,
    ENGINE_ID,
    KEY,
    PRICES,
    Deployment,
    Outcome,
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
from support.scripted import Given

VERSION: Given = {"status": 200, "json": {"version": "0.32.0"}}
LEAK = "<|open|>tools<|sep|><|open|>call "


def ending(*deltas: dict[str, Any], finish: str = "stop", usage: Any = COUNTED) -> Given:
    """An engine's thought, these deltas, a finish reason and usage."""
    parts = [chunk({"reasoning": "The user pings."}), *(chunk(delta) for delta in deltas)]
    return stream(*parts, chunk({}, finish), extra(usage), headers=ENGINE_ID)


CALL = {
    "tool_calls": [{"index": 0, "id": "a:0", "type": "function",
                    "function": {"name": "get_time", "arguments": '{"zone": "UTC"}'}}]
}  # fmt: skip


def notes(outcome: Outcome) -> list[str]:
    return [line for line in outcome.lines if line.startswith("note: ")]


@pytest.mark.parametrize(
    ("answer", "sign", "meaning"),
    [
        (ending(finish="tool_calls"), "calls_missing", "finish_reason is tool_calls, and there is no call"),
        (ending(CALL), "stop_with_calls", "there are tool calls, and finish_reason is stop"),
        (ending(), "empty_answer", "there is neither text nor call"),
        (
            ending({"reasoning": "<|open|>tools<|sep|>"}, {"content": "pong"}),
            "tool_markup_in_thought",
            "a tool call stands in the thought",
        ),
        (
            ending({"content": "pong"}, usage={**COUNTED, "prompt_tokens_details": {"cached_tokens": 99}}),
            "cached_over_prompt",
            "it reports more cached tokens than prompt tokens",
        ),
    ],
)
def test_a_sign_that_no_flag_explains_is_a_note_in_words(
    tmp_path: Path, answer: Given, sign: str, meaning: str
) -> None:
    outcome = probe(tmp_path, answer)
    assert outcome.code == 0, outcome.out
    assert outcome.result("signs").split() == ["signs", sign]
    (line,) = notes(outcome)
    assert line.startswith(f"note: t (kimi) shows {sign}: {meaning}")
    assert line.count("; ") >= 1


def test_the_version_stands_beside_the_sign_and_in_the_table(tmp_path: Path) -> None:
    with Deployment([ending()] * 2, paths={"/version": VERSION}) as up:
        text = check(tmp_path, target(up.base_url, extra=PRICES), "--probe")
        found = check(tmp_path, target(up.base_url, extra=PRICES), "--probe", "--format", "json").json["probes"]
    assert text.code == 0, text.out
    assert text.result("version").split() == ["version", "0.32.0"]
    assert text.result("target").endswith("lists 1 model, version 0.32.0")
    (line,) = notes(text)
    assert line.startswith("note: t (kimi, version 0.32.0) shows empty_answer: ")
    assert [(one["version"], one["signs"]) for one in found] == [("0.32.0", ["empty_answer"])]


def test_each_model_of_a_target_has_its_own_signs(tmp_path: Path) -> None:
    answers = [ending(), ending(CALL, finish="tool_calls")]
    with Deployment(answers, models=behind(KEY, listing("a", "b"))) as up:
        config = target(up.base_url, extra=PRICES).replace('"kimi" = "kimi"', '"x" = "a", "y" = "b"')
        outcome = check(tmp_path, config, "--probe")
    assert outcome.result("signs").split() == ["signs", "empty_answer", "none"]
    (line,) = [line for line in notes(outcome) if "shows" in line]
    assert line.startswith("note: t (a) shows empty_answer: ")


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("<|open|>tools<|sep|>get_time", "tool_markup"),
        ("<think>The user pings.</think>pong", "think_tags"),
        ("pong<|close|>message<|sep|>", "template_markup"),
    ],
)
def test_a_sign_that_a_mistake_explains_is_not_said_twice(tmp_path: Path, text: str, sign: str) -> None:
    thought = None if sign != "tool_markup" else "reasoning"
    outcome = probe(tmp_path, engine_answer(thought=thought, text=text))
    assert len(mistakes(outcome)) == 1
    assert outcome.result("signs").split() == ["signs", sign]
    assert notes(outcome) == []


def test_missing_usage_is_a_sign_and_one_mistake(tmp_path: Path) -> None:
    outcome = probe(tmp_path, engine_answer(usage=None))
    assert len(mistakes(outcome)) == 1
    assert outcome.result("signs").split() == ["signs", "usage_missing"]
    assert notes(outcome) == []


def test_a_service_has_signs_too_but_nothing_to_be_started_with(tmp_path: Path) -> None:
    answer = stream(chunk({"reasoning_content": "x"}), chunk({"content": LEAK}), chunk({}, "stop"), extra(COUNTED))
    outcome = probe(tmp_path, answer, dialect="moonshot")
    (line,) = notes(outcome)
    assert line.startswith("note: t (kimi) shows tool_markup: a tool call stands in the text")
    assert "start it" not in line


def test_an_answer_is_read_with_the_targets_own_setting_for_think_tags(tmp_path: Path) -> None:
    answer = engine_answer(thought=None, text="<think>The user pings.</think>pong")
    with Deployment([answer]) as up:
        config = target(up.base_url, extra=f"{PRICES}\nsplit_think_tags = true")
        outcome = check(tmp_path, config, "--probe")
    assert outcome.code == 0, outcome.out
    assert outcome.result("text").endswith('"pong"')
    assert outcome.result("thought").endswith("yes, split off the text (15 bytes)")
    assert outcome.result("signs").split() == ["signs", "think_tags"]


def test_a_call_leaks_into_the_text_only_where_none_was_wanted(tmp_path: Path) -> None:
    refusal: Given = {"status": 400, "json": {"object": "error", "message": "no tools here", "code": 400}}
    leaked = engine_answer(thought="reasoning_content", text=f"pong{LEAK}x", headers={})
    outcome = probe(tmp_path, refusal, leaked, dialect="sglang")
    assert outcome.result("text").endswith('"pong"')
    assert "markup_stripped" in outcome.result("signs")
    assert any("shows markup_stripped: a call that was not wanted" in line for line in notes(outcome))


def test_an_answer_that_broke_off_shows_no_signs(tmp_path: Path) -> None:
    cut: Given = {
        "status": 200,
        "sse_text": 'data: {"choices": [{"index": 0, "delta": {"content": "<|open|>tools"}}]}\n\n',
    }
    outcome = probe(tmp_path, cut)
    assert outcome.code == 1
    assert not any(line.startswith("signs ") for line in outcome.lines)
    assert notes(outcome) == []


def test_an_unstreamed_answer_shows_its_signs_as_well(tmp_path: Path) -> None:
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "", "reasoning": "x"},
    }
    answer: Given = {
        "status": 200,
        "headers": ENGINE_ID,
        "json": {"model": "kimi", "choices": [choice], "usage": COUNTED},
    }
    assert probe(tmp_path, answer).result("signs").split() == ["signs", "empty_answer"]
