"""What was probably meant, and what is announced but not built."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_gateway.core.near import closest, meant, quoted
from kimi_gateway.routes.unbuilt import NOT_BUILT, unbuilt_path

MODELS = ("kimi-k3.1-pro", "kimi-k3.1-pro-highspeed", "moonshotai/Kimi-K3.1-Pro")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("kimi-k3.1-pr", "kimi-k3.1-pro"),
        ("Kimi-K3.1-Pro-HighSpeed", "kimi-k3.1-pro-highspeed"),
        ("moonshotai/kimi-k3.1-pr0", "moonshotai/Kimi-K3.1-Pro"),
        ("gpt-5", ""),
        ("", ""),
        ("kimi-k3.1-pro" * 20, ""),
    ],
)
def test_the_closest_name_is_found_whatever_its_capitals(word: str, name: str) -> None:
    assert closest(word, MODELS) == name
    assert meant(word, MODELS) == (f" did you mean {name}?" if name else "")


@given(st.text(max_size=300), st.lists(st.text(max_size=20), max_size=5))
@settings(max_examples=100, deadline=None)
def test_only_what_is_known_is_suggested(word: str, known: Sequence[str]) -> None:
    assert closest(word, known) in ("", *known)


def test_a_long_word_is_repeated_in_part() -> None:
    assert quoted("a" * 80) == repr("a" * 80)
    assert quoted("a" * 100_000) == repr("a" * 80 + "…")


def test_an_announced_path_stands_for_all_below_it_and_for_no_other() -> None:
    for name in NOT_BUILT:
        assert unbuilt_path(name) == unbuilt_path(f"{name}/abc/content") == name
        assert unbuilt_path(f"{name}x") == ""
    assert unbuilt_path("/v1/chat/completions") == ""
