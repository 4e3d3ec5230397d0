"""Event-stream bytes become the same events however they are split, and events become bytes again."""

import base64
import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.sse import COMMENT, DONE, Comment, Event, Frame, SseDecoder, SseTooLarge, encode_event
from support.cases import case


def decoded(*writes: bytes, max_event_bytes: int = 1024) -> list[Frame]:
    decoder = SseDecoder(max_event_bytes)
    return [frame for write in writes for frame in decoder.feed(write)] + decoder.finish()


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


def test_an_event_is_its_data_without_one_leading_space() -> None:
    assert decoded(b"data: a\n\ndata:b\n\ndata:  c\n\n") == [Event(b"a"), Event(b"b"), Event(b" c")]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_ends_a_line(end: bytes) -> None:
    stream = end.join([b"data: a", b"data: b", b"", b": note", b"data: c", b"", b""])
    assert decoded(stream) == [Event(b"a\nb"), Comment(b"note"), Event(b"c")]


def test_a_cr_and_its_lf_in_different_writes_are_one_line_end() -> None:
    assert decoded(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [Event(b"a\nb")]


def test_an_event_is_handed_out_at_its_blank_cr_without_waiting_for_more() -> None:
    assert SseDecoder().feed(b"data: a\r\r") == [Event(b"a")]


def test_a_bom_at_the_start_is_no_text_even_when_split() -> None:
    assert decoded(b"\xef", b"\xbb", b"\xbfdata: a\n\n") == [Event(b"a")]


def test_a_bom_later_on_is_text() -> None:
    assert decoded(b"data: a\n\ndata: \xef\xbb\xbfb\n\n") == [Event(b"a"), Event(b"\xef\xbb\xbfb")]


def test_a_stream_of_a_torn_bom_holds_nothing() -> None:
    assert decoded(b"\xef\xbb") == []


def test_type_and_id_are_known_and_the_id_stays() -> None:
    stream = b"event: error\nid: 7\ndata: a\n\ndata: b\n\nid: x\0y\ndata: c\n\n"
    assert decoded(stream) == [Event(b"a", "error", "7"), Event(b"b", "", "7"), Event(b"c", "", "7")]


def test_the_reconnection_time_is_known_and_no_data() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"retry: 1500\nretry: soon\ndata: a\n\n") == [Event(b"a")]
    assert decoder.retry_ms == 1500


def test_fields_of_other_names_are_ignored() -> None:
    assert decoded(b"datum: x\ndata: a\nDATA: y\n\n") == [Event(b"a")]


def test_an_event_without_data_is_none_and_its_type_is_forgotten() -> None:
    assert decoded(b"event: ping\n\ndata: a\n\n") == [Event(b"a")]


def test_an_empty_data_line_is_an_empty_event() -> None:
    assert decoded(b"data:\n\ndata\n\n") == [Event(b""), Event(b"")]


def test_comments_inside_an_event_leave_it_whole() -> None:
    assert decoded(b"data: a\n: alive\ndata: b\n\n") == [Comment(b"alive"), Event(b"a\nb")]


def test_line_separators_of_unicode_are_text() -> None:
    text = "a\u2028b\u0085c\x0bd\x0ce".encode()
    assert decoded(b"data: " + text + b"\n\n") == [Event(text)]


def test_without_a_final_blank_line_the_last_event_still_comes() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\n\ndata: b") == [Event(b"a")]
    assert decoder.finish() == [Event(b"b")]


def test_an_event_at_the_limit_is_taken() -> None:
    assert decoded(b"data: " + b"x" * 4 + b"\n\n", max_event_bytes=10) == [Event(b"xxxx")]


