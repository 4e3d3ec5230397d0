"""One run of the routing simulation: a fleet's conversations on some targets under one policy, in virtual time.

Requests that find their targets full wait in the gateway's own queue (`QueueBook`), whatever the policy; nobody
gives up. A conversation's next request comes so long after its last answer ended. So every policy does the same
work, and what differs is where, at what price, and how long it takes.
"""

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from routing_engine import MIX, REPLICAS, Engine, Offer, Running
from routing_fleet import Fleet, Talk, Turn, talks_of
from routing_gateway import MODEL, Gateway
from routing_others import (
    Asked,
    Chooser,
    ConversationHash,
    LeastBusy,
    PrefixHash,
    RoundRobin,
    WaitingConversationHash,
    WaitingPrefixHash,
)

from kimi_gateway.core.routing.facts import Place, Refused, Ticket
from kimi_gateway.core.routing.queue_account import Moment
from kimi_gateway.core.routing.queue_book import QueueBook
from kimi_gateway.core.routing.queue_quota import AccountQuotas
from kimi_gateway.settings import Settings
from kimi_gateway.settings.load import Flags, settings_of
from pricing.cards import load_cards

START_S: Final = 1_793_491_200.0
"""2026-11-01T00:00:00Z: the cards that ship are in force."""
PATIENCE_S: Final = 86_400.0
OURS: Final = "cost"
OTHERS: Final[Mapping[str, Callable[[Mapping[str, Engine]], Chooser]]] = {
    "round-robin": RoundRobin,
    "least-busy": LeastBusy,
    "prefix hash": PrefixHash,
    "prefix hash, waits": WaitingPrefixHash,
    "conversation hash": ConversationHash,
    "conversation hash, waits": WaitingConversationHash,
}
POLICIES: Final = (OURS, *OTHERS)
_URLS: Final = {
    "moonshot": "https://api.moonshot.ai/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "vllm": "http://127.0.0.1:8001/v1",
}
_MODELS: Final = {"moonshot": MODEL, "openrouter": f"moonshotai/{MODEL}", "vllm": "moonshotai/Kimi-K3.1-Pro"}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fleet and the targets it has."""

    name: str
    offers: tuple[Offer, ...]
    fleet: Fleet = field(default_factory=Fleet)


SCENARIOS: Final = (Scenario("mix", MIX), Scenario("replicas", REPLICAS))


@dataclass(frozen=True, slots=True)
class Figures:
    """What one policy came to in one run. `share` is each target's part of the requests, `waited` the part of
    requests that stood in the queue. Seconds to the first token count from when the request came."""

    policy: str
    usd: float
    cache_share: float
    ttft_p50_s: float
    ttft_p95_s: float
    ttft_mean_s: float
    waited: float
    requests: int
    prompt_tokens: int
    share: dict[str, float]
    target_usd: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


class Run:
    """One run. Events are (time, order, what to do)."""

    def __init__(self, scenario: Scenario, talks: Sequence[Talk], policy: str) -> None:
        self._now_s = START_S
        self.engines = {offer.name: Engine(offer, self.clock) for offer in scenario.offers}
        quotas = AccountQuotas()
        self._book = QueueBook(quotas.of, most=1_000_000)
        self._chooser = self._made(policy, scenario.offers)
        self.policy = policy
        self._talks = talks
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._asked: dict[str, Asked] = {}
        self._timer_s = 0.0
        self.ttft_s: list[float] = []
        self.waited = 0
        self.went: dict[str, int] = dict.fromkeys(self.engines, 0)

    def clock(self) -> float:
        """Now, in Unix seconds."""
        return self._now_s

    def run(self) -> Figures:
        """Carries it out."""
        for talk in self._talks:
            self._at(START_S + talk.begins_s, self._asking(talk, talk.turns[0]))
        while self._events:
            self._now_s, _, act = heapq.heappop(self._events)
            act()
        if self._asked:
            raise RuntimeError(f"{len(self._asked)} requests were never answered")
        return self._figures()

    def _made(self, policy: str, offers: Sequence[Offer]) -> Chooser:
        if policy == OURS:
            return Gateway(self.engines, self._book, settings_for(offers), load_cards(None), self.clock)
        return OTHERS[policy](self.engines)

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), act))

    def _asking(self, talk: Talk, turn: Turn) -> Callable[[], None]:
        return lambda: self._ask(talk, turn)

    def _ask(self, talk: Talk, turn: Turn) -> None:
        asked = Asked(f"{talk.name}/{turn.number}", talk, turn, self._now_s)
        self._asked[asked.id] = asked
        places = tuple(self._chooser.places(asked, self._now_s))
        ticket = Ticket(asked.id, talk.kind.name, turn.prompt_tokens + turn.output_tokens, places)
        found = self._book.enter(ticket, self._moment(), patience_s=PATIENCE_S)
        if isinstance(found, Refused):
            raise RuntimeError(f"the queue refused a request: {found.reason}")
        if found is not None:
            self._begin(asked.id, found)
        else:
            self.waited += 1
        self._deliver()

    def _begin(self, id: str, place: Place) -> None:
        asked = self._asked[id]
        engine = self.engines[place.target]
        self._chooser.begins(asked, place.target, self._now_s)
        one = engine.begin(asked.talk, asked.turn)
        self.went[place.target] += 1
        self.ttft_s.append(one.first_s - asked.asked_s)
        self._at(one.first_s, lambda: engine.read(one))
        self._at(one.ends_s, lambda: self._end(asked, place, engine, one))

    def _end(self, asked: Asked, place: Place, engine: Engine, one: Running) -> None:
        reported = engine.end(one)
        self._chooser.ended(asked, place.target, one, reported)
        del self._asked[asked.id]
        self._book.leave(asked.id, reported.total + asked.turn.output_tokens, self._moment())
        after = asked.turn.number + 1
        if after < len(asked.talk.turns):
            turn = asked.talk.turns[after]
            self._at(self._now_s + turn.gap_s, self._asking(asked.talk, turn))
        self._deliver()

    def _deliver(self) -> None:
        """Begins with those who got a place, and sets a timer for what time alone makes free."""
        for id, place in self._book.take_granted():
            self._begin(id, place)
        due_s = self._book.next_s(self._moment()) if self._book.waiting else None
        if due_s is not None and due_s != self._timer_s:
            self._timer_s = due_s
            self._at(max(due_s, self._now_s), self._on_time)

    def _on_time(self) -> None:
        self._book.serve(self._moment())
        self._deliver()

    def _moment(self) -> Moment:
        return Moment(self._now_s, self._now_s)

    def _figures(self) -> Figures:
        times = sorted(self.ttft_s)
        invoices = {name: engine.state.invoice for name, engine in self.engines.items()}
        lines = [line for invoice in invoices.values() for line in invoice.shown()["lines"]]  # type: ignore[union-attr]
        prompt = sum(line["prompt_tokens"] for line in lines)  # type: ignore[misc,index,call-overload]
        read = sum(line["cache_read"] for line in lines)  # type: ignore[misc,index,call-overload]
        return Figures(
            policy=self.policy,
            usd=sum(invoice.total_nano for invoice in invoices.values()) / 1e9,
            cache_share=read / prompt,
            ttft_p50_s=times[len(times) // 2],
            ttft_p95_s=times[int(len(times) * 0.95)],
            ttft_mean_s=sum(times) / len(times),
            waited=self.waited / len(times),
            requests=len(times),
            prompt_tokens=prompt,
            share={name: count / len(times) for name, count in self.went.items()},
            target_usd={name: invoice.total_nano / 1e9 for name, invoice in invoices.items()},
        )


def settings_for(offers: Sequence[Offer]) -> Settings:
    """The configuration that an operator would write for these targets; all that is not stated is default."""
    targets = [
        {
            "name": offer.name,
            "dialect": offer.dialect,
            "base_url": _URLS[offer.dialect],
            "api_key_env": "SIMULATION_KEY",
            "models": {MODEL: _MODELS[offer.dialect]},
            "max_concurrency": offer.concurrency,
            "context_window": offer.window_tokens,
            **({"prices": _prices(offer.usd)} if offer.usd is not None else {}),
        }
        for offer in offers
    ]
    routes = [{"model": MODEL, "policy": OURS, "targets": [offer.name for offer in offers]}]
    raw = {"targets": targets, "routes": routes}
    return settings_of(raw, {"SIMULATION_KEY": "sk-simulation"}, Flags(), source="")


def _prices(usd: tuple[str, str, str]) -> dict[str, str]:
    return {"input": usd[0], "cache_read": usd[1], "output": usd[2]}


def run_seed(scenario: Scenario, seed: int, policies: Sequence[str] = POLICIES) -> list[Figures]:
    """Every policy on the same conversations."""
    sizes = sorted({Engine(offer, lambda: START_S).block_tokens for offer in scenario.offers})
    talks = talks_of(scenario.fleet, seed, sizes)
    return [Run(scenario, talks, policy).run() for policy in policies]
