"""Limits of money: what could cost too much is not sent, estimates come before the call, meters are shared."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.json import encode
from kimi_sdk import BudgetError, Chat, InvalidInput, MaxCostReached, Meter, RateLimited
from kimi_sdk.meter import Account
from support.exchange import Exchange
from support.scripted import ScriptedUpstream
from support.sdk_places import KINDS, Place, Talk, talk

KIND_IDS = ["sync", "async"]
both = pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
BODY = {
    "id": "c-1",
    "model": "kimi-k3.1-pro",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 1000, "total_tokens": 1010},
}


def booked(cost: str | None, **fields: Any) -> dict[str, Any]:
    return {"status": 200, "json": {**BODY, **fields, "kimi": {"cost_usd": cost}}}


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as server:
        yield server


@both
def test_a_call_that_could_cost_more_than_is_left_is_not_sent(
    upstream: ScriptedUpstream, kind: type[Talk]
) -> None:
    upstream.add(booked("0.15"), booked("0.01"))
    with talk(kind, base_url=upstream.base_url, max_cost="0.50", max_completion_tokens=30_000) as made:
        made.ask("What is due?")
        made.ask("And now?")
        with pytest.raises(MaxCostReached, match=r"max_cost 0.5 USD only 0.34 is left \(0.16 spent\)") as caught:
            made.ask("What else?", max_completion_tokens=40_000)
        assert made.chat.cost == Decimal("0.16")

    error = caught.value
    assert isinstance(error, BudgetError)
    assert [error.max_cost, error.spent, error.reserved] == [Decimal("0.50"), Decimal("0.16"), 0]
    assert error.bound is not None
    assert Decimal("0.40") < error.bound < Decimal("0.41")
    assert len(upstream.requests) == 2


def test_a_limit_that_nobody_named_is_what_half_of_the_money_left_is_for(upstream: ScriptedUpstream) -> None:
    upstream.add(booked("0.80"), booked("0.01"))
    with Chat(base_url=upstream.base_url, max_cost="1.00") as chat:
        chat.ask("first")
        chat.ask("second")
        with pytest.raises(MaxCostReached, match="16,000 of output"):
            Chat(base_url=upstream.base_url, max_cost="0.10").ask("third")

    limits = [int(str(request.json["max_completion_tokens"])) for request in upstream.requests]
    assert 45_000 < limits[0] < 50_000
    assert limits[1] == 16_000, "never fewer than thinking and answer need"


def test_highspeed_is_reckoned_at_its_own_price(upstream: ScriptedUpstream) -> None:
    with Chat(base_url=upstream.base_url) as plain, Chat(base_url=upstream.base_url, tier="highspeed") as fast:
        slow_max, fast_max = plain.estimate("hi").cost_max, fast.estimate("hi").cost_max

    assert slow_max is not None
    assert fast_max == 2 * slow_max


def test_a_model_without_a_price_has_no_limit_that_can_be_kept(upstream: ScriptedUpstream) -> None:
    upstream.add({"status": 200, "json": BODY})
    engine: dict[str, Any] = {"base_url": upstream.base_url, "dialect": "vllm", "max_cost": "1"}
    with Chat(**engine) as chat, pytest.raises(MaxCostReached, match=r"no price of kimi-k3\.1-pro is known"):
        chat.ask("hi")
    assert upstream.requests == []

    with Chat(**engine, prices={"input": "1.00", "output": "2.00"}) as chat:
        reply = chat.ask("hi")

    assert (reply.cost, reply.cost_source) == (Decimal("0.00201"), "cards")


def test_an_answer_that_nobody_prices_counts_by_the_cards(upstream: ScriptedUpstream) -> None:
    upstream.add(booked(None))
    with Chat(base_url=upstream.base_url, max_cost="2") as chat:
        reply = chat.ask("hi")

        assert [reply.cost, chat.cost, chat.unpriced] == [None, 0, 1]
        assert chat.estimated_cost == Decimal("0.01002")


def test_a_refused_call_gives_its_money_back(upstream: ScriptedUpstream) -> None:
    refused = {"status": 429, "json": {"error": {"type": "rate_limit_error", "message": "slow"}}}
    upstream.add(refused, booked("0.01"))
    meter = Meter("0.20")
    with Chat(base_url=upstream.base_url, meter=meter, max_retries=0, max_completion_tokens=19_000) as chat:
        with pytest.raises(RateLimited):
            chat.ask("hi")
        assert [meter.reserved, meter.spent, meter.replies] == [0, 0, 0]
        chat.ask("hi")

    assert [meter.cost, meter.reserved, meter.replies] == [Decimal("0.01"), 0, 1]


def test_forks_share_the_limit_and_have_totals_of_their_own(upstream: ScriptedUpstream) -> None:
    upstream.add(booked("0.30"), booked("0.30"))
    with Chat(base_url=upstream.base_url, max_cost="0.80", max_completion_tokens=25_000) as chat:
        chat.ask("one")
        fork = chat.fork()
        fork.ask("two")
        for each in (chat, fork):
            with pytest.raises(MaxCostReached):
                each.ask("three")

        assert (chat.cost, fork.cost) == (Decimal("0.30"), Decimal("0.30"))
        assert (len(chat.messages), len(fork.messages)) == (2, 4)


@both
def test_calls_under_way_keep_a_shared_meter_below_its_limit(kind: type[Talk]) -> None:
    running: list[int] = []
    most: list[int] = []

    async def slowly(exchange: Exchange) -> None:
        running.append(1)
        most.append(len(running))
        await asyncio.sleep(0.05)
        running.pop()
        body = encode({**BODY, "kimi": {"cost_usd": "0.01"}})
        await exchange.head(200, [("content-type", "application/json"), ("content-length", str(len(body)))])
        await exchange.write(body)

    meter = Meter("0.65")
    with (
        ScriptedUpstream([slowly], repeat_last=True) as upstream,
        talk(kind, base_url=upstream.base_url, meter=meter, max_completion_tokens=20_000) as made,
    ):
        batch = made.map([f"{number}?" for number in range(12)], concurrency=12)

    assert batch.errors == []
    assert max(most) == 3, "0.65 USD are room for three calls of at most 0.20"
    assert [meter.cost, meter.reserved] == [Decimal("0.12"), 0]


def test_a_call_waits_no_longer_for_others_than_its_patience(upstream: ScriptedUpstream) -> None:
    meter = Meter("0.30")
    assert Account(meter).hold(Decimal("0.25")) is not None
    before_s = time.monotonic()
    limits: dict[str, Any] = {"meter": meter, "timeout_s": 0.2, "max_completion_tokens": 20_000}
    with (
        Chat(base_url=upstream.base_url, **limits) as chat,
        pytest.raises(MaxCostReached, match=r"0.25 set aside for calls under way") as caught,
    ):
        chat.ask("hi")

    assert caught.value.reserved == Decimal("0.25")
    assert 0.2 <= time.monotonic() - before_s < 5


@pytest.mark.parametrize("place", ["moonshot"], indirect=True)
def test_an_estimate_bounds_what_the_call_comes_to(place: Place) -> None:
    with Chat(effort="low", **place.arguments) as chat:
        first = chat.estimate("How far is the Moon?", max_completion_tokens=2_000)
        reply = chat.ask("How far is the Moon?", max_completion_tokens=2_000)
        second = chat.estimate("And the Sun? " * 50)
        assert chat.estimate("hi").output_tokens_max == 131_072
        answer = chat.ask("And the Sun? " * 50)

    assert reply.usage is not None
    assert answer.usage is not None
    assert reply.cost is not None
    assert first.cost is not None
    assert first.cost_max is not None
    assert reply.usage.prompt <= first.prompt_tokens_max
    assert (first.output_tokens_max, first.cost < reply.cost < first.cost_max) == (2_000, True)
    assert answer.usage.prompt <= second.prompt_tokens_max
    assert second.prompt_tokens_max < 2 * answer.usage.prompt + 700, "what was counted is not estimated again"


@pytest.mark.parametrize(
    "amount", ["-1", "NaN", "much", 0.5, True, [], "1e1000000", "1e-1000000", 10**20], ids=repr
)
def test_an_amount_of_money_is_exact(amount: Any) -> None:
    for make in (Meter, lambda value: Chat(max_cost=value)):
        with pytest.raises(InvalidInput, match="amount of money"):
            make(amount)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=20), st.integers(0, 200))
def test_no_order_of_calls_brings_a_meter_above_its_limit(calls: list[tuple[int, int]], limit: int) -> None:
    own, meter = Meter(), Meter(limit)
    account = Account(own, meter)
    holds = []
    for bound, cost in calls:
        hold = account.hold(Decimal(bound))
        if hold is not None:
            holds.append((hold, min(bound, cost)))
    for hold, cost in holds:
        hold.settle(None, Decimal(cost), None)
        hold.settle(None, Decimal(cost), None)  # a second time means nothing

    assert meter.spent == sum(cost for _, cost in holds) == own.spent
    assert meter.spent <= limit
    assert [meter.reserved, own.reserved] == [0, 0]


def test_a_meter_counts_right_from_many_threads() -> None:
    meter = Meter()

    def count(_: int) -> None:
        meter.add(None, Decimal("0.001"), None)

    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(count, range(2_000)))

    assert (meter.cost, meter.replies) == (Decimal(2), 2_000)
    assert repr(meter) == "Meter(replies=2000, cost=2.000, estimated=0)"
