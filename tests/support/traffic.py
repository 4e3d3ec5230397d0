"""Mixed requests for a gateway: conversations in both tiers and lifetimes, streamed and folded, with tools."""

import json
import random
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.lab import Heard, post

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_LONG = "The ledger is read aloud, one line after another, and every figure is checked twice. "


def conversation(
    number: int, turns: int, *, ttl: str, model: str, seed: int = 0
) -> Generator[dict[str, Any], dict[str, Any], None]:
    """The requests of one conversation, each longer than the last; send it the answer's message each time."""
    dice = random.Random(seed * 1000 + number)
    messages: list[Any] = [
        {"role": "system", "content": f"Conversation {number}. " + _LONG * dice.randint(20, 60)}
    ]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn} of {number}: " + _LONG * dice.randint(1, 6)})
        request: dict[str, Any] = {
            "model": model,
            "messages": list(messages),
            "reasoning_effort": "low",
            "stream": dice.random() < 0.5,
        }
        if ttl:
            request["prompt_cache_options"] = {"mode": "implicit", "ttl": ttl}
        if number % 3 == 0:
            request["tools"] = [WEATHER]
        message = yield request
        messages.append(message)
        for call in message.get("tool_calls") or []:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": '{"celsius": 18}'})


def message_of(heard: Heard) -> dict[str, Any]:
    """The assistant's message of an answer, streamed or folded."""
    if not heard.events:
        return dict(heard.json["choices"][0]["message"])
    message: dict[str, Any] = {"role": "assistant", "content": heard.joined("content") or None}
    message["reasoning_content"] = heard.joined("reasoning_content")
    if calls := heard.tool_calls():
        message["tool_calls"] = calls
    return message


def run(base_url: str, requests: int, *, threads: int = 4, turns: int = 5) -> list[Heard]:
    """That many requests in conversations of `turns`, each of one tier and one lifetime."""

    def hold(number: int) -> list[Heard]:
        ttl = ("", "5m", "1h")[number % 3]
        model = "kimi-k3.1-pro" + ("-highspeed" if number % 4 == 1 else "")
        talk = conversation(number, turns, ttl=ttl, model=model)
        answers: list[Heard] = []
        request = next(talk)
        for _ in range(turns):
            answers.append(post(base_url, request, {}))
            assert answers[-1].status == 200, answers[-1].raw
            try:
                request = talk.send(message_of(answers[-1]))
            except StopIteration:
                break
        return answers

    with ThreadPoolExecutor(threads) as pool:
        return [answer for answers in pool.map(hold, range(requests // turns)) for answer in answers]


def report(output: str) -> Any:
    """A report printed as JSON."""
    return json.loads(output)
