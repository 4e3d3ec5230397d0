"""Ledger rows at the cards in force on their day, beside what was booked. Pure.

Only what the gateway reckoned itself is reckoned anew. What a target's own prices or an upstream's report settled
stays, unless it is asked for; a target's prices have no dates, so they are the ones it states now.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pricing.advice.offers import StatedTarget
from pricing.advice.tariffs import Tariff, day_of, usage_of
from pricing.cost import cost_of
from pricing.ledger.row import LedgerRow
from pricing.rates import CardBook, Rates
from pricing.usage import TokenUsage

Also = Literal["target", "upstream"]
ALSO: Final[tuple[Also, ...]] = ("target", "upstream")
"""Where the cost of a row may come from that is left alone unless it is asked for."""

Left = Literal[
    "used_nothing", "under_way", "without_counts", "target", "upstream", "unknown_seller", "no_card", "no_price"
]
LEFT: Final[tuple[Left, ...]] = (
    "used_nothing",
    "under_way",
    "without_counts",
    "target",
    "upstream",
    "unknown_seller",
    "no_card",
    "no_price",
)
"""Why a row is left as it is."""

_SELLERS: Final = ("moonshot", "openrouter")
_RULE_MARK: Final = " writes="  # pricing.rates.Card.label
_TARGET_MARK: Final = "target:"


@dataclass(frozen=True, slots=True)
class Priced:
    """A row at the prices of now: which ones, and what comes of it, nano-dollars."""

    card: str
    nano: int


class Repricer:
    """Prices rows again. `targets` are those of the configuration; `also` says what else to price."""

    def __init__(self, book: CardBook, targets: Sequence[StatedTarget], also: Collection[Also]) -> None:
        self._book: Final = book
        self._sold: Final = {card.id: (card.seller, card.model) for card in book.cards}
        self._targets: Final = {target.name: target for target in targets}
        self._also: Final = frozenset(also)

    def price(self, row: LedgerRow) -> Priced | Left:
        """What the row costs at the card of its day, or why it is left alone."""
        reason = self._left(row)
        if reason is not None:
            return reason
        usage = usage_of(row)
        if usage is None:
            return "without_counts"
        if _is_by_target(row):
            rates = self._stated(row)
            if rates is not None:
                return _priced(
                    usage, Tariff(f"{_TARGET_MARK}{row.target}", "", rates), f"{_TARGET_MARK}{row.target}"
                )
        seller, model = self._seller(row)
        if not seller:
            return "unknown_seller"
        card = self._book.find(seller, model, day_of(row))
        if card is None:
            return "no_card"
        return _priced(usage, Tariff(seller, model, card.rates, card.write_rule), card.label)

    def _left(self, row: LedgerRow) -> Left | None:
        if row.status in ("open", "unsettled"):
            return "under_way"
        if row.cost_source == "none":
            return "used_nothing"
        if row.cost_source == "upstream":
            return None if "upstream" in self._also else "upstream"
        if _is_by_target(row):
            return None if "target" in self._also else "target"
        return None

    def _stated(self, row: LedgerRow) -> Rates | None:
        target = self._targets.get(row.target)
        return None if target is None else target.prices

    def _seller(self, row: LedgerRow) -> tuple[str, str]:
        """Whose card prices the row, and the seller's name of the model; an empty seller where that is unknown.

        A row without a card does not say whose it was: its target does, where the configuration has it, or where
        it is named like a seller, as targets from variables are. A host in another currency has no seller.
        """
        sold = self._sold.get(row.card.partition(_RULE_MARK)[0])
        if sold is not None:
            return sold
        last = row.attempts[-1] if row.attempts else None
        model = row.upstream_model or ("" if last is None else last.model)
        target = self._targets.get(row.target)
        if target is not None:
            return target.seller, model
        is_from_variable = last is not None and row.target == last.dialect and row.target in _SELLERS
        return (row.target if is_from_variable else ""), model


def _is_by_target(row: LedgerRow) -> bool:
    return row.card.startswith(_TARGET_MARK)


def _priced(usage: TokenUsage, tariff: Tariff, card: str) -> Priced | Left:
    nano = cost_of(usage, tariff.rates, write_rule=tariff.write_rule).nano
    return "no_price" if nano is None else Priced(card, nano)


@dataclass(slots=True)
class CardSums:
    """The requests that a card prices now. `booked_nano` has those of them whose booked cost was known."""

    requests: int = 0
    changed: int = 0
    unpriced_before: int = 0
    booked_nano: int = 0
    repriced_nano: int = 0


class RepriceSums:
    """What repricing found, by the card booked and the card now; it grows."""

    def __init__(self) -> None:
        self.by_card: Final[dict[tuple[str, str], CardSums]] = {}
        self.left: Final[Counter[Left]] = Counter()
        self.estimated = 0

    def add(self, row: LedgerRow, found: Priced | Left) -> bool:
        """Counts a row; true where it costs something else than what was booked."""
        if not isinstance(found, Priced):
            self.left[found] += 1
            return False
        sums = self.by_card.setdefault((_booked_at(row), found.card), CardSums())
        is_changed = found.nano != row.cost_nano
        sums.requests += 1
        sums.changed += is_changed
        sums.unpriced_before += row.cost_nano is None
        sums.booked_nano += row.cost_nano or 0
        sums.repriced_nano += found.nano
        self.estimated += row.estimated
        return is_changed

    @property
    def total(self) -> CardSums:
        """All cards together."""
        total = CardSums()
        for one in self.by_card.values():
            total.requests += one.requests
            total.changed += one.changed
            total.unpriced_before += one.unpriced_before
            total.booked_nano += one.booked_nano
            total.repriced_nano += one.repriced_nano
        return total

    @property
    def left_alone(self) -> Mapping[Left, int]:
        """How many rows were left as they are, by reason, in the order of `LEFT`."""
        return {reason: self.left[reason] for reason in LEFT}


def _booked_at(row: LedgerRow) -> str:
    """The name of what the row was booked at."""
    if row.cost_source == "upstream":
        return "reported by the upstream"
    return row.card or "no card"
