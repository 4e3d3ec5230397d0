"""The records of a journal, and the encoding of rows in it and in the ledger.

Numbers keep their digits both ways: an upstream's cost of 0.0212 in `raw_usage` is a `Decimal`, never a float.
"""

from decimal import Decimal
from typing import Final, TypeAlias

import msgspec

from pricing.ledger.errors import LedgerError
from pricing.ledger.row import LedgerRow

FORMAT: Final = 1
"""Rises with every change that an older reader would lose something by, a new field of the row included."""


class Head(msgspec.Struct, frozen=True, tag_field="kind", tag="head"):
    """The first record of a file: whose it is and which ledger it is for. Holds no secret."""

    format: int
    ledger_id: str
    ledger: str  # redacted URL, for people
    owner: str
    pid: int
    segment: int


class Opened(msgspec.Struct, gc=False, tag_field="kind", tag="open"):
    """A request is about to go upstream."""

    row: LedgerRow


class Progressed(msgspec.Struct, gc=False, tag_field="kind", tag="progress"):
    """What an open request has delivered so far."""

    row: LedgerRow


class Settled(msgspec.Struct, gc=False, tag_field="kind", tag="settled"):
    """The end of a request."""

    row: LedgerRow


Record: TypeAlias = Head | Opened | Progressed | Settled

_encoder = msgspec.json.Encoder(decimal_format="number")
_record_decoder = msgspec.json.Decoder(Record, float_hook=Decimal)
_row_decoder = msgspec.json.Decoder(LedgerRow, float_hook=Decimal)


class RecordError(LedgerError):
    """The bytes are whole but not a record of this format."""


def encode(value: Record | LedgerRow) -> bytes:
    """Compact JSON on one line. Raises `ValueError` or `TypeError` for a value that JSON cannot hold."""
    try:
        return _encoder.encode(value)
    except OverflowError as err:
        raise ValueError(str(err)) from err


def decode_record(payload: bytes) -> Record:
    """One record. Raises `RecordError`."""
    try:
        return _record_decoder.decode(payload)
    except msgspec.MsgspecError as err:
        raise RecordError(str(err)) from err


def decode_row(data: str) -> LedgerRow:
    """A row as the ledger keeps it. Raises `RecordError`."""
    try:
        return _row_decoder.decode(data)
    except msgspec.MsgspecError as err:
        raise RecordError(str(err)) from err
