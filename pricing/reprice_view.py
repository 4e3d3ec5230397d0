"""What repricing found, as a table, JSON or CSV. Money is exact, as decimal strings; null is unknown, never 0."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pricing.ledger.shown import instant_text
from pricing.money import usd_text
from pricing.render import console, print_csv, print_json, print_note, table, text
from pricing.repricing import CardSums, Left, RepriceSums

_LEFT: Final[dict[Left, str]] = {
    "used_nothing": "used nothing",
    "under_way": "under way or unsettled",
    "without_counts": "without token counts",
    "target": "priced by their target; `--also target` prices them as well",
    "upstream": "priced by their upstream's report; `--also upstream` prices them as well",
    "unknown_seller": "of a target that is not in the configuration, so that nobody knows whose prices apply",
    "no_card": "without a card for their model on their day",
    "no_price": "with a meter that their card has no price for",
}


@dataclass(frozen=True, slots=True)
class Repriced:
    """What was found, for which time, and whether it was written."""

    sums: RepriceSums
    applied: bool
    ledger: str
    as_of: datetime
    since: datetime | None
    until: datetime | None


def reprice_object(found: Repriced) -> dict[str, object]:
    """The result as programs read it."""
    total = found.sums.total
    return {
        "ledger": found.ledger,
        "as_of": instant_text(found.as_of.timestamp()),
        "since": None if found.since is None else instant_text(found.since.timestamp()),
        "until": None if found.until is None else instant_text(found.until.timestamp()),
        "applied": found.applied,
        **_sums_object(total),
        "estimated": found.sums.estimated,
        "left_alone": dict(found.sums.left_alone),
        "cards": [
            {"booked_at": booked_at, "card": card, **_sums_object(sums)}
            for (booked_at, card), sums in sorted(found.sums.by_card.items())
        ],
    }


def _sums_object(sums: CardSums) -> dict[str, object]:
    return {
        "requests": sums.requests,
        "changed": sums.changed,
        "unpriced_before": sums.unpriced_before,
        "booked_usd": usd_text(sums.booked_nano),
        "repriced_usd": usd_text(sums.repriced_nano),
        "difference_usd": usd_text(sums.repriced_nano - sums.booked_nano),
    }


def print_reprice_json(found: Repriced) -> None:
    """Prints the result object."""
    print_json(reprice_object(found))


def print_reprice_csv(found: Repriced) -> None:
    """Prints a line per card booked and card now."""
    names = ("booked_at", "card", *_sums_object(CardSums()))
    rows = [
        {"booked_at": booked_at, "card": card, **_sums_object(sums)}
        for (booked_at, card), sums in sorted(found.sums.by_card.items())
    ]
    print_csv(names, rows)


def print_reprice_table(found: Repriced, notes: Sequence[str]) -> None:
    """Prints the sums by card, and what a reader must know to trust them."""
    screen = console()
    for (booked_at, card), sums in sorted(found.sums.by_card.items()):
        screen.print(text(f"booked at {booked_at}"))
        screen.print(text(f"now at    {card}"))
        screen.print(_grid([sums]))
        screen.print()
    if len(found.sums.by_card) != 1:
        screen.print(text("all"))
        screen.print(_grid([found.sums.total]))
        screen.print()
    for note in (*_notes(found), *notes):
        print_note(screen, note)


def _grid(rows: Sequence[CardSums]) -> object:
    columns = ("requests", "changed", "booked USD", "repriced USD", "difference")
    grid = table([(name, True) for name in columns])
    for sums in rows:
        grid.add_row(
            f"{sums.requests:,}",
            f"{sums.changed:,}",
            usd_text(sums.booked_nano),
            usd_text(sums.repriced_nano),
            signed(sums.repriced_nano - sums.booked_nano),
        )
    return grid


def signed(nano: int) -> str:
    """Money with its sign, so that more and less can be told apart."""
    return f"+{usd_text(nano)}" if nano > 0 else usd_text(nano)


def _notes(found: Repriced) -> Iterator[str]:
    since = "the beginning" if found.since is None else instant_text(found.since.timestamp())
    until = "now" if found.until is None else f"{instant_text(found.until.timestamp())} (not included)"
    yield f"requests from {since} to {until}, by start, UTC; each at the card in force on its day"
    total = found.sums.total
    if found.applied:
        yield f"{total.changed:,} repriced costs kept beside the booked ones; `report --repriced` shows them"
    else:
        yield "dry run: nothing was written; --apply keeps the repriced costs beside the booked ones"
    if total.unpriced_before:
        yield f"{total.unpriced_before:,} had no price before; their booked cost is unknown and counts as 0 here"
    if found.sums.estimated:
        yield f"{found.sums.estimated:,} estimated: nobody reported their tokens"
    for reason, count in found.sums.left_alone.items():
        if count:
            yield f"{count:,} left alone: {_LEFT[reason]}"
