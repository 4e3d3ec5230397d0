"""Which requests suffer which fault: the rules of a fault file, as the hook that changes answers.

What a faulted answer costs: what had been generated when it broke off, with its prompt; nothing where that was
before the first token (refusals, resets and cuts up to the role chunk, a full queue). A fault in what is said
about the answer (usage, finish reason, ends, splits, pauses) changes nothing on the invoice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from backends.emulator import fault_answers, fault_connections, fault_streams
from backends.emulator.chat import PATH
from backends.emulator.dice import Dice
from backends.emulator.exchange import Exchange
from backends.emulator.fault_options import Kind, Option, Options
from backends.emulator.player import Script
from backends.json import Json, JsonObject, as_list, as_object, as_str

KINDS: Final[Mapping[str, Kind]] = {**fault_connections.KINDS, **fault_answers.KINDS, **fault_streams.KINDS}
CONDITIONS: Final[Mapping[str, Option]] = {
    "probability": Option(1.0, "the chance of each request, rolled with the seed", most=1),
    "every": Option(1, "every so manyth request", least=1),
    "contains": Option("", "only requests whose last user message has this text"),
    "stream": Option(None, "only streamed requests, or only unstreamed ones"),
    "times": Option(0, "at most so often; 0: without end"),
    "path": Option(PATH, "the path whose requests are counted and hit"),
}
"""When a rule hits, besides `requests`, a list of request numbers."""
_SIDES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. With neither numbers nor a chance every request is hit; `stream` None means both kinds."""

    kind: str
    options: Mapping[str, bool | int | float | str | None] = field(default_factory=dict)
    requests: frozenset[int] = frozenset()
    every: int = 0
    probability: float | None = None
    contains: str = ""
    stream: bool | None = None
    times: int = 0
    path: str = PATH

    def hits(self, exchange: Exchange, dice: Dice) -> bool:
        """Whether this request is one of the rule's; `times` is not looked at."""
        if exchange.path != self.path or self.stream not in (None, exchange.stream):
            return False
        if self.contains and self.contains not in _last_user_text(exchange.body):
            return False
        if self.requests:
            return exchange.number in self.requests
        if self.every:
            return exchange.number % self.every == 0
        return self.probability is None or dice.below(_SIDES) < self.probability * _SIDES


class FaultPlan:
    """Rules in their order: the first that hits a request, and has something to do to its answer, is applied.

    `seed` decides what chances come to; the same seed, rules and order of requests give the same faults.
    """

    def __init__(self, rules: Sequence[Rule], *, seed: int = 0) -> None:
        self._rules = tuple(rules)
        self._seed = seed
        self._fired = [0] * len(rules)

    def __call__(self, exchange: Exchange, script: Script) -> Script:
        for at, rule in enumerate(self._rules):
            dice = Dice(f"fault\n{self._seed}\n{at}\n{exchange.path}\n{exchange.number}".encode())
            if not rule.hits(exchange, dice) or 0 < rule.times <= self._fired[at]:
                continue
            kind = KINDS[rule.kind]
            changed = kind.apply(exchange, script, Options(kind.options, rule.options))
            if changed is not None:
                self._fired[at] += 1
                return replace(changed, fault=rule.kind)
        return script

    def shown(self) -> list[Json]:
        """The rules and how often each was applied."""
        return [{"kind": rule.kind, "fired": fired} for rule, fired in zip(self._rules, self._fired, strict=True)]


def _last_user_text(body: JsonObject) -> str:
    """The text of the last user message of a request as it came."""
    for message in map(as_object, reversed(as_list(body.get("messages")))):
        if message is not None and message.get("role") == "user":
            content = message.get("content")
            parts = [as_object(part) or {} for part in as_list(content)]
            return as_str(content) or "".join(as_str(part.get("text")) or "" for part in parts)
    return ""
