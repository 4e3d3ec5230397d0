"""The emulator's own price sheet, in nano-dollars per token; nothing of `pricing` is used here."""

from dataclasses import dataclass
from decimal import Decimal

_NANO_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Sheet:
    """Prices of one model in whole nano-dollars per token."""

    input: int
    cache_read: int
    write_5m: int
    write_1h: int
    output: int


def sheet(*, input: str, cache_read: str, write_5m: str, write_1h: str, output: str) -> Sheet:
    """A sheet from prices in USD per 1M tokens, as decimal strings.

    Raises `ValueError` for a price that is not a whole number of nano-dollars per token.
    """
    return Sheet(
        input=_nano("input", input),
        cache_read=_nano("cache_read", cache_read),
        write_5m=_nano("write_5m", write_5m),
        write_1h=_nano("write_1h", write_1h),
        output=_nano("output", output),
    )


def usd_text(nano: int) -> str:
    """Dollars as an exact decimal string without trailing zeros: `0.0000114`, `12`, `0`."""
    whole, rest = divmod(nano, 10**_NANO_DIGITS)
    fraction = f"{rest:0{_NANO_DIGITS}d}".rstrip("0")
    return f"{whole}.{fraction}" if fraction else str(whole)


def _nano(meter: str, usd_per_mtok: str) -> int:
    nano = Decimal(usd_per_mtok) * 1000  # 10^9 nano-dollars over 10^6 tokens
    if nano < 0 or nano != int(nano):
        raise ValueError(
            f"{meter} must be whole nano-dollars per token, zero or more, not {usd_per_mtok} USD per 1M"
        )
    return int(nano)
