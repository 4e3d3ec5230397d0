"""From what an answer used to its ledger row: measured where the upstream reported, estimated where it did not.

Pure: the exchange hands in what it saw, this module prices it. The rate is that of the model that answered.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from typing import TypeAlias

from backends.dialect import Dialect
from backends.json import JsonObject
from backends.usage import Measured, read_usage
from kimi_gateway.errors import GatewayError
from pricing.cost import Cost, cost_of
from pricing.estimate import Estimate, estimate_cost
from pricing.ledger.row import CostSource, LedgerRow, LineRecord, Status
from pricing.money import NANO
from pricing.rates import CardBook, Rates, WriteRule


@dataclass(frozen=True, slots=True)
class PriceTag:
    """The rates one answer is billed at. `rates` None: nobody's price is known."""

    rates: Rates | None
    card: str = ""
    source: CostSource = "unpriced"
    write_rule: WriteRule = "replaces"


@dataclass(frozen=True, slots=True)
class Estimated:
    """Tokens that nobody reported: counted from bytes, with bounds."""

    prompt: Estimate
    output: Estimate
    anomaly: tuple[str, ...] = ()  # what was wrong with the report that there was


Used: TypeAlias = Measured | Estimated
"""What one answer used: reported by the upstream, or estimated."""


def price_tag(
    target_name: str,
    target_prices: Rates | None,
    *,
    seller: str,
    model: str,
    at_s: float,
    cards: CardBook,
) -> PriceTag:
    """The rates for a model of a seller at a moment; a target's own prices replace the card whole."""
    if target_prices is not None:
        return PriceTag(target_prices, card=f"target:{target_name}", source="target")
    card = cards.find(seller, model, datetime.fromtimestamp(at_s, UTC).date()) if seller else None
    if card is None:
        return PriceTag(None)
    return PriceTag(card.rates, card=card.label, source="card", write_rule=card.write_rule)


def seller_of(dialect: Dialect, base_url_host: str) -> str:
    """Whose card applies: the dialect's seller, unless the host bills in another currency."""
    if dialect.other_currency_suffixes and base_url_host.endswith(dialect.other_currency_suffixes):
        return ""
    return dialect.seller


def doubts(measured: Measured, delivered_bytes: int) -> tuple[str, ...]:
    """What makes a report unfit to bill by, by name; empty for one that can be true.

    A report without a prompt, or with no output although text came, claims that something was free.
    """
    if not measured.is_complete:
        return measured.anomaly or ("usage_incomplete",)
    if not measured.prompt_tokens or (delivered_bytes and not measured.completion_tokens):
        return (*measured.anomaly, "usage_zero")
    return ()


def measured_use(raw: JsonObject, dialect: Dialect, headers: Mapping[str, str], ttl: str) -> Measured:
    """What the upstream reported."""
    return read_usage(raw, dialect=dialect, headers=headers, ttl=ttl)


def book(row: LedgerRow, used: Used | None, tag: PriceTag) -> None:
    """Writes tokens and money into the row. `used` None: nothing reached a model, so nothing is owed."""
    if used is None:
        row.cost_nano, row.cost_source = 0, "none"
        return
    row.card, row.cost_source = tag.card, tag.source
    if isinstance(used, Measured):
        cost = cost_of(used.usage, tag.rates, write_rule=tag.write_rule) if tag.rates is not None else None
        _book_cost(row, cost)
        _book_measured(row, used, cost)
        return
    row.estimated, row.prompt_tokens, row.completion_tokens = True, used.prompt.tokens, used.output.tokens
    note(row, used.anomaly)
    if tag.rates is None:
        _book_cost(row, None)
        return
    estimate = estimate_cost(used.prompt, used.output, tag.rates, write_rule=tag.write_rule)
    _book_cost(row, estimate.cost)
    row.estimate_bound_nano = estimate.bound_nano


def book_unknown(row: LedgerRow, reason: str) -> None:
    """Books that what was used cannot be told: no tokens, no cost, the reason as an anomaly."""
    row.prompt_tokens = row.completion_tokens = row.cached_tokens = row.reasoning_tokens = None
    row.write_5m_tokens = row.write_1h_tokens = row.cost_nano = row.table_cost_nano = None
    row.lines, row.cost_source, row.estimate_bound_nano = [], "unpriced", None
    note(row, (f"unaccountable_{reason}",))


def _book_cost(row: LedgerRow, cost: Cost | None) -> None:
    row.cost_nano = cost.nano if cost is not None else None
    row.lines = [LineRecord(line.meter, line.count, line.rate, line.nano) for line in cost.lines] if cost else []
    if row.cost_nano is None:
        row.cost_source = "unpriced"


def _book_measured(row: LedgerRow, measured: Measured, cost: Cost | None) -> None:
    usage = measured.usage
    anomalies = list(measured.anomaly)
    row.estimated, row.estimate_bound_nano, row.assumed = False, None, measured.assumed
    row.prompt_tokens, row.completion_tokens = measured.prompt_tokens, measured.completion_tokens
    row.cached_tokens, row.reasoning_tokens = usage.cache_read, usage.reasoning
    row.write_5m_tokens, row.write_1h_tokens = usage.write_5m, usage.write_1h
    row.search_calls = usage.search
    reported = measured.charged
    if reported is not None:
        nano = reported * NANO
        whole = nano.quantize(Decimal(1), rounding=ROUND_HALF_EVEN)
        if whole != nano:
            anomalies.append("cost_below_nano")
        row.cost_nano, row.cost_source = int(whole), "upstream"
        row.table_cost_nano = cost.nano if cost is not None else None
    note(row, anomalies)


def note(row: LedgerRow, anomalies: Iterable[str]) -> None:
    """Adds the names that the row does not have yet."""
    row.anomaly = ",".join(dict.fromkeys((*filter(None, row.anomaly.split(",")), *anomalies)))


def used_tokens(row: LedgerRow) -> int | None:
    """The tokens of prompt and answer; None where no upstream has said, 0 where nothing reached a model."""
    if row.cost_source == "none":
        return 0
    if row.estimated or row.prompt_tokens is None or row.completion_tokens is None:
        return None
    return row.prompt_tokens + row.completion_tokens


def http_status(status: Status, error: GatewayError | None) -> int:
    """The status that the client got, or would have; 499 where it had left."""
    if error is not None:
        return error.status
    return 200 if status == "ok" else 499
