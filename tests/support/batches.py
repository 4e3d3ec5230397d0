"""Batches asked of servers that repeat what they are told."""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

from backends.json import JsonObject, as_list, as_object
from kimi_sdk import AsyncChat, Chat
from kimi_sdk.batch import Batch
from support.exchange import Exchange
from support.scripted import play

Map = Callable[..., Batch[Any]]


def sync_map(
    prompts: Iterable[Any], *, base_url: str, chat: dict[str, Any] | None = None, **options: Any
) -> Batch[Any]:
    with Chat(base_url=base_url, **(chat or {})) as made:
        batch: Batch[Any] = made.map(prompts, progress=False, **options)
        return batch


def async_map(
    prompts: Iterable[Any], *, base_url: str, chat: dict[str, Any] | None = None, **options: Any
) -> Batch[Any]:
    async def main() -> Batch[Any]:
        async with AsyncChat(base_url=base_url, **(chat or {})) as made:
            batch: Batch[Any] = await made.map(prompts, progress=False, **options)
            return batch

    return asyncio.run(main())


def said(exchange: Exchange) -> list[JsonObject]:
    return [as_object(turn) or {} for turn in as_list(exchange.received.json["messages"])]


def answer(text: str, cost: str | None = "0.001") -> dict[str, Any]:
    return {
        "status": 200,
        "json": {
            "model": "kimi-k3.1-pro",
            "choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
            "kimi": {"request_id": "kr_1", "cost_usd": cost},
        },
    }


async def echo(exchange: Exchange) -> None:
    """Answers with the last turn's text; some later than others; refuses what is called bad."""
    text = str(said(exchange)[-1]["content"])
    await asyncio.sleep(random.Random(text).random() * 0.02)
    refused = {"status": 400, "json": {"error": {"type": "invalid_request_error", "message": "no"}}}
    await play(refused if text.startswith("bad") else answer(f"re: {text}"), exchange)
