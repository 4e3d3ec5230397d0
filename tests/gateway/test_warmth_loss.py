"""What lost tokens cost, and how a loss is told."""

import pytest

from kimi_gateway.core.cache_loss import NO_LOSS, REASONS, Loss, loss_cost_nano, loss_header, loss_object
from pricing.rates import Rates

PRO = Rates.from_usd(
    {"input": "2.00", "cache_read": "0.20", "write_5m": "2.00", "write_1h": "4.00", "output": "10.00"}
)


@pytest.mark.parametrize(
    ("rates", "ttl", "nano"),
    [
        (PRO, "5m", 10_368_000),
        (PRO, "", 10_368_000),
        (PRO, "1h", 5760 * 3_800),
        (Rates(input=2000, cache_read=200), "1h", 10_368_000),  # no price of its own for writes
        (Rates(input=2000), "5m", 0),  # reads cost what fresh input costs
        (Rates(input=100, cache_read=200), "5m", 0),
        (Rates(output=10), "5m", None),
        (Rates(cache_read=200), "5m", None),
        (None, "5m", None),
    ],
)
def test_lost_tokens_cost_the_difference_to_reading_them(rates: Rates | None, ttl: str, nano: int | None) -> None:
    assert loss_cost_nano(5760, rates, ttl=ttl) == nano


def test_a_write_that_adds_to_the_input_price_costs_both() -> None:
    assert loss_cost_nano(1000, PRO, ttl="1h", write_rule="adds") == 1000 * (2000 + 4000 - 200)


def test_a_loss_is_told_in_a_header_and_in_an_object() -> None:
    loss = Loss("effort", 5760)
    assert loss_header(loss, 10_368_000) == "effort;tokens=5760;usd=0.010368"
    assert loss_object(loss, 10_368_000) == {"reason": "effort", "tokens": 5760, "usd": "0.010368"}


def test_without_a_price_the_tokens_are_told_alone() -> None:
    loss = Loss("target", 5760, measured=True)
    assert loss_header(loss, None) == "target;tokens=5760"
    assert loss_object(loss, None) == {"reason": "target", "tokens": 5760, "usd": None}


def test_of_nothing_lost_nothing_is_told() -> None:
    assert (loss_header(NO_LOSS, 0), loss_object(NO_LOSS, None), bool(NO_LOSS)) == ("", None, False)


def test_a_reason_is_one_word_that_reports_can_group_by() -> None:
    assert len(set(REASONS)) == len(REASONS) == 8
    assert all(reason.replace("_", "").isalpha() for reason in REASONS)
