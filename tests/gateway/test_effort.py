"""Effort: one wish out of many spellings, never silently dearer."""

import pytest

from kimi_gateway.core.effort import Effort, EffortPolicy, EffortWish, resolve
from kimi_gateway.errors import Forbidden, InvalidRequest

NO_POLICY = EffortPolicy()


@pytest.mark.parametrize(
    ("word", "sent", "adjusted"),
    [
        ("low", "low", ()),
        ("high", "high", ()),
        ("max", "max", ()),
        ("minimal", "low", ("reasoning_effort",)),
        ("medium", "high", ("reasoning_effort",)),
        ("xhigh", "max", ("reasoning_effort",)),
    ],
)
def test_words_are_rounded_and_disclosed(word: str, sent: str, adjusted: tuple[str, ...]) -> None:
    assert resolve(EffortWish(reasoning_effort=word), NO_POLICY) == Effort(sent, adjusted=adjusted)


@pytest.mark.parametrize("word", ["off", "", "MAX", "ultra"])
def test_an_unknown_word_is_refused_by_name(word: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        resolve(EffortWish(reasoning_effort=word), NO_POLICY)
    assert caught.value.param == "reasoning_effort"


def test_absent_stays_absent() -> None:
    assert resolve(EffortWish(), NO_POLICY) == Effort()


@pytest.mark.parametrize(
    "wish",
    [EffortWish(reasoning_effort="none"), EffortWish(thinking_type="disabled"), EffortWish(nested_effort="none")],
)
def test_none_and_disabled_ask_for_thinking_off(wish: EffortWish) -> None:
    assert resolve(wish, NO_POLICY) == Effort(off=True)


def test_thinking_effort_wins_over_a_different_one_and_says_so() -> None:
    found = resolve(EffortWish(thinking_effort="low", reasoning_effort="max"), NO_POLICY)
    assert found == Effort("low", adjusted=("reasoning_effort",))


def test_the_ceiling_lowers_a_higher_wish_and_an_absent_one() -> None:
    ceiling = EffortPolicy(ceiling="high")
    assert resolve(EffortWish(reasoning_effort="max"), ceiling) == Effort("high", adjusted=("reasoning_effort",))
    assert resolve(EffortWish(), ceiling) == Effort("high", adjusted=("reasoning_effort",))
    assert resolve(EffortWish(reasoning_effort="low"), ceiling) == Effort("low")


def test_a_strict_ceiling_refuses() -> None:
    with pytest.raises(Forbidden) as caught:
        resolve(EffortWish(reasoning_effort="max"), EffortPolicy(ceiling="high", strict=True))
    assert caught.value.code == "effort_not_allowed"


def test_the_default_applies_only_where_the_request_is_silent() -> None:
    default = EffortPolicy(default="low")
    assert resolve(EffortWish(), default) == Effort("low")
    assert resolve(EffortWish(reasoning_effort="max"), default) == Effort("max")
