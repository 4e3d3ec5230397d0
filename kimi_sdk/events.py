"""What a stream gives out, one after the other. Pure.

The text deltas of one answer joined are its `Reply.text`, the thinking deltas its `Reply.thinking`. A tool call
comes whole, once its arguments are complete; its result follows where the chat runs its tools. Each answer ends
with `Usage`, and the last one with `Done`.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

from kimi_sdk.reply import CostSource, Reply
from kimi_sdk.tools_calls import ToolCall, ToolResult
from pricing.usage import TokenUsage

__all__ = ["Done", "Event", "TextDelta", "ThinkingDelta", "ToolCall", "ToolResult", "Usage"]


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A piece of the thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What one answer used and cost; None where nobody knows, as in `Reply`."""

    usage: TokenUsage | None
    cost: Decimal | None
    cost_source: CostSource


@dataclass(frozen=True, slots=True)
class Done:
    """The end: the last answer, which now is part of the conversation."""

    reply: Reply


Event: TypeAlias = ThinkingDelta | TextDelta | ToolCall | ToolResult | Usage | Done
