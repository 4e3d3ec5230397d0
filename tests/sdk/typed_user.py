"""Code as an application writes it, read by type checkers only (`test_types.py`), and what they make of it."""

from collections.abc import Sequence
from decimal import Decimal
from typing import assert_type

from pydantic import BaseModel

from kimi_sdk import (
    AsyncChat,
    Batch,
    Chat,
    Done,
    Meter,
    Reply,
    TextDelta,
    ThinkingDelta,
    TokenUsage,
    ToolCall,
    ToolResult,
    Usage,
    image,
    tool,
)


class City(BaseModel):
    name: str
    people: int


@tool
def weather(city: str, days: int = 1) -> str:
    """The weather in a city."""
    return f"{city}: fine for {days} days"


def shown(reply: Reply) -> str:
    """Takes a reply of any kind."""
    return f"{reply.text} {reply.cost}"


def asks(meter: Meter) -> None:
    with Chat(system="Be brief.", effort="high", tier="highspeed", ttl="1h", tools=[weather], meter=meter) as chat:
        reply = chat.ask("A city?", output=City)
        assert_type(reply, Reply[City])
        assert_type(reply.output, City)
        assert_type(reply.output.people, int)
        assert_type(reply.cost, Decimal | None)
        assert_type(reply.usage, TokenUsage | None)
        assert_type(reply.tool_calls, tuple[ToolCall, ...])
        assert_type(chat.run("Cities?", output=list[City]).output, list[City])
        assert_type(chat.ask("hi").output, None)
        assert_type(chat.map(["a", "b"], output=City), Batch[City])
        shown(reply)
        shown(chat.run(["What is on it?", image(b"")]))
        shown(chat.ask([ToolResult(call, "18") for call in reply.tool_calls]))
        chat.effort = "low"
        assert_type(weather("Oslo"), str)


def streams(chat: Chat) -> str:
    text = ""
    for event in chat.stream("hi"):
        match event:
            case ThinkingDelta() | ToolCall() | ToolResult() | Usage():
                pass
            case TextDelta(piece):
                text += piece
            case Done(reply):
                assert_type(reply, Reply)
    return text


async def awaits(prompts: Sequence[str]) -> Decimal:
    async with AsyncChat() as chat:
        reply = await chat.ask("A city?", output=City)
        assert_type(reply.output, City)
        assert_type((await chat.run("A city?", output=City)).output, City)
        batch = await chat.map(prompts, output=City)
        assert_type([each.output for each in batch.replies], list[City])
        async for event in chat.stream("hi"):
            if isinstance(event, Done):
                assert_type(event.reply, Reply)
    return batch.cost
