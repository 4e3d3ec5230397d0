"""The records of a journal as JSON: every row can be written, and no line can do worse than be damaged."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pricing.ledger.records import (
    Ended,
    Opened,
    RecordError,
    Settled,
    decode_record,
    decode_row,
    decode_to_book,
    encode,
    encode_into,
)
from pricing.ledger.row import RowColumns
from support.ledger_rows import settled_row

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=6)  # halves of surrogate pairs included
NUMBERS = st.one_of(
    st.integers(), st.integers(2**63, 2**80), st.floats(), st.decimals(), st.just(Decimal("1e999999999"))
)
ANY_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, ANY_TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(ANY_TEXT, inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(ANY_TEXT, ANY_JSON, max_size=3), ANY_TEXT, st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=2))
@settings(max_examples=200)
def test_every_row_can_be_written_and_read_back(usage: dict[str, Any], text: str, tags: dict[str, str]) -> None:
    row = settled_row("a", raw_usage=usage, message=text, tags=tags)
    read = decode_record(encode(Settled(row)))
    assert isinstance(read, Settled)
    assert (read.row.request_id, read.row.cost_nano) == ("a", row.cost_nano)
    assert decode_row(encode(row).decode()) == read.row


def test_what_can_be_written_is_left_as_it_is() -> None:
    row = settled_row(
        "a", message="\ud83d\ude00 \ud83d", raw_usage={"cost": Decimal("0.0212"), "x": Decimal("inf")}
    )
    read = decode_record(encode(Settled(row))).row  # type: ignore[union-attr]  # it is no head
    assert read.message == "\U0001f600 \ufffd"
    assert read.raw_usage == {"cost": Decimal("0.0212"), "x": None}


def test_what_nests_too_deep_is_cut_off() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    row = settled_row("a", raw_usage={"deep": deep, "total_tokens": 8})
    read = decode_record(encode(Settled(row))).row  # type: ignore[union-attr]  # it is no head
    assert read.raw_usage is not None
    assert read.raw_usage["total_tokens"] == 8


@pytest.mark.parametrize("value", ["1e" + "9" * 30, "-1e-" + "9" * 30, "[" * 9999 + "]" * 9999, '"\\ud800"', "1e"])
def test_a_line_that_cannot_be_read_is_said_to_be_none(value: str) -> None:
    row = f'{{"request_id":"a","started_at":1,"raw_usage":{{"x":{value}}}}}'
    with pytest.raises(RecordError):
        decode_record(f'{{"kind":"settled","row":{row}}}'.encode())
    with pytest.raises(RecordError):
        decode_row(row)


@given(st.dictionaries(ANY_TEXT, ANY_JSON, max_size=3), ANY_TEXT, st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=2))
@settings(max_examples=60)
def test_what_is_read_for_the_ledger_is_the_whole_row(
    usage: dict[str, Any], text: str, tags: dict[str, str]
) -> None:
    payload = encode(Settled(settled_row("a", raw_usage=usage, model=text, tags=tags)))
    read, booked = decode_record(payload), decode_to_book(payload)
    assert isinstance(read, Settled)
    assert isinstance(booked, Ended)
    assert decode_row(booked.row.data) == read.row
    for name in RowColumns.__struct_fields__:
        assert getattr(booked.row, name) == getattr(read.row, name), name


def test_an_end_written_in_another_order_is_read_for_the_ledger_too() -> None:
    payload = b'{"row":{"started_at":1,"message":"m","request_id":"a"},"kind":"settled"}'
    booked = decode_to_book(payload)
    assert isinstance(booked, Ended)
    assert decode_row(booked.row.data) == decode_record(payload).row  # type: ignore[union-attr]  # it is no head


@pytest.mark.parametrize("value", [b'"\xff"', b"{", b"1e", b"[" * 9999 + b"]" * 9999])
def test_a_line_that_cannot_be_read_is_none_for_the_ledger_either(value: bytes) -> None:
    with pytest.raises(RecordError):
        decode_to_book(
            b'{"kind":"settled","row":{"request_id":"a","started_at":1,"raw_usage":{"x":' + value + b"}}}"
        )


def test_the_buffer_holds_the_last_record_alone() -> None:
    buffer = bytearray()
    for record in (
        Settled(settled_row("a", message="x" * 5000)),
        Opened(settled_row("\ud800")),
        Opened(settled_row("b")),
    ):
        encode_into(record, buffer)
        assert bytes(buffer) == encode(record)
