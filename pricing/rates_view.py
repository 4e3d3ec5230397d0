"""Rate cards with their sources, as a table, JSON or CSV. Prices are USD per 1M tokens, search per call."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from pricing.grid import Grid
from pricing.rates import Card
from pricing.render import UNKNOWN, console, price_text, print_csv, print_json, print_note, table, text
from pricing.usage import METERS, Meter

_HEADS: Final = ("input", "cache read", "write 5m", "write 1h", "output", "per search")
_MARKS: Final = {"official": "", "second-hand": " *", "unverified": " ?"}


def card_object(card: Card) -> dict[str, object]:
    """The card as programs read it; prices are decimal strings, null where there is none."""
    prices = card.rates.in_usd()
    return {
        "id": card.id,
        "seller": card.seller,
        "model": card.model,
        "tier": card.tier,
        "currency": card.currency,
        "effective_from": card.effective_from.isoformat(),
        "effective_to": None if card.effective_to is None else card.effective_to.isoformat(),
        "write_rule": card.write_rule,
        "rates": {meter: _price(prices[meter]) for meter in METERS},
        "confidence": {meter: card.confidence(meter) for meter in METERS},
        "sources": [
            {
                "name": source.name,
                "url": source.url,
                "checked_on": source.checked_on.isoformat(),
                "covers": list(source.covers),
                "confidence": source.confidence,
            }
            for source in card.sources
        ],
        "note": card.note,
    }


def print_cards_json(cards: Sequence[Card]) -> None:
    """Prints `{"cards": [...]}`."""
    print_json({"cards": [card_object(card) for card in cards]})


def print_cards_csv(cards: Sequence[Card]) -> None:
    """Prints a line per card: a column per price and one for how sure each is."""
    rows = []
    for card in cards:
        values = card_object(card)
        for meter, price in card.rates.in_usd().items():
            values[f"{meter}_usd"] = _price(price)
            values[f"{meter}_confidence"] = card.confidence(meter)
        rows.append(values)
    prices = [f"{meter}_{what}" for meter in METERS for what in ("usd", "confidence")]
    days = ("effective_from", "effective_to", "write_rule")
    print_csv(("id", "seller", "model", "tier", "currency", *prices, *days, "sources", "note"), rows)


def print_cards_table(cards: Sequence[Card]) -> None:
    """Prints prices, validity, write rule and, under them, where each price was read."""
    screen = console()
    grid = _table(cards, with_terms=True)
    with_terms = grid.fits
    screen.print(grid if with_terms else _table(cards, with_terms=False))
    screen.print()
    print_note(screen, "USD per 1M tokens, search per call.  *: second-hand  ?: unverified  –: no price")
    for card in cards:
        _print_sources(
            card, "" if with_terms else f"tier {card.tier}, valid {_valid(card)}, cache writes {_rule(card)}"
        )


def _table(cards: Sequence[Card], *, with_terms: bool) -> Grid:
    """The prices; with the terms (tier, validity, write rule) where the page has room for them."""
    names = ["seller", "model", *(["tier"] if with_terms else [])]
    terms = ["valid", "cache writes"] if with_terms else []
    heads = [
        *((name, False) for name in names),
        *((head, True) for head in _HEADS),
        *((name, False) for name in terms),
    ]
    grid = table(heads)
    for card in cards:
        cells = [card.seller, card.model, *([card.tier] if with_terms else [])]
        cells += [_marked(card, meter) for meter in METERS]
        cells += [_valid(card), _rule(card)] if with_terms else []
        grid.add_row(*map(text, cells))
    return grid


def _valid(card: Card) -> str:
    return f"{card.effective_from} to {card.effective_to}" if card.effective_to else f"from {card.effective_from}"


def _rule(card: Card) -> str:
    return "replace input" if card.write_rule == "replaces" else "add to input"


def _print_sources(card: Card, terms: str) -> None:
    screen = console()
    screen.print()
    screen.print(text(card.id, "bold"))
    if terms:
        print_note(screen, terms, indent=2)
    for source in card.sources:
        covers = ", ".join(source.covers)
        print_note(screen, f"{source.confidence}: {source.name}, checked {source.checked_on} ({covers})", indent=2)
        if source.url:
            print_note(screen, source.url, indent=4)
    if card.note:
        print_note(screen, card.note, indent=2)


def _marked(card: Card, meter: Meter) -> str:
    price = _price(card.rates.in_usd()[meter])
    confidence = card.confidence(meter)
    return UNKNOWN if price is None or confidence is None else f"{price}{_MARKS[confidence]}"


def _price(price: Decimal | None) -> str | None:
    return None if price is None else price_text(price)
