"""Advice on lifetimes of the cache as a table, JSON or CSV. Money is exact, as decimal strings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pricing.advice.tariffs import Tariff
from pricing.advice.ttl import CHOICES, Advice, Choice, ChoiceCost, GroupAdvice
from pricing.cost import PROMPT_METERS, Line, billed_rate
from pricing.ledger.shown import instant_text, money_text
from pricing.money import usd, usd_text
from pricing.render import UNKNOWN, console, price_text, print_csv, print_json, print_note, table, text
from pricing.usage import Meter

_MTOK: Final = 1_000_000
_HEADS: Final[Mapping[Meter, str]] = {
    "input": "fresh",
    "cache_read": "read",
    "write_5m": "write 5m",
    "write_1h": "write 1h",
}

ASSUMPTIONS: Final = (
    "A warm prefix is read at the read price, and each hit renews its whole lifetime free of charge.",
    "At exactly 300 s (5m) or 3,600 s (1h) without a use a prefix is cold and is written anew.",
    "The lifetime is fixed when a cold prefix is written; what is added while it is warm gets the same one.",
    "A cache write replaces the input price of its tokens, or adds to it where the card says so.",
    "Of two prompts of one prefix the shorter is the beginning of the longer.",
    "Caches are apart per target, model and effort; output costs the same under every choice and is left out.",
)


@dataclass(frozen=True, slots=True)
class Advised:
    """The advice, the choice that was asked about (None: the best one), and from which ledger it is."""

    advice: Advice
    what_if: Choice | None
    ledger: str
    as_of: datetime
    since: datetime | None
    until: datetime | None


def advice_object(advised: Advised) -> dict[str, object]:
    """The advice as programs read it."""
    advice = advised.advice
    best = sum(group.saving_nano(group.best) for group in advice.groups)
    found: dict[str, object] = {
        "ledger": advised.ledger,
        "as_of": instant_text(advised.as_of.timestamp()),
        "since": None if advised.since is None else instant_text(advised.since.timestamp()),
        "until": None if advised.until is None else instant_text(advised.until.timestamp()),
        "gaps_from": advice.clock,
        "assumptions": list(ASSUMPTIONS),
        "uses": sum(group.uses for group in advice.groups),
        "not_usable": {reason.replace(" ", "_"): count for reason, count in advice.unusable.items()},
        "saving_usd": usd_text(best),
    }
    if advised.what_if is not None:
        found["what_if"] = advised.what_if
        found["what_if_saving_usd"] = usd_text(sum(group.saving_nano(advised.what_if) for group in advice.groups))
    return found | {"groups": [_group_object(group, advised.what_if) for group in advice.groups]}


def print_advice_json(advised: Advised) -> None:
    """Prints the advice object."""
    print_json(advice_object(advised))


def print_advice_csv(advised: Advised) -> None:
    """Prints a line per group."""
    names = (
        *advised.advice.by,
        *("uses", "prefixes", "gaps_under_5m", "gaps_under_1h", "gaps_longer"),
        *(f"{choice}_usd" for choice in CHOICES),
        *("best", "saving_usd", "each_prefix_usd", "booked_prompt_usd"),
        *(() if advised.what_if is None else ("what_if_saving_usd",)),
    )
    rows = []
    for group in advised.advice.groups:
        flat = _group_object(group, advised.what_if)
        rows.append({**flat, **{f"{choice}_usd": usd_text(group.costs[choice].nano) for choice in CHOICES}})
    print_csv(names, rows)


def print_advice_table(advised: Advised, notes: Sequence[str]) -> None:
    """Prints each group with its arithmetic, and what was assumed."""
    screen = console()
    for group in advised.advice.groups:
        for line in _head(group, advised.what_if):
            screen.print(text(line))
        screen.print(_arithmetic(group))
        for line in _rates(group):
            screen.print(text(line))
        screen.print()
    for note in (*_period(advised), *_doubts(advised.advice), *notes):
        print_note(screen, note)
    print_note(screen, "assumed:")
    for assumption in (*ASSUMPTIONS, _clock(advised.advice)):
        print_note(screen, assumption, indent=2)


def _head(group: GroupAdvice, what_if: Choice | None) -> Iterator[str]:
    yield ", ".join(f"{name} {value or UNKNOWN}" for name, value in group.by.items()) or "all requests"
    yield f"  {group.uses:,} uses of {group.prefixes:,} prefixes"
    gaps = f"{group.under_5m:,} under 5 min, {group.under_1h:,} from there to under 1 h, {group.longer:,} longer"
    yield f"  gaps between uses: {gaps}"
    yield f"  {_verdict(group, group.best, 'best')}"
    if what_if is not None:
        yield f"  {_verdict(group, what_if, 'what if')}"


def _verdict(group: GroupAdvice, choice: Choice, word: str) -> str:
    today, nano = group.costs["today"].nano, group.costs[choice].nano
    name = {"today": "as today", "none": "no cache"}.get(choice, choice)
    if choice == "today":
        return f"{word}: {name}, nothing to save"
    difference = group.saving_nano(choice)
    effect = f"saves {usd_text(difference)}" if difference >= 0 else f"costs {usd_text(-difference)} more"
    return f"{word}: {name}, {effect} USD ({usd_text(today)} today, {usd_text(nano)} then)"


def _arithmetic(group: GroupAdvice) -> object:
    """Tokens by meter under each choice; a line per model where there are several."""
    several = len(group.costs["today"].parts) > 1
    names = ["choice", "model"] if several else ["choice"]
    heads = [*(_HEADS[meter] for meter in PROMPT_METERS), "USD"]
    grid = table([*((name, False) for name in names), *((head, True) for head in heads)])
    for choice in CHOICES:
        for at, part in enumerate(group.costs[choice].parts):
            name = f"{choice}{' *' if choice == group.best else ''}" if at == 0 else ""
            counts = (part.usage.count(meter) for meter in PROMPT_METERS)
            models = [text(part.tariff.model)] if several else []
            grid.add_row(name, *models, *(f"{count:,}" if count else "" for count in counts), usd_text(part.nano))
    return grid


def _rates(group: GroupAdvice) -> Iterator[str]:
    for part in group.costs["today"].parts:
        tariff = part.tariff
        prices = ", ".join(f"{_HEADS[meter]} {_price(tariff, meter)}" for meter in PROMPT_METERS)
        yield f"  {tariff.model}: {prices} USD per 1M"
    if group.booked_nano is not None:
        yield f"  the ledger booked {usd_text(group.booked_nano)} USD for these prompts"
    if group.read_tokens is not None:
        modelled = group.costs["today"].read_tokens
        yield f"  read from the cache: {group.read_tokens:,} tokens reported, {modelled:,} by this reckoning"
    yield f"  each prefix with its own better lifetime: {usd_text(group.each_prefix_nano)} USD"


def _price(tariff: Tariff, meter: Meter) -> str:
    rate = billed_rate(tariff.rates, meter, write_rule=tariff.write_rule)
    return UNKNOWN if rate is None else price_text(usd(rate * _MTOK))


def _period(advised: Advised) -> Iterator[str]:
    since = "the beginning" if advised.since is None else instant_text(advised.since.timestamp())
    until = "now" if advised.until is None else f"{instant_text(advised.until.timestamp())} (not included)"
    uses = sum(group.uses for group in advised.advice.groups)
    yield f"{uses:,} usable requests from {since} to {until}, by start, UTC; *: the best choice"


def _doubts(advice: Advice) -> Iterator[str]:
    for reason, count in advice.unusable.items():
        if count:
            yield f"{count:,} not usable: {reason}"
    estimated = sum(group.estimated for group in advice.groups)
    if estimated:
        yield f"{estimated:,} estimated: nobody reported their tokens"
    whole = sum(group.whole_prompts for group in advice.groups)
    if whole:
        yield f"{whole:,} without reported cache writes: their whole prompt is taken as cacheable"


def _clock(advice: Advice) -> str:
    if advice.clock == "start":
        return (
            "Gaps and lifetimes count from the start of a request (--gaps-from end: from the end of its answer)."
        )
    return "Gaps and lifetimes count from the end of an answer (--gaps-from start: from the start of its request)."


def _group_object(group: GroupAdvice, what_if: Choice | None) -> dict[str, object]:
    found: dict[str, object] = {
        **group.by,
        "uses": group.uses,
        "prefixes": group.prefixes,
        "gaps_under_5m": group.under_5m,
        "gaps_under_1h": group.under_1h,
        "gaps_longer": group.longer,
        "best": group.best,
        "saving_usd": usd_text(group.saving_nano(group.best)),
        "each_prefix_usd": usd_text(group.each_prefix_nano),
        "booked_prompt_usd": money_text(group.booked_nano),
        "read_tokens_reported": group.read_tokens,
        "estimated": group.estimated,
        "whole_prompts": group.whole_prompts,
    }
    if what_if is not None:
        found["what_if_saving_usd"] = usd_text(group.saving_nano(what_if))
    return found | {"choices": {choice: _choice_object(group.costs[choice]) for choice in CHOICES}}


def _choice_object(cost: ChoiceCost) -> dict[str, object]:
    return {
        "cost_usd": usd_text(cost.nano),
        "arithmetic": [_line_object(part.tariff, line) for part in cost.parts for line in part.lines],
    }


def _line_object(tariff: Tariff, line: Line) -> dict[str, object]:
    return {
        "seller": tariff.seller,
        "model": tariff.model,
        "meter": line.meter,
        "tokens": line.count,
        "usd_per_mtok": None if line.rate is None else price_text(usd(line.rate * _MTOK)),
        "usd": usd_text(line.nano),
    }
