"""What a token costs: rates in nano-dollars, dated cards that state them with their sources, the book of cards.

A released card is never edited: a new price is a new card with a later start. Pure; `pricing.cards` reads files.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from typing import Final, Literal

from pricing.money import nano_from_usd, nano_per_token, usd
from pricing.usage import METERS, Meter

Tier = Literal["standard", "highspeed"]
TIERS: Final[tuple[Tier, ...]] = ("standard", "highspeed")

WriteRule = Literal["replaces", "adds"]
WRITE_RULES: Final[tuple[WriteRule, ...]] = ("replaces", "adds")
"""Whether a cache-write price stands instead of the input price of those tokens or on top of it. Quotes of the
vendor's caching guide say instead; its price page says "retention", which can be read either way."""

Confidence = Literal["official", "second-hand", "unverified"]
CONFIDENCES: Final[tuple[Confidence, ...]] = ("official", "second-hand", "unverified")
"""`official`: the seller's own page. `second-hand`: others quote that page. `unverified`: others state it, and
no page of the seller's is known to."""

_TOKENS_PER_PRICE = 1_000_000
_PRICE_DIGITS_MAX = 18
_PRICE_USD_MAX = Decimal(1_000_000)
"""Far above any price, and low enough that every product with a token count stays within 64 bits."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Nano-dollars per token (`search`: per call). None means that there is no price, never that it is free.

    Raises `ValueError` for a negative rate.
    """

    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    write_5m: int | None = None
    write_1h: int | None = None
    search: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            rate = getattr(self, field.name)
            if rate is not None and rate < 0:
                raise ValueError(f"{field.name} must be zero or more nano-dollars per token, not {rate}")

    @classmethod
    def from_usd(cls, prices: Mapping[str, object]) -> "Rates":
        """Rates for prices in USD per 1M tokens (`search`: USD per call), given as decimal strings.

        Whole numbers and `Decimal` are taken as well; binary floats are not, because they are already bent.
        Raises `ValueError` that names the field: an unknown meter, not a price, or not whole nano-dollars.
        """
        rates: dict[str, int] = {}
        for name, price in prices.items():
            if name not in METERS:
                raise ValueError(unknown_name(name, METERS))
            try:
                rates[name] = _nano(price, per_call=name == "search")
            except ValueError as err:
                raise ValueError(f"{name}: {err}") from err
        return cls(**rates)

    def of(self, meter: Meter) -> int | None:
        """The rate stated for one meter, None where there is none. What is billed then: `pricing.cost`."""
        rate: int | None = getattr(self, meter)
        return rate

    def in_usd(self) -> dict[Meter, Decimal | None]:
        """Exact prices by meter in USD per 1M tokens, `search` in USD per call; None where there is none."""
        prices: dict[Meter, Decimal | None] = {}
        for meter in METERS:
            rate = self.of(meter)
            per_price = 1 if meter == "search" else _TOKENS_PER_PRICE
            prices[meter] = None if rate is None else usd(rate * per_price)
        return prices


def _nano(price: object, *, per_call: bool) -> int:
    if isinstance(price, bool) or not isinstance(price, str | int | Decimal):
        raise ValueError(f'write the price as a decimal string such as "2.00", not {price!r}')
    try:
        value = Decimal(price)
    except InvalidOperation as err:
        raise ValueError(f'{price!r} is not a price; write a decimal string such as "2.00"') from err
    if not value.is_finite() or not 0 <= value <= _PRICE_USD_MAX:
        raise ValueError(f"{price} is not a price between 0 and {_PRICE_USD_MAX} USD")
    if len(value.as_tuple().digits) > _PRICE_DIGITS_MAX:  # Decimal arithmetic would round it without a word
        raise ValueError(f"{price} has more than {_PRICE_DIGITS_MAX} digits")
    return nano_from_usd(value) if per_call else nano_per_token(value)


def unknown_name(name: str, known: Iterable[str]) -> str:
    """A message about a name that is not among the known ones, with the closest of them as a suggestion."""
    names = list(known)
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(names)}"
    return f"unknown name {name!r}; {hint}"


@dataclass(frozen=True, slots=True)
class Source:
    """Where prices were read: on which day, for which meters, and how good the source is."""

    name: str
    checked_on: date
    covers: tuple[Meter, ...]
    confidence: Confidence
    url: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """The prices of one seller for one model from one day on. Days are UTC, `effective_to` is the last one.

    Raises `ValueError` where the last day lies before the first or the currency is not USD.
    """

    id: str
    seller: str
    model: str  # the seller's own name of it
    rates: Rates
    effective_from: date
    effective_to: date | None = None
    tier: Tier = "standard"
    currency: str = "USD"
    write_rule: WriteRule = "replaces"
    sources: tuple[Source, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        if self.effective_to is not None and self.effective_to < self.effective_from:
            raise ValueError(f"effective_to {self.effective_to} lies before effective_from {self.effective_from}")
        if self.currency != "USD":
            raise ValueError(f"currency must be USD, not {self.currency!r}: other money is never added to dollars")

    @property
    def label(self) -> str:
        """The id with the write rule: what a ledger row names as its card."""
        return f"{self.id} writes={self.write_rule}"

    def covers(self, on: date) -> bool:
        """Whether the card is valid on this day. A later card may still supersede it: `CardBook.find`."""
        return self.effective_from <= on and (self.effective_to is None or on <= self.effective_to)

    def confidence(self, meter: Meter) -> Confidence | None:
        """How good the best source for a meter is: `unverified` without any; None where it has no price."""
        if self.rates.of(meter) is None:
            return None
        found = {source.confidence for source in self.sources if meter in source.covers}
        return next((grade for grade in CONFIDENCES if grade in found), "unverified")


class CardBook:
    """All cards and the question which one is in force. Immutable.

    `added` cards stand before the `shipped` ones: one with the same id replaces it, and one for the same seller
    and model wins on every day that both are valid. Among equals the later start wins.
    Raises `ValueError` for two cards with one id in the same collection.
    """

    __slots__ = ("_by_model", "cards")

    def __init__(self, shipped: Iterable[Card], added: Iterable[Card] = ()) -> None:
        own = _newest_first(added)
        replaced = {card.id for card in own}
        rest = [card for card in _newest_first(shipped) if card.id not in replaced]
        self.cards: Final[tuple[Card, ...]] = (*own, *rest)
        self._by_model: dict[tuple[str, str], list[Card]] = {}
        for card in self.cards:
            self._by_model.setdefault((card.seller, card.model), []).append(card)

    def find(self, seller: str, model: str, on: date) -> Card | None:
        """The card in force on a day (UTC); None where that seller has no price for that model then."""
        return next((card for card in self._by_model.get((seller, model), ()) if card.covers(on)), None)

    def in_force(self, on: date) -> tuple[Card, ...]:
        """The card that `find` gives, for every seller and model that has one on this day; sorted by name."""
        found = (self.find(seller, model, on) for seller, model in sorted(self._by_model))
        return tuple(card for card in found if card is not None)


def _newest_first(cards: Iterable[Card]) -> list[Card]:
    ordered = sorted(cards, key=lambda card: (card.effective_from, card.id), reverse=True)
    seen: set[str] = set()
    for card in ordered:
        if card.id in seen:
            raise ValueError(f"two cards have the id {card.id!r}; give one of them another id or another start")
        seen.add(card.id)
    return ordered
