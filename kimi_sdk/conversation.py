"""What `Chat` and `AsyncChat` have in common: everything but waiting for the network."""

import os
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

from typing_extensions import override

from backends.json import JsonObject
from kimi_sdk.amounts import checked_money
from kimi_sdk.checks import (
    checked_addresses,
    checked_arguments,
    checked_count,
    checked_limit,
    checked_model,
    checked_tier,
    checked_timeout_s,
    checked_ttl,
    one_of,
    own_price,
    shipped_cards,
    warned_of_limit,
    write_whole,
    written,
)
from kimi_sdk.errors import InvalidInput, NothingToResume
from kimi_sdk.exchange import Call, Estimate, Settings, estimate_of
from kimi_sdk.inside import caller
from kimi_sdk.meter import Account, Meter
from kimi_sdk.notices import CachePrefixBroken, warn
from kimi_sdk.parts import sendable
from kimi_sdk.place import Tier, Ttl, place_of
from kimi_sdk.prices import Tariff
from kimi_sdk.questions import Asked, question_turns, system_turn
from kimi_sdk.reply import Opening, Reply
from kimi_sdk.request import Effort, Manner, Wish, checked_stop
from kimi_sdk.saved import Saved, from_json, to_json
from kimi_sdk.steps import Logic, World
from kimi_sdk.structured import output_of
from kimi_sdk.talk import Plan, Talk
from kimi_sdk.thread import Thread, checked_turns
from kimi_sdk.tools import AnyTool, Approve, Function, ToolBox
from kimi_sdk.wire import endpoint_of
from pricing.usage import TokenUsage

DEFAULT_MODEL: Final = "kimi-k3.1-pro"
MAX_ROUNDS: Final = 16
_WORLD: Final = World(
    lambda: datetime.now(UTC).timestamp(), time.monotonic, random.random, lambda: uuid4().hex, caller
)


