"""Rate cards as files: what is shipped, what a user's folder changes, and what is refused at load."""

import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from pricing.cards import CardBook, CardError, load_cards, parse_cards
from pricing.money import usd_text
from pricing.rates import Card, Rates
from pricing.usage import METERS

TODAY = date(2026, 11, 30)

MINIMAL = """
[[cards]]
seller = "moonshot"
model = "kimi-k3.1-pro"
effective_from = 2026-10-24
[cards.rates]
input = "1.50"
output = "8"
"""


def found(book: CardBook, seller: str, model: str, on: date = TODAY) -> Card:
    card = book.find(seller, model, on)
    assert card is not None
    return card


def prices(card: Card) -> list[str | None]:
    return [None if price is None else f"{price:.2f}" for price in list(card.rates.in_usd().values())[:5]]


@pytest.mark.parametrize(
    ("seller", "model", "tier", "expected"),
    [  # input, cache read, write 5m, write 1h, output
        ("moonshot", "kimi-k3.1-pro", "standard", ["2.00", "0.20", "2.00", "4.00", "10.00"]),
        ("moonshot", "kimi-k3.1-pro-highspeed", "highspeed", ["4.00", "0.20", "4.00", "8.00", "20.00"]),
        ("openrouter", "moonshotai/kimi-k3.1-pro", "standard", ["2.00", "0.20", None, None, "10.00"]),
        ("moonshot", "kimi-k3", "standard", ["3.00", "0.30", "3.00", "6.00", "15.00"]),
        ("moonshot", "kimi-k2.7-code", "standard", ["0.95", "0.19", None, None, "4.00"]),
        ("moonshot", "kimi-k2.7-code-highspeed", "highspeed", ["1.90", "0.38", None, None, "8.00"]),
        ("moonshot", "kimi-k2.6", "standard", ["0.95", "0.16", None, None, "4.00"]),
    ],
)
def test_the_shipped_cards_state_the_published_prices(
    seller: str, model: str, tier: str, expected: list[str | None]
) -> None:
    card = found(load_cards(), seller, model)

    assert METERS[:5] == ("input", "cache_read", "write_5m", "write_1h", "output")
    assert prices(card) == expected
    assert card.tier == tier
    assert card.write_rule == "replaces"


def test_a_card_is_named_by_seller_model_and_start() -> None:
    assert found(load_cards(), "moonshot", "kimi-k3.1-pro").id == "moonshot/kimi-k3.1-pro@2026-10-24"


def test_every_shipped_price_has_a_source_and_no_source_states_what_has_no_price() -> None:
    for card in load_cards().cards:
        covered = {meter for source in card.sources for meter in source.covers}
        priced = {meter for meter in METERS if card.rates.of(meter) is not None}
        assert covered == priced, card.id
        assert all(source.checked_on <= TODAY and source.url for source in card.sources), card.id


def test_highspeed_cache_prices_are_marked_unverified() -> None:
    card = found(load_cards(), "moonshot", "kimi-k3.1-pro-highspeed")

    assert [card.confidence(meter) for meter in ("input", "output")] == ["official", "official"]
    assert {card.confidence(meter) for meter in ("cache_read", "write_5m", "write_1h")} == {"unverified"}


def test_the_built_in_search_costs_half_a_cent_second_hand() -> None:
    card = found(load_cards(), "moonshot", "kimi-k3.1-pro")

    assert usd_text(card.rates.search or 0) == "0.005"
    assert card.confidence("search") == "second-hand"


def test_a_model_has_no_price_before_it_existed_and_after_it_ended() -> None:
    book = load_cards()

    assert book.find("moonshot", "kimi-k3.1-pro", date(2026, 10, 23)) is None
    assert book.find("moonshot", "kimi-k2.5", date(2026, 8, 31)) is not None
    assert book.find("moonshot", "kimi-k2.5", date(2026, 9, 1)) is None


def test_cache_writes_of_k3_have_a_price_since_they_have_a_lifetime() -> None:
    book = load_cards()

    assert found(book, "moonshot", "kimi-k3", date(2026, 9, 18)).rates.write_1h is None
    assert found(book, "moonshot", "kimi-k3", date(2026, 9, 19)).rates.write_1h == 6000


