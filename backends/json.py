"""JSON as Python types: exact decoding and encoding, and getters that narrow without raising.

Numbers with a fraction become `Decimal` and leave again with the same digits, so a cost of 0.0212 or a log
probability is never bent by a binary float.
"""

import re
from decimal import Decimal
from typing import Final, TypeAlias, Union, cast

import msgspec

JsonScalar: TypeAlias = str | int | float | Decimal | bool | None
Json: TypeAlias = Union[JsonScalar, list["Json"], dict[str, "Json"]]  # noqa: UP007 (recursive at run time)
JsonObject: TypeAlias = dict[str, Json]

_decoder = msgspec.json.Decoder(float_hook=Decimal)
_encoder = msgspec.json.Encoder(decimal_format="number")


class JsonError(ValueError):
    """The bytes are not JSON; the message says where."""


def decode(data: bytes | bytearray | memoryview) -> Json:
    """The value of a JSON text in UTF-8. Raises `JsonError`."""
    try:
        return cast(Json, _decoder.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise JsonError(str(err)) from err
    except ArithmeticError as err:  # 1e9999999999999999999 is JSON, and no number to Decimal
        raise JsonError("a number is out of range") from err


_HALVES: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


def decode_answer(data: bytes) -> Json:
    """The value of an upstream's JSON, in which half a character becomes U+FFFD: proxies that cut UTF-16 split an
    emoji between two events, and an answer is not lost for one. Raises `JsonError`."""
    try:
        return decode(data)
    except JsonError:
        whole = _HALVES.sub(rb"\\ufffd", data)
        if whole == data:
            raise
        return decode(whole)


def encode(value: object) -> bytes:
    """Compact JSON in UTF-8; `msgspec.Raw` parts are spliced in as they are, `Decimal` as number.

    Raises `JsonError` for a value nested so deeply that it could be read but not written.
    """
    try:
        return _encoder.encode(value)
    except RecursionError as err:
        raise JsonError("a value is nested too deeply") from err


def as_object(value: Json) -> JsonObject | None:
    """The value if it is an object, else None."""
    return value if isinstance(value, dict) else None


def as_list(value: Json) -> list[Json]:
    """The value if it is an array, else an empty list."""
    return value if isinstance(value, list) else []


def as_str(value: Json) -> str | None:
    """The value if it is a string (the empty one included), else None."""
    return value if isinstance(value, str) else None


def as_count(value: Json) -> int | None:
    """The value if it is a whole number (not a boolean), else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float | Decimal):
        exact = Decimal(value)
        if exact.is_finite() and exact == exact.to_integral_value() and exact.copy_abs() < 2**63:
            return int(exact)
    return None
