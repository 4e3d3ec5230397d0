"""A key's policy as the ledger's database keeps it: JSON with a version, in the words of `[[keys]]`.

A record of a newer version, or with a setting that this one does not know, is refused whole: a limit that is not
understood cannot be held.
"""

from decimal import Decimal, InvalidOperation
from typing import Final, Literal

import msgspec

from kimi_gateway.core.keys import BOTH_TIERS, KeyFormatError, KeyPolicy
from kimi_gateway.core.limits import BUDGET_MAX_NANO, Limits, Period
from pricing.money import NANO, nano_from_usd, usd_text

VERSION: Final = 1

Effort = Literal["", "low", "high", "max"]


class _Record(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings as in `[[keys]]`; absent is their default. Money is exact dollars as text."""

    budget_usd: str = ""
    highspeed_budget_usd: str = ""
    budget_period: Period = "month"
    rpm: int = 0
    tpm: int = 0
    concurrency: int = 0
    max_effort: Literal["low", "high", "max"] = "max"
    default_effort: Effort = ""
    default_ttl: Literal["", "5m", "1h"] = ""
    max_completion_tokens: int = 0
    tiers: tuple[Literal["standard", "highspeed"], ...] = ("standard", "highspeed")
    pin: bool = False
    explain: bool = False
    thinking_repair: bool = True
    version: int


def encode_policy(policy: KeyPolicy) -> str:
    """The record of a policy, without its name."""
    limits = policy.limits
    record = {
        "version": VERSION,
        "budget_usd": _dollars(limits.budget_nano),
        "highspeed_budget_usd": _dollars(limits.highspeed_nano),
        "budget_period": limits.period,
        "rpm": limits.rpm,
        "tpm": limits.tpm,
        "concurrency": limits.concurrency,
        "max_effort": policy.max_effort,
        "default_effort": policy.default_effort,
        "default_ttl": policy.default_ttl,
        "max_completion_tokens": policy.max_completion_tokens,
        "tiers": policy.tiers,
        "pin": policy.pin,
        "explain": policy.explain,
        "thinking_repair": policy.thinking_repair,
    }
    return msgspec.json.encode(msgspec.convert(record, _Record)).decode()


def decode_policy(name: str, text: str) -> KeyPolicy:
    """The policy in a record. Raises `KeyFormatError`."""
    try:
        record = msgspec.json.decode(text, type=_Record)
    except msgspec.MsgspecError as err:
        raise KeyFormatError(f"the record of the key {name} is not one that this version knows ({err})") from err
    if record.version != VERSION:
        raise KeyFormatError(
            f"the record of the key {name} has version {record.version}, this one knows {VERSION}; "
            "use a newer kimi-gateway"
        )
    return KeyPolicy(
        name=name,
        max_effort=record.max_effort,
        default_effort=record.default_effort,
        default_ttl=record.default_ttl,
        max_completion_tokens=record.max_completion_tokens,
        tiers=record.tiers or BOTH_TIERS,
        pin=record.pin,
        explain=record.explain,
        thinking_repair=record.thinking_repair,
        limits=limits_of(
            budget_usd=dollars_from_text(record.budget_usd),
            highspeed_budget_usd=dollars_from_text(record.highspeed_budget_usd),
            period=record.budget_period,
            rpm=record.rpm,
            tpm=record.tpm,
            concurrency=record.concurrency,
        ),
    )


def limits_of(
    *,
    budget_usd: Decimal | None,
    highspeed_budget_usd: Decimal | None,
    period: Period,
    rpm: int,
    tpm: int,
    concurrency: int,
) -> Limits:
    """Limits from settings. Raises `KeyFormatError` for a budget that cannot be held."""
    return Limits(
        budget_nano=budget_nano(budget_usd),
        highspeed_nano=budget_nano(highspeed_budget_usd),
        period=period,
        rpm=rpm,
        tpm=tpm,
        concurrency=concurrency,
    )


def budget_nano(dollars: Decimal | None) -> int | None:
    """A budget in nano-dollars; None for none. Raises `KeyFormatError`, whose message begins with a verb."""
    if dollars is None:
        return None
    if not dollars.is_finite() or dollars < 0:
        raise KeyFormatError("must be an amount of dollars, zero or more")
    if dollars > Decimal(BUDGET_MAX_NANO).scaleb(-9):
        raise KeyFormatError(
            f"must be at most {BUDGET_MAX_NANO // NANO:,} dollars, beyond which sums are not exact"
        )
    try:
        return nano_from_usd(dollars)
    except ValueError as err:
        raise KeyFormatError("must be whole nano-dollars, at most nine decimal places") from err


def dollars_from_text(text: str) -> Decimal | None:
    """Exact dollars; "" is none. Raises `KeyFormatError`."""
    if not text:
        return None
    try:
        return Decimal(text)
    except InvalidOperation as err:
        raise KeyFormatError('must be an amount of dollars such as "25.00"') from err


def _dollars(nano: int | None) -> str:
    return "" if nano is None else usd_text(nano)
