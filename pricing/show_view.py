"""One request as a person reads it: what was asked, what happened when, what was used and what it cost."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from pricing.ledger.row import AttemptRecord, LedgerRow, LineRecord
from pricing.ledger.shown import instant_text, money_text, shown
from pricing.ledger.store.repricings import Repricing
from pricing.money import usd, usd_text
from pricing.render import UNKNOWN, console, count_text, price_text, print_csv, print_json, print_note, table, text

_GOOD: Final = "green"
_BAD: Final = "red"
_TOKENS_PER_PRICE: Final = 1_000_000
_METER_COLUMNS: Final = (
    ("cache_read", "cached_tokens"),
    ("write_5m", "write_5m_tokens"),
    ("write_1h", "write_1h_tokens"),
)


def row_object(row: LedgerRow, repricing: Repricing | None) -> dict[str, object]:
    """The row object; with what the request costs at other cards where `reprice --apply` kept that."""
    if repricing is None:
        return shown(row)
    return {
        **shown(row),
        "repriced_usd": usd_text(repricing.cost_nano),
        "repriced_card": repricing.card,
        "repriced_at": instant_text(repricing.at),
    }


def print_row_json(row: LedgerRow, repricing: Repricing | None = None) -> None:
    """Prints the row object."""
    print_json(row_object(row, repricing))


def print_row_csv(row: LedgerRow, repricing: Repricing | None = None) -> None:
    """Prints the row object as one line under its names."""
    values = row_object(row, repricing)
    print_csv(list(values), [values])


def print_row_table(row: LedgerRow, notes: Sequence[str], repricing: Repricing | None = None) -> None:
    """Prints everything the ledger knows about the request."""
    screen = console()
    screen.print(Text.assemble(text(row.request_id, "bold"), "  ", text(row.status, _status_style(row))))
    _print_pairs(screen, _about(row))
    _print_timeline(screen, row)
    _print_meters(screen, row)
    _print_pairs(screen, _money(row))
    if repricing is not None:
        cost, at = usd_text(repricing.cost_nano), instant_text(repricing.at)
        print_note(screen, f"repriced: {cost} USD at {repricing.card}, reckoned {at}; the booked cost stays")
    screen.print()
    for note in notes:
        screen.print(text(note, "dim"))


def _status_style(row: LedgerRow) -> str:
    return _GOOD if row.status == "ok" else "yellow" if row.status == "open" else _BAD


def _about(row: LedgerRow) -> Iterator[tuple[str, str]]:
    yield "started", instant_text(row.started_at)
    yield "key", row.key
    yield "tags", ", ".join(f"{tag}={value}" for tag, value in row.tags.items())
    yield "asked for", row.route
    upstream = f" (upstream: {row.upstream_model})" if row.upstream_model not in ("", row.model) else ""
    yield "answered by", f"{row.target}: {row.model}{upstream}" if row.target else ""
    ttl = f", cache TTL {row.ttl}" if row.ttl else ""
    yield "tier, effort", f"{row.tier}, {row.effort}{ttl}, {'streamed' if row.stream else 'folded'}"
    yield "outcome", row.outcome
    yield "adjusted", ", ".join(row.adjusted)
    yield "thinking", row.thinking
    yield "conversation", row.prefix
    yield "cache lost", _cache_loss(row)
    yield "anomaly", row.anomaly
    error = " / ".join(part for part in (row.error_type, row.error_code) if part)
    yield "error", f"{row.http_status} {error}: {row.message}" if error or row.message else ""
    yield "held by", row.owner if row.status in ("open", "unsettled") else ""


def _cache_loss(row: LedgerRow) -> str:
    """Why the cache was lost, how much of it, and what that cost."""
    if not row.cache_loss or row.cache_lost_tokens is None:
        return row.cache_loss
    cost = f"{usd_text(row.cache_lost_nano)} USD" if row.cache_lost_nano is not None else f"{UNKNOWN} USD"
    return f"{row.cache_loss}: {row.cache_lost_tokens:,} tokens that would have been read, {cost} more"


def _money(row: LedgerRow) -> Iterator[tuple[str, str]]:
    yield "cost", _cost(row)
    if row.table_cost_nano is not None:
        yield "by the card", f"{usd_text(row.table_cost_nano)} USD{_difference(row)}"
    yield "card", row.card
    if row.estimated:
        bound = money_text(row.estimate_bound_nano)
        yield "estimated", "no upstream reported tokens" + (f"; true cost within ± {bound} USD" if bound else "")
    if row.assumed:
        yield "assumed", "the split of cache writes by TTL is the requested one; the upstream did not report it"


def _cost(row: LedgerRow) -> str:
    if row.cost_nano is None:
        why = "no known price covers it" if row.cost_source == "unpriced" else "not settled"
        return f"{UNKNOWN} ({why})"
    sources = {"card": "rate card", "target": "the target's prices", "upstream": "reported by the upstream"}
    source = sources.get(row.cost_source, "nothing was used")
    return f"{usd_text(row.cost_nano)} USD ({source})"


def _difference(row: LedgerRow) -> str:
    if row.cost_nano is None or row.table_cost_nano is None or row.cost_nano == row.table_cost_nano:
        return ""
    return f" (difference {usd_text(row.cost_nano - row.table_cost_nano)})"


def _print_pairs(screen: Console, pairs: Iterator[tuple[str, str]]) -> None:
    grid = table([("", False), ("", False)])
    grid.show_header = False
    for name, value in pairs:
        if value:
            grid.add_row(Text(name, style="dim"), text(value))
    if grid.row_count:
        screen.print(grid)


def _print_timeline(screen: Console, row: LedgerRow) -> None:
    events = sorted(_events(row), key=lambda event: event[0])
    screen.print()
    grid = table([("ms", True), ("event", False)])
    for at_ms, event in events:
        grid.add_row(f"{at_ms:,}", text(event))
    screen.print(grid)
    screen.print()


def _events(row: LedgerRow) -> Iterator[tuple[int, str]]:
    yield 0, "request accepted"
    if row.wait_ms:
        yield row.wait_ms, f"waited {row.wait_ms:,} ms for a free place"
    for number, attempt in enumerate(row.attempts, 1):
        yield from _attempt_events(number, attempt)
    if row.ttft_ms is not None:
        yield row.ttft_ms, "first token to the client"
    if row.total_ms is not None:
        yield row.total_ms, f"settled: {row.status}"


def _attempt_events(number: int, attempt: AttemptRecord) -> Iterator[tuple[int, str]]:
    yield attempt.start_ms, f"attempt {number}: {attempt.target} ({attempt.dialect}), model {attempt.model}"
    if attempt.first_byte_ms is not None:
        yield attempt.first_byte_ms, f"attempt {number}: first byte"
    if attempt.end_ms is None:
        return
    parts = [f"attempt {number}: ended"]
    if attempt.status is not None:
        parts.append(f"status {attempt.status}")
    if attempt.fault:
        parts.append(f"fault {attempt.fault}{f' ({attempt.message})' if attempt.message else ''}")
    if attempt.maybe_billed:
        parts.append("may have been billed upstream")
    if attempt.upstream_id:
        parts.append(f"answer {attempt.upstream_id}")
    if attempt.upstream_request_id:
        parts.append(f"upstream request {attempt.upstream_request_id}")
    yield attempt.end_ms, ", ".join(parts)


def _print_meters(screen: Console, row: LedgerRow) -> None:
    grid = table([("meter", False), ("count", True), ("USD per 1M", True), ("USD", True)])
    for line in row.lines:
        grid.add_row(text(line.meter), f"{line.count:,}", _rate(line), _line_cost(line))
    priced = {line.meter for line in row.lines}
    for meter, column in _METER_COLUMNS:
        if meter not in priced and getattr(row, column) is None and row.prompt_tokens is not None:
            grid.add_row(text(meter), UNKNOWN, "", "")
    if not row.lines:
        grid.add_row(text("prompt"), count_text(row.prompt_tokens), "", "")
        grid.add_row(text("output"), count_text(row.completion_tokens), "", "")
    if row.reasoning_tokens is not None:
        grid.add_row(text("(reasoning, inside output)"), f"{row.reasoning_tokens:,}", "", "")
    screen.print(grid)
    screen.print()


def _rate(line: LineRecord) -> str:
    if line.rate is None:
        return UNKNOWN
    if line.meter == "search":
        return f"{usd_text(line.rate)} a call"
    return price_text(usd(line.rate * _TOKENS_PER_PRICE))


def _line_cost(line: LineRecord) -> str:
    return UNKNOWN if line.rate is None else usd_text(line.nano)
