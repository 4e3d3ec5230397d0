"""The typed client for Kimi: conversations that keep their thinking and know what they cost.

from kimi_sdk import Chat

with Chat(system="You are brief.", effort="high") as chat:
    reply = chat.ask("How far is the Moon?")
    print(reply.text, reply.cost)
"""

from kimi_sdk.client import Chat, Effort
from kimi_sdk.errors import (
    AuthenticationFailed,
    BadReply,
    BadRequest,
    BudgetExceeded,
    ConnectionFailed,
    ContentFiltered,
    ContextTooLong,
    InvalidInput,
    KimiError,
    NoAnswerInTime,
    Overloaded,
    PermissionRefused,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    ServerFailed,
)
from kimi_sdk.reply import CostSource, Reply
from pricing.usage import TokenUsage

__all__ = [
    "AuthenticationFailed",
    "BadReply",
    "BadRequest",
    "BudgetExceeded",
    "Chat",
    "ConnectionFailed",
    "ContentFiltered",
    "ContextTooLong",
    "CostSource",
    "Effort",
    "InvalidInput",
    "KimiError",
    "NoAnswerInTime",
    "Overloaded",
    "PermissionRefused",
    "QuotaExhausted",
    "RateLimited",
    "Reply",
    "RequestRefused",
    "ServerFailed",
    "TokenUsage",
]
