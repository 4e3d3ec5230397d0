"""`kimi-gateway check --probe` and engines: what an answer shows to be missing, and real engines' answers."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.checked import (
    COUNTED,
    ENGINE_ID,
    KEY,
    PRICES,
    UNCOUNTED,
    Deployment,
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
from support.processes import free_port, program
from support.scripted import Given
from support.shared import shared_path
from support.transcripts import exchanges

CALL = stream(
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning": "The user wants the time."}),
    chunk({"tool_calls": [{"index": 0, "id": "get_time:0", "type": "function",
                           "function": {"name": "get_time", "arguments": '{"zone": "UTC"}'}}]}),
    chunk({}, "tool_calls"),
    extra(COUNTED),
    headers=ENGINE_ID,
)  # fmt: skip

# --- what an engine was started without -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "answer", "flag"),
    [
        ("vllm", engine_answer(usage=UNCOUNTED), "--enable-prompt-tokens-details"),
        ("sglang", engine_answer(usage=UNCOUNTED), "--enable-cache-report"),
        ("vllm", engine_answer(thought=None), "--reasoning-parser kimi_k3"),
        ("vllm", engine_answer(text="The user pings.</think>pong"), "--reasoning-parser kimi_k3"),
        ("sglang", engine_answer(text="<|open|>tools<|sep|>get_time"), "--tool-call-parser kimi_k3"),
        ("vllm", engine_answer(headers={}), "--enable-request-id-headers"),
    ],
)
def test_a_missing_flag_is_one_line_that_names_it(tmp_path: Path, dialect: str, answer: Given, flag: str) -> None:
    (line,) = mistakes(probe(tmp_path, answer, dialect=dialect))
    assert line.startswith('targets["t"]: ')
    assert line.endswith(f"start it with {flag}")


def test_nothing_is_said_to_be_there_that_was_not_seen(tmp_path: Path) -> None:
    outcome = probe(tmp_path, engine_answer())
    assert outcome.code == 0, outcome.out
    assert "not checked: its tool-call parser (the tool was not called)" in outcome.result("engine flags")
    assert outcome.lines[-1] == "All that was checked is well."
    called = probe(tmp_path, CALL)
    assert called.code == 0, called.out
    assert called.result("tool calls").endswith("get_time")
    assert called.result("engine flags").endswith("nothing is missing")


def test_an_engine_without_any_flag_gets_a_line_for_each(tmp_path: Path) -> None:
    refusal = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    no_tools: Given = {
        "status": 400,
        "json": {"error": {"message": refusal, "type": "BadRequestError", "code": 400}},
    }
    bare = engine_answer(thought=None, text="thinkThe user pings.responsepong", usage=UNCOUNTED, headers={})
    lines = mistakes(probe(tmp_path, no_tools, bare))
    assert [line.partition("start it with ")[2] for line in lines] == [
        "--enable-prompt-tokens-details",
        "--reasoning-parser kimi_k3",
        "--enable-auto-tool-choice --tool-call-parser kimi_k3",
        "--enable-request-id-headers",
    ]
    assert refusal in lines[2]


def test_two_models_of_one_engine_do_not_repeat_its_mistake(tmp_path: Path) -> None:
    with Deployment([engine_answer(usage=UNCOUNTED)], repeat_last=True, models=listing("a", "b")) as up:
        config = target(up.base_url, extra=PRICES).replace('"kimi" = "kimi"', '"x" = "a", "y" = "b"')
        assert len(mistakes(check(tmp_path, config, "--probe"))) == 1


def test_an_answer_cut_in_its_thought_is_well(tmp_path: Path) -> None:
    cut = stream(chunk({"reasoning": "The user"}), chunk({}, "length"), extra(COUNTED), headers=ENGINE_ID)
    outcome = probe(tmp_path, cut)
    assert outcome.code == 0, outcome.out
    assert outcome.result("finish_reason").endswith("length")
    assert outcome.result("text").endswith("no")


def test_a_probe_without_usage_is_one_line(tmp_path: Path) -> None:
    (line,) = mistakes(probe(tmp_path, engine_answer(usage=None)))
    assert "kimi reported no usage although it was asked to" in line


# --- real engines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "dialect", "thought"),
    [("vllm-chat-1", "vllm", "reasoning"), ("sglang-chat", "sglang", "reasoning_content")],
)
def test_recorded_answers_of_engines_with_their_flags_are_well(
    tmp_path: Path, file: str, dialect: str, thought: str
) -> None:
    recorded = exchanges(file)["chat-stream-usage"]
    headers = {name: value for name, value in recorded.headers.items() if name == "x-request-id"}
    outcome = probe(
        tmp_path, {"status": 200, "sse_text": recorded.body.decode(), "headers": headers}, dialect=dialect
    )
    assert outcome.code == 0, outcome.out
    assert f"yes, in {thought} (" in outcome.result("thought")
    assert '"Hello!"' in outcome.result("text")
    assert "reported: " in outcome.result("cached tokens")


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """The base URL of llama.cpp's server with the key of the checks."""
    model, script = shared_path("engines/kimi-tiny-q8.gguf"), shared_path("engines/serve_llamacpp.py")
    port = free_port()
    env = {"GGUF": str(model), "CTX": "8192", "PATH": os.environ["PATH"]}
    with program([sys.executable, str(script), str(port), KEY], env=env) as started:
        for _ in range(200):
            if started.wait_for_http(f"http://127.0.0.1:{port}/health") == 200:
                break
            time.sleep(0.05)  # it answers 503 while it loads
        yield f"http://127.0.0.1:{port}/v1"


def llamacpp(base_url: str, model: str = "kimi-k3.1-pro") -> str:
    return target(base_url, dialect="llamacpp", model=model, extra=PRICES)


def test_a_real_engine_is_well_and_shows_thought_tool_call_and_usage(tmp_path: Path, engine: str) -> None:
    outcome = check(tmp_path, llamacpp(engine), "--probe", "--format", "json")
    assert outcome.code == 0, outcome.out
    (found,) = outcome.json["probes"]
    assert found["thought_names"] == ["reasoning_content"]
    assert found["tool_calls"] or found["text"]
    assert found["cached_tokens_reported"] is True
    assert found["completion_tokens"] > 0
    assert found["version"].startswith("b")
    (flags,) = [row["result"] for row in outcome.json["checked"] if row["what"] == "engine flags"]
    assert ("nothing is missing" in flags) == bool(found["tool_calls"])


def test_a_real_engine_refuses_a_wrong_key_and_an_unknown_model(tmp_path: Path, engine: str) -> None:
    wrong = check(tmp_path, llamacpp(engine), env={"CHECK_KEY": "sk-another-0123456789"})
    assert wrong.line.startswith('targets["t"].api_key_env: the key was refused (401: ')
    unknown = check(tmp_path, llamacpp(engine, model="kimi"))
    assert unknown.line.endswith('its only model is "kimi-k3.1-pro": write { "kimi" = "kimi-k3.1-pro" }')
