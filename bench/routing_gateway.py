"""The gateway's own way to choose, for the simulation: the relay's `Router` and `Routing`, fed as there.

Nothing of routing is written again here. A request is a `RequestView` and what is recalled of its conversation,
the `Router` ranks with policy `cost` as it does for a request that came over a socket, the books learn from rows,
and the conversation's record is predicted from, observed, packed and found again by the same calls as the relay's.

Two things stand in for bytes. Of messages behind the first question only a name is hashed, because a digest of a
million bytes a turn would be most of the time; their sizes count in full wherever sizes count. And requests carry
no `x-kimi-conversation` and no `prompt_cache_key`: conversations are recognised by their prefix alone.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from routing_engine import Engine, Running
from routing_fleet import Kind, Talk
from routing_others import Asked, Chooser
from typing_extensions import override

from backends.catalog import DIALECTS
from backends.emulator.invoice import PromptSplit
from backends.emulator.tokens import BYTES_PER_TOKEN
from backends.faults import Fault
from backends.json import JsonObject
from backends.messages import MessageHead
from kimi_gateway.core.digest import TurnMemo, read_history
from kimi_gateway.core.effort import EffortWish
from kimi_gateway.core.plan import Asked as PlanAsked
from kimi_gateway.core.plan import Plan, plan
from kimi_gateway.core.prefix import places_to_look, read_prefix
from kimi_gateway.core.routing.facts import Grant, Load, Out, Place, Refused, Ticket
from kimi_gateway.core.routing.queue_account import Moment
from kimi_gateway.core.routing.queue_book import QueueBook
from kimi_gateway.core.sending import Sending, thought_runs
from kimi_gateway.core.thought_record import Owner
from kimi_gateway.core.view import RequestView
from kimi_gateway.core.warm_record import pack, unpack
from kimi_gateway.core.warmth import TTL_S, Answered, Warmth, observe, predict
from kimi_gateway.ports import Capacity, Health, Loads
from kimi_gateway.relay.routing import Asking, Router, Routing, Surroundings
from kimi_gateway.relay.thinking import Recall
from kimi_gateway.settings import Settings
from pricing.estimate import Estimate, TextSize, estimate_prompt
from pricing.ledger.row import AttemptRecord, LedgerRow
from pricing.rates import CardBook
from pricing.usage import TokenUsage

MODEL: Final = "kimi-k3.1-pro"
EFFORT: Final = "high"
_KEY: Final = "fleet"


class Healthy(Health):
    """Targets that never fail."""

    @override
    def out(self, target: str) -> Out | None:
        return None

    @override
    def begin(self, target: str, attempt: str = "") -> bool:
        return True

    @override
    def failed(self, target: str, fault: Fault, attempt: str = "") -> None:
        return None

    @override
    def succeeded(self, target: str, attempt: str = "") -> None:
        return None

    @override
    def given_up(self, target: str, attempt: str = "") -> None:
        return None

    @override
    def reload(self) -> None:
        return None

    @override
    async def keep(self) -> None:
        return None


@dataclass
class EngineLoads(Loads):
    """What engines show of themselves; services show nothing."""

    engines: Mapping[str, Engine]
    clock: Callable[[], float]

    @override
    def load(self, target: str) -> Load | None:
        engine = self.engines[target]
        if engine.state.profile.metrics is None:
            return None
        return Load(engine.running, 0, self.clock())

    @override
    async def keep(self) -> None:
        return None


@dataclass
class BookCapacity(Capacity):
    """The simulation's queue as the port shows it; the simulation itself enters and leaves."""

    book: QueueBook
    clock: Callable[[], float]

    @override
    async def enter(self, ticket: Ticket) -> Grant | Refused:
        raise NotImplementedError("the simulation enters by itself")

    @override
    async def leave(self, grant: Grant, tokens: int | None) -> None:
        raise NotImplementedError("the simulation leaves by itself")

    @override
    def waiting(self) -> int:
        return self.book.waiting

    @override
    def room(self, place: Place) -> bool:
        return self.book.room(place, Moment(self.clock(), self.clock()))

    @override
    def queued(self, place: Place) -> int:
        return self.book.queued(place.account)

    @override
    def declare(self, places: Any) -> None:
        return None

    @override
    async def keep(self) -> None:
        return None

    @override
    async def close(self) -> None:
        return None


