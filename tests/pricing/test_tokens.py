"""Counts and estimates: what is exact says so, what is not says why and how far off it can be."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pricing.estimate import text_size
from pricing.tokens import (
    KIMI_K3,
    RUN_CHARACTERS_MAX,
    TEXT_CHARACTERS_MAX,
    TokenCount,
    count_chat,
    count_text,
    special_tokens,
    split_text,
)
from pricing.vocabulary import Vocabulary, load_vocabulary
from pricing.xtml import ChatError
from support.shared import shared_path

TEXTS = st.text(max_size=80) | st.text("aA1 .*\n\r\u3000\u200b你好é🙂ß'sT", max_size=80)
ORDINARY = st.lists(st.sampled_from(("Graz", "lies", "on", "the", "Mur,", "在河边。", "42", "\n")), min_size=1)


@cache
def _load(path: Path) -> Vocabulary:
    return load_vocabulary(path)


@pytest.fixture
def vocabulary() -> Vocabulary:
    return _load(shared_path("tokenizer/tiktoken.model"))


class Letters:
    """Counts a token per character and keeps what it was given."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def count(self, text: str) -> int:
        self.texts.append(text)
        return len(text)


def chat(*contents: object, **fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content} for content in contents], **fields}


def cut_one_by_one(text: str, characters_max: int, run_max: int) -> Iterator[str]:
    """The rule as it is stated, a character at a time."""
    for start in range(0, len(text), characters_max):
        piece, run = "", ""
        for character in text[start : start + characters_max]:
            if run and run[-1].isspace() != character.isspace():
                run = ""
            if len(run) == run_max:
                yield piece
                piece, run = "", ""
            piece, run = piece + character, run + character
        yield piece


@given(st.text("ab \n\u3000é", max_size=60), st.integers(1, 40), st.integers(1, 12))
def test_long_texts_and_runs_are_cut_where_the_rule_says(text: str, characters_max: int, run_max: int) -> None:
    pieces = list(split_text(text, characters_max=characters_max, run_max=run_max))

    assert pieces == list(cut_one_by_one(text, characters_max, run_max))
    assert "".join(pieces) == text


def test_the_limits_are_those_of_the_reference() -> None:
    assert [len(piece) for piece in split_text("a" * 60_000)] == [25_000, 25_000, 10_000]
    assert [len(piece) for piece in split_text("b " + " " * 25_001)] == [25_001, 2]
    assert [len(piece) for piece in split_text("ab " * 200_000)] == [400_000, 200_000]


