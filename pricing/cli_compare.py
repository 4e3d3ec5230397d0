"""`kimi-pricing compare`: what the ledger's requests would have cost elsewhere."""

from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Final

import typer

from pricing.advice.compare import Comparison, compare
from pricing.advice.gpus import Alternative, GpuAssumptions, Load, gpu_answers
from pricing.advice.tariffs import Tariffs
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
from pricing.compare_table import print_comparison_table
from pricing.compare_view import Compared, print_comparison_csv, print_comparison_json
from pricing.money import nano_from_usd
from pricing.render import Format, complain

_GPUS: Final = 8
_S_PER_HOUR: Final = 3600

_EXAMPLES: Final = """Examples:

\b
  kimi-pricing compare
  kimi-pricing compare --since 7d --format json
  kimi-pricing compare --gpu-usd-per-hour 2.50,4.00 --gpus 8
  kimi-pricing compare --gpu-usd-per-hour 3 --gpu-input-tokens-per-s 20000 --gpu-output-tokens-per-s 2000"""


def add_compare(app: typer.Typer) -> None:
    """Gives the program this command."""
    app.command("compare", epilog=_EXAMPLES)(compare_prices)


def compare_prices(
    ctx: typer.Context,
    since: Since = None,
    until: Until = None,
    gpu_usd_per_hour: Annotated[
        str, typer.Option(help="What a GPU of one's own costs per hour; several with commas.")
    ] = "",
    gpus: Annotated[
        int, typer.Option(help="GPUs that serve the model together; the public launch recipe starts at 8.", min=1)
    ] = _GPUS,
    gpu_input_tokens_per_s: Annotated[
        int | None, typer.Option(help="Fresh prompt tokens a second that they all do together.", min=1)
    ] = None,
    gpu_output_tokens_per_s: Annotated[
        int | None, typer.Option(help="Output tokens a second that they all do together.", min=1)
    ] = None,
    output: Output = Format.table,
    config: Config = None,
    ledger: Ledger = None,
    journal: Journal = None,
) -> None:
    """The ledger's requests at the prices of Pro, Highspeed, OpenRouter and GPUs of one's own.

    A cache does not move: each sum is given with all reads kept and with all of them fresh again. Also what a
    second costs that Highspeed saves, and from how many tokens an hour on own GPUs are cheaper. Nothing is known
    of your GPUs but what you say.
    """
    with complaints():
        at = now()
        first, end = instant(since, "--since", at), instant(until, "--until", at)
        assumed = _assumed(gpu_usd_per_hour, gpus, gpu_input_tokens_per_s, gpu_output_tokens_per_s)
        given, places = given_places(ctx, Given(config, ledger, journal))
        tariffs = Tariffs(load_cards(places.cards_dir), target_rates(read_targets(given.config)))
        with open_ledger(places) as books:
            found = compare(counted_rows(books.store, first, end), tariffs)
            notes, warnings, name = books.notes, books.warnings, books.store.name
        load = _load(found, first, end)
        answers = [] if assumed is None else gpu_answers(load, assumed, _alternatives(found))
        compared = Compared(found, load, assumed, answers, name, at, first, end)
    match output:
        case Format.json:
            print_comparison_json(compared)
        case Format.csv:
            print_comparison_csv(compared)
        case Format.table:
            print_comparison_table(compared, notes)
            return
    for warning in warnings:
        complain(warning)


def _assumed(prices: str, gpus: int, input_tps: int | None, output_tps: int | None) -> GpuAssumptions | None:
    gpu_nano = tuple(_gpu_price(price) for price in names(prices, "--gpu-usd-per-hour"))
    if not gpu_nano:
        if input_tps or output_tps:
            raise Misuse("throughput says nothing without --gpu-usd-per-hour; give the price of a GPU as well")
        return None
    if (input_tps is None) != (output_tps is None):
        raise Misuse("give both --gpu-input-tokens-per-s and --gpu-output-tokens-per-s, or neither")
    return GpuAssumptions(gpu_nano, gpus, input_tps, output_tps)


def _gpu_price(price: str) -> int:
    try:
        nano = nano_from_usd(Decimal(price))
    except (InvalidOperation, ValueError) as err:
        raise Misuse(f"--gpu-usd-per-hour: {price!r} is no price; write US dollars such as 2.50") from err
    if nano <= 0:
        raise Misuse(f"--gpu-usd-per-hour: a price above 0 was expected, not {price}")
    return nano


def _load(found: Comparison, since: datetime | None, until: datetime | None) -> Load:
    """What GPUs would have had to do. Hours count from the period's ends, where not given from the requests'."""
    first = found.first_s if since is None else since.timestamp()
    last = found.last_s if until is None else until.timestamp()
    hours = 0
    if first is not None and last is not None and found.compared:
        hours = max(1, -int(-(last - first) // _S_PER_HOUR))
    usage = found.usage
    read = usage.cache_read or 0
    return Load(usage.prompt - read, read, usage.output, hours)


def _alternatives(found: Comparison) -> list[Alternative]:
    booked = found.booked
    return [
        Alternative("as booked", booked.tokens, booked.kept_nano, booked.lost_nano),
        *(
            Alternative(one.scenario.name, one.sums.tokens, one.sums.kept_nano, one.sums.lost_nano)
            for one in found.elsewhere
        ),
    ]
