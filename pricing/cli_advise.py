"""`kimi-pricing advise-ttl`: which lifetime of the cache would have been the cheapest."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from pricing.advice.tariffs import Tariffs
from pricing.advice.ttl import DIMENSIONS, Choice, Clock, advise, refuse_unknown
from pricing.advise_view import Advised, print_advice_csv, print_advice_json, print_advice_table
from pricing.cards import load_cards
from pricing.cli_common import (
    Config,
    Journal,
    Ledger,
    Misuse,
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
from pricing.cli_targets import read_targets, target_rates
from pricing.render import Format, complain

_EXAMPLES: Final = """Examples:

\b
  kimi-pricing advise-ttl
  kimi-pricing advise-ttl --since 7d --by route,key
  kimi-pricing advise-ttl --by key --what-if 1h
  kimi-pricing advise-ttl --what-if none --format json
  kimi-pricing advise-ttl --gaps-from end --format csv"""


class WhatIf(StrEnum):
    """A choice to ask about."""

    five_minutes = "5m"
    one_hour = "1h"
    none = "none"


_CHOICES: Final[dict[WhatIf, Choice]] = {
    WhatIf.five_minutes: "5m",
    WhatIf.one_hour: "1h",
    WhatIf.none: "none",
}


class GapsFrom(StrEnum):
    """From when gaps and lifetimes count."""

    start = "start"
    end = "end"


def add_advise_ttl(app: typer.Typer) -> None:
    """Gives the program this command."""
    app.command("advise-ttl", epilog=_EXAMPLES)(advise_ttl)


def advise_ttl(
    ctx: typer.Context,
    by: Annotated[
        str, typer.Option(help=f"Advise for each of these, comma-separated: {', '.join(DIMENSIONS)}, tag:KEY.")
    ] = "route,key",
    what_if: Annotated[
        WhatIf | None, typer.Option(help="Also what everything would cost at this; none: without a cache.")
    ] = None,
    gaps_from: Annotated[
        GapsFrom, typer.Option(help="Count from the start of a request, or from the end of its answer.")
    ] = GapsFrom.start,
    since: Since = None,
    until: Until = None,
    output: Output = Format.table,
    config: Config = None,
    ledger: Ledger = None,
    journal: Journal = None,
) -> None:
    """Whether 5 minutes or 1 hour of cache would have cost less, from the gaps between uses of each prefix.

    The prompts of the ledger are played again: at 5m, at 1h, and at what each request asked for. Only requests
    whose row has a prefix, and whose prices have both lifetimes, say anything; the others are counted.
    """
    with complaints():
        at = now()
        first, end = instant(since, "--since", at), instant(until, "--until", at)
        given, places = given_places(ctx, Given(config, ledger, journal))
        tariffs = Tariffs(load_cards(places.cards_dir), target_rates(read_targets(given.config)))
        groups = _groups(by)
        with open_ledger(places) as books:
            clock: Clock = "end" if gaps_from is GapsFrom.end else "start"
            advice = advise(counted_rows(books.store, first, end), tariffs, by=groups, clock=clock)
            notes, warnings, name = books.notes, books.warnings, books.store.name
        asked = None if what_if is None else _CHOICES[what_if]
        advised = Advised(advice, asked, name, at, first, end)
    match output:
        case Format.json:
            print_advice_json(advised)
        case Format.csv:
            print_advice_csv(advised)
        case Format.table:
            print_advice_table(advised, notes)
            return
    for warning in warnings:
        complain(warning)


def _groups(by: str) -> list[str]:
    found = names(by, "--by")
    try:
        refuse_unknown(found)
    except ValueError as err:
        raise Misuse(f"--by: {err}") from err
    return found
