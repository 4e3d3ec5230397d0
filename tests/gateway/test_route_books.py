"""What routing learns: shared prefixes, the pace of targets, the length of answers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.messages import MessageHead, read_heads
from kimi_gateway.core.digest import TurnMemo, read_history
from kimi_gateway.core.prefix import read_prefix
from kimi_gateway.core.routing.candidate import USUAL_OUTPUT_TOKENS
from kimi_gateway.core.routing.pace_book import OutputBook, PaceBook, Timing, timing_of
from kimi_gateway.core.routing.shared_prefix import Opening, Reads, SharedPrefixes, conversation_key, opening_of
from kimi_gateway.core.view import Raw
from kimi_gateway.core.warmth import Warmth
from pricing.ledger.row import AttemptRecord, LedgerRow

SYSTEM = "You are an agent of a large fleet. " * 1_000
COLD = Warmth()
A = ("a", "m")


def heads(*turns: tuple[str, str]) -> list[MessageHead]:
    body = ",".join(f'{{"role":"{role}","content":"{text}"}}' for role, text in turns)
    return read_heads(Raw(f"[{body}]".encode()))


def opening(
    question: str, *, system: str = SYSTEM, tools: bytes = b"tools", effort: str = "max", tools_bytes: int = 20_000
) -> Opening:
    turns = heads(("system", system), ("user", question))
    return opening_of(turns, tools=tools, tools_bytes=tools_bytes, effort=effort, memo=TurnMemo())


def seen(book: SharedPrefixes, at_s: float = 0.0, *, read: int | None = 0, ttl_s: float = 300.0) -> None:
    one = opening("first question")
    reads = book.expected(*A, one, COLD, at_s)
    book.sent(*A, one, ttl_s, at_s)
    book.reported(*A, one, reads, read, at_s + 5)


# --- shared prefixes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "least"),
    [
        (opening("another question"), 13_000),  # tools and system prompt
        (opening("another question", system="Another."), 4_000),  # only the tools
        (opening("another question", effort="low"), 4_000),  # the effort stands before the system prompt
        (opening("another question", tools=b"more"), 0),
    ],
)
def test_a_first_turn_finds_what_other_conversations_left(other: Opening, least: int) -> None:
    book = SharedPrefixes()
    seen(book)
    found = book.expected(*A, other, COLD, 10.0)
    assert least <= found.tokens < least + 2_000
    assert (found.shared, found.age_s) == ((True, 10.0) if least else (False, None))
    assert book.expected("b", "m", other, COLD, 10.0) == Reads()
    assert book.expected("a", "fast", other, COLD, 10.0) == Reads()


def test_a_shared_prefix_is_over_with_its_lifetime_which_every_use_renews() -> None:
    book, other = SharedPrefixes(), opening("another question")
    seen(book, 0.0)
    book.sent(*A, opening("third"), 300.0, 200.0)
    assert book.expected(*A, other, COLD, 499.0).tokens > 0
    assert book.expected(*A, other, COLD, 500.0) == Reads()


def test_a_lifetime_is_that_of_the_first_write() -> None:
    book, other = SharedPrefixes(), opening("another question")
    seen(book, 0.0, ttl_s=3600.0)
    book.sent(*A, other, 300.0, 10.0)
    assert book.expected(*A, opening("third"), COLD, 2_000.0).tokens > 0


def test_an_engine_is_taken_to_keep_what_it_has() -> None:
    book = SharedPrefixes()
    seen(book, 0.0, ttl_s=0.0)
    assert book.expected(*A, opening("another"), COLD, 50_000.0).tokens > 0


def test_what_a_report_says_replaces_the_guess() -> None:
    book, other = SharedPrefixes(), opening("another question")
    seen(book)
    reads = book.expected(*A, other, COLD, 10.0)
    book.reported(*A, other, reads, 11_520, 20.0)
    assert book.expected(*A, opening("third"), COLD, 30.0).tokens == 11_520


def test_the_conversations_own_prefix_counts_where_it_is_longer() -> None:
    book = SharedPrefixes()
    seen(book)
    own = Warmth(expected_read_tokens=90_000, age_s=3.0)
    found = book.expected(*A, opening("first question"), own, 10.0)
    assert (found.tokens, found.age_s, found.shared) == (90_000, 3.0, False)


def test_a_target_that_does_not_read_what_it_should_is_trusted_less_and_tried_again_later() -> None:
    book = SharedPrefixes()
    own = Warmth(expected_read_tokens=90_000, age_s=3.0)
    for _ in range(12):
        book.reported(*A, opening("q"), book.expected(*A, opening("q"), own, 10.0), 0, 10.0)
    assert book.expected(*A, opening("q"), own, 10.0).tokens < 9_000
    assert book.expected("b", "m", opening("q"), own, 10.0).tokens == 90_000
    assert book.expected(*A, opening("q"), own, 10.0 + 4 * 600).tokens > 80_000
    for _ in range(12):
        book.reported(*A, opening("q"), book.expected(*A, opening("q"), own, 10.0), 90_000, 10.0)
    assert book.expected(*A, opening("q"), own, 10.0).tokens > 80_000


def test_a_burst_that_comes_before_the_first_answer_costs_no_trust() -> None:
    book = SharedPrefixes()
    burst = [opening(f"question {n}") for n in range(20)]
    expected = []
    for one in burst:
        expected.append(book.expected(*A, one, COLD, 0.0))
        book.sent(*A, one, 300.0, 0.0)
    assert expected[1].tokens > 0
    for one, reads in zip(burst, expected, strict=True):
        book.reported(*A, one, reads, 0, 3.0)
    assert book.expected(*A, opening("late"), COLD, 4.0).tokens >= expected[1].tokens


def test_what_failed_before_any_answer_has_left_nothing() -> None:
    book, one = SharedPrefixes(), opening("question")
    book.sent(*A, one, 300.0, 0.0)
    book.failed(*A, one)
    assert book.expected(*A, one, COLD, 1.0) == Reads()
    seen(book, 2.0)
    book.sent(*A, one, 300.0, 3.0)
    book.failed(*A, one)
    assert book.expected(*A, opening("another"), COLD, 4.0).tokens > 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=120))
def test_the_book_stays_within_its_bound_and_keeps_what_was_used_last(questions: list[int]) -> None:
    book = SharedPrefixes(max_entries=12)
    for at_s, number in enumerate(questions):
        book.sent(*A, opening(str(number), system=str(number), tools=b""), 0.0, float(at_s))
        assert len(book) <= 12
    for number in questions[-4:]:
        one = opening(str(number), system=str(number), tools=b"")
        assert book.expected(*A, one, COLD, 500.0).tokens > 0


def test_a_conversation_keeps_its_key_as_it_grows_whatever_its_tools() -> None:
    first = heads(("system", "s"), ("user", "q"))
    later = heads(("system", "s"), ("user", "q"), ("assistant", "a"), ("user", "r"))
    memo = TurnMemo()
    one = opening_of(first, tools=b"t", tools_bytes=9, effort="max", memo=memo)
    two = opening_of(later, tools=b"u", tools_bytes=8, effort="low", memo=memo)
    other = opening_of(heads(("system", "s"), ("user", "p")), tools=b"t", tools_bytes=9, effort="max", memo=memo)
    assert one.key == two.key != other.key


def test_a_conversation_that_has_a_name_goes_by_it() -> None:
    turns = heads(("user", "q"))
    one = opening("q")
    history = read_history(turns, TurnMemo())

    def key(header: str | None, cache_key: Raw | None) -> bytes:
        fields = {"prompt_cache_key": cache_key} if cache_key is not None else {}
        prefix = read_prefix(history, turns, fields, conversation=header)
        return conversation_key(prefix, one)

    assert key(None, None) == one.key
    assert key("name", Raw(b'"k"')) == key("name", None) != one.key
    assert key(None, Raw(b'"k"')) not in (one.key, key("name", None))


# --- pace -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.05, 3.0),
    st.floats(1e-6, 1e-3),
    st.floats(0.002, 0.1),
    st.lists(st.integers(0, 300_000), min_size=2, max_size=30, unique=True),
)
def test_the_pace_of_a_steady_target_is_found(
    first_s: float, fresh_s: float, token_s: float, sizes: list[int]
) -> None:
    book = PaceBook()
    for fresh in sizes:
        ttft_s = first_s + fresh * fresh_s
        book.learn("a", "standard", Timing(ttft_s, ttft_s + 99 * token_s, fresh, 100), 0.0)
    pace = book.pace("a", "standard", 0.0)
    assert pace is not None
    assert pace.token_s == pytest.approx(token_s, rel=1e-6)
    if max(sizes) - min(sizes) > 4_000 * len(sizes):
        assert pace.fresh_s == pytest.approx(fresh_s, rel=1e-3)
        assert pace.first_s == pytest.approx(first_s, rel=1e-2, abs=0.01)
    mean = sum(sizes) / len(sizes)
    assert pace.first_s + mean * pace.fresh_s == pytest.approx(first_s + mean * fresh_s, rel=1e-6)


def test_nothing_is_known_of_a_target_nobody_asked_or_of_one_long_ago() -> None:
    book = PaceBook(half_life_s=10.0)
    assert book.pace("a", "standard", 0.0) is None
    book.learn("a", "standard", Timing(1.0, 3.0, 10_000, 101), 0.0)
    assert book.pace("a", "highspeed", 0.0) is None
    assert book.pace("a", "standard", 40.0) is not None
    assert book.pace("a", "standard", 50.0) is None
    assert book.tokens_per_s(0.0) == {("a", "standard"): pytest.approx(50.0)}
    assert book.tokens_per_s(50.0) == {}


def test_a_target_that_gets_slower_is_soon_known_to_be() -> None:
    book = PaceBook(half_life_s=60.0)
    for second in range(600):
        book.learn("a", "standard", Timing(0.2, 1.2, 1_000, 51), float(second))
    for second in range(600, 780):
        book.learn("a", "standard", Timing(2.0, 6.0, 1_000, 51), float(second))
    pace = book.pace("a", "standard", 780.0)
    assert pace is not None
    assert pace.first_s + 1_000 * pace.fresh_s == pytest.approx(2.0, rel=0.2)
    assert pace.token_s == pytest.approx(4 / 50, rel=0.2)


@pytest.mark.parametrize(
    "timing", [Timing(-1.0, 2.0, 5, 9), Timing(3.0, 2.0, 5, 9), Timing(0.0, 1e9, 5, 9), Timing(1.0, 2.0, -5, 9)]
)
def test_a_timing_that_cannot_be_true_teaches_nothing(timing: Timing) -> None:
    book = PaceBook()
    book.learn("a", "standard", timing, 0.0)
    assert book.pace("a", "standard", 0.0) is None


def row(**facts: object) -> LedgerRow:
    made = LedgerRow(
        request_id="kr_1",
        started_at=0.0,
        status="ok",
        attempts=[AttemptRecord("a", "vllm", "m", 0), AttemptRecord("b", "vllm", "m", 4_000)],
        prompt_tokens=10_000,
        cached_tokens=8_000,
        completion_tokens=200,
        wait_ms=1_500,
        ttft_ms=4_500,
        total_ms=8_500,
    )
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def test_a_row_is_timed_from_when_the_target_that_answered_was_asked() -> None:
    assert timing_of(row()) == Timing(0.5, 4.5, 2_000, 200)
    for facts in ({"status": "error"}, {"estimated": True}, {"ttft_ms": None}, {"completion_tokens": None}):
        assert timing_of(row(**facts)) is None


def test_the_length_of_answers_is_learned_and_kept_below_the_limit() -> None:
    book = OutputBook(half_life_s=100.0)
    assert book.expected("r max", None, 0.0) == USUAL_OUTPUT_TOKENS
    for _ in range(200):
        book.learn("r max", 5_000, 0.0)
    assert 4_600 < book.expected("r max", None, 0.0) <= 5_000
    assert book.expected("r max", 300, 0.0) == 300
    assert book.expected("r low", None, 0.0) == USUAL_OUTPUT_TOKENS
    assert book.expected("r max", None, 5_000.0) == USUAL_OUTPUT_TOKENS
