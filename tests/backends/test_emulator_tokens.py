"""The emulator's token rule: four started bytes of UTF-8 are one token."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.emulator.sentences import text_of, thought_of
from backends.emulator.tokens import count, cut, pieces

TEXTS = st.text(max_size=60)


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("你", 1), ("你好", 2), ("你好吗？", 3)]
)
def test_a_token_is_four_started_bytes(text: str, tokens: int) -> None:
    assert count(text) == tokens


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.integers(1, 9))
def test_pieces_join_to_the_text_and_count_up_to_its_tokens(text: str, each: int) -> None:
    found = pieces(text, each)
    assert "".join(part for part, _ in found) == text
    assert all(part for part, _ in found)
    counts = [tokens for _, tokens in found]
    assert counts == sorted(counts)
    assert (counts[-1] if counts else 0) == count(text)


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.integers(0, 20))
def test_a_cut_text_is_the_longest_beginning_that_fits(text: str, tokens: int) -> None:
    kept = cut(text, tokens)
    assert text.startswith(kept)
    assert count(kept) <= tokens
    if kept != text:
        assert count(text[: len(kept) + 1]) > tokens


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30), st.integers(0, 300), st.binary(max_size=8))
def test_an_exact_text_has_exactly_the_tokens_asked_for(opening: str, tokens: int, seed: bytes) -> None:
    assert count(text_of(opening, tokens=tokens, seed=seed, exact=True)) == tokens


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.binary(max_size=8))
def test_a_usual_thought_ends_with_a_sentence_within_its_tokens(tokens: int, seed: bytes) -> None:
    thought = thought_of("Synthetic.", tokens=tokens, seed=seed, exact=False)
    assert thought.startswith("Synthetic.")
    assert thought.endswith((".", ";"))
    assert count(thought) <= max(tokens, count("Synthetic."))