def text_of(name: str, tokens: int) -> msgspec.Raw:
    """A JSON string of so many tokens, as the emulator counts."""
    return msgspec.Raw(b'"' + (name.encode() + b" ").ljust(tokens * BYTES_PER_TOKEN - 2, b".") + b'"')


@dataclass
class Opened:
    """What requests of one kind begin with."""

    tools: msgspec.Raw
    tools_digest: bytes
    system: MessageHead


@dataclass
class Sent:
    """One request under way."""

    router: Router
    plan: Plan
    recall: Recall
    sending: Sending | None = None
    warmth: Warmth = field(default_factory=Warmth)
    sent_s: float = 0.0


class Gateway(Chooser):
    """Policy `cost` of one gateway process. One clock is both the monotonic and the wall clock."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        book: QueueBook,
        settings: Settings,
        cards: CardBook,
        clock: Callable[[], float],
    ) -> None:
        self._engines = engines
        self._settings = settings
        self._cards = cards
        self._clock = clock
        self._routing = Routing(Healthy(), EngineLoads(engines, clock), BookCapacity(book, clock))
        self._routing.configure(settings)
        self._route = next(route for route in settings.routes if route.model == MODEL)
        self._plan = plan(PlanAsked(MODEL), settings.routes, settings.targets)
        self._memo = TurnMemo()
        self._opened: dict[str, Opened] = {}
        self._heads: dict[str, list[MessageHead]] = {}
        self._notes: dict[bytes, bytes] = {}  # what a store would keep, by place
        self._sent: dict[str, Sent] = {}

    @override
    def places(self, asked: Asked, now_s: float) -> Sequence[Place]:
        view, opened = self._view(asked)
        history = read_history(view.heads, self._memo)
        prefix = read_prefix(history, view.heads, view.fields)
        note = next((self._notes[place] for place in places_to_look(prefix) if place in self._notes), None)
        recall = Recall(None, Owner(_KEY), prefix, opened.tools_digest, unpack(note))
        prompt = estimate_prompt(view.text, messages=len(view.heads), tools=True)
        asking = Asking(view, recall, prompt, EFFORT, ttl="", limit=None, thinking_off=False)
        known = Surroundings(self._settings, self._cards, DIALECTS, now_s, now_s)
        router = Router(self._routing, known, asking, self._route, prompt)
        _, ranking = router.rank(self._plan)
        if ranking.needs_exact:
            router.prompt = Estimate(*[asked.turn.prompt_tokens] * 3)
            _, ranking = router.rank(self._plan)
        self._sent[asked.id] = Sent(router, self._plan, recall)
        return [one.place for one in ranking.ranked]

    @override
    def begins(self, asked: Asked, target: str, now_s: float) -> None:
        sent = self._sent[asked.id]
        recall, model = sent.recall, dict(sent.plan.targets)[target]
        takes_ttl = DIALECTS[self._engines[target].offer.dialect].cache_options
        runs = thought_runs(self._heads_of(asked)) if recall.record is not None else b""
        ttl_s = TTL_S["5m"] if takes_ttl else 0
        sending = Sending(target, model, EFFORT, recall.tools, thoughts=runs, ttl_s=ttl_s)
        sent.sending, sent.sent_s = sending, now_s
        sent.warmth = predict(recall.record, recall.prefix, sending, now_s)
        self._routing.began(target)
        self._routing.sent(target, model, sent.router.opening, sending.ttl_s, now_s)

    @override
    def ended(self, asked: Asked, target: str, one: Running, reported: PromptSplit) -> None:
        sent, now_s = self._sent.pop(asked.id), self._clock()
        assert sent.sending is not None
        self._routing.ended(target)
        recall = sent.recall
        answer: JsonObject = {"role": "assistant", "content": _said(asked.talk, asked.turn.number)}
        usage = TokenUsage(
            input=reported.input,
            output=asked.turn.output_tokens,
            cache_read=reported.cache_read,
            write_5m=reported.write_5m,
            write_1h=reported.write_1h,
        )
        answered = Answered(recall.prefix.answered(answer), sent.sent_s, now_s, usage)
        observed = observe(sent.warmth, recall.record, recall.prefix, sent.sending, answered)
        if observed.record is not None:
            self._notes.update(dict.fromkeys(observed.places, pack(observed.record)))
        row = _row(asked, target, one, usage, now_s)
        self._routing.learn(row, sent.sending.model, sent.router.opening, sent.router.reads, now_s)

    # --- requests ---------------------------------------------------------------------------------------------

    def _view(self, asked: Asked) -> tuple[RequestView, Opened]:
        opened = self._open(asked.talk.kind)
        heads = self._heads_of(asked)
        return (
            RequestView(
                fields={"tools": opened.tools},
                messages=[msgspec.Raw(b"{}")] * len(heads),
                heads=heads,
                text=TextSize(asked.turn.prompt_tokens * BYTES_PER_TOKEN),
                model=MODEL,
                stream=True,
                stream_options={"include_usage": True},
                n=1,
                effort=EffortWish(reasoning_effort=EFFORT),
                output_limit=None,
                limit_field="",
                ttl="",
                service_tier=None,
                named_tool=None,
            ),
            opened,
        )

    def _open(self, kind: Kind) -> Opened:
        opened = self._opened.get(kind.name)
        if opened is None:
            tools = msgspec.Raw(b"[" + bytes(text_of(f"tools of {kind.name}", kind.tools_tokens)) + b"]")
            system = MessageHead("system", text_of(f"system of {kind.name}", kind.system_tokens))
            opened = self._opened[kind.name] = Opened(tools, kind.name.encode()[-8:].rjust(8), system)
        return opened

    def _heads_of(self, asked: Asked) -> list[MessageHead]:
        """The messages of a request; those of the last turn and two more each time."""
        talk, number = asked.talk, asked.turn.number
        heads = self._heads.get(talk.name)
        if heads is None:
            tokens = talk.turns[0].new_tokens - talk.kind.tokens
            first = MessageHead("user", text_of(f"{talk.kind.name}/{talk.question}", tokens))
            heads = self._heads[talk.name] = [self._open(talk.kind).system, first]
        while len(heads) < 2 + 2 * number:
            before = (len(heads) - 2) // 2
            said = msgspec.json.encode(_said(talk, before))
            heads.append(MessageHead("assistant", msgspec.Raw(said), reasoning_content=_THOUGHT))
            heads.append(MessageHead("tool", msgspec.Raw(f'"result {talk.name} {before}"'.encode())))
        return heads


_THOUGHT: Final = msgspec.Raw(b'"a thought"')


def _said(talk: Talk, turn: int) -> str:
    """An answer's text: no two are alike, and it is long enough to be known by."""
    return f"The answer of turn {turn} in conversation {talk.name}."


_ids: Final = itertools.count()


def _row(asked: Asked, target: str, one: Running, usage: TokenUsage, now_s: float) -> LedgerRow:
    """The settled row, as far as routing reads it."""
    asked_ms = round((one.begun_s - asked.asked_s) * 1000)
    return LedgerRow(
        request_id=f"kr_{next(_ids)}",
        started_at=asked.asked_s,
        route=MODEL,
        target=target,
        effort=EFFORT,
        status="ok",
        attempts=[AttemptRecord(target, "", "", start_ms=asked_ms)],
        prompt_tokens=usage.prompt,
        cached_tokens=usage.cache_read,
        completion_tokens=usage.output,
        ttft_ms=round((one.first_s - asked.asked_s) * 1000),
        total_ms=round((now_s - asked.asked_s) * 1000),
    )
