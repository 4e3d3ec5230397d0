"""What other routers do, for comparison: round-robin, least-busy, hashing by prefix and by conversation.

They are given every advantage that costs nothing: they know each target's limit and share out by it, and they
never send a prompt where it does not fit. Where their first choice is full they take the next one in their order.
Those whose name says that they wait do not: they keep to their choice and stand in its queue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from routing_engine import Engine, Running
from routing_fleet import Talk, Turn
from typing_extensions import override

from backends.emulator.invoice import PromptSplit
from kimi_gateway.core.routing.facts import Place, Quota
from kimi_gateway.core.routing.rendezvous import pull


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it comes. Seconds of the simulation."""

    id: str
    talk: Talk
    turn: Turn
    asked_s: float


class Chooser(Protocol):
    """A way to choose."""

    def places(self, asked: Asked, now_s: float) -> Sequence[Place]:
        """The places that a request may go to, the first choice first."""
        ...

    def begins(self, asked: Asked, target: str, now_s: float) -> None:
        """It goes to that one."""
        ...

    def ended(self, asked: Asked, target: str, one: Running, reported: PromptSplit) -> None:
        """Its answer has ended."""
        ...


class Other(Chooser):
    """One that learns nothing."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines

    def strengths(self, asked: Asked) -> Mapping[str, float]:
        """How much each target is wanted; the largest has it."""
        raise NotImplementedError

    @override
    def places(self, asked: Asked, now_s: float) -> Sequence[Place]:
        strengths = self.strengths(asked)
        order = sorted(strengths, key=lambda name: -strengths[name])
        offers = [self._engines[name].offer for name in order]
        longest = asked.turn.prompt_tokens
        return [
            Place(offer.name, offer.name, Quota(offer.concurrency))
            for offer in offers
            if longest < offer.window_tokens
        ]

    @override
    def begins(self, asked: Asked, target: str, now_s: float) -> None:
        return None

    @override
    def ended(self, asked: Asked, target: str, one: Running, reported: PromptSplit) -> None:
        return None


class RoundRobin(Other):
    """One after the other, each as often as its limit says; full ones are passed over."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        super().__init__(engines)
        self._due = dict.fromkeys(engines, 0.0)

    @override
    def strengths(self, asked: Asked) -> Mapping[str, float]:
        for name, engine in self._engines.items():
            self._due[name] += engine.offer.concurrency
        return self._due

    @override
    def begins(self, asked: Asked, target: str, now_s: float) -> None:
        self._due[target] -= sum(engine.offer.concurrency for engine in self._engines.values())


class LeastBusy(Other):
    """The one of which the least part is in use."""

    @override
    def strengths(self, asked: Asked) -> Mapping[str, float]:
        return {name: -engine.running / engine.offer.concurrency for name, engine in self._engines.items()}


class Hashing(Other):
    """Always the same one for the same key: rendezvous hashing, weighted by the limits."""

    waits = False

    def key(self, asked: Asked) -> bytes:
        """What is hashed."""
        raise NotImplementedError

    @override
    def strengths(self, asked: Asked) -> Mapping[str, float]:
        key = self.key(asked)
        return {name: pull(key, name, engine.offer.concurrency) for name, engine in self._engines.items()}

    @override
    def places(self, asked: Asked, now_s: float) -> Sequence[Place]:
        places = super().places(asked, now_s)
        return places[:1] if self.waits else places


class PrefixHash(Hashing):
    """By tools, system prompt and first question."""

    @override
    def key(self, asked: Asked) -> bytes:
        return f"{asked.talk.kind.name}/{asked.talk.question}".encode()


class ConversationHash(Hashing):
    """By a key that the client names its conversation by."""

    @override
    def key(self, asked: Asked) -> bytes:
        return asked.talk.name.encode()


class WaitingPrefixHash(PrefixHash):
    """The same, and it waits for its target however full that is."""

    waits = True


class WaitingConversationHash(ConversationHash):
    """The same, and it waits for its target however full that is."""

    waits = True
