"""Token usage as disjoint meters: sums, unknown counts, no negative ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.usage import METERS, TokenUsage

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


def test_the_prompt_is_the_sum_of_its_disjoint_meters() -> None:
    usage = TokenUsage(input=5_000, cache_read=80_000, write_5m=10_000, write_1h=5_000, output=2_000)

    assert usage.prompt == 100_000


def test_an_unknown_count_is_not_zero_but_counts_as_nothing() -> None:
    usage = TokenUsage(input=10)

    assert usage.cache_read is None
    assert usage.count("cache_read") == 0
    assert usage != TokenUsage(input=10, cache_read=0)


def test_a_sum_is_unknown_only_where_both_parts_are() -> None:
    total = TokenUsage(input=1, cache_read=4) + TokenUsage(input=2, write_1h=0, search=1)

    assert total == TokenUsage(input=3, cache_read=4, write_5m=None, write_1h=0, search=1)


def test_reasoning_is_information_inside_output() -> None:
    usage = TokenUsage(input=300, output=1_000, reasoning=900)

    assert usage.prompt == 300
    assert "reasoning" not in METERS


@pytest.mark.parametrize("meter", [*METERS, "reasoning"])
def test_a_negative_count_is_refused_by_name(meter: str) -> None:
    with pytest.raises(ValueError, match=meter):
        TokenUsage(**{meter: -1})


@given(usages, usages, usages)
def test_adding_is_commutative_and_associative(a: TokenUsage, b: TokenUsage, c: TokenUsage) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)


@given(usages, usages)
def test_the_prompt_of_a_sum_is_the_sum_of_the_prompts(a: TokenUsage, b: TokenUsage) -> None:
    assert (a + b).prompt == a.prompt + b.prompt
    assert all((a + b).count(meter) == a.count(meter) + b.count(meter) for meter in METERS)
