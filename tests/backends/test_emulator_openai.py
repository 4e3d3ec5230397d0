"""An unmodified `openai` client holds a two-turn tool conversation with the emulator."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam

from backends.emulator.app import Emulator, EmulatorConfig
from support.asgi import serve

PRO = "kimi-k3.1-pro"
KEY = "sk-test"
WEATHER: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture
def base_url() -> Iterator[str]:
    with serve(Emulator(EmulatorConfig(pace=0, api_keys=(KEY,)))) as url:
        yield f"{url}/v1"


def extra(message: Any, name: str) -> Any:
    return (message.model_extra or {}).get(name)


def test_a_sync_client_holds_a_two_turn_tool_conversation(base_url: str) -> None:
    client = openai.OpenAI(base_url=base_url, api_key=KEY)
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Bern?"}]
    first = client.chat.completions.create(model=PRO, messages=messages, tools=[WEATHER], tool_choice="auto")
    called = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert extra(called, "reasoning_content")
    assert called.tool_calls is not None
    [call] = called.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "synthetic city"}

    messages.append(called.model_dump(exclude_none=True))  # type: ignore[arg-type]  # the documented way to return it
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "rain, 8 degrees"})
    second = client.chat.completions.create(model=PRO, messages=messages, tools=[WEATHER])
    assert second.choices[0].finish_reason == "stop"
    assert "rain, 8 degrees" in (second.choices[0].message.content or "")
    assert second.usage is not None
    assert second.usage.completion_tokens > 0


def test_an_async_client_streams_thought_before_text_and_gets_usage(base_url: str) -> None:
    async def main() -> tuple[list[str], int]:
        async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY) as client:
            stream = await client.chat.completions.create(
                model=PRO,
                messages=[{"role": "user", "content": "hi"}],
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"reasoning_effort": "low"},
            )
            kinds: list[str] = []
            usage_chunks = 0
            async for chunk in stream:
                if not chunk.choices:
                    assert chunk.usage is not None
                    usage_chunks += 1
                    continue
                delta = chunk.choices[0].delta
                kinds.append("thought" if extra(delta, "reasoning_content") else "text" if delta.content else "")
            return [kind for kind in kinds if kind], usage_chunks

    kinds, usage_chunks = asyncio.run(main())
    assert kinds == sorted(kinds, reverse=True)
    assert {"thought", "text"} == set(kinds)
    assert usage_chunks == 1


def test_its_errors_reach_the_client_as_its_own_exceptions(base_url: str) -> None:
    client = openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0)
    with pytest.raises(openai.BadRequestError, match="only 1 is allowed"):
        client.chat.completions.create(model=PRO, messages=[{"role": "user", "content": "hi"}], temperature=0)
    with pytest.raises(openai.NotFoundError, match="Not found the model"):
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.AuthenticationError, match="Invalid Authentication"):
        openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0).models.list()
