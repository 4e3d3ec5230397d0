"""The comparison as a table, JSON or CSV. Money is exact, as decimal strings; null is unknown, never 0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from typing import Final

from pricing.advice.compare import Comparison, Elsewhere, Scenario
from pricing.advice.gpus import GpuAnswer, GpuAssumptions, Load, busiest, capacity_tokens_per_hour
from pricing.advice.speed import SpeedAnswer, TierSpeed, Trade
from pricing.ledger.shown import instant_text
from pricing.money import usd_text
from pricing.render import print_csv, print_json

_THOUSANDTH: Final = Decimal("0.001")


@dataclass(frozen=True, slots=True)
class Compared:
    """What was found and where. `gpus` is None where no GPU price was given; `load` is for them."""

    found: Comparison
    load: Load
    assumed: GpuAssumptions | None
    gpus: Sequence[GpuAnswer]
    ledger: str
    as_of: datetime
    since: datetime | None
    until: datetime | None


def comparison_object(compared: Compared) -> dict[str, object]:
    """The comparison as programs read it."""
    found = compared.found
    usage = found.usage
    return {
        "ledger": compared.ledger,
        "as_of": instant_text(compared.as_of.timestamp()),
        "since": _instant(compared.since),
        "until": _instant(compared.until),
        "requests": found.requests,
        "compared": found.compared,
        "left_out": dict(found.left),
        "unpriced": found.unpriced,
        "estimated": found.estimated,
        "cache_unknown": found.cache_unknown,
        "tokens": {
            "input": usage.input,
            "cache_read": usage.cache_read,
            "write_5m": usage.write_5m,
            "write_1h": usage.write_1h,
            "output": usage.output,
        },
        "booked_requests": found.booked.requests,
        "booked_usd": usd_text(found.booked.kept_nano),
        "elsewhere": [_elsewhere_object(one) for one in found.elsewhere],
        "upstream_reported": {
            "requests": found.reported.requests,
            "differing": found.reported.differing,
            "reported_usd": usd_text(found.reported.reported_nano),
            "table_usd": usd_text(found.reported.table_nano),
            "difference_usd": usd_text(found.reported.reported_nano - found.reported.table_nano),
        },
        "highspeed": _speed_object(found.speed),
        "own_gpus": None if compared.assumed is None else _gpus_object(compared, compared.assumed),
    }


def print_comparison_json(compared: Compared) -> None:
    """Prints the comparison object."""
    print_json(comparison_object(compared))


def print_comparison_csv(compared: Compared) -> None:
    """Prints a line per place and state of the cache, `booked` first."""
    found = compared.found
    rows: list[Mapping[str, object]] = [
        {
            "where": "booked",
            "cache": "",
            "requests": found.booked.requests,
            "usd": usd_text(found.booked.kept_nano),
        }
    ]
    for one in found.elsewhere:
        for cache, nano, against in (
            ("kept", one.sums.kept_nano, one.of_booked.kept_nano),
            ("lost", one.sums.lost_nano, one.of_booked.lost_nano),
        ):
            rows.append(
                {
                    "where": one.scenario.name,
                    "cache": cache,
                    "requests": one.sums.requests,
                    "usd": _of(one, nano),
                    "against_booked_usd": _of(one, against - one.booked_nano),
                    "without_price": one.without_price,
                }
            )
    for gpu in compared.gpus:
        name = f"own_gpus@{usd_text(gpu.gpu_hour_nano)}"
        common = {"where": name, "requests": found.compared}
        rows.append({**common, "cache": "", "usd": usd_text(gpu.period_nano)})
        for cache, busy in zip(("kept", "lost"), gpu.busy_nano or (), strict=False):
            rows.append({**common, "where": f"{name}_busy", "cache": cache, "usd": usd_text(busy)})
    print_csv(("where", "cache", "requests", "usd", "against_booked_usd", "without_price"), rows)


def _elsewhere_object(one: Elsewhere) -> dict[str, object]:
    scenario: Scenario = one.scenario
    return {
        "where": scenario.name,
        "seller": scenario.seller,
        "model": scenario.model,
        "requests": one.sums.requests,
        "without_price": one.without_price,
        "cache_kept_usd": _of(one, one.sums.kept_nano),
        "cache_lost_usd": _of(one, one.sums.lost_nano),
        "booked_requests": one.of_booked.requests,
        "booked_usd": usd_text(one.booked_nano),
        "against_booked_kept_usd": _of(one, one.of_booked.kept_nano - one.booked_nano),
        "against_booked_lost_usd": _of(one, one.of_booked.lost_nano - one.booked_nano),
    }


def _of(one: Elsewhere, nano: int) -> str | None:
    """Money of the requests that have a price there; unknown where none has."""
    return usd_text(nano) if one.sums.requests else None


def _speed_object(speed: SpeedAnswer) -> dict[str, object]:
    return {
        "basis": speed.basis,
        "times_as_fast": [thousandths(factor) for factor in speed.factors],
        "standard": _tier_object(speed.standard),
        "highspeed": _tier_object(speed.highspeed),
        "if_standard_moved": _trade_object(speed.if_moved),
        "as_used": _trade_object(speed.as_used),
    }


def _tier_object(tier: TierSpeed) -> dict[str, object]:
    return {
        "requests": tier.requests,
        "output_tokens": tier.output_tokens,
        "output_s": Decimal(tier.output_ms) / 1000,
        "tokens_per_s": None if tier.tokens_per_s is None else thousandths(tier.tokens_per_s),
    }


def _trade_object(trade: Trade) -> dict[str, object]:
    per_s = trade.nano_per_s
    return {
        "requests": trade.requests,
        "extra_usd": [usd_text(nano) for nano in trade.extra_nano],
        "saved_s": [thousandths(seconds) for seconds in trade.saved_s],
        "usd_per_s": None if per_s is None else [usd_text(round(nano)) for nano in per_s],
    }


def _gpus_object(compared: Compared, assumed: GpuAssumptions) -> dict[str, object]:
    load = compared.load
    capacity = capacity_tokens_per_hour(load, assumed)
    return {
        "assumed": {
            "gpus": assumed.gpus,
            "gpu_usd_per_hour": [usd_text(nano) for nano in assumed.gpu_hour_nano],
            "input_tokens_per_s": assumed.input_tokens_per_s,
            "output_tokens_per_s": assumed.output_tokens_per_s,
        },
        "hours": load.hours,
        "tokens": load.tokens,
        "busiest_hour_tokens": busiest(compared.found.tokens_by_hour),
        "capacity_tokens_per_hour": None if capacity is None else list(capacity),
        "at": [
            {
                "gpu_usd_per_hour": usd_text(gpu.gpu_hour_nano),
                "usd_per_hour": usd_text(gpu.hour_nano),
                "whole_period_usd": usd_text(gpu.period_nano),
                "busy_usd": None if gpu.busy_nano is None else [usd_text(nano) for nano in gpu.busy_nano],
                "break_even": [
                    {
                        "against": one.against,
                        "tokens_per_hour": [one.low_tokens_per_hour, one.high_tokens_per_hour],
                    }
                    for one in gpu.break_even
                ],
            }
            for gpu in compared.gpus
        ],
    }


def thousandths(value: Fraction) -> Decimal:
    """A measured figure, rounded to thousandths."""
    exact = Decimal(value.numerator) / Decimal(value.denominator)
    return exact.quantize(_THOUSANDTH, ROUND_HALF_EVEN)


def _instant(at: datetime | None) -> str | None:
    return None if at is None else instant_text(at.timestamp())
