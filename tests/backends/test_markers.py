"""A call that leaked as text is cut off where nobody wanted one, and no other text is."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.catalog import DIALECTS
from backends.faults import Fault
from backends.reader import read_complete
from backends.sentinel import Sign
from support.answers import event, pieces, read, streamed, whole
from support.transcripts import exchanges

OPENING = DIALECTS["sglang"].leaked_call_opening
CALL = OPENING + 'tool="f" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
TEXTS = st.lists(
    st.sampled_from([OPENING, "<|open|>tools<|sep|>", "<|open|>", "call ", "<|", "<", "tools", "a", "价", "\n"]),
    max_size=8,
).map("".join)
CUTS = st.lists(st.integers(0, 80), max_size=10)


def test_the_recorded_leak_is_cut_off_and_counted() -> None:
    recorded = exchanges("sglang-tools")["tools-none"]
    assert (recorded.request or {})["tool_choice"] == "none"
    signs: set[Sign] = set()
    found = read_complete(recorded.body, DIALECTS["sglang"], calls_wanted=False, signs=signs)
    assert not isinstance(found, Fault)
    choices: Any = found[0]["choices"]
    assert choices[0]["message"]["content"] == ""
    assert signs == {Sign.TOOL_MARKUP, Sign.MARKUP_STRIPPED}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (CALL, ""),
        ("I would call f." + CALL, "I would call f."),
        (CALL + "<|close|>message<|sep|>", ""),
        (OPENING, ""),
        # not the text that is known to leak
        ("<|open|>tools<|sep|>", "<|open|>tools<|sep|>"),
        ("`<|open|>tools<|sep|>` opens the calls", "`<|open|>tools<|sep|>` opens the calls"),
        ("<|open|>tools<|sep|>\n<|open|>call ", "<|open|>tools<|sep|>\n<|open|>call "),
        ("Hi.<|close|>message<|sep|>", "Hi.<|close|>message<|sep|>"),
        ("Hi.<|end_of_msg|>", "Hi.<|end_of_msg|>"),
        # cut by the output limit: a beginning is no call
        (OPENING[:-1], OPENING[:-1]),
    ],
)
def test_only_the_text_that_is_known_to_leak_is_cut(text: str, kept: str) -> None:
    found = streamed([text], calls_wanted=False)
    assert found.message["content"] == whole({"content": text}, calls_wanted=False).message["content"] == kept
    assert (Sign.MARKUP_STRIPPED in found.signs) == (kept != text)


@pytest.mark.parametrize(
    ("dialect", "calls_wanted"), [("sglang", True), *[(str(name), False) for name in DIALECTS if name != "sglang"]]
)
def test_a_call_that_somebody_may_want_and_other_dialects_are_left_alone(dialect: str, calls_wanted: bool) -> None:
    found = streamed([CALL], dialect=dialect, calls_wanted=calls_wanted)
    assert found.message["content"] == CALL
    assert found.signs == {Sign.TOOL_MARKUP}


@given(TEXTS, CUTS, st.booleans(), st.booleans())
@settings(max_examples=100)
def test_where_the_text_is_cut_changes_nothing(text: str, cuts: list[int], rides: bool, splits: bool) -> None:
    how: dict[str, Any] = {"calls_wanted": False, "split_think_tags": splits}
    found = streamed(pieces(text, cuts), rides=rides, **how)
    at_once = streamed([text], **how)
    assert found.message["content"] == text.partition(OPENING)[0]
    assert (found.said, found.signs) == (at_once.said, at_once.signs)
    assert whole({"content": text}, **how).signs == found.signs


@given(TEXTS, TEXTS, CUTS, CUTS)
def test_the_thought_may_be_split_off_before_the_call_is_cut_off(
    thought: str, text: str, cuts: list[int], more: list[int]
) -> None:
    said = f"<think>{thought}</think>{text}"
    found = streamed(pieces(said, [*cuts, *more]), calls_wanted=False, split_think_tags=True)
    assert found.said == (thought, text.partition(OPENING)[0])


def test_an_answer_that_was_nothing_but_the_call_is_an_empty_answer() -> None:
    found = streamed([CALL], "stop", calls_wanted=False)
    assert found.signs == {Sign.TOOL_MARKUP, Sign.MARKUP_STRIPPED, Sign.EMPTY_ANSWER}


def test_text_after_the_finish_reason_is_not_held_back() -> None:
    found = read(event({"content": "a"}, "stop"), event({"content": "<|op"}), calls_wanted=False)
    assert found.message["content"] == "a<|op"
