"""`kimi-pricing reprice`: the ledger's requests at the cards in force on their day, beside what was booked."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer

from pricing.cards import load_cards
from pricing.cli_common import (
    Config,
    Journal,
    Ledger,
    Output,
    Since,
    Until,
    complaints,
    counted_rows,
    given_places,
    instant,
    names,
    now,
)
from pricing.cli_ledger import open_ledger
from pricing.cli_settings import Given
from pricing.cli_targets import read_targets
from pricing.ledger.row import LedgerRow
from pricing.ledger.store import Store
from pricing.ledger.store.repricings import Repricing
from pricing.render import Format, complain
from pricing.reprice_view import Repriced, print_reprice_csv, print_reprice_json, print_reprice_table
from pricing.repricing import ALSO, Also, Priced, Repricer, RepriceSums

_AT_ONCE: Final = 1000

_EXAMPLES: Final = """Examples:

\b
  kimi-pricing reprice
  kimi-pricing reprice --since 2026-11-01 --until 2026-12-01 --format json
  kimi-pricing reprice --since 30d --also upstream
  kimi-pricing reprice --since 30d --apply"""


def add_reprice(app: typer.Typer) -> None:
    """Gives the program this command."""
    app.command("reprice", epilog=_EXAMPLES)(reprice)


def reprice(
    ctx: typer.Context,
    since: Since = None,
    until: Until = None,
    cards_dir: Annotated[
        Path | None, typer.Option(help="Folder of cards before the shipped ones. Default: [pricing] cards_dir.")
    ] = None,
    also: Annotated[
        str, typer.Option(help=f"Price these as well, with commas: {', '.join(ALSO)}; by default they stay.")
    ] = "",
    apply: Annotated[
        bool, typer.Option("--apply/--dry-run", help="Keep the repriced costs, or only show them (default).")
    ] = False,
    output: Output = Format.table,
    config: Config = None,
    ledger: Ledger = None,
    journal: Journal = None,
) -> None:
    """Requests priced again with the cards in force on their day; what was booked stays.

    With --apply the ledger keeps the repriced cost beside the booked one: `report --repriced` and `show` have it.
    Budgets count what was booked. What a target's own prices or an upstream's report settled is left alone.
    """
    with complaints():
        at = now()
        first, end = instant(since, "--since", at), instant(until, "--until", at)
        given, places = given_places(ctx, Given(config, ledger, journal))
        wanted: list[Also] = [name for name in ALSO if name in names(also, "--also", ALSO)]
        repricer = Repricer(load_cards(cards_dir or places.cards_dir), read_targets(given.config), wanted)
        sums = RepriceSums()
        with open_ledger(places) as books:
            rows = counted_rows(books.store, first, end)
            _reprice(rows, repricer, sums, books.store if apply else None, at.timestamp())
            notes, warnings, name = books.notes, books.warnings, books.store.name
        found = Repriced(sums, apply, name, at, first, end)
    match output:
        case Format.json:
            print_reprice_json(found)
        case Format.csv:
            print_reprice_csv(found)
        case Format.table:
            print_reprice_table(found, notes)
            return
    for warning in warnings:
        complain(warning)


def _reprice(
    rows: Iterable[LedgerRow], repricer: Repricer, sums: RepriceSums, store: Store | None, at_s: float
) -> None:
    """Sums up every row, and keeps in the store what differs from the booked cost; None keeps nothing."""
    changed: list[Repricing] = []
    same: list[str] = []
    for row in rows:
        found = repricer.price(row)
        if sums.add(row, found) and isinstance(found, Priced):
            changed.append(Repricing(row.request_id, found.card, found.nano, at_s))
        elif isinstance(found, Priced):
            same.append(row.request_id)
        if len(changed) + len(same) >= _AT_ONCE:
            _keep(store, changed, same)
    _keep(store, changed, same)


def _keep(store: Store | None, changed: list[Repricing], same: list[str]) -> None:
    """Writes what was gathered, and lets go of it."""
    if store is not None:
        store.repricings.put(changed, same)
    changed.clear()
    same.clear()
