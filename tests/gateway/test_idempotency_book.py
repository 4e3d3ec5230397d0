"""The book of requests that may come twice: who may run, what is kept, what has to go."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_gateway.core.idempotency import (
    RECORD_OVERHEAD_BYTES,
    Answer,
    Bounds,
    IdempotencyBook,
    Place,
    RecordError,
    pack,
    place_of,
    unpack,
)
from kimi_gateway.core.thought_record import Owner

WIDE = Bounds(retention_s=100.0, lease_s=10.0)
BODY, OTHER = b"b" * 32, b"o" * 32
ONE, TWO = b"1" * 16, b"2" * 16


def place(number: int, key: str = "team-a") -> Place:
    return Place(key, b"%032d" % number)


def answer(size: int = 10) -> Answer:
    return Answer(200, ((b"content-type", b"application/json"),), b"x" * size)


HERE = place(0)


def kept_book(bounds: Bounds, *sizes: tuple[str, int]) -> IdempotencyBook:
    """One answer of that size for each, at place 0, 1, …"""
    book = IdempotencyBook(bounds)
    for number, (key, size) in enumerate(sizes):
        book.claim(place(number, key), BODY, ONE, number)
        book.finish(place(number, key), BODY, ONE, answer(size), number)
    return book


def test_the_first_runs_the_second_waits_and_finds_the_answer() -> None:
    book = IdempotencyBook(WIDE)
    assert book.claim(HERE, BODY, ONE, 0) == "taken"
    assert book.claim(HERE, BODY, TWO, 1) == "running"
    assert book.finish(HERE, BODY, ONE, answer(), 2)
    assert book.claim(HERE, BODY, TWO, 3) == answer()
    assert book.claim(HERE, BODY, TWO, 101) == answer()
    assert book.claim(HERE, BODY, TWO, 102) == "taken"


def test_another_body_is_told_so_while_it_runs_and_afterwards() -> None:
    book = IdempotencyBook(WIDE)
    book.claim(HERE, BODY, ONE, 0)
    assert book.claim(HERE, OTHER, TWO, 1) == "other"
    book.finish(HERE, BODY, ONE, answer(), 2)
    assert book.claim(HERE, OTHER, TWO, 3) == "other"


def test_what_is_given_up_may_run_again_with_another_body() -> None:
    book = IdempotencyBook(WIDE)
    book.claim(HERE, BODY, ONE, 0)
    book.release(HERE, TWO)
    assert book.claim(HERE, BODY, TWO, 1) == "running"
    book.release(HERE, ONE)
    assert book.claim(HERE, OTHER, TWO, 1) == "taken"


def test_a_lease_that_nobody_renews_ends_and_one_that_is_renewed_does_not() -> None:
    book = IdempotencyBook(WIDE)
    book.claim(HERE, BODY, ONE, 0)
    assert book.renew(HERE, BODY, ONE, 6)
    assert book.claim(HERE, BODY, TWO, 15) == "running"
    assert book.claim(HERE, BODY, TWO, 16) == "taken"
    assert not book.renew(HERE, BODY, ONE, 17)
    assert not book.finish(HERE, BODY, ONE, answer(1), 17)
    assert book.finish(HERE, BODY, TWO, answer(2), 18)
    assert not book.finish(HERE, BODY, ONE, answer(1), 19)
    assert book.claim(HERE, BODY, ONE, 20) == answer(2)


def test_an_attempt_whose_lease_ended_unnoticed_keeps_its_answer() -> None:
    book = IdempotencyBook(WIDE)
    book.claim(HERE, BODY, ONE, 0)
    assert book.renew(HERE, BODY, ONE, 50)
    assert book.finish(HERE, BODY, ONE, answer(), 90)
    assert book.claim(HERE, BODY, TWO, 91) == answer()


def test_an_answer_that_is_too_large_leaves_only_the_fact_that_there_was_one() -> None:
    book = IdempotencyBook(WIDE)
    book.claim(HERE, BODY, ONE, 0)
    book.finish(HERE, BODY, ONE, answer(WIDE.max_answer_bytes + 1), 0)
    assert (book.claim(HERE, BODY, TWO, 1), book.claim(HERE, OTHER, TWO, 1)) == ("not_kept", "other")
    assert book.size_bytes == RECORD_OVERHEAD_BYTES
    book.claim(place(1), BODY, ONE, 0)
    book.finish(place(1), BODY, ONE, answer(WIDE.max_answer_bytes), 0)
    assert book.claim(place(1), BODY, TWO, 1) == answer(WIDE.max_answer_bytes)


def test_where_there_is_no_room_the_key_with_the_most_gives_its_oldest_answer() -> None:
    bounds = Bounds(100.0, 10.0, max_bytes=40_000)
    book = kept_book(bounds, ("quiet", 1_000), ("busy", 9_000), ("busy", 9_000), ("busy", 9_000), ("busy", 9_000))
    assert book.size_bytes <= 40_000
    assert book.claim(place(0, "quiet"), BODY, TWO, 5) == answer(1_000)
    assert book.claim(place(1, "busy"), BODY, TWO, 5) == "not_kept"
    assert book.claim(place(2, "busy"), BODY, TWO, 5) == answer(9_000)


def test_marks_without_an_answer_hold_a_part_of_the_room_and_no_more() -> None:
    bounds = Bounds(1e6, 10.0, max_bytes=100_000)
    book = kept_book(bounds, *[("busy", 20_000)] * 100)
    marks = [book.claim(place(number, "busy"), BODY, TWO, 200) for number in range(96)]
    assert 10 <= marks.count("not_kept") <= 17
    assert marks[-1] == "not_kept"
    assert isinstance(book.claim(place(99, "busy"), BODY, TWO, 200), Answer)


def test_answers_of_a_key_can_be_deleted() -> None:
    book = kept_book(WIDE, ("team-a", 10), ("team-b", 10), ("team-a", 10))
    assert book.forget_key("team-a") == 2
    assert book.claim(place(0), BODY, TWO, 5) == "taken"
    assert book.claim(place(1, "team-b"), BODY, TWO, 5) == answer()
    assert book.forget_key("team-a") == 0


Step = tuple[str, int, int, int]
STEPS = st.tuples(
    st.sampled_from(["claim", "renew", "finish", "release"]),
    st.integers(0, 5),
    st.integers(0, 2),
    st.integers(0, 6_000),
)


@given(st.lists(STEPS, max_size=60))
@settings(max_examples=100, deadline=None)
def test_whatever_happens_the_sums_are_right_and_within_bounds(steps: list[Step]) -> None:
    book = IdempotencyBook(Bounds(30.0, 10.0, max_bytes=16_000, max_answer_bytes=5_000))
    for now_s, (what, number, attempt, size) in enumerate(steps):
        here, token = place(number, f"key-{number % 3}"), bytes([attempt]) * 16
        if what == "claim":
            book.claim(here, BODY, token, now_s)
        elif what == "renew":
            book.renew(here, BODY, token, now_s)
        elif what == "finish":
            book.finish(here, BODY, token, answer(size), now_s)
        else:
            book.release(here, token)
        assert 0 <= book.size_bytes <= 16_000
    book.claim(place(99), BODY, ONE, len(steps) + 1_000)
    assert book.size_bytes == 0


def test_two_callers_have_nothing_in_common() -> None:
    places = [
        place_of(Owner("team-a"), "k"),
        place_of(Owner("team-b"), "k"),
        place_of(Owner("team-a", b"u" * 32), "k"),
        place_of(Owner("team-a", b"v" * 32), "k"),
        place_of(Owner("team-a"), "l"),
    ]
    assert len(set(places)) == 5
    assert place_of(Owner("team-a"), "k") == places[0]


def test_a_record_gives_back_what_was_kept_and_nothing_else_is_taken_for_one() -> None:
    whole = Answer(200, ((b"x-kimi-target", b"moonshot"), (b"x", b"")), b"\x00\xffdata")
    assert unpack(pack(whole)) == whole
    for damaged in (b"", pack(whole)[:-1], b"\x02" + pack(whole)[1:], b"\x01\xc0"):
        with pytest.raises(RecordError):
            unpack(damaged)
