"""The comparison for people: what was booked, what it would be elsewhere, seconds bought, GPUs of one's own."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from pricing.advice.compare import Comparison, Left
from pricing.advice.gpus import GpuAnswer, GpuAssumptions, busiest, capacity_tokens_per_hour
from pricing.advice.speed import SpeedAnswer, Trade
from pricing.compare_view import Compared, thousandths
from pricing.ledger.shown import instant_text
from pricing.money import usd_text
from pricing.render import UNKNOWN, console, print_note, table, text

_LEFT: Final[dict[Left, str]] = {
    "used_nothing": "used nothing",
    "under_way": "under way or unsettled",
    "without_counts": "without token counts",
}


def print_comparison_table(compared: Compared, notes: Sequence[str]) -> None:
    """Prints each part of the comparison, and what a reader must know to trust it."""
    screen = console()
    found = compared.found
    screen.print(_places(found))
    screen.print()
    for line in (*_reported(found), *_speed(found.speed)):
        screen.print(text(line))
    screen.print()
    if compared.assumed is None:
        screen.print(text("Own GPUs: give --gpu-usd-per-hour (and --gpus) to have them compared."))
    else:
        for line in _assumptions(compared, compared.assumed):
            screen.print(text(line))
        screen.print(_gpus(compared.gpus))
        screen.print(_break_even(compared.gpus))
    screen.print()
    for note in (*_period(compared), *_doubts(found), *notes):
        print_note(screen, note)


def _places(found: Comparison) -> object:
    columns = [("requests", True), ("USD", True), ("against booked", True), ("no price", True)]
    grid = table([("where", False), ("cache", False), *columns])
    grid.add_row("as booked", "", f"{found.booked.requests:,}", usd_text(found.booked.kept_nano), "", "")
    for one in found.elsewhere:
        moved = one.sums.kept_nano != one.sums.lost_nano
        cases = [("kept" if moved else "any", one.sums.kept_nano, one.of_booked.kept_nano)]
        if moved:
            cases.append(("lost", one.sums.lost_nano, one.of_booked.lost_nano))
        for cache, nano, against in cases:
            known = bool(one.sums.requests)
            grid.add_row(
                text(one.scenario.name),
                cache,
                f"{one.sums.requests:,}",
                usd_text(nano) if known else UNKNOWN,
                signed(against - one.booked_nano) if known else UNKNOWN,
                f"{one.without_price:,}" if one.without_price else "",
            )
    return grid


def signed(nano: int) -> str:
    """Money with its sign, so that more and less can be told apart."""
    return f"+{usd_text(nano)}" if nano > 0 else usd_text(nano)


def _reported(found: Comparison) -> Iterator[str]:
    one = found.reported
    if one.requests:
        yield f"Reported by the upstream: {usd_text(one.reported_nano)} USD; requests {one.requests:,},"
        difference = f"difference {signed(one.reported_nano - one.table_nano)}"
        yield f"  {one.differing:,} differ from the card, which says {usd_text(one.table_nano)}: {difference}"


def _speed(speed: SpeedAnswer) -> Iterator[str]:
    if speed.basis == "measured":
        yield f"Highspeed: {thousandths(speed.factors[0]):f} times as fast as standard, measured in this ledger"
    else:
        yield "Highspeed: 2 to 3 times as fast, as the vendor states; not measured here"
    for name, tier in (("standard", speed.standard), ("highspeed", speed.highspeed)):
        if tier.tokens_per_s is not None:
            yield (
                f"  {name}: {tier.output_tokens:,} tokens in {thousandths(Fraction(tier.output_ms, 1000)):f} s, "
                f"{thousandths(tier.tokens_per_s):f}/s; requests {tier.requests:,}"
            )
    yield from _trade("standard requests on Highspeed", speed.if_moved)
    yield from _trade("Highspeed requests, as used", speed.as_used)


def _trade(name: str, trade: Trade) -> Iterator[str]:
    if not trade.requests:
        return
    money = _range(*(usd_text(nano) for nano in trade.extra_nano))
    yield f"  {name}: {money} USD more"
    if trade.nano_per_s is None:
        yield "    saves no time: Highspeed was not faster here"
        return
    seconds = _range(*(f"{thousandths(value):f}" for value in trade.saved_s))
    per_s = _range(*(usd_text(round(nano)) for nano in trade.nano_per_s))
    yield f"    saves {seconds} s: {per_s} USD per second saved"


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _assumptions(compared: Compared, assumed: GpuAssumptions) -> Iterator[str]:
    load, busiest_tokens = compared.load, busiest(compared.found.tokens_by_hour)
    yield f"Own GPUs, by your assumptions: {assumed.gpus} GPUs serve the model together"
    yield f"  load: {load.tokens:,} tokens in {load.hours:,} h, busiest hour {busiest_tokens:,}"
    capacity = capacity_tokens_per_hour(load, assumed)
    if capacity is None:
        yield "  busy time unknown: give --gpu-input-tokens-per-s and --gpu-output-tokens-per-s"
        return
    fresh, output = assumed.input_tokens_per_s, assumed.output_tokens_per_s
    yield f"  {fresh:,} fresh prompt tokens/s, {output:,} output tokens/s, all GPUs together"
    yield f"  at most {_range(*(f'{tokens:,}' for tokens in capacity))} tokens/h of this mix"


def _gpus(gpus: Sequence[GpuAnswer]) -> object:
    columns = ("USD/GPU/h", "USD/h", "whole period USD", "busy, cache kept", "busy, cache lost")
    grid = table([(name, True) for name in columns])
    for gpu in gpus:
        kept, lost = gpu.busy_nano or (None, None)
        figures = (gpu.gpu_hour_nano, gpu.hour_nano, gpu.period_nano, kept, lost)
        grid.add_row(*(text(None if nano is None else usd_text(nano)) for nano in figures))
    return grid


def _break_even(gpus: Sequence[GpuAnswer]) -> object:
    grid = table(
        [("USD/GPU/h", True), ("cheaper than", False), ("from tokens/h (cache lost)", True), ("(kept)", True)]
    )
    for gpu in gpus:
        for one in gpu.break_even:
            tokens = (one.low_tokens_per_hour, one.high_tokens_per_hour)
            figures = (UNKNOWN if count is None else f"{count:,}" for count in tokens)
            grid.add_row(usd_text(gpu.gpu_hour_nano), text(one.against), *figures)
    return grid


def _period(compared: Compared) -> Iterator[str]:
    since = "the beginning" if compared.since is None else instant_text(compared.since.timestamp())
    until = "now" if compared.until is None else f"{instant_text(compared.until.timestamp())} (not included)"
    yield f"{compared.found.requests:,} requests from {since} to {until}, by start, UTC; prices of the day of each"
    yield "kept: every cache read stays one after the move; lost: every read is fresh input again"


def _doubts(found: Comparison) -> Iterator[str]:
    for reason, count in found.left.items():
        if count:
            yield f"{count:,} not compared: {_LEFT[reason]}"
    if found.unpriced:
        yield f"{found.unpriced:,} unpriced: their booked cost is unknown, so they are not in `against booked`"
    if found.estimated:
        yield f"{found.estimated:,} estimated: nobody reported their tokens"
    if found.cache_unknown:
        yield f"{found.cache_unknown:,} without a reported cache count: their prompts are taken as fresh"
