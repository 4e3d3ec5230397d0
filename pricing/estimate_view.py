"""A forecast as a table, JSON or CSV. Money is exact, as decimal strings; null is unknown, never 0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from pricing.advice.forecast import CASES, Case, Forecast, ForecastLine, Priced
from pricing.advice.forecast_sums import ForecastSums, OfferSum
from pricing.ledger.shown import money_text
from pricing.money import usd
from pricing.render import (
    UNKNOWN,
    console,
    count_text,
    price_text,
    print_csv,
    print_json,
    print_note,
    table,
    text,
)

_WORDS: Final[Mapping[Case, str]] = {
    "fresh": "prompt, nothing cached",
    "first": "prompt, first use: written",
    "warm": "prompt, warm prefix: read",
    "limit": "output at its limit",
    "assumed": "output as assumed",
}
_COUNTED: Final = {"vocabulary": "Kimi's vocabulary", "estimate": "an estimate from sizes of text"}
_PROBLEMS_SHOWN: Final = 20
_MTOK: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Estimates:
    """What was found. `forecasts` is empty where only the sums are wanted; each comes with its line.

    `problems` are wrong lines: number and what is wrong. `errors`: what the counting says of itself, if it says
    the same of all requests.
    """

    source: str
    day: date
    method: str
    output_tokens: int | None
    sums: ForecastSums
    forecasts: Sequence[tuple[int, Forecast]]
    problems: Sequence[tuple[int, str]]
    errors: Sequence[str]


def print_estimates_json(found: Estimates) -> None:
    """Prints everything as one object."""
    print_json(
        {
            "source": found.source,
            "prices_of": found.day.isoformat(),
            "counted_by": found.method,
            "assumed_output_tokens": found.output_tokens,
            "requests": found.sums.requests,
            "bad_lines": len(found.problems),
            "problems": [{"line": line, "problem": problem} for line, problem in found.problems],
            "totals": [_sum_object(one) for one in found.sums.sums()],
            "estimates": [_forecast_object(line, one) for line, one in found.forecasts],
        }
    )


def print_estimates_csv(found: Estimates) -> None:
    """Prints a line per request, effort and offer."""
    rows = []
    for number, one in found.forecasts:
        head = _forecast_object(number, one)
        prompt, output = one.prompt, one.output
        for priced in one.priced:
            offer = _offer_object(priced)
            lines = {f"{line.case}_usd": money_text(line.nano) for line in priced.lines}
            counts = {
                "prompt_low": prompt.low,
                "prompt_tokens": prompt.tokens,
                "prompt_high": prompt.high,
                "media_parts": prompt.media_parts,
                "output_limit": output.limit_tokens,
                "output_assumed": output.assumed_tokens,
            }
            rows.append({"line": number, "effort": head["effort"], **offer, **counts, **lines})
    names = (
        *("line", "effort", "seller", "model", "tier", "ttl", "requested"),
        *("prompt_low", "prompt_tokens", "prompt_high", "media_parts", "output_limit", "output_assumed"),
        *(f"{case}_usd" for case in CASES),
        *("first_total_usd", "warm_total_usd", "low_usd", "high_usd", "card"),
    )
    print_csv(names, rows)


def print_estimates_table(found: Estimates) -> None:
    """Prints the sums by offer, the lines behind them, and what a reader must know to trust them."""
    screen = console()
    sums = found.sums.sums()
    screen.print(text(_headline(found)))
    if sums:
        screen.print()
        screen.print(_overview(sums))
    for title, lines in _by_place(sums).items():
        screen.print()
        screen.print(text(title, "bold"))
        screen.print(_lines(lines))
    screen.print()
    for note in _notes(found, sums):
        print_note(screen, note)


def _overview(sums: Sequence[OfferSum]) -> object:
    """A line per offer: whole answers where a length was assumed, else prompt and output apart."""
    if any(one.priced.line("assumed") for one in sums):
        heads = ("first use USD", "warm USD", "at least", "at most")
    else:
        heads = ("first use USD", "warm USD", "output up to", "at most")
    grid = table([("offer", False), *((head, True) for head in heads)])
    for one in sums:
        priced = one.priced
        figures = [priced.first_nano, priced.warm_nano, priced.low_nano, priced.high_nano]
        if priced.line("assumed") is None:
            figures[:3] = [_nano(priced, case) for case in ("first", "warm", "limit")]
        grid.add_row(text(_title(one)), *(text(money_text(nano)) for nano in figures))
    return grid


def _nano(priced: Priced, case: Case) -> int | None:
    line = priced.line(case)
    return None if line is None else line.nano


def _by_place(sums: Sequence[OfferSum]) -> dict[str, list[ForecastLine]]:
    """The lines of each seller and tier, each once: they differ by lifetime in the price of writes only."""
    places: dict[str, list[ForecastLine]] = {}
    for one in sums:
        offer = one.priced.offer
        title = f"{offer.seller} {offer.model} {offer.tier} {_effort(one)}".rstrip()
        lines = places.setdefault(title, [])
        for line in one.priced.lines:
            if not any((line.meter, line.tokens) == (other.meter, other.tokens) for other in lines):
                lines.append(line)
    return {title: sorted(lines, key=lambda line: CASES.index(line.case)) for title, lines in places.items()}


def _lines(lines: Sequence[ForecastLine]) -> object:
    grid = table([("", False), ("meter", False), ("tokens", True), ("USD per 1M", True), ("USD", True)])
    for line in lines:
        rate = UNKNOWN if line.rate is None else price_text(usd(line.rate * _MTOK))
        figures = (count_text(line.tokens), rate, money_text(line.nano) or UNKNOWN)
        grid.add_row(text(_WORDS[line.case]), text(line.meter), *map(text, figures))
    return grid


def _title(one: OfferSum) -> str:
    offer = one.priced.offer
    model = offer.model if offer.seller.startswith("target:") else ""
    mark = "*" if one.requested == one.requests else ""
    return " ".join(part for part in (offer.label, model, _effort(one), mark) if part)


def _effort(one: OfferSum) -> str:
    return f"effort {one.effort}" if one.effort else ""


def _headline(found: Estimates) -> str:
    count = found.sums.requests
    words = [f"{found.source}: {count:,} {'request' if count == 1 else 'requests'}"]
    if found.problems:
        words.append(f"{len(found.problems):,} bad {'line' if len(found.problems) == 1 else 'lines'}")
    return ", ".join(words)


def _notes(found: Estimates, sums: Sequence[OfferSum]) -> list[str]:
    notes = []
    if sums:
        prompt, output = sums[0].prompt, sums[0].priced.line("limit")
        high = "no upper bound" if prompt.high is None else f"{prompt.high:,}"
        notes.append(
            f"prompt {prompt.tokens:,} tokens ({prompt.low:,} to {high}), counted by {_COUNTED[found.method]}"
        )
        notes.append(_output_note(found, 0 if output is None else output.tokens))
        bounds = "at most: longest prompt at its dearest, output at its limit"
        if found.output_tokens is not None:
            bounds = f"at least: shortest prompt, all read, no output; {bounds}"
        notes.append(bounds)
    notes += [error for error in found.errors if "media parts" not in error]
    notes += _doubts(found, sums)
    notes.append(f"prices in force on {found.day} (UTC); *: what the request asks for")
    notes += [f"line {line}: {problem}" for line, problem in found.problems[:_PROBLEMS_SHOWN]]
    if (more := len(found.problems) - _PROBLEMS_SHOWN) > 0:
        notes.append(f"and {more:,} more bad lines (--format json names all)")
    return notes


def _output_note(found: Estimates, limit_tokens: int) -> str:
    if found.output_tokens is None:
        return f"output 0 to {limit_tokens:,} tokens: nothing tells how long; --output-tokens N assumes a length"
    return f"output 0 to {limit_tokens:,} tokens; {found.output_tokens:,} per answer is your assumption"


def _doubts(found: Estimates, sums: Sequence[OfferSum]) -> list[str]:
    doubts = []
    if found.sums.media_parts:
        doubts.append(
            f"media parts (images, video, base64) that are in no count: {found.sums.media_parts:,}; "
            "what they cost is not published, so there is no upper bound"
        )
    if found.sums.models_assumed:
        doubts.append(f"requests that name no model, taken as Kimi K3.1 Pro: {found.sums.models_assumed:,}")
    if found.sums.limits_lowered:
        doubts.append(f"output limits lowered to what the window leaves: {found.sums.limits_lowered:,}")
    for one in {one.priced.offer.card: one for one in sums}.values():
        if one.priced.offer.unverified:
            doubts.append(
                f"unverified prices of {one.priced.offer.card}: {', '.join(one.priced.offer.unverified)}"
            )
        if one.priced.offer.note:
            doubts.append(f"{one.priced.offer.label}: {one.priced.offer.note}")
    return doubts


def _forecast_object(number: int, one: Forecast) -> dict[str, object]:
    prompt, output = one.prompt, one.output
    return {
        "line": number,
        "model": one.wish.model,
        "effort": one.effort,
        "prompt": {
            "low": prompt.low,
            "tokens": prompt.tokens,
            "high": prompt.high,
            "exact": prompt.exact,
            "method": prompt.method,
            "error": prompt.error,
            "media_parts": prompt.media_parts,
        },
        "output": {
            "limit": output.limit_tokens,
            "limit_source": output.limit_source,
            "assumed": output.assumed_tokens,
        },
        "offers": [_offer_object(priced) for priced in one.priced],
    }


def _sum_object(one: OfferSum) -> dict[str, object]:
    offer = _offer_object(one.priced)
    offer["requested"] = one.requested
    prompt = {"low": one.prompt.low, "tokens": one.prompt.tokens, "high": one.prompt.high}
    return {"effort": one.effort or None, "requests": one.requests, "prompt": prompt, **offer}


def _offer_object(priced: Priced) -> dict[str, object]:
    offer = priced.offer
    return {
        "seller": offer.seller,
        "model": offer.model,
        "tier": offer.tier,
        "ttl": offer.ttl,
        "card": offer.card,
        "write_rule": offer.write_rule,
        "unverified": list(offer.unverified),
        "requested": priced.requested,
        "lines": [_line_object(line) for line in priced.lines],
        "first_total_usd": money_text(priced.first_nano),
        "warm_total_usd": money_text(priced.warm_nano),
        "low_usd": money_text(priced.low_nano),
        "high_usd": money_text(priced.high_nano),
    }


def _line_object(line: ForecastLine) -> dict[str, object]:
    return {
        "case": line.case,
        "meter": line.meter,
        "tokens": line.tokens,
        "usd_per_mtok": None if line.rate is None else price_text(usd(line.rate * _MTOK)),
        "usd": money_text(line.nano),
    }
