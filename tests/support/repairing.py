"""Thinking repair as the relay uses it, with a conversation to repair."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from backends.catalog import DIALECTS
from backends.json import encode
from backends.messages import encode_messages, read_heads
from kimi_gateway.core.digest import TurnMemo, read_history
from kimi_gateway.core.repair import RepairPlan, placeholder_for, repair, spliced
from kimi_gateway.core.thought_record import Owner, thought_in
from kimi_gateway.core.thoughts import Bounds, ThoughtStore

Message = dict[str, Any]
ME = Owner("team-a")

SYSTEM: Message = {"role": "system", "content": "You are Kimi."}
ASK: Message = {"role": "user", "content": "Weather in Paris?"}
CALL: Message = {
    "role": "assistant",
    "content": "",
    "reasoning_content": " I will call.\n",
    "tool_calls": [
        {
            "id": "get_weather:0",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Paris", "days": 1.0}'},
        }
    ],
}
RESULT: Message = {"role": "tool", "tool_call_id": "get_weather:0", "content": "18C"}
SAID: Message = {
    "role": "assistant",
    "content": "It has eighteen degrees in Paris.",
    "reasoning_content": "Short.",
}
THANKS: Message = {"role": "user", "content": "Thanks"}
SHORT: Message = {"role": "assistant", "content": "Welcome.", "reasoning_content": "Polite."}
MORE: Message = {"role": "user", "content": "And in Rome?"}
WHOLE: list[Message] = [SYSTEM, ASK, CALL, RESULT, SAID, THANKS, SHORT, MORE]
"""A conversation with each answer's thought; what the model said stands at 2, 4 and 6."""


def raws(messages: Sequence[Message]) -> list[msgspec.Raw]:
    return [msgspec.Raw(encode(message)) for message in messages]


@dataclass
class Gateway:
    """The three pure parts together, as the relay uses them."""

    store: ThoughtStore = field(default_factory=lambda: ThoughtStore(Bounds()))
    memo: TurnMemo = field(default_factory=TurnMemo)

    def answered(
        self, messages: Sequence[Message], message: Message, *, owner: Owner = ME, partial: bool = False
    ) -> None:
        """Serves one request with this answer."""
        history = read_history(read_heads(msgspec.Raw(encode(messages))), self.memo)
        conversation = self.plan(messages, owner=owner).conversation
        thought = thought_in(message, partial=partial)
        if thought is not None:
            keys = history.tail.answer(message)
            self.store.keep(owner, keys, thought, 0, conversation=conversation)

    def served(self, messages: Sequence[Message], *, owner: Owner = ME) -> None:
        """Serves a whole conversation, one request after the other."""
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                self.answered(messages[:index], message, owner=owner)

    def plan(self, messages: Sequence[Message], *, owner: Owner = ME, details: bool = False) -> RepairPlan:
        heads = read_heads(msgspec.Raw(encode(messages)))
        return repair(read_history(heads, self.memo), heads, owner, self.store, 0, details=details)

    def sent(self, messages: Sequence[Message], *, to: str = "moonshot", owner: Owner = ME) -> list[Message]:
        """What an upstream gets of a history that comes without its thoughts."""
        return [json.loads(bytes(raw)) for raw in self.encoded(messages, to=to, owner=owner)]

    def encoded(
        self, messages: Sequence[Message], *, to: str = "moonshot", owner: Owner = ME
    ) -> Sequence[msgspec.Raw]:
        dialect = DIALECTS[to]
        keeps = dialect.keeps_thought_details
        plan = self.plan(messages, owner=owner, details=keeps).towards(keeps_details=keeps)
        heads = read_heads(msgspec.Raw(encode(messages)))
        out, out_heads = spliced(
            raws(messages), heads, plan, placeholder=placeholder_for("kimi-k3.1-pro"), keeps_details=keeps
        )
        return encode_messages(out, out_heads, dialect).messages


def stripped(messages: Sequence[Message]) -> list[Message]:
    """The history of a client that knows nothing of thoughts."""
    return [
        {name: value for name, value in message.items() if not name.startswith("reasoning")}
        for message in messages
    ]


def edited(messages: Sequence[Message], place: int, **members: object) -> list[Message]:
    return [*messages[:place], dict(messages[place]) | members, *messages[place + 1 :]]


def thoughts(messages: Sequence[Message]) -> list[Any]:
    """The thoughts of the assistant's turns; `...` where there is none."""
    return [message.get("reasoning_content", ...) for message in messages if message["role"] == "assistant"]