@given(ORDINARY)
def test_an_ordinary_text_is_not_cut(words: list[str]) -> None:
    text = " ".join(["Graz", *words] * (RUN_CHARACTERS_MAX // len(words)))[:TEXT_CHARACTERS_MAX]

    assert list(split_text(text)) == [text]


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(words=ORDINARY)
def test_the_limits_do_not_change_the_count_of_ordinary_text(vocabulary: Vocabulary, words: list[str]) -> None:
    """Lines of 100 characters, of which the limit is a multiple: each counts as it does alone."""
    line = f"Graz {' '.join(words)} {'mur' * 40}"[:99] + "\n"
    alone = vocabulary.count(line)

    for lines in (2 * RUN_CHARACTERS_MAX // 100, TEXT_CHARACTERS_MAX // 100 + 1):
        assert vocabulary.count(line * lines) == alone * lines


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=TEXTS)
def test_every_count_is_within_the_bounds_of_the_estimate(vocabulary: Vocabulary, text: str) -> None:
    exact, estimate = count_text(text, vocabulary), count_text(text)

    assert estimate.high is not None
    assert estimate.low <= exact.tokens <= estimate.high


def test_a_count_with_a_vocabulary_is_exact() -> None:
    assert count_text("abc", Letters()) == TokenCount(3, 3, 3, exact=True, method="vocabulary", error="")


def test_a_count_without_one_is_labelled_as_an_estimate() -> None:
    count, estimate = count_text("今天 a"), text_size("今天 a".encode()).estimate()

    assert (count.tokens, count.low, count.high) == (estimate.tokens, estimate.low, estimate.high)
    assert (count.exact, count.method) == (False, "estimate")
    assert "1 to 8 tokens" in count.error
    assert "kimi-pricing tokenizer fetch" in count.error


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ud83d\ude42" * 40])
def test_half_a_surrogate_pair_is_counted_like_what_the_encoder_makes_of_it(
    vocabulary: Vocabulary, text: str
) -> None:
    estimate = count_text(text)

    assert estimate.high is not None
    assert estimate.low <= vocabulary.count(text) <= estimate.high


def test_a_chat_is_never_exact_and_says_how_far_off_it_can_be() -> None:
    count = count_chat(chat("hello", reasoning_effort="max"), Letters())

    frame = 21 + 17 + 50
    assert (count.tokens, count.low, count.high) == (5 + frame, 5, 5 + 2 * frame)
    assert (count.exact, count.method) == (False, "vocabulary")
    assert f"{frame} tokens of frame are K3's" in count.error
    assert f"0 to {2 * frame}" in count.error


def test_without_an_effort_the_bound_has_room_for_a_default() -> None:
    named, unnamed = (count_chat(chat("x", **fields), Letters()) for fields in ({"reasoning_effort": "max"}, {}))

    assert named.high is not None
    assert unnamed.high is not None
    assert unnamed.high >= named.tokens


def test_a_chat_without_a_vocabulary_is_an_estimate_with_both_errors() -> None:
    count = count_chat(chat("hello", "world"))

    assert count.method == "estimate"
    assert count.error.count("; ") == 1
    assert count.error.startswith("text estimated from its size, 1 to 10 tokens")


def test_base64_reaches_no_counter_and_opens_the_upper_bound() -> None:
    letters = Letters()
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBO" * 1000}}
    count = count_chat(chat([{"type": "text", "text": "look"}, picture]), letters)

    assert letters.texts == ["look"]
    assert (count.tokens, count.high, count.media_parts) == (4 + 21, None, 1)
    assert "1 media parts are not counted" in count.error


def test_a_text_that_repeats_is_encoded_once_and_counted_each_time() -> None:
    letters = Letters()

    assert count_chat(chat("same", "same"), letters).low == 8
    assert letters.texts == ["same"]


def test_what_the_encoder_would_refuse_is_part_of_the_error() -> None:
    orphan = {"messages": [{"role": "tool", "content": "x"}]}

    assert count_chat(orphan).error.endswith("result of no known tool call, which the encoder refuses")


def test_a_body_that_is_no_chat_is_refused() -> None:
    with pytest.raises(ChatError, match=r"messages\[0\]\.content must be a string or an array of parts"):
        count_chat(chat(7))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(contents=st.lists(TEXTS, max_size=4), arguments=st.dictionaries(TEXTS, TEXTS | st.integers(), max_size=3))
def test_a_chat_counts_within_the_bounds_of_its_estimate(
    vocabulary: Vocabulary, contents: list[str], arguments: dict[str, object]
) -> None:
    body = chat(*contents, tools=[{"function": {"name": "f", "parameters": arguments}}])
    exact, estimate = count_chat(body, vocabulary), count_chat(body)

    assert exact.high is not None
    assert estimate.high is not None
    assert estimate.low <= exact.low <= exact.tokens <= exact.high <= estimate.high


def test_counting_in_a_thread_leaves_the_event_loop_alone(vocabulary: Vocabulary) -> None:
    """The loop goes on turning while half a megabyte is counted beside it."""
    body = chat("The Mur flows through Graz. " * 20_000)

    async def main() -> tuple[TokenCount, int]:
        turns = 0
        counting = asyncio.get_running_loop().run_in_executor(None, count_chat, body, vocabulary)
        while not counting.done():
            turns += 1
            await asyncio.sleep(0)
        return await counting, turns

    count, turns = asyncio.run(main())

    assert count == count_chat(body, vocabulary)
    assert turns > 10


def test_special_tokens_follow_the_ranks() -> None:
    specials = special_tokens()

    assert len(specials) == 256
    assert sorted(specials.values()) == list(range(163_584, 163_840))
    assert (specials["[BOS]"], specials["[EOS]"], specials["<|end_of_msg|>"]) == (163_584, 163_585, 163_586)
    assert (specials["[UNK]"], specials["[PAD]"]) == (163_838, 163_839)


def test_a_pin_says_what_is_different() -> None:
    assert KIMI_K3.mismatch(size_bytes=KIMI_K3.size_bytes, sha256=KIMI_K3.sha256) is None
    assert KIMI_K3.mismatch(size_bytes=1, sha256=KIMI_K3.sha256) == "it has 1 bytes instead of 2,795,286"
    assert "its sha256 is ab instead of b6c4" in (
        KIMI_K3.mismatch(size_bytes=KIMI_K3.size_bytes, sha256="ab") or ""
    )


@pytest.mark.parametrize("modules", ["pricing, pricing.tokens, pricing.estimate", "kimi_sdk"])
def test_importing_what_needs_no_vocabulary_loads_neither_tiktoken_nor_a_client(modules: str) -> None:
    code = f"import sys, {modules}; print([name for name in ('tiktoken', 'httpx2') if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
