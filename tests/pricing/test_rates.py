"""Rates from decimal strings, cards with their validity, and the book that says which card is in force."""

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.rates import Card, CardBook, Rates, Source
from pricing.usage import METERS

PRO = {"input": "2.00", "cache_read": "0.20", "write_5m": "2.00", "write_1h": "4.00", "output": "10.00"}


def card(
    start: str, end: str | None = None, *, model: str = "m", price: str = "1", card_id: str | None = None
) -> Card:
    return Card(
        id=card_id or f"s/{model}@{start}",
        seller="s",
        model=model,
        rates=Rates.from_usd({"input": price}),
        effective_from=date.fromisoformat(start),
        effective_to=None if end is None else date.fromisoformat(end),
    )


def test_official_prices_are_whole_nano_dollars_per_token() -> None:
    rates = Rates.from_usd({**PRO, "search": "0.005"})

    assert rates == Rates(
        input=2000, cache_read=200, write_5m=2000, write_1h=4000, output=10_000, search=5_000_000
    )


def test_a_price_not_given_is_absent_and_not_zero() -> None:
    assert Rates.from_usd({"input": "0"}) == Rates(input=0, output=None)


def test_prices_come_back_exact_per_million() -> None:
    prices = Rates.from_usd({"input": "0.95", "search": "0.005"}).in_usd()

    assert prices["input"] == Decimal("0.95")
    assert prices["search"] == Decimal("0.005")
    assert prices["output"] is None


@given(st.dictionaries(st.sampled_from(METERS), st.integers(0, 10**9), max_size=6))
def test_usd_and_back_is_the_same_rates(nano: dict[str, int]) -> None:
    rates = Rates(**nano)
    prices: dict[str, object] = {m: price for m, price in rates.in_usd().items() if price is not None}

    assert Rates.from_usd(prices) == rates


@pytest.mark.parametrize(
    ("price", "reason"),
    [
        ("0.0005", "whole number of nano-dollars"),
        ("-2", "between 0 and"),
        ("NaN", "between 0 and"),
        ("1e400000", "between 0 and"),
        ("two", "not a price"),
        ("", "not a price"),
        ("2.00000000000000000000000000000001", "digits"),
        (2.0, "decimal string"),
        (True, "decimal string"),
        (None, "decimal string"),
    ],
)
def test_a_wrong_price_is_refused_naming_its_field(price: object, reason: str) -> None:
    with pytest.raises(ValueError, match=f"cache_read: .*{reason}"):
        Rates.from_usd({"input": "2.00", "cache_read": price})


def test_a_search_price_below_a_nano_dollar_is_refused() -> None:
    with pytest.raises(ValueError, match=r"search: .*nano-dollars"):
        Rates.from_usd({"search": "0.0000000001"})


def test_an_unknown_meter_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match="'cached_read'; did you mean 'cache_read'"):
        Rates.from_usd({"cached_read": "0.20"})


def test_a_negative_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="output"):
        Rates(output=-1)


def test_a_card_is_in_force_from_its_first_to_its_last_day() -> None:
    book = CardBook([card("2026-03-01", "2026-08-31")])

    found = [book.find("s", "m", date(2026, *day)) for day in ((2, 28), (3, 1), (8, 31), (9, 1))]
    assert [one is not None for one in found] == [False, True, True, False]


def test_a_new_price_is_a_new_card_and_the_old_one_still_prices_the_old_days() -> None:
    old, new = card("2026-01-01", price="1"), card("2026-10-24", price="2")
    book = CardBook([old, new])

    assert book.find("s", "m", date(2026, 10, 23)) is old
    assert book.find("s", "m", date(2026, 10, 24)) is new


def test_another_seller_of_the_same_model_has_no_price_here() -> None:
    book = CardBook([card("2026-01-01")])

    assert book.find("elsewhere", "m", date(2026, 6, 1)) is None
    assert book.find("s", "M", date(2026, 6, 1)) is None


def test_an_added_card_with_the_same_id_replaces_the_shipped_one() -> None:
    shipped, own = card("2026-01-01", price="1"), card("2026-01-01", price="9")
    book = CardBook([shipped], [own])

    assert book.cards == (own,)


def test_an_added_card_wins_only_while_it_is_valid() -> None:
    shipped = card("2026-06-01", price="1")
    own = card("2026-01-01", "2026-07-31", price="9", card_id="contract")
    book = CardBook([shipped], [own])

    assert book.find("s", "m", date(2026, 6, 15)) is own
    assert book.find("s", "m", date(2026, 8, 1)) is shipped


def test_two_cards_with_one_id_in_one_collection_are_refused() -> None:
    with pytest.raises(ValueError, match="two cards have the id 's/m@2026-01-01'"):
        CardBook([card("2026-01-01"), card("2026-01-01")])


def test_in_force_lists_one_card_per_seller_and_model() -> None:
    old, new, other = card("2026-01-01"), card("2026-06-01"), card("2026-02-01", model="a")
    ended = card("2026-01-01", "2026-01-31", model="gone")

    assert CardBook([old, new, other, ended]).in_force(date(2026, 7, 1)) == (other, new)


def test_a_card_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match="effective_to 2026-01-01 lies before"):
        card("2026-02-01", "2026-01-01")


def test_another_currency_is_never_added_to_dollars() -> None:
    with pytest.raises(ValueError, match="currency must be USD, not 'CNY'"):
        Card("x", "s", "m", Rates(), date(2026, 1, 1), currency="CNY")


def test_a_label_names_the_card_with_its_date_and_the_write_rule() -> None:
    assert card("2026-01-01").label == "s/m@2026-01-01 writes=replaces"


def test_the_best_source_of_a_meter_decides_its_confidence() -> None:
    day = date(2026, 1, 1)
    weak, good = Source("a", day, ("input",), "unverified"), Source("b", day, ("input",), "official")
    rates = Rates(input=1, output=2)
    graded = Card("x", "s", "m", rates, day, sources=(weak, good))

    assert graded.confidence("input") == "official"
    assert graded.confidence("output") == "unverified"
    assert graded.confidence("search") is None