@pytest.mark.parametrize(
    "stream",
    [
        b"data: " + b"x" * 60,
        b"data: " + b"x" * 60 + b"\n\n",
        b"data: xxxx\n" * 20,
        b"data\n" * 60,
        b": " + b"x" * 60 + b"\n",
        b"x" * 60 + b"\r\n",
    ],
)
def test_what_grows_beyond_the_limit_is_refused_after_what_came_before(stream: bytes) -> None:
    decoder = SseDecoder(32)
    assert decoder.feed(b"data: a\n\n" + stream + b"\n\ndata: b\n\n") == [Event(b"a")]
    with pytest.raises(SseTooLarge, match="32 bytes"):
        decoder.feed(b"data: c\n\n")
    with pytest.raises(SseTooLarge):
        decoder.finish()


def test_many_comments_are_no_large_event() -> None:
    assert len(decoded(b": OPENROUTER PROCESSING\n" * 100, max_event_bytes=64)) == 100


LINES = st.sampled_from(
    [b"data: a", b"data:", b"data", b"data: \xe4\xbb\xb7", b": c", b":", b"event: error", b"event:", b"id: 1"]
)
STREAMS = st.lists(st.tuples(LINES | st.just(b""), st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n"]))).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


@given(STREAMS, st.sampled_from([b"", b"\xef\xbb\xbf"]), st.lists(st.integers(0, 200), max_size=12))
@settings(max_examples=200)
def test_any_split_of_the_bytes_gives_the_same_events(stream: bytes, bom: bytes, cuts: list[int]) -> None:
    whole = decoded(bom + stream)
    assert decoded(*pieces(bom + stream, cuts)) == whole
    assert decoded(*(bytes([byte]) for byte in bom + stream)) == whole


@given(STREAMS, st.lists(st.integers(0, 200), max_size=8), st.integers(4, 24))
@settings(max_examples=200)
def test_any_split_meets_the_limit_at_the_same_place(stream: bytes, cuts: list[int], limit: int) -> None:
    assert before_the_limit([stream], limit) == before_the_limit(pieces(stream, cuts), limit)


def before_the_limit(writes: list[bytes], limit: int) -> tuple[list[Frame], bool]:
    decoder, frames = SseDecoder(limit), []
    try:
        for write in writes:
            frames += decoder.feed(write)
        frames += decoder.finish()
    except SseTooLarge:
        return frames, True
    return frames, False


@given(st.lists(st.binary(max_size=40)))
def test_encoded_events_decode_to_their_data_with_lf_for_every_line_break(datas: list[bytes]) -> None:
    stream = b"".join(map(encode_event, datas))
    plain = [data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") for data in datas]
    assert decoded(stream) == [Event(data) for data in plain]


def test_an_event_is_encoded_as_one_frame() -> None:
    assert encode_event(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert encode_event(b"x\ny", event="error") == b"event: error\ndata: x\ndata: y\n\n"
    assert decoded(COMMENT + encode_event(DONE)) == [Comment(b"keep-alive"), Event(b"[DONE]")]


@pytest.mark.parametrize("case_id", ["sse-01", "sse-02"])
def test_the_writes_of_the_cases_give_whole_events(case_id: str) -> None:
    writes = [base64.b64decode(write) for write in case(case_id)["given"]["upstream"][0]["sse_b64_chunks"]]
    frames = decoded(*writes, max_event_bytes=4096)
    assert frames[-1] == Event(b"[DONE]")
    text = b"".join(frame.data for frame in frames if isinstance(frame, Event)).decode()
    assert ("价格 🚀 ok" in text) == (case_id == "sse-02")


def test_a_large_event_in_small_writes_takes_linear_time() -> None:
    event = encode_event(b"x" * (15 * 1024 * 1024))
    decoder, frames, start = SseDecoder(), [], time.perf_counter()
    for place in range(0, len(event), 1024):
        frames += decoder.feed(event[place : place + 1024])
    # About 0.1 s here; copying the event for each write would be 120 GB, half a minute at best.
    assert time.perf_counter() - start < 5
    assert [len(frame.data) for frame in frames if isinstance(frame, Event)] == [15 * 1024 * 1024]
