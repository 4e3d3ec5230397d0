"""Money as integer nano-dollars inside and exact `Decimal` dollars outside.

Every official price is a whole number of nano-dollars per token (USD 2.00 per 1M tokens = 2,000), so sums of
integers are exact and do not depend on order. Nothing here rounds; what would need rounding is refused.
"""

from decimal import Decimal
from fractions import Fraction

NANO = 1_000_000_000
"""Nano-dollars in a dollar."""

_TOKENS_PER_PRICE = 1_000_000
_INT64_MAX = 2**63 - 1


def nano_per_token(usd_per_mtok: Decimal) -> int:
    """Nano-dollars per token for a price in USD per 1M tokens.

    Raises `ValueError` for a negative price and for one that is not whole nano-dollars per token.
    """
    if not usd_per_mtok.is_finite() or usd_per_mtok < 0:
        raise ValueError(f"a price must be a finite number of dollars, zero or more, not {usd_per_mtok}")
    nano = Fraction(usd_per_mtok) * NANO / _TOKENS_PER_PRICE  # exact, however many digits there are
    if nano.denominator != 1:
        raise ValueError(
            f"{usd_per_mtok} USD per 1M tokens is not a whole number of nano-dollars per token; "
            "use at most three decimal places"
        )
    return int(nano)


def usd(nano: int) -> Decimal:
    """Exact dollars for a count of nano-dollars, without trailing zeros and never in exponent form."""
    return Decimal(usd_text(nano))


def usd_text(nano: int) -> str:
    """Exact dollars as a plain decimal string: `0.0000114`, `12`, `-0.5`. By whole numbers: 0.6 µs, where the
    arithmetic of decimals takes 3."""
    whole, rest = divmod(abs(nano), NANO)
    text = f"{whole}.{rest:09d}".rstrip("0") if rest else str(whole)
    return f"-{text}" if nano < 0 else text


def nano_from_usd(dollars: Decimal) -> int:
    """Nano-dollars for exact dollars. Raises `ValueError` for fractions of a nano-dollar or beyond 64 bits."""
    if not dollars.is_finite():
        raise ValueError(f"{dollars} is not an amount of money")
    nano = dollars.scaleb(9)
    if nano != nano.to_integral_value():
        raise ValueError(f"{dollars} USD is not a whole number of nano-dollars")
    if abs(nano) > _INT64_MAX:
        raise ValueError(f"{dollars} USD does not fit into 64 bits of nano-dollars")
    return int(nano)
