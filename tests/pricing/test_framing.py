"""Lines with length and checksum: any damage costs the records it touches, and no other."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pricing.ledger.framing import Damage, Framed, _plain_line, _record_at, frame, scan_lines, scan_rest
from pricing.ledger.records import Opened, RecordError, decode_record, encode
from support.ledger_rows import open_row

# Payloads that look like headers, with the characters that frames are made of.
payloads = st.lists(
    st.one_of(
        st.text(alphabet="0123456789abcdef {}", max_size=30).map(str.encode),
        st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")),
    ),
    min_size=1,
    max_size=8,
)


def read_all(data: bytes) -> list[bytes]:
    """Every whole record of a file that nobody writes any more."""
    pieces, consumed = scan_lines(data)
    pieces += scan_rest(data[consumed:])
    return [piece.payload for piece in pieces if isinstance(piece, Framed)]


def spans(records: list[bytes]) -> list[tuple[int, int, bytes]]:
    """Where each record's line begins and where its payload ends."""
    found, position = [], 0
    for payload in records:
        line = frame(payload)
        found.append((position, position + len(line) - 1, payload))
        position += len(line)
    return found


def is_in_order(wanted: list[bytes], found: list[bytes]) -> bool:
    """Whether all wanted payloads are found, in their order."""
    rest = iter(found)
    return all(any(payload == one for one in rest) for payload in wanted)


def test_a_frame_is_length_checksum_payload() -> None:
    # cbf43926 is the published check value of this checksum.
    assert frame(b"123456789") == b"9 cbf43926 123456789\n"
    assert scan_lines(b"9 cbf43926 123456789\n") == ([Framed(0, 21, b"123456789")], 21)


def test_an_unfinished_last_line_is_left_for_later() -> None:
    whole, torn = frame(b'{"a":1}'), frame(b'{"b":2}')[:-4]
    pieces, consumed = scan_lines(whole + torn)
    assert [type(piece) for piece in pieces] == [Framed]
    assert consumed == len(whole)
    assert scan_rest(torn) == [Damage(0, len(torn))]


def test_a_last_record_that_lacks_only_its_line_feed_counts() -> None:
    line = frame(b'{"a":1}')[:-1]
    assert scan_rest(line) == [Framed(0, len(line), b'{"a":1}')]


def test_blank_lines_are_no_damage() -> None:
    pieces, _ = scan_lines(b"\n\n" + frame(b"x") + b"\n")
    assert [type(piece) for piece in pieces] == [Framed]


@settings(max_examples=150, deadline=None)
@given(payloads, st.data())
def test_truncation_loses_only_what_it_cuts(records: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(map(frame, records))
    cut = data.draw(st.integers(0, len(whole)))
    expected = [payload for _, end, payload in spans(records) if end <= cut]
    assert read_all(whole[:cut]) == expected


@settings(max_examples=200, deadline=None)
@given(payloads, st.data())
def test_changed_bytes_lose_only_the_records_they_touch(records: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(b"".join(map(frame, records)))
    places = data.draw(st.sets(st.integers(0, len(whole) - 1), max_size=4))
    for place in places:
        whole[place] ^= data.draw(st.integers(1, 255))
    untouched = [
        payload for start, end, payload in spans(records) if not any(start <= place < end for place in places)
    ]
    found = read_all(bytes(whole))
    assert is_in_order(untouched, found)
    assert all(payload in records for payload in found)


@settings(max_examples=150, deadline=None)
@given(payloads, st.data())
def test_a_hole_loses_only_the_records_it_touches(records: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(map(frame, records))
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    filler = data.draw(st.binary(max_size=20)) if end > start else b""
    before = whole[:start] + filler
    # A record needs the line end before it: a hole that took that has touched it too.
    begins_a_line = start == end or not before or before.endswith(b"\n")
    untouched = [
        payload
        for first, last, payload in spans(records)
        if last <= start or first > end or (first == end and begins_a_line)
    ]
    assert is_in_order(untouched, read_all(before + whole[end:]))


@settings(max_examples=150, deadline=None)
@given(payloads, st.data())
def test_half_a_record_that_was_left_standing_costs_only_itself(records: list[bytes], data: st.DataObject) -> None:
    """As after a disk that was full in the middle of a write: the next record begins with a line feed."""
    place = data.draw(st.integers(0, len(records) - 1))
    lines = [frame(payload) for payload in records]
    lines[place] = lines[place][: data.draw(st.integers(0, len(lines[place]) - 2))] + b"\n"
    assert is_in_order(records[:place] + records[place + 1 :], read_all(b"".join(lines)))


def test_a_record_written_into_a_text_is_never_taken_for_one() -> None:
    forged = frame(encode(Opened(open_row("kr_forged"))))
    honest = encode(Opened(open_row("kr_honest", message=forged.decode())))
    damaged = bytearray(frame(honest))
    damaged[0:1] = b"9"
    for payload in read_all(bytes(damaged)):
        try:
            record = decode_record(payload)
        except RecordError:
            continue
        raise AssertionError(f"took {record} for a record")


@settings(max_examples=60, deadline=None)
@given(payloads, st.data())
def test_the_quick_look_at_a_line_finds_what_the_careful_one_finds(
    records: list[bytes], data: st.DataObject
) -> None:
    whole = bytearray(b"".join(map(frame, records)))
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=3)):
        whole[at] = data.draw(st.sampled_from(b"0123456789abcdefABCDEF +-_\n"))
    line = bytes(whole)
    quick = [_plain_line(line, position, len(line)) for position in range(len(line))]
    careful = [_record_at(line, position, len(line)) for position in range(len(line))]
    assert [found for found in quick if found is not None] == [
        careful[position] for position, found in enumerate(quick) if found is not None
    ]
    if line == b"".join(map(frame, records)):
        starts = [start for start, _, _ in spans(records)]
        assert [quick[start] for start in starts] == [careful[start] for start in starts] != [None]
