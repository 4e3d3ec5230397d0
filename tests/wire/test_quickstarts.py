"""The official quickstarts and the unmodified OpenAI client, through a gateway with its built-in emulator."""

import asyncio
import contextlib
import io
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from support.processes import Gateway, gateway_process
from support.scripted import dead_port
from support.shared import shared_path
from support.traffic import WEATHER

ASK = "Weather in Paris? Call get_weather."


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """What `make run` starts, on a port of its own."""
    with gateway_process("[server]\ndrain_grace_s = 0\n", arguments=["--emulator-if-empty"]) as started:
        yield started


def article_code() -> tuple[str, str]:
    """The two scripts of the official article."""
    text = shared_path("facts/source-article.txt").read_text("utf-8")
    first = text[text.index('"""\nKimi K3.1 Pro Production Quickstart.') : text.index("6. Token Economics")]
    start = text.index("# Calling Kimi K3.1 Pro via OpenRouter")
    second = text[start : text.index("print(response.choices[0].message.content)", start)]
    return first, second + "print(response.choices[0].message.content)\n"


def run_script(code: str) -> str:
    """What a script prints, run in this process, which has its library already. Raises where it fails."""
    printed = io.StringIO()
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "quickstart.py", "exec"), names)
    for value in names.values():
        if isinstance(value, openai.OpenAI):
            value.close()
    return printed.getvalue()


def test_the_first_quickstart_prints_thought_answer_and_usage(gateway: Gateway) -> None:
    code = article_code()[0].replace("https://api.moonshot.ai/v1", gateway.base_url)
    printed = run_script(code)
    assert "KIMI K3.1 PRO INTERNAL REASONING TRACE:" in printed
    answer = printed.split("FINAL SYNTHESIZED RESPONSE:")[1]
    assert len(answer.split("Token Accounting")[0].strip("=-\n ")) > 20
    assert re.search(r"Prompt Tokens = [\d,]+ \| Completion Tokens = [\d,]+ \| Total = [\d,]+", printed)


def test_the_second_quickstart_prints_its_answer(gateway: Gateway) -> None:
    imports = "import os\nfrom openai import OpenAI\n"
    code = imports + article_code()[1].replace("https://openrouter.ai/api/v1", gateway.base_url)
    assert len(run_script(code).strip()) > 20


def test_a_stream_shows_thought_before_text_then_usage_then_the_end(gateway: Gateway) -> None:
    with openai.OpenAI(base_url=gateway.base_url, api_key="any") as client:
        stream = client.chat.completions.create(
            model="kimi-k3.1-pro",
            messages=[{"role": "user", "content": "Say hello."}],
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"reasoning_effort": "low"},
        )
        chunks: list[Any] = list(stream)
    kinds = "".join(
        "t" if getattr(choice.delta, "reasoning_content", None) else "c" if choice.delta.content else ""
        for chunk in chunks
        for choice in chunk.choices
    )
    assert re.fullmatch("t+c+", kinds)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + chunks[-1].usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-2].choices[0].model_dump()["usage"]["total_tokens"] == chunks[-1].usage.total_tokens
    assert set(chunks[-1].kimi) == {
        "request_id", "target", "model", "tier", "effort", "attempts", "thinking", "adjusted", "cost_usd",
    }  # fmt: skip


def test_without_include_usage_no_chunk_lacks_choices(gateway: Gateway) -> None:
    with openai.OpenAI(base_url=gateway.base_url, api_key="any") as client:
        stream = client.chat.completions.create(
            model="kimi-k3.1-pro",
            messages=[{"role": "user", "content": "Say hello."}],
            reasoning_effort="low",
            stream=True,
        )
        chunks = list(stream)
    assert all(chunk.choices for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)


def tool_turns(first: Any, second: Any) -> None:
    """What both clients must have heard."""
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert [call.function.name for call in message.tool_calls] == ["get_weather"]
    assert message.reasoning_content
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content


def next_messages(first: Any) -> list[Any]:
    """The conversation after the tool has run, as the OpenAI client's own objects."""
    message = first.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "18 C"} for call in message.tool_calls]
    return [{"role": "user", "content": ASK}, message.model_dump(exclude_none=True), *results]


def test_the_sync_client_holds_a_tool_conversation(gateway: Gateway) -> None:
    options: Any = {"model": "kimi-k3.1-pro", "tools": [WEATHER], "tool_choice": "auto", "reasoning_effort": "low"}
    with openai.OpenAI(base_url=gateway.base_url, api_key="any") as client:
        first = client.chat.completions.create(
            messages=[{"role": "user", "content": ASK}], **{**options, "tool_choice": "required"}
        )
        raw = client.chat.completions.with_raw_response.create(messages=next_messages(first), **options)
        tool_turns(first, raw.parse())
        assert raw.headers["x-kimi-thinking"] == "intact"


def test_the_async_client_holds_a_tool_conversation_in_streams(gateway: Gateway) -> None:
    async def hold() -> None:
        options: Any = {"model": "kimi-k3.1-pro", "tools": [WEATHER], "reasoning_effort": "low"}
        async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key="any") as client:
            first = await client.chat.completions.create(
                messages=[{"role": "user", "content": ASK}], tool_choice="required", **options
            )
            stream = await client.chat.completions.create(messages=next_messages(first), stream=True, **options)
            chunks: list[Any] = [chunk async for chunk in stream]
        assert [call.function.name for call in first.choices[0].message.tool_calls] == ["get_weather"]
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    asyncio.run(hold())


def test_a_variable_makes_a_target_and_then_no_emulator_starts() -> None:
    with dead_port() as port:
        env = {"VLLM_BASE_URL": f"http://127.0.0.1:{port}/v1"}
        config = "[server]\ndrain_grace_s = 0\n"
        with gateway_process(config, env, arguments=["--emulator-if-empty"]) as started:
            assert "vllm (vllm)" in started.output()
            assert "emulator" not in started.output()
