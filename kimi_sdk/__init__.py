"""The typed client for Kimi: conversations that keep their thinking and know what they cost.

from kimi_sdk import Chat

with Chat(system="You are brief.", effort="high") as chat:
    reply = chat.ask("How far is the Moon?")
    print(reply.text, reply.cost)
"""

from kimi_sdk.async_client import AsyncChat
from kimi_sdk.batch import Batch, BatchItem
from kimi_sdk.broken import StreamCut, ThinkingExhausted, TooManyRounds
from kimi_sdk.client import Chat
from kimi_sdk.errors import (
    AuthenticationFailed,
    BadOutput,
    BadReply,
    BadRequest,
    BudgetError,
    BudgetExceeded,
    ConnectionFailed,
    ContentFiltered,
    ContextTooLong,
    InvalidInput,
    KimiError,
    MaxCostReached,
    NoAnswerInTime,
    NothingToResume,
    Overloaded,
    PermissionRefused,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    ServerFailed,
)
from kimi_sdk.events import Done, Event, TextDelta, ThinkingDelta, Usage
from kimi_sdk.exchange import Estimate
from kimi_sdk.meter import Meter
from kimi_sdk.notices import CachePrefixBroken, KimiWarning, NoEffect, SmallOutputLimit
from kimi_sdk.parts import Part, Question, image, text_file, video
from kimi_sdk.place import Tier, Ttl
from kimi_sdk.reply import CostSource, Reply
from kimi_sdk.request import Effort
from kimi_sdk.tools import Approve, Tool, ToolBox, tool, tool_from_schema
from kimi_sdk.tools_calls import ToolCall, ToolResult
from pricing.usage import TokenUsage

__all__ = [
    "Approve",
    "AsyncChat",
    "AuthenticationFailed",
    "BadOutput",
    "BadReply",
    "BadRequest",
    "Batch",
    "BatchItem",
    "BudgetError",
    "BudgetExceeded",
    "CachePrefixBroken",
    "Chat",
    "ConnectionFailed",
    "ContentFiltered",
    "ContextTooLong",
    "CostSource",
    "Done",
    "Effort",
    "Estimate",
    "Event",
    "InvalidInput",
    "KimiError",
    "KimiWarning",
    "MaxCostReached",
    "Meter",
    "NoAnswerInTime",
    "NoEffect",
    "NothingToResume",
    "Overloaded",
    "Part",
    "PermissionRefused",
    "Question",
    "QuotaExhausted",
    "RateLimited",
    "Reply",
    "RequestRefused",
    "ServerFailed",
    "SmallOutputLimit",
    "StreamCut",
    "TextDelta",
    "ThinkingDelta",
    "ThinkingExhausted",
    "Tier",
    "TokenUsage",
    "TooManyRounds",
    "Tool",
    "ToolBox",
    "ToolCall",
    "ToolResult",
    "Ttl",
    "Usage",
    "image",
    "text_file",
    "tool",
    "tool_from_schema",
    "video",
]
