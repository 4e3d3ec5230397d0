"""Conversations through the cache record, against the emulator's prefix cache: what was said, what was read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from backends.emulator.cache import PrefixCache
from backends.emulator.invoice import PromptSplit, Ttl
from backends.emulator.moonshot import MOONSHOT
from backends.emulator.parse import parse_request
from backends.emulator.prompt import encode_prompt
from backends.json import as_object, decode, encode
from kimi_gateway.core.cache_loss import Loss
from kimi_gateway.core.digest import TurnMemo, read_history
from kimi_gateway.core.prefix import Prefix, places_to_look, read_prefix
from kimi_gateway.core.sending import Sending, ToolsMemo, thought_runs
from kimi_gateway.core.view import read
from kimi_gateway.core.warm_record import Record, pack, unpack
from kimi_gateway.core.warmth import TTL_S, Answered, Warmth, observe, predict
from pricing.usage import TokenUsage

Message = dict[str, Any]

NOON_S = 1_796_040_000.0
BLOCK = 256
PRO = "kimi-k3.1-pro"


def words(tokens: int, seed: object = "") -> str:
    """A text of so many of the emulator's tokens."""
    begin = f"{seed} "
    return (begin + "word" * tokens)[: 4 * tokens]


def tool(name: str, tokens: int = 300) -> dict[str, Any]:
    function = {"name": name, "description": words(tokens, name), "parameters": {"type": "object"}}
    return {"type": "function", "function": function}


@dataclass(frozen=True)
class Ask:
    """One request but for its messages. `narrowed`: the one tool that the target gets."""

    target: str = "moonshot"
    model: str = PRO
    effort: str | None = "high"
    tools: tuple[dict[str, Any], ...] = ()
    narrowed: str = ""
    ttl: Ttl = "5m"
    fields: dict[str, Any] = field(default_factory=dict)
    conversation: str | None = None
    cache_key: str | None = None


@dataclass(frozen=True)
class Seen:
    """What one request showed."""

    warmth: Warmth
    loss: Loss
    split: PromptSplit
    record: Record | None
    prefix: Prefix


@dataclass
class Caller:
    """One owner's requests. `reports`: the upstream says what it read; `promises`: its TTL is known."""

    now_s: float = NOON_S
    reports: bool = True
    promises: bool = True
    notes: dict[bytes, bytes] = field(default_factory=dict)
    memo: TurnMemo = field(default_factory=TurnMemo)
    tools: ToolsMemo = field(default_factory=ToolsMemo)
    caches: dict[str, PrefixCache] = field(default_factory=dict)

    def prefix(self, messages: Sequence[Message], ask: Ask) -> tuple[Prefix, bytes]:
        """What the gateway reads of a request, and which turns have a thought."""
        view = read(encode(self._body(messages, ask)))
        history = read_history(view.heads, self.memo)
        found = read_prefix(history, view.heads, view.fields, conversation=ask.conversation)
        return found, thought_runs(view.heads)

    def ask(
        self,
        messages: Sequence[Message],
        answer: Message | None,
        ask: Ask | None = None,
        *,
        took_s: float = 0.0,
        cached: bool = True,
    ) -> Seen:
        """One request with this answer (None: it was cut before any of it). `cached` false: the upstream has lost
        all it had."""
        ask = ask or Ask()
        prefix, thoughts = self.prefix(messages, ask)
        record = self.note(prefix)
        sending = Sending(
            target=ask.target,
            model=ask.model,
            effort=ask.effort or "unset",
            tools=self.tools.digest(msgspec.Raw(encode(list(ask.tools)))),
            narrowed=ask.narrowed,
            thoughts=thoughts,
            ttl_s=TTL_S[ask.ttl] if self.promises else 0,
        )
        warmth = predict(record, prefix, sending, self.now_s)
        split = self._read(messages, ask, cached=cached)
        usage = TokenUsage(input=split.total, output=1)
        if self.reports:
            usage = TokenUsage(split.input, 1, split.cache_read, split.write_5m, split.write_1h)
        answered = Answered(
            keys=prefix.answered(answer) if answer is not None else None,
            sent_s=self.now_s,
            ended_s=self.now_s + took_s,
            usage=usage if answer is not None else None,
            assumed=True,
        )
        self.now_s += took_s
        observed = observe(warmth, record, prefix, sending, answered)
        for place in observed.places:
            assert observed.record is not None
            self.notes[place] = pack(observed.record)
        return Seen(warmth, observed.loss, split, observed.record, prefix)

    def note(self, prefix: Prefix) -> Record | None:
        """The record at the first place that has one, as a store gives it."""
        found = (self.notes[place] for place in places_to_look(prefix) if place in self.notes)
        return unpack(next(found, None))

    def _body(self, messages: Sequence[Message], ask: Ask) -> dict[str, Any]:
        tools = [one for one in ask.tools if ask.narrowed in ("", one["function"]["name"])]
        body: dict[str, Any] = {"model": ask.model, "messages": list(messages), **ask.fields}
        body |= {"reasoning_effort": ask.effort} if ask.effort else {}
        body |= {"tools": tools} if tools else {}
        body |= {"prompt_cache_key": ask.cache_key} if ask.cache_key else {}
        return body

    def _read(self, messages: Sequence[Message], ask: Ask, *, cached: bool) -> PromptSplit:
        """What the emulator's cache has of the prompt that its encoder makes."""
        cache = self.caches.setdefault(ask.target, PrefixCache(block_tokens=BLOCK, max_blocks=1 << 20))
        if not cached:
            cache.clear()
        body = as_object(decode(encode(self._body(messages, ask))))
        assert body is not None
        prompt = encode_prompt(parse_request(body, MOONSHOT), MOONSHOT)
        chain = prompt.chain(ask.model, BLOCK)
        split = cache.look(chain, prompt_tokens=prompt.tokens, ttl=ask.ttl, now_s=self.now_s)
        cache.keep(chain, split, now_s=self.now_s)
        return split


def conversation(turns: int, tokens: int = 700) -> list[Message]:
    """A conversation of so many turns that ends with a question; every answer has a thought."""
    messages: list[Message] = [{"role": "system", "content": words(400, "system")}]
    for turn in range(turns):
        messages.append({"role": "user", "content": words(tokens, f"question {turn}")})
        messages.append(answer(turn, tokens))
    return [*messages, {"role": "user", "content": words(tokens, f"question {turns}")}]


def answer(turn: object, tokens: int = 700) -> Message:
    text = words(tokens // 2, f"answer {turn}")
    return {"role": "assistant", "content": text, "reasoning_content": words(tokens // 2, f"thought {turn}")}


def served(caller: Caller, turns: int, ask: Ask | None = None, *, tokens: int = 700) -> list[Message]:
    """Serves a conversation turn by turn, ten seconds apart; its messages up to the next question."""
    whole = conversation(turns, tokens)
    for turn in range(turns):
        caller.ask(whole[: 2 * turn + 2], whole[2 * turn + 2], ask)
        caller.now_s += 10
    return whole
