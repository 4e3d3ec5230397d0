"""What targets of every dialect would be sent, without any: the relay's recall and encoder, a store in memory."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec

from backends.catalog import DIALECTS
from backends.json import encode
from kimi_gateway.adapters.state.memory import MemoryConversations
from kimi_gateway.core.cache_loss import NO_LOSS
from kimi_gateway.core.effort import EffortPolicy, resolve
from kimi_gateway.core.thoughts import Bounds
from kimi_gateway.core.view import read
from kimi_gateway.core.warmth import Observed
from kimi_gateway.metrics import Metrics
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.encoding import Encoder
from kimi_gateway.relay.frame import Decided
from kimi_gateway.relay.thinking import Recall, Thinking
from kimi_gateway.settings import Target
from pricing.estimate import estimate_prompt

Message = dict[str, Any]
PRO: Final = "kimi-k3.1-pro"

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as it would go upstream: its messages, and the rest of its body without them."""

    messages: list[bytes]
    rest: bytes
    thinking: str

    @property
    def values(self) -> list[Any]:
        """The messages as JSON values, for which the order of members means nothing."""
        return [msgspec.json.decode(message) for message in self.messages]


@dataclass
class InProcess:
    """A gateway with one target of each dialect, whose answers are what a test says they were."""

    bounds: Bounds = field(default_factory=Bounds)
    windows: Mapping[str, int] = field(default_factory=dict)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        store = MemoryConversations(self.bounds, lambda: self.now_s)
        self._thinking = Thinking(store, Metrics())
        targets = tuple(
            Target(name, name, "http://127.0.0.1:9", models={PRO: PRO}, context_window=self.windows.get(name, 0))
            for name in DIALECTS
        )
        # All that an encoder asks of its context.
        self._ctx = cast(Context, SimpleNamespace(settings=SimpleNamespace(targets=targets), dialects=DIALECTS))

    def sent(self, messages: Sequence[Message], **fields: Any) -> dict[str, Sent]:
        """The request as each dialect would get it."""
        return asyncio.run(self._sent(_body(messages, fields)))

    def answered(self, messages: Sequence[Message], answer: Message, **fields: Any) -> None:
        """The request was served, with this answer."""
        asyncio.run(self._answered(_body(messages, fields), answer))

    async def _recall(self, body: bytes) -> Recall:
        return await self._thinking.recall(read(body), "team-a", repairs=True, details=True, conversation=None)

    async def _answered(self, body: bytes, answer: Message) -> None:
        await self._thinking.keep(await self._recall(body), [answer], Observed(NO_LOSS, None))

    async def _sent(self, body: bytes) -> dict[str, Sent]:
        view = read(body)
        decided = Decided(resolve(view.effort, EffortPolicy()), view.ttl, view.output_limit, 0)
        prompt = estimate_prompt(view.text, messages=len(view.messages), tools="tools" in view.fields)
        encoder = Encoder(view, self._ctx, decided, await self._recall(body), prompt, self.now_s)
        found: dict[str, Sent] = {}
        for name in DIALECTS:
            option = await encoder.option(name, PRO)
            assert option is not None, encoder.refusal()
            members = _members.decode(option.call.body)
            messages = [bytes(item) for item in _items.decode(members.pop("messages"))]
            found[name] = Sent(messages, encode(members), option.thinking)
        return found


def _body(messages: Sequence[Message], fields: Mapping[str, Any]) -> bytes:
    return encode({"model": PRO, "reasoning_effort": "max", **fields, "messages": list(messages)})
