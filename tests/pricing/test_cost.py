"""Cost is exact, additive and never free by omission."""

import random
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.cost import Cost, Line, billed_rate, cost_of
from pricing.money import usd_text
from pricing.rates import Rates, WriteRule
from pricing.usage import METERS, Meter, TokenUsage

PRO = Rates(input=2000, cache_read=200, write_5m=2000, write_1h=4000, output=10_000, search=5_000_000)
HIGHSPEED = Rates(input=4000, cache_read=200, write_5m=4000, write_1h=8000, output=20_000)

counts = st.integers(0, 2_000_000)
usages = st.builds(
    TokenUsage,
    input=counts,
    output=counts,
    cache_read=st.none() | counts,
    write_5m=st.none() | counts,
    write_1h=st.none() | counts,
    search=st.integers(0, 50),
)
some_rates = st.builds(Rates, *(st.none() | st.integers(0, 10**6) for _ in METERS))
write_rules = st.sampled_from(("replaces", "adds"))


def dollars(cost: Cost) -> str:
    assert cost.nano is not None
    return usd_text(cost.nano)


@pytest.mark.parametrize(
    ("rates", "ttl", "expected"),
    [
        (PRO, "write_5m", "0.076"),
        (PRO, "write_1h", "0.106"),
        (HIGHSPEED, "write_5m", "0.136"),
        (HIGHSPEED, "write_1h", "0.196"),
    ],
)
def test_check_figures(rates: Rates, ttl: str, expected: str) -> None:
    counts = {"input": 5_000, "cache_read": 80_000, "output": 2_000, ttl: 15_000}

    assert dollars(cost_of(TokenUsage(**counts), rates)) == expected


def test_bill_04_a_thousand_small_rows_are_not_rounded() -> None:
    each = cost_of(TokenUsage(input=0, cache_read=7, output=1), PRO)

    assert dollars(each) == "0.0000114"
    assert sum([each.usd or Decimal(0)] * 1000) == Decimal("0.0114")


BILL_05 = TokenUsage(input=5_000, cache_read=5_000, write_5m=10_000, write_1h=20_000, output=1_000)


def test_bill_05_each_lifetime_of_a_write_has_its_price() -> None:
    cost = cost_of(BILL_05, PRO)

    assert dollars(cost) == "0.121"
    assert {line.meter: usd_text(line.nano) for line in cost.lines} == {
        "input": "0.01",
        "cache_read": "0.001",
        "write_5m": "0.02",
        "write_1h": "0.08",
        "output": "0.01",
    }


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (TokenUsage(input=5_000, cache_read=5_000, write_1h=30_000, output=1_000), "0.141"),
        (TokenUsage(input=5_000, cache_read=5_000, write_5m=30_000, output=1_000), "0.081"),
    ],
)
def test_bill_05_without_the_split_the_lifetime_asked_for_prices_all_writes(
    usage: TokenUsage, expected: str
) -> None:
    assert dollars(cost_of(usage, PRO)) == expected


def test_bill_05_the_other_reading_adds_the_write_to_the_input_price_and_says_so() -> None:
    cost = cost_of(BILL_05, PRO, write_rule="adds")

    assert dollars(cost) == "0.181"
    assert cost.write_rule == "adds"
    assert Line("write_1h", 20_000, 6_000, 120_000_000) in cost.lines


def test_lines_hold_only_the_meters_that_were_used() -> None:
    cost = cost_of(TokenUsage(input=352, cache_read=2048, write_5m=0, output=150), PRO)

    assert cost.lines == (
        Line("input", 352, 2000, 704_000),
        Line("cache_read", 2048, 200, 409_600),
        Line("output", 150, 10_000, 1_500_000),
    )
    assert cost.usd == Decimal("0.0026136")


@pytest.mark.parametrize("meter", ["cache_read", "write_5m", "write_1h"])
@pytest.mark.parametrize("rule", ["replaces", "adds"])
def test_a_missing_cache_rate_bills_as_input_and_never_as_zero(meter: str, rule: WriteRule) -> None:
    rates = Rates(input=2000, output=10_000)

    cost = cost_of(TokenUsage(**{meter: 1_000}), rates, write_rule=rule)

    assert cost.nano == 2_000_000
    assert cost.unpriced == ()


@pytest.mark.parametrize("meter", METERS)
def test_a_used_meter_without_any_price_makes_the_cost_unknown(meter: Meter) -> None:
    cost = cost_of(TokenUsage(**{meter: 3}), Rates())

    assert cost.nano is None
    assert cost.usd is None
    assert cost.unpriced == (meter,)
    assert cost.lines == (Line(meter, 3, None, 0),)


def test_an_unused_meter_needs_no_price() -> None:
    assert cost_of(TokenUsage(input=1, output=1), Rates(input=1, output=1)).nano == 2


def test_nothing_used_costs_nothing() -> None:
    assert cost_of(TokenUsage(), Rates()) == Cost(0, ())


def test_a_stated_price_of_zero_is_free() -> None:
    assert cost_of(TokenUsage(cache_read=5), Rates(input=2000, cache_read=0)).nano == 0


def test_searches_are_billed_per_call() -> None:
    assert dollars(cost_of(TokenUsage(search=3), PRO)) == "0.015"


@pytest.mark.parametrize(("rule", "expected"), [("replaces", 4000), ("adds", None)])
def test_an_added_write_price_without_an_input_price_is_unknown(rule: WriteRule, expected: int | None) -> None:
    assert billed_rate(Rates(write_1h=4000), "write_1h", write_rule=rule) == expected


@given(st.lists(usages, max_size=8), some_rates, write_rules, st.randoms(use_true_random=False))
def test_the_cost_of_a_sum_is_the_sum_of_the_costs_in_any_order(
    parts: list[TokenUsage], rates: Rates, rule: WriteRule, draw: random.Random
) -> None:
    total = sum(draw.sample(parts, len(parts)), TokenUsage())
    costs = [cost_of(part, rates, write_rule=rule).nano for part in parts]

    whole = cost_of(total, rates, write_rule=rule).nano

    known = [nano for nano in costs if nano is not None]
    assert whole == (sum(known) if len(known) == len(costs) else None)


@given(usages, usages, some_rates, write_rules)
def test_more_tokens_never_cost_less(a: TokenUsage, b: TokenUsage, rates: Rates, rule: WriteRule) -> None:
    part, whole = cost_of(a, rates, write_rule=rule).nano, cost_of(a + b, rates, write_rule=rule).nano

    assert whole is None or (part is not None and part <= whole)


@given(usages, some_rates, write_rules)
def test_the_lines_add_up_to_the_cost(usage: TokenUsage, rates: Rates, rule: WriteRule) -> None:
    cost = cost_of(usage, rates, write_rule=rule)

    assert sum(line.nano for line in cost.lines) == cost.nano or cost.unpriced
    assert all(line.nano == line.count * (line.rate or 0) for line in cost.lines)
    assert (cost.nano is None) == bool(cost.unpriced)
