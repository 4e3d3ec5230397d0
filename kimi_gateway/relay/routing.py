"""What the gateway learns of its targets, and the ranking of those that may serve one request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_plan
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from backends.dialect import Dialect
from kimi_gateway.core.plan import Plan
from kimi_gateway.core.routing.candidate import Candidate, Policy, Wants, candidate_of, policy_of
from kimi_gateway.core.routing.explain import plan_header
from kimi_gateway.core.routing.facts import Place
from kimi_gateway.core.routing.needs import Needs, needs_of
from kimi_gateway.core.routing.pace_book import OutputBook, PaceBook, timing_of
from kimi_gateway.core.routing.rank import Ranking, rank
from kimi_gateway.core.routing.shared_prefix import Opening, Reads, SharedPrefixes, conversation_key, opening_of
from kimi_gateway.core.routing.tiers import account_of_file
from kimi_gateway.core.sending import Sending, thought_runs
from kimi_gateway.core.view import RequestView
from kimi_gateway.core.warmth import TTL_S, predict
from kimi_gateway.ports import Capacity, Health, Loads
from kimi_gateway.relay.settle import price_tag, seller_of
from kimi_gateway.relay.thinking import Recall
from kimi_gateway.settings import Route, Settings, Target
from pricing.estimate import Estimate
from pricing.ledger.row import LedgerRow
from pricing.rates import CardBook

_NOTHING: Final = Reads()
_DAY_S: Final = 86_400
_BASES_MAX: Final = 1024
_DEFAULT_TTL: Final = "5m"  # what Moonshot writes at where nobody asks for another


@dataclass(slots=True)
class Routing:
    """What one process knows of its targets: their health, load and room, and what its own requests have shown."""

    health: Health
    loads: Loads
    capacity: Capacity
    paces: PaceBook = field(default_factory=PaceBook)
    outputs: OutputBook = field(default_factory=OutputBook)
    shared: SharedPrefixes = field(default_factory=SharedPrefixes)
    in_flight: dict[str, int] = field(default_factory=dict)
    is_limited: bool = False  # a target has limits
    _bases: dict[tuple[object, ...], tuple[Candidate, ...]] = field(default_factory=dict)
    _based_on: tuple[object, ...] = ()

    def began(self, target: str) -> None:
        """An attempt of ours begins at a target."""
        self.in_flight[target] = self.in_flight.get(target, 0) + 1

    def ended(self, target: str) -> None:
        """It has ended."""
        self.in_flight[target] = max(0, self.in_flight.get(target, 0) - 1)

    def configure(self, settings: Settings) -> None:
        """Takes over the limits of these targets; told at the start and when they change."""
        self.is_limited = any(target.quota.any for target in settings.targets)
        self.capacity.declare(Place(one.name, one.account, one.quota) for one in settings.targets)

    def standing(self, candidate: Candidate) -> tuple[bool, int]:
        """Whether a target is at its limits, and how many requests wait for it."""
        if not self.is_limited:
            return False, 0
        place = Place(candidate.name, candidate.account, candidate.quota)
        return not self.capacity.room(place), self.capacity.queued(place)

    def sent(self, target: str, model: str, opening: Opening | None, ttl_s: float, now_s: float) -> None:
        """A request goes to a target: what it begins with is warm there from now on."""
        if opening is not None:
            self.shared.sent(target, model, opening, ttl_s, now_s)

    def learn(
        self, row: LedgerRow, model: str, opening: Opening | None, reads: Mapping[str, Reads], now_s: float
    ) -> None:
        """Takes what a settled row shows: of its target's pace and cache, and of its route's answers. `model` is
        the target's own name of it, `reads` what was expected of caches."""
        timing = timing_of(row)
        if timing is not None:
            self.paces.learn(row.target, row.tier, timing, now_s)
            self.outputs.learn(output_name(row.route, row.effort), timing.output_tokens, now_s)
        if opening is None:
            return
        if row.status != "ok":
            self.shared.failed(row.target, model, opening)
            return
        read = None if row.estimated else row.cached_tokens
        expected = reads.get(row.target, _NOTHING)
        self.shared.reported(row.target, model, opening, expected, read, now_s)

    def bases(self, found: Plan, route: Route | None, ttl: str, known: "Surroundings") -> tuple[Candidate, ...]:
        """The plan's targets as the configuration has them; made once for each day and configuration."""
        based_on = (known.settings, known.cards, int(known.wall_s // _DAY_S))
        if self._based_on != based_on or len(self._bases) > _BASES_MAX:
            self._bases, self._based_on = {}, based_on
        name = (found.model, found.targets, route.model if route is not None else None, ttl)
        bases = self._bases.get(name)
        if bases is None:
            bases = tuple(known.base(*one, place, route, ttl) for place, one in enumerate(found.targets))
            self._bases[name] = bases
        return bases


class Surroundings(Struct, frozen=True, eq=False, gc=False):
    """The configuration in force and the time, for one request. Seconds; `mono_s` of the monotonic clock."""

    settings: Settings
    cards: CardBook
    dialects: Mapping[str, Dialect]
    wall_s: float
    mono_s: float

    def target(self, name: str) -> Target:
        """The target of that name."""
        return next(target for target in self.settings.targets if target.name == name)

    def base(self, name: str, model: str, place: int, route: Route | None, ttl: str) -> Candidate:
        """One target as the configuration has it."""
        target = self.target(name)
        dialect = self.dialects[target.dialect]
        tag = price_tag(
            name,
            target.prices,
            seller=seller_of(dialect, target.host),
            model=model,
            at_s=self.wall_s,
            cards=self.cards,
        )
        weight = route.weights.get(name, 1.0) if route is not None else 1.0
        return candidate_of(
            name,
            model,
            dialect,
            tag.rates,
            tag.write_rule,
            account=target.account,
            place=place,
            window=target.window,
            ttl=ttl or _DEFAULT_TTL,
            weight=weight,
            quota=target.quota,
        )


class Asking(Struct, frozen=True, gc=False):
    """What one request asks of routing, once it is read and looked up."""

    view: RequestView
    recall: Recall
    prompt: Estimate
    effort: str  # as it is sent
    ttl: str
    limit: int | None
    thinking_off: bool
    pinned: str | None = None
    priced_only: bool = False
    deadline_s: float | None = None


@dataclass(slots=True)
class Router:
    """Ranks the targets of one request's plans."""

    routing: Routing
    known: Surroundings
    asking: Asking
    route: Route | None
    prompt: Estimate
    opening: Opening | None = None
    reads: dict[str, Reads] = field(default_factory=dict)  # what was expected, by target
    _runs: bytes | None = None
    _needs: Needs | None = None

    @property
    def policy(self) -> Policy:
        """How the route chooses."""
        route, wait_s = self.route, self.known.settings.retry.max_wait_s
        if route is None:
            return policy_of("cost", max_wait_s=wait_s)
        return policy_of(route.policy, route.weights, route.wait_usd_per_hour, wait_s)

    def rank(self, found: Plan) -> tuple[Wants, Ranking]:
        """The ranking of a plan's targets. Raises `InvalidRequest` for a file that no target can read."""
        bases = self.routing.bases(found, self.route, self.asking.ttl, self.known)
        alone = len(bases) == 1
        if not alone and self.opening is None:
            self.opening = self._opening()
        candidates = [self._candidate(base, found.tier, alone=alone) for base in bases]
        wants = self._wants(found, bases)
        return wants, rank(wants, candidates, self.policy)

    def whole(self, found: Plan) -> Plan:
        """The same plan with all targets of the route, those too that the request cannot go to: for who wants to
        see why."""
        route, settings = self.route, self.known.settings
        names = route.targets if route is not None else tuple(target.name for target in settings.targets)
        models = {target.name: target.models.get(found.model, "") for target in settings.targets}
        return replace_plan(found, targets=tuple((name, models[name]) for name in names if name in models))

    def expected_output(self, found: Plan) -> int:
        """The tokens that an answer is expected to have; no more than the request's limit."""
        name, limit = output_name(found.route, self.asking.effort), self.asking.limit
        return self.routing.outputs.expected(name, limit, self.known.mono_s)

    def header(self, found: Plan, wants: Wants, ranking: Ranking) -> str:
        """The value of `x-kimi-plan`."""
        return plan_header(ranking, wants, self.policy, model=found.model, tier=found.tier)

    def _opening(self) -> Opening:
        view, recall = self.asking.view, self.asking.recall
        tools = view.fields.get("tools")
        size = len(tools) if tools is not None else 0
        return opening_of(
            view.heads,
            tools=recall.tools,
            tools_bytes=size,
            effort=self.asking.effort,
            digests=recall.prefix.digests,
        )

    def _candidate(self, base: Candidate, tier: str, *, alone: bool) -> Candidate:
        """A target as it stands now. One that is alone is only asked whether it takes anything."""
        routing, now_s = self.routing, self.known.mono_s
        out = routing.health.out(base.name)
        if alone and self.asking.deadline_s is None:
            return base if out is None else replace(base, out=out)
        reads = self._reads(base)
        self.reads[base.name] = reads
        full, queued = routing.standing(base)
        return replace(
            base,
            full=full,
            in_flight=routing.in_flight.get(base.name, 0),
            queued=queued,
            read_tokens=reads.tokens,
            read_age_s=reads.age_s,
            read_shared=reads.shared,
            load=routing.loads.load(base.name),
            out=out,
            pace=routing.paces.pace(base.name, tier, now_s),
        )

    def _reads(self, base: Candidate) -> Reads:
        """What is expected to be read from a target's cache."""
        recall, known = self.asking.recall, self.known
        warmth = predict(recall.record, recall.prefix, self._sending(base), known.wall_s)
        if self.opening is None:
            return Reads(warmth.expected_read_tokens, warmth.age_s)
        return self.routing.shared.expected(base.name, base.model, self.opening, warmth, known.mono_s)

    def _sending(self, base: Candidate) -> Sending:
        recall = self.asking.recall
        if self._runs is None:
            self._runs = thought_runs(self.asking.view.heads, recall.plan) if recall.record is not None else b""
        takes_ttl = base.tariff is not None and base.tariff.meter != "input"
        return Sending(
            target=base.name,
            model=base.model,
            effort=self.asking.effort,
            tools=recall.tools,
            thoughts=self._runs,
            ttl_s=TTL_S[self.asking.ttl or _DEFAULT_TTL] if takes_ttl else 0,
            prompt_tokens=self.prompt.tokens,
        )

    def _wants(self, found: Plan, bases: tuple[Candidate, ...]) -> Wants:
        asking, now_s = self.asking, self.known.mono_s
        if self._needs is None:
            self._needs = needs_of(asking.view.heads, asking.view.fields, thinking_off=asking.thinking_off)
        needs = self._needs
        file_account = ""
        if needs.file:
            accounts = [one.account for one in bases if one.abilities.files]
            pinned = next((one.account for one in bases if one.name == asking.pinned), None)
            file_account = account_of_file(needs.file, pinned, accounts)
        key = conversation_key(asking.recall.prefix, self.opening) if self.opening is not None else b""
        return Wants(
            now_s=now_s,
            key=key,
            prompt=self.prompt,
            output_tokens=self.expected_output(found),
            n=asking.view.n,
            thinking_off=needs.thinking_off,
            remote_media=needs.remote_media,
            file=needs.file,
            file_account=file_account,
            pinned=asking.pinned,
            priced_only=asking.priced_only,
            deadline_s=asking.deadline_s,
        )


def output_name(route: str, effort: str) -> str:
    """What the lengths of answers are remembered by: thought is most of an answer."""
    return f"{route} {effort}"
