"""The record at rest: bounded whatever happens, the same after packing, nothing where the bytes are no record."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kimi_gateway.core.prefix import MARK_BYTES
from kimi_gateway.core.sending import RUNS_BYTES_MAX
from kimi_gateway.core.warm_record import (
    LINES_MAX,
    RECORD_BYTES_MAX,
    TRAIL_MAX,
    Checkpoint,
    Line,
    Record,
    pack,
    thinned,
    unpack,
)
from support.warming import Ask, Caller, answer, conversation, served

marks = st.binary(max_size=MARK_BYTES)
tokens = st.integers(0, 2**32 - 1)
lines = st.builds(
    Line,
    target=marks,
    model=marks,
    tools=marks,
    narrowed=st.binary(max_size=2),
    effort=st.sampled_from(["unset", "none", "low", "high", "max"]),
    turn=st.integers(0, 2**16 - 1),
    mark=marks,
    thoughts=st.binary(max_size=RUNS_BYTES_MAX),
    sent_s=tokens,
    took_s=st.integers(0, 2**16 - 1),
    ttl_s=st.sampled_from([0, 300, 3600]),
    prompt_tokens=tokens,
    read_tokens=st.none() | tokens,
)
checkpoints = st.builds(Checkpoint, turn=st.integers(0, 2**16 - 1), mark=marks, tokens=tokens)
records = st.builds(
    Record,
    id=marks,
    name=marks,
    root=marks,
    answered=marks,
    anchor=marks,
    lines=st.lists(lines, min_size=1, max_size=LINES_MAX).map(tuple),
    measured=marks,
    trail=st.lists(checkpoints, max_size=TRAIL_MAX).map(tuple),
)


@settings(max_examples=100)
@given(records)
def test_packed_and_unpacked_it_is_the_same(record: Record) -> None:
    data = pack(record)
    assert unpack(data) == record


def test_the_largest_record_is_within_its_bound() -> None:
    mark = b"\xff" * MARK_BYTES
    runs = b"\xff" * RUNS_BYTES_MAX
    line = Line(
        mark, mark, mark, b"\xff\xff", "unset", 65535, mark, runs, 2**32 - 1, 65535, 3600, 2**32 - 1, 2**32 - 1
    )
    trail = (Checkpoint(65535, mark, 2**32 - 1),) * TRAIL_MAX
    data = pack(Record(mark, mark, mark, mark, mark, (line,) * LINES_MAX, mark, trail))
    assert len(data) <= RECORD_BYTES_MAX
    assert unpack(data) is not None


@settings(max_examples=100)
@given(st.binary(max_size=1100))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    for given_bytes in (data, b"\x01" + data):
        record = unpack(given_bytes)
        assert record is None or unpack(pack(record)) == record


@settings(max_examples=100)
@given(record=records, place=st.integers(0, 1023), byte=st.integers(0, 255), now_s=st.floats(0, 2**33))
def test_a_damaged_record_is_none_or_harmless(record: Record, place: int, byte: int, now_s: float) -> None:
    data = bytearray(pack(record))
    data[place % len(data)] = byte
    caller = Caller(now_s=now_s)
    messages = conversation(3, 20)
    ask = Ask(conversation="run-1")
    prefix, _ = caller.prefix(messages, ask)
    assert prefix.name is not None
    caller.notes[prefix.name.digest] = bytes(data)
    seen = caller.ask(messages, answer("new", 20), ask)
    assert seen.record is not None
    assert len(pack(seen.record)) <= RECORD_BYTES_MAX


def test_other_versions_truncated_and_oversized_bytes_are_none() -> None:
    caller = Caller()
    served(caller, 2)
    data = next(iter(caller.notes.values()))
    assert unpack(data) is not None
    assert unpack(b"\x00" + data[1:]) is unpack(b"\x02" + data[1:]) is unpack(data[:-1]) is None
    assert unpack(data + b"\x00") is unpack(data + bytes(RECORD_BYTES_MAX)) is unpack(b"") is unpack(None) is None


def test_values_out_of_bounds_are_none() -> None:
    mark = b"12345678"
    line = Line(mark, mark, mark, b"", "low", 1, mark, b"", 1, 1, 300, 1)
    good = Record(mark, mark, mark, mark, mark, (line,), mark, (Checkpoint(1, mark, 1),))
    assert unpack(pack(good)) == good
    bad: list[dict[str, Any]] = [
        {"lines": ()},
        {"lines": (line,) * (LINES_MAX + 1)},
        {"lines": (replace(line, effort="x" * 9),)},
        {"lines": (replace(line, sent_s=2**32),)},
        {"trail": (Checkpoint(1, mark + b"9", 1),)},
        {"trail": (Checkpoint(-1, mark, 1),)},
        {"trail": (Checkpoint(1, mark, 1),) * (TRAIL_MAX + 1)},
        {"id": mark * 2},
    ]
    for changes in bad:
        assert unpack(pack(replace(good, **changes))) is None


@settings(max_examples=30)
@given(st.integers(1, 400))
def test_a_trail_is_dense_at_its_end_and_reaches_to_the_beginning(turns: int) -> None:
    trail: tuple[Checkpoint, ...] = ()
    for turn in range(turns):
        trail = thinned((*trail, Checkpoint(turn, b"", turn)))
    kept = [one.turn for one in trail]
    assert len(kept) <= TRAIL_MAX
    assert kept == sorted(kept)
    assert kept[0] == 0
    assert kept[-4:] == list(range(max(0, turns - 4), turns))
    # Wherever a history is changed, a checkpoint lies not much farther back than it takes to the end.
    for turn in range(turns):
        nearest = max(one for one in kept if one <= turn)
        assert turn - nearest <= 5 * (turns - turn) + 5


def test_more_targets_than_a_record_holds_leave_the_last_used() -> None:
    caller = Caller()
    messages = served(caller, 3)
    for number in range(LINES_MAX + 3):
        seen = caller.ask(messages, answer("new"), Ask(target=f"target-{number}", conversation="run-1"))
        messages = [*messages, answer("new"), {"role": "user", "content": "Go on."}]
    assert seen.record is not None
    assert len(seen.record.lines) == LINES_MAX
    again = caller.ask(messages, answer("new"), Ask(target="target-5", conversation="run-1"))
    gone = caller.ask(messages, answer("new"), Ask(target="target-1", conversation="run-1"))
    assert again.warmth.expected_read_tokens > 0
    assert (gone.warmth.expected_read_tokens, gone.warmth.age_s) == (0, None)


def test_a_long_conversation_has_a_short_record() -> None:
    caller = Caller()
    messages = served(caller, 60, tokens=8)
    seen = caller.ask(messages, answer("end", 8))
    assert seen.record is not None
    assert seen.record.lines[0].turn == 60
    assert len(pack(seen.record)) < 400
