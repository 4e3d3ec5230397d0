"""Amounts of money as they are given and written. Pure."""

from decimal import Decimal, InvalidOperation

from kimi_sdk.errors import InvalidInput


def checked_money(amount: object) -> Decimal | None:
    """An amount in exact dollars. Raises `InvalidInput`; a binary float is none, because it is bent already."""
    if amount is None:
        return None
    if isinstance(amount, bool) or not isinstance(amount, Decimal | int | str):
        raise InvalidInput(f'an amount of money is a decimal string such as "0.50", not {amount!r}')
    try:
        value = Decimal(amount)
    except InvalidOperation as err:
        raise InvalidInput(f'an amount of money is a decimal string such as "0.50", not {amount!r}') from err
    if not value.is_finite() or value < 0:
        raise InvalidInput(f"an amount of money is zero or more dollars, not {amount}")
    return value


def dollars(amount: Decimal) -> str:
    """The amount as people write it: all digits that say something, no exponent."""
    return f"{amount.normalize():f}"
