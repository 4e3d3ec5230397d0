"""Where a request could go and at which prices: the sellers of its model, by tier and lifetime of cache writes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final, Literal

from pricing.rates import TIERS, Card, CardBook, Rates, Tier, WriteRule
from pricing.usage import METERS, Meter, Ttl

DEFAULT_MODEL: Final = "kimi-k3.1-pro"
TTLS: Final[tuple[Ttl, ...]] = ("5m", "1h")

_MAKER: Final = "moonshotai/"
_FAST: Final = "-highspeed"

OfferTtl = Literal["5m", "1h", ""]


@dataclass(frozen=True, slots=True)
class Offer:
    """Prices to estimate with. `ttl` is "" where the seller has no price per lifetime; `rates` None: no price.

    `unverified` names the meters whose price no page of the seller's is known to state.
    """

    seller: str
    model: str
    tier: Tier
    ttl: OfferTtl
    rates: Rates | None
    write_rule: WriteRule = "replaces"
    card: str = ""
    unverified: tuple[Meter, ...] = ()
    note: str = ""

    @property
    def label(self) -> str:
        """Seller, tier and lifetime in a few words."""
        return " ".join(part for part in (self.seller, self.tier, self.ttl) if part)

    @property
    def write_meter(self) -> Meter:
        """The meter of prompt tokens that are written to the cache; `input` where no lifetime has a price."""
        match self.ttl:
            case "5m":
                return "write_5m"
            case "1h":
                return "write_1h"
            case _:
                return "input"


@dataclass(frozen=True, slots=True)
class StatedTarget:
    """A target as the configuration states it. `models` are the public names it maps, none: its dialect's.

    `seller` is whose cards price it, "" where nobody's do. `prices` replace the card whole.
    """

    name: str
    seller: str
    models: tuple[str, ...] = ()
    prices: Rates | None = None


def family_of(model: str) -> str:
    """The model without its maker and its tier, in lower case: what all sellers of it have in common."""
    return model.lower().removeprefix(_MAKER).removesuffix(_FAST)


def tier_of(model: str) -> Tier:
    """The tier that a model's name asks for."""
    return "highspeed" if model.lower().endswith(_FAST) else "standard"


def card_offers(book: CardBook, family: str, day: date) -> list[Offer]:
    """Every seller's card for a family in force on a day, each with the lifetimes that it prices."""
    cards = [card for card in book.in_force(day) if family_of(card.model) == family]
    # The standard tier first: it is what most requests take.
    cards.sort(key=lambda card: (card.seller, card.tier != "standard", card.model))
    return [offer for card in cards for offer in _of_card(card)]


def target_offers(target: StatedTarget, book: CardBook, family: str, day: date) -> list[Offer]:
    """What a target charges for a family: its own prices, else its seller's cards, else an offer without price."""
    mapped = [model for model in target.models if family_of(model) == family]
    if target.models and not mapped:
        return []
    name = f"target:{target.name}"
    if target.prices is not None:
        asked = {tier_of(model) for model in mapped} or {"standard"}
        tiers = [tier for tier in TIERS if tier in asked]
        ttls = _ttls(target.prices)
        return [Offer(name, family, tier, ttl, target.prices, card=name) for tier in tiers for ttl in ttls]
    offers = [offer for offer in card_offers(book, family, day) if offer.seller == target.seller]
    if target.seller and offers:
        return offers
    return [Offer(name, family, "standard", "", None, note="no card and no prices: tokens only")]


def chosen(
    offers: Iterable[Offer],
    *,
    tiers: Sequence[str] = (),
    ttls: Sequence[str] = (),
    sellers: Sequence[str] = (),
) -> list[Offer]:
    """The offers that were asked for; empty means all. One without lifetimes is kept whatever lifetime is."""
    return [
        offer
        for offer in offers
        if (not tiers or offer.tier in tiers)
        and (not ttls or not offer.ttl or offer.ttl in ttls)
        and (not sellers or offer.seller in sellers)
    ]


def _of_card(card: Card) -> list[Offer]:
    unverified = tuple(meter for meter in METERS if card.confidence(meter) == "unverified")
    return [
        Offer(card.seller, card.model, card.tier, ttl, card.rates, card.write_rule, card.label, unverified)
        for ttl in _ttls(card.rates)
    ]


def _ttls(rates: Rates) -> list[OfferTtl]:
    priced: list[OfferTtl] = []
    if rates.write_5m is not None:
        priced.append("5m")
    if rates.write_1h is not None:
        priced.append("1h")
    return priced or [""]
