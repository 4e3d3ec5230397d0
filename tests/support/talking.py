"""A client as most applications have it: openai's, and of each answer only the fields it knows go back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import httpx2
import openai

from support.traffic import WEATHER

TURNS: Final = 5
PRO: Final = "kimi-k3.1-pro"
_RULES: Final = "A rule that is worth caching. " * 100
_REPORT: Final = "Eighteen degrees, and the wind comes from the west over the river. " * 30
"""More than a block of the emulator's cache."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one turn gave: the thought that the client heard and then forgets, and what it was told beside it."""

    thought: str
    cached_tokens: int
    headers: Mapping[str, str]
    kimi: Mapping[str, Any]

    @property
    def thinking(self) -> str | None:
        """What the gateway says of the history's thoughts."""
        return self.headers.get("x-kimi-thinking")

    @property
    def request_id(self) -> str:
        return self.headers["x-kimi-request-id"]


@dataclass(slots=True)
class PlainClient:
    """A tool conversation at `max`. Turns alternate between streams and whole answers; a turn may go anywhere."""

    topic: str
    key: str = "any"
    fields: dict[str, Any] = field(default_factory=dict)
    messages: list[Any] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages = self.messages or [
            {"role": "system", "content": f"For {self.topic}. {_RULES}"},
            {"role": "user", "content": f"What is the weather in Paris, for {self.topic}?"},
        ]

    @property
    def thoughts(self) -> list[str]:
        """What was thought so far, which the history does not have."""
        return [said.thought for said in self.said]

    def turn(self, base_url: str, **fields: Any) -> Said:
        """The next turn: the model calls a tool, which answers; the last one of five need not."""
        number = len(self.said)
        request: dict[str, Any] = {
            "model": PRO,
            "messages": self.messages,
            "tools": [WEATHER],
            "tool_choice": "required" if number < TURNS - 1 else "auto",
            "reasoning_effort": "max",
            **self.fields,
            **fields,
        }
        with openai.OpenAI(base_url=base_url, api_key=self.key, max_retries=0, timeout=30) as client:
            if number % 2:
                message, said = _streamed(client, request)
            else:
                message, said = _whole(client, request)
        self.said.append(said)
        self.messages.append(message)
        for call in message.get("tool_calls") or []:
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"{number}: {_REPORT}"})
        return said

    def hold(self, *base_urls: str, turns: int = TURNS) -> list[Said]:
        """So many turns, from one address to the next in turn."""
        return [self.turn(base_urls[number % len(base_urls)]) for number in range(turns)]


def _whole(client: openai.OpenAI, request: dict[str, Any]) -> tuple[dict[str, Any], Said]:
    create: Any = client.chat.completions.with_raw_response.create
    raw = create(**request)
    answer = raw.parse()
    message = answer.choices[0].message
    known = message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
    usage = answer.usage
    return known, Said(message.reasoning_content, usage.cached_tokens, dict(raw.headers), answer.kimi)


def _streamed(client: openai.OpenAI, request: dict[str, Any]) -> tuple[dict[str, Any], Said]:
    create: Any = client.chat.completions.with_raw_response.create
    raw = create(**request, stream=True, stream_options={"include_usage": True})
    text, thought, usage, kimi = "", "", None, {}
    calls: dict[int, Any] = {}
    for chunk in raw.parse():
        for choice in chunk.choices:
            text += choice.delta.content or ""
            thought += getattr(choice.delta, "reasoning_content", None) or ""
            for piece in choice.delta.tool_calls or []:
                blank = {"id": piece.id, "type": "function", "function": {"name": "", "arguments": ""}}
                function = calls.setdefault(piece.index, blank)["function"]
                function["name"] += piece.function.name or ""
                function["arguments"] += piece.function.arguments or ""
        if chunk.usage:
            usage, kimi = chunk.usage, chunk.kimi
    assert usage is not None
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [calls[place] for place in sorted(calls)]
    return message, Said(thought, usage.cached_tokens, dict(raw.headers), kimi)


def history_seen(emulator: str, topic: str) -> list[Any]:
    """The messages of the last request of a conversation, as the emulator at this address received them."""
    requests = httpx2.get(f"{emulator}/emulator/requests", timeout=10).json()["requests"]
    histories = [one["body"]["messages"] for one in requests if one["path"].endswith("/chat/completions")]
    return list([one for one in histories if one[0]["content"].startswith(f"For {topic}. ")][-1])


def thoughts_seen(emulator: str, topic: str) -> list[Any]:
    """The thoughts of that history's turns, None where one has none."""
    history = history_seen(emulator, topic)
    return [message.get("reasoning_content") for message in history if message["role"] == "assistant"]


def check_grown(said: list[Said]) -> None:
    """Each turn got all earlier thoughts back, and read more from the cache than the one before."""
    assert [one.thinking for one in said] == [None, *(f"repaired={turn}" for turn in range(1, len(said)))]
    cached = [one.cached_tokens for one in said]
    assert cached[0] == 0
    assert all(later > earlier for earlier, later in pairwise(cached)), cached