def test_a_users_card_replaces_the_shipped_one_whole(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(MINIMAL)

    card = found(load_cards(tmp_path), "moonshot", "kimi-k3.1-pro")

    assert card.rates == Rates(input=1500, output=8000)
    assert card.sources == ()
    assert len(load_cards(tmp_path).cards) == len(load_cards().cards)


def test_a_users_card_wins_over_an_overlapping_shipped_one_and_only_then(tmp_path: Path) -> None:
    text = MINIMAL.replace("effective_from = 2026-10-24", "effective_from = 2026-11-01\neffective_to = 2026-11-30")
    (tmp_path / "contract.toml").write_text(text)
    book = load_cards(tmp_path)

    days = (date(2026, 10, 31), date(2026, 11, 1), date(2026, 11, 30), date(2026, 12, 1))
    inputs = [found(book, "moonshot", "kimi-k3.1-pro", day).rates.input for day in days]

    assert inputs == [2000, 1500, 1500, 2000]


def test_an_older_card_of_the_user_wins_over_a_newer_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text(MINIMAL.replace("2026-10-24", "2026-01-01"))

    assert found(load_cards(tmp_path), "moonshot", "kimi-k3.1-pro").rates.input == 1500


def test_a_user_adds_a_seller_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(MINIMAL.replace('"moonshot"', '"our-cluster"'))
    (tmp_path / "notes.txt").write_text("not a card")

    assert found(load_cards(tmp_path), "our-cluster", "kimi-k3.1-pro").rates.output == 8000


def test_a_price_without_quotes_is_as_exact_as_one_with_them() -> None:
    (card,) = parse_cards(MINIMAL.replace('"1.50"', "1.501").replace('"8"', "8"), name="x")

    assert card.rates == Rates(input=1501, output=8000)


def test_a_card_may_state_everything() -> None:
    text = (
        MINIMAL.replace("[cards.rates]", 'id = "deal"\ntier = "highspeed"\nwrite_rule = "adds"\n[cards.rates]')
        + '[[cards.sources]]\nname = "invoice"\nchecked_on = "2026-11-02"\n'
        'covers = ["input", "output"]\nconfidence = "official"\n'
    )

    (card,) = parse_cards(text, name="x")

    assert (card.id, card.tier, card.label) == ("deal", "highspeed", "deal writes=adds")
    assert card.sources[0].checked_on == date(2026, 11, 2)
    assert card.confidence("output") == "official"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('input = "1.50"', 'input = "0.0005"', r"cards\[0\].rates.input: .*whole number of nano-dollars"),
        ('input = "1.50"', 'inptu = "1.50"', r"cards\[0\].rates.*'inptu'; did you mean 'input'"),
        ('input = "1.50"', "input = true", r"cards\[0\].rates.input: .*decimal string"),
        ('input = "1.50"', 'input = "-1"', r"cards\[0\].rates.input: .*between 0"),
        ("effective_from", "effective_form", r"cards\[0\].*did you mean 'effective_from'"),
        ("effective_from = 2026-10-24", "", r"cards\[0\].effective_from: must be a day"),
        ("effective_from = 2026-10-24", 'effective_from = "soon"', r"cards\[0\].effective_from: .*soon"),
        ("2026-10-24", "2026-10-24T00:00:00Z", r"cards\[0\].effective_from: must be a day"),
        ("2026-10-24", "2026-10-24\neffective_to = 2026-01-01", r"cards\[0\]: effective_to .* before"),
        ("2026-10-24", '2026-10-24\ntier = "fast"', r"cards\[0\].tier: must be one of standard, highspeed"),
        ("2026-10-24", '2026-10-24\nwrite_rule = "add"', r"cards\[0\].write_rule: .* replaces, adds"),
        ("2026-10-24", '2026-10-24\ncurrency = "CNY"', r"cards\[0\]: currency must be USD"),
        ("2026-10-24", "2026-10-24\nsources = 3", r"cards\[0\]: sources must be an array of tables"),
        ('seller = "moonshot"', 'seller = ""', r"cards\[0\].seller: must be a text"),
        ('seller = "moonshot"', "", r"cards\[0\].seller: must be a text"),
        ("[cards.rates]", "[cards.prices]", r"did you mean|unknown name 'prices'"),
        ("[[cards]]", "[[card]]", r"'card'; did you mean 'cards'"),
        ("[[cards]]", "[[cards", "not TOML"),
    ],
)
def test_a_wrong_card_is_refused_naming_file_and_field(tmp_path: Path, old: str, new: str, reason: str) -> None:
    text = MINIMAL.replace(old, new)
    assert text != MINIMAL
    (tmp_path / "mine.toml").write_text(text)

    with pytest.raises(CardError, match=rf"mine\.toml.*({reason})"):
        load_cards(tmp_path)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('checked_on = 2026-11-01\ncovers = ["input"]\nconfidence = "official"', "name: must be a text"),
        ('name = "a"\nchecked_on = 2026-11-01\ncovers = []\nconfidence = "official"', "covers: must list"),
        ('name = "a"\nchecked_on = 2026-11-01\ncovers = ["in"]\nconfidence = "official"', "covers: must be one"),
        ('name = "a"\nchecked_on = 2026-11-01\ncovers = ["input"]\nconfidence = "sure"', "confidence: must be"),
        ('name = "a"\nlink = ""', "unknown name 'link'"),
    ],
)
def test_a_wrong_source_is_refused_naming_its_place(source: str, reason: str) -> None:
    with pytest.raises(CardError, match=rf"f\.toml: cards\[0\]: sources\[0\].*{reason}"):
        parse_cards(f"{MINIMAL}[[cards.sources]]\n{source}\n", name="f.toml")


def test_a_file_without_cards_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("")

    with pytest.raises(CardError, match=r"empty\.toml: no cards"):
        load_cards(tmp_path)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'note = "\xe9"')

    with pytest.raises(CardError, match=r"latin\.toml: cannot be read as UTF-8"):
        load_cards(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CardError, match=r"absent.*not a folder"):
        load_cards(tmp_path / "absent")


def test_the_same_id_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a.toml", "b.toml"):
        (tmp_path / name).write_text(MINIMAL)

    with pytest.raises(CardError, match="two cards have the id"):
        load_cards(tmp_path)


def test_prices_of_a_book_are_exact_decimals() -> None:
    price = found(load_cards(), "moonshot", "kimi-k2.7-code").rates.in_usd()["input"]

    assert price == Decimal("0.95")


def test_the_pure_core_and_the_cards_load_only_the_standard_library() -> None:
    program = (
        "import sys; before = set(sys.modules);"
        "import pricing, pricing.money, pricing.usage, pricing.rates, pricing.cost, pricing.estimate;"
        "import pricing.cards;"
        "pricing.cards.load_cards();"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - sys.stdlib_module_names - {'pricing'}))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
