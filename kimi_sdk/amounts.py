"""Amounts of money as they are given, added and written. Pure."""

import decimal
from contextlib import AbstractContextManager
from decimal import Context, Decimal
from typing import Final

from kimi_sdk.errors import InvalidInput

MOST: Final = Decimal(10) ** 15
"""More dollars than this are a mistake; with `_PLACES` all sums have fewer digits than `exact` keeps."""

_PLACES: Final = 30
_EXACT: Final = Context(prec=200, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[])


def exact() -> AbstractContextManager[Context]:
    """Arithmetic in here neither rounds nor raises, whatever the application has set for its own decimals."""
    return decimal.localcontext(_EXACT)


def checked_money(amount: object) -> Decimal | None:
    """An amount in exact dollars. Raises `InvalidInput`; a binary float is none, because it is bent already."""
    if amount is None:
        return None
    if isinstance(amount, bool) or not isinstance(amount, Decimal | int | str):
        raise InvalidInput(f'an amount of money is a decimal string such as "0.50", not {amount!r}')
    with exact():
        value = Decimal(amount)
        if value.is_nan():
            raise InvalidInput(f'an amount of money is a decimal string such as "0.50", not {amount!r:.60}')
        if not value.is_finite() or value < 0:
            raise InvalidInput(f"an amount of money is zero or more dollars, not {value!s:.60}")
        if not is_sane(value):
            raise InvalidInput(
                f"an amount of money has at most 15 digits before the point and {_PLACES} after it, "
                f"unlike {value:.3e}"
            )
    return value


def is_sane(value: Decimal) -> bool:
    """It is an amount that can be added to others without a digit lost: finite, not negative, not too long."""
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):  # no number, or infinite
        return False
    return 0 <= value < MOST and exponent >= -_PLACES


def dollars(amount: Decimal) -> str:
    """The amount as people write it: all digits that say something, no exponent."""
    with exact():
        return f"{amount.normalize():f}"