class Conversation:
    """The state of a conversation; `Chat` and `AsyncChat` are its two ways to the network."""

    def __init__(
        self,
        *,
        system: str | None = None,
        model: str = DEFAULT_MODEL,
        effort: Effort | None = None,
        tier: Tier | None = None,
        ttl: Ttl | None = None,
        tools: Iterable[AnyTool | Function | JsonObject] = (),
        approve: Approve | None = None,
        max_cost: Decimal | int | str | None = None,
        meter: Meter | None = None,
        prices: Mapping[str, str] | None = None,
        max_completion_tokens: int | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        dialect: str | None = None,
        timeout_s: float = 600.0,
        max_retries: int = 2,
    ) -> None:
        """Raises `InvalidInput`. Sends nothing."""
        checked_model(model)
        checked_arguments(tools=tools, approve=approve, meter=meter, prices=prices)
        checked_addresses(base_url=base_url, api_key=api_key, dialect=dialect)
        self._endpoint = endpoint_of(base_url, api_key, os.environ)  # noqa: TID251  # the SDK's one reading of it
        self._place = place_of(self._endpoint.host, dialect)
        self._model = model
        self._effort: Effort | None = one_of("effort", effort, Effort)
        self._tier = checked_tier(tier, model, self._place)
        self._ttl = checked_ttl(ttl, self._place)
        self._tools = ToolBox(tools, approve=approve)
        self._limit = checked_limit(max_completion_tokens)
        self._timeout_s = checked_timeout_s(timeout_s)
        self._max_retries = checked_count("max_retries", max_retries)
        self._own_price = own_price(prices)
        cap = checked_money(max_cost)
        self._cap = None if cap is None else Meter(cap)
        self._meter = meter
        self._totals = Meter()
        self._conversation = uuid4().hex
        self._thread = Thread([system_turn(system)] if system else [])
        self._broken: Plan | None = None
        self._has_warned = False
        self._own_state()

    # --- what it is -------------------------------------------------------------------------------------------

    @property
    def model(self) -> str:
        """The model that is asked."""
        return self._model

    @property
    def effort(self) -> Effort | None:
        """How much it is asked to think; None leaves that to the model. Setting another one warns."""
        return self._effort

    @effort.setter
    def effort(self, effort: Effort | None) -> None:
        checked: Effort | None = one_of("effort", effort, Effort)
        if checked != self._effort:
            self._effort = checked
            self._prefix_breaks("another effort")

    @property
    def tier(self) -> Tier | None:
        """How fast it is asked to write; None is what the model's name says."""
        return self._tier

    @tier.setter
    def tier(self, tier: Tier | None) -> None:
        self._tier = checked_tier(tier, self._model, self._place)

    @property
    def ttl(self) -> Ttl | None:
        """How long the server is asked to keep the conversation cached."""
        return self._ttl

    @property
    def max_completion_tokens(self) -> int | None:
        """The output limit of calls that name none themselves, in tokens."""
        return self._limit

    @property
    def tools(self) -> ToolBox:
        """The tools that the model may call."""
        return self._tools

    @property
    def base_url(self) -> str:
        """Where requests go."""
        return self._endpoint.base_url

    @property
    def dialect(self) -> str:
        """Whose dialect is spoken: `gateway`, or a kind of upstream."""
        return self._place.name

    @property
    def messages(self) -> list[JsonObject]:
        """A copy of the turns so far in Moonshot's form, thinking included. Setting others replaces them, and
        warns where the server's cache no longer fits."""
        return self._thread.messages

    @messages.setter
    def messages(self, messages: Sequence[JsonObject]) -> None:
        had_answer = self._thread.has_answer
        if not self._thread.replace(checked_turns(messages)) and had_answer:
            self._prefix_breaks("an edited history", always=True)
        self._broken = None

    # --- what it has cost -------------------------------------------------------------------------------------

    @property
    def usage(self) -> TokenUsage:
        """Tokens of all answers so far, by meter."""
        return self._totals.usage

    @property
    def cost(self) -> Decimal:
        """Exact dollars for the answers so far whose cost is known; `unpriced` counts the others."""
        return self._totals.cost

    @property
    def estimated_cost(self) -> Decimal:
        """Dollars that answers without a bill have probably cost: those that broke off or were cancelled, and with
        a price by the cards the unpriced ones."""
        return self._totals.estimated

    @property
    def unpriced(self) -> int:
        """How many answers so far have no known cost. Unknown is not free."""
        return self._totals.unpriced

    @property
    def max_cost(self) -> Decimal | None:
        """What this chat and its forks may cost together, in dollars."""
        return None if self._cap is None else self._cap.max_cost

    @property
    def left(self) -> Decimal | None:
        """Dollars that a further call may cost, by `max_cost` and the meter's limit; None where there is none."""
        tightest = self._settings().account.tightest()
        return None if tightest is None else tightest[1]

    @property
    def meter(self) -> Meter | None:
        """The meter that was given to it."""
        return self._meter

    def estimate(
        self, question: Asked, *, output: Any = None, max_completion_tokens: int | None = None
    ) -> Estimate:
        """What asking this will come to, in one request: where an `output` has to be repaired, that is another.
        Sends nothing. Raises `InvalidInput`."""
        turns = [*self._thread.turns, *question_turns(question, self._place.dialect)]
        limit = checked_limit(max_completion_tokens) or self._limit
        form = None if output is None else output_of(output).response_format
        call = Call(self._manner(), turns, Wish(limit=limit, format=form), self._thread.counted)
        return estimate_of(call, self._settings())

    # --- copies -----------------------------------------------------------------------------------------------

    def fork(self) -> Self:
        """A chat that goes on from here by itself. It shares connections, `max_cost` and meter with this one; its
        own totals begin at zero."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._thread = Thread(list(self._thread.turns), self._thread.counted)
        made._totals = Meter()
        made._broken = None
        made._own_state()
        return made

    def reset(self) -> None:
        """Forgets all turns but the system message. Totals stay."""
        self._thread.reset()
        self._broken = None
        self._conversation = uuid4().hex

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the conversation to a file as JSON, thinking included; a file there is replaced as a whole.
        Neither key nor address nor tools are in it."""
        totals = self._totals
        saved = Saved(
            model=self._model,
            effort=self._effort,
            tier=self._tier,
            ttl=self._ttl,
            max_completion_tokens=self._limit,
            conversation=self._conversation,
            turns=tuple(self._thread.turns),
            counted=self._thread.counted,
            usage=totals.usage,
            cost=totals.cost,
            estimated=totals.estimated,
            doubtful=totals.doubtful,
            replies=totals.replies,
            unpriced=totals.unpriced,
        )
        write_whole(Path(path), to_json(saved))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        tools: Iterable[AnyTool | Function | JsonObject] = (),
        approve: Approve | None = None,
        max_cost: Decimal | int | str | None = None,
        meter: Meter | None = None,
        prices: Mapping[str, str] | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        dialect: str | None = None,
        timeout_s: float = 600.0,
        max_retries: int = 2,
    ) -> Self:
        """The chat that `save` wrote, with its totals, which count against `max_cost`. What is not in the file is
        given anew. Raises `InvalidInput`, and `OSError` where the file cannot be read."""
        saved = from_json(Path(path).read_bytes(), str(path))
        made = cls(
            model=saved.model,
            effort=one_of("effort", saved.effort, Effort),
            tier=one_of("tier", saved.tier, Tier),
            ttl=one_of("ttl", saved.ttl, Ttl),
            max_completion_tokens=saved.max_completion_tokens,
            tools=tools,
            approve=approve,
            max_cost=max_cost,
            meter=meter,
            prices=prices,
            base_url=base_url,
            api_key=api_key,
            dialect=dialect,
            timeout_s=timeout_s,
            max_retries=max_retries,
        )
        made._conversation = saved.conversation
        made._thread = Thread(list(saved.turns), saved.counted)
        for each in (made._totals, made._cap):
            if each is not None:
                each.restore(
                    saved.usage,
                    saved.cost,
                    estimated=saved.estimated,
                    doubtful=saved.doubtful,
                    replies=saved.replies,
                    unpriced=saved.unpriced,
                )
        return made

    @override
    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(model={self._model!r}, base_url={self._endpoint.base_url!r}, "
            f"turns={len(self._thread.turns)}, cost={self.cost})"
        )

    # --- for the two doors ------------------------------------------------------------------------------------

    def _own_state(self) -> None:
        """Gives a chat what it shares with no other, and what it shares with its forks where it is no fork."""
        raise NotImplementedError

    def _plan(
        self,
        question: Asked,
        *,
        output: Any = None,
        prefix: str = "",
        stop: str | Sequence[str] = (),
        max_completion_tokens: int | None = None,
        rounds: int = 0,
    ) -> Plan:
        """A call as it was asked for. Raises `InvalidInput`."""
        if output is not None and prefix:
            raise InvalidInput("prefix and output exclude one another: JSON begins in its own way")
        limit = checked_limit(max_completion_tokens) or self._limit
        self._has_warned = self._has_warned or warned_of_limit(limit, self._effort)
        wanted = None if output is None else output_of(output)
        wish = Wish(
            opening=Opening(sendable(prefix)),
            stop=checked_stop(stop, self._place.dialect),
            limit=limit,
            format=None if wanted is None else wanted.response_format,
        )
        if wish.format is not None:
            written("the output's schema", wish.format)
        turns = tuple(question_turns(question, self._place.dialect))
        rounds = checked_count("max_rounds", rounds)
        return Plan(turns, wish, wanted, rounds if self._tools else 0)

    def _begin(self, plan: Plan | None) -> Logic[Reply]:
        """The logic of a call; None resumes. Raises `InvalidInput`."""
        if plan is None:
            if self._broken is None:
                raise NothingToResume("no answer of this chat broke off since its last question")
            plan = self._broken
        else:
            self._thread.check_question(plan.turns)
            self._broken = None
        return Talk(self._manner(), self._settings(), self._thread, plan, self._remember).run()

    def _remember(self, plan: Plan | None) -> None:
        self._broken = plan

    def _prefix_breaks(self, why: str, *, always: bool = False) -> None:
        if always or self._thread.has_answer:
            self._thread.counted = None
            warn(
                CachePrefixBroken,
                f"{why} changes how the next request begins, so the conversation so far is read anew at the full "
                "input price; fork() before it to keep the cached one",
            )

    def _manner(self) -> Manner:
        definitions = self._tools.definitions
        return Manner(
            self._place,
            self._model,
            self._effort,
            self._tier,
            self._ttl,
            written("the tools", definitions) if definitions else b"",
            self._conversation,
        )

    def _settings(self) -> Settings:
        dialect = self._place.dialect
        tariff = Tariff(shipped_cards(), dialect.seller, self._own_price, any_seller=self._place.is_gateway)
        shared = [meter for meter in (self._cap, self._meter) if meter is not None]
        account = Account(self._totals, *shared)
        return Settings(self._endpoint, tariff, account, _WORLD, self._max_retries, self._timeout_s)
