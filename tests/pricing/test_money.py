"""Money is exact: integer nano-dollars inside, plain decimal strings outside."""

import random
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.money import nano_from_usd, nano_per_token, usd, usd_text

INT64 = st.integers(-(2**63) + 1, 2**63 - 1)


@pytest.mark.parametrize(
    ("usd_per_mtok", "nano"),
    [("2.00", 2000), ("0.20", 200), ("10", 10_000), ("0.95", 950), ("0.001", 1), ("0", 0)],
)
def test_a_price_is_whole_nano_dollars_per_token(usd_per_mtok: str, nano: int) -> None:
    assert nano_per_token(Decimal(usd_per_mtok)) == nano


@pytest.mark.parametrize("usd_per_mtok", ["0.0001", "2.0005", "-1", "NaN", "Infinity"])
def test_a_price_that_would_need_rounding_or_is_no_price_is_refused(usd_per_mtok: str) -> None:
    with pytest.raises(ValueError, match=r"price|nano-dollars"):
        nano_per_token(Decimal(usd_per_mtok))


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (11_400, "0.0000114"),
        (12_000_000_000, "12"),
        (-500_000_000, "-0.5"),
        (0, "0"),
        (1, "0.000000001"),
        (100_000_000_000, "100"),
    ],
)
def test_dollars_are_written_plainly(nano: int, text: str) -> None:
    assert usd_text(nano) == text


@given(INT64)
def test_dollars_and_back_is_the_same_nano(nano: int) -> None:
    assert nano_from_usd(usd(nano)) == nano
    assert nano_from_usd(Decimal(usd_text(nano))) == nano
    assert "E" not in usd_text(nano)


@given(st.lists(st.integers(0, 10**12), max_size=30), st.randoms(use_true_random=False))
def test_a_total_does_not_depend_on_the_order_of_rows(rows: list[int], draw: random.Random) -> None:
    shuffled = draw.sample(rows, len(rows))

    assert sum((usd(nano) for nano in shuffled), Decimal(0)) == usd(sum(rows))


@pytest.mark.parametrize("dollars", ["0.0000000001", "NaN", "Infinity", "9223372036.854775808"])
def test_an_amount_outside_nano_dollars_or_64_bits_is_refused(dollars: str) -> None:
    with pytest.raises(ValueError):
        nano_from_usd(Decimal(dollars))


def test_the_largest_amount_of_64_bits_fits() -> None:
    assert nano_from_usd(Decimal("9223372036.854775807")) == 2**63 - 1
