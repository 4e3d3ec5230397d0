"""Whose prices a ledger row was billed at, and what it used as disjoint meters."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

from pricing.ledger.row import LedgerRow
from pricing.rates import CardBook, Rates, WriteRule
from pricing.usage import TokenUsage

_RULE_MARK: Final = " writes="  # pricing.rates.Card.label
_TARGET_MARK: Final = "target:"  # a target's own prices


@dataclass(frozen=True, slots=True)
class Tariff:
    """Prices under their name: a seller's card, or what a target states for all its models (`seller` is
    `target:NAME` then, and `model` empty)."""

    seller: str
    model: str
    rates: Rates
    write_rule: WriteRule = "replaces"


class Tariffs:
    """The prices that rows name. `targets` has those that the configuration states, by target."""

    def __init__(self, book: CardBook, targets: Mapping[str, Rates]) -> None:
        self._book: Final = book
        self._cards: Final = {
            card.id: Tariff(card.seller, card.model, card.rates, card.write_rule) for card in book.cards
        }
        self._targets: Final = {
            f"{_TARGET_MARK}{name}": Tariff(f"{_TARGET_MARK}{name}", "", rates) for name, rates in targets.items()
        }
        self._found: dict[tuple[str, str, date], Tariff | None] = {}

    def of_row(self, row: LedgerRow) -> Tariff | None:
        """What the row was billed at; None where it names nothing that is still known."""
        if row.card.startswith(_TARGET_MARK):
            return self._targets.get(row.card)
        return self._cards.get(row.card.partition(_RULE_MARK)[0])

    def on_day(self, seller: str, model: str, day: date) -> Tariff | None:
        """The card in force on a day (UTC), None where there is none."""
        key = (seller, model, day)
        if key not in self._found:
            card = self._book.find(seller, model, day)
            self._found[key] = None if card is None else self._cards[card.id]
        return self._found[key]


def day_of(row: LedgerRow) -> date:
    """The day (UTC) on which the request began; prices are those of that day."""
    return datetime.fromtimestamp(row.started_at, UTC).date()


def usage_of(row: LedgerRow) -> TokenUsage | None:
    """The meters of a row; None where prompt or output are unknown. What the cache did may be unknown in it."""
    if row.prompt_tokens is None or row.completion_tokens is None:
        return None
    cached = (row.cached_tokens or 0) + (row.write_5m_tokens or 0) + (row.write_1h_tokens or 0)
    return TokenUsage(
        input=max(0, row.prompt_tokens - cached),
        output=row.completion_tokens,
        cache_read=row.cached_tokens,
        write_5m=row.write_5m_tokens,
        write_1h=row.write_1h_tokens,
        search=row.search_calls,
    )
