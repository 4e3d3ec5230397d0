"""A thought that leaked as `<think>…</think>` is split off, wherever the stream is cut, and nothing else is."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backends.sentinel import Sign
from backends.think_tags import CLOSE, OPEN, ThinkSplitter
from support.answers import event, pieces, read, streamed, whole

TEXTS = st.lists(
    st.sampled_from([OPEN, CLOSE, "<", "<th", "ink>", "</", "/think>", "a", "价", "\n", " ", "<think", "b<c"]),
    max_size=9,
).map("".join)
CUTS = st.lists(st.integers(0, 40), max_size=12)


def split(text: str) -> tuple[Any, str]:
    """Thought and answer by the splitter, fed with the whole text at once."""
    splitter = ThinkSplitter()
    parts = [splitter.feed(text), splitter.finish()]
    thoughts = [thought for thought, _ in parts if thought is not None]
    return "".join(thoughts) if thoughts else None, "".join(answer for _, answer in parts)


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("<think>Hm.</think>Hi.", "Hm.", "Hi."),
        ("<think>\nHm.\n</think>\n\nHi.", "\nHm.\n", "\n\nHi."),
        ("\n <think>Hm.</think>Hi.", "\n Hm.", "Hi."),
        ("<think></think>Hi.", "", "Hi."),
        ("<think>Hm.</think>", "Hm.", ""),
        # cut while it was thinking
        ("<think>Hm. And", "Hm. And", ""),
        ("<think>Hm.</thi", "Hm.</thi", ""),
        ("<think>", "", ""),
        # the first end is the end
        ("<think>a<think>b</think>c</think>d", "a<think>b", "c</think>d"),
        ("<think>if a </b or a < b</think>d", "if a </b or a < b", "d"),
        # text of the answer
        ("Write <think>x</think> for it.", None, "Write <think>x</think> for it."),
        ("```\n<think>x</think>\n```", None, "```\n<think>x</think>\n```"),
        ("<thinking>x</thinking>", None, "<thinking>x</thinking>"),
        ("<Think>x</Think>", None, "<Think>x</Think>"),
        ("<th", None, "<th"),
        ("\n\n", None, "\n\n"),
        ("", None, ""),
        # opened by the template, so only the end comes
        ("Hm.</think>Hi.", None, "Hm.</think>Hi."),
        ("</think>Hi.", None, "</think>Hi."),
    ],
)
def test_only_a_block_at_the_very_beginning_is_a_thought(text: str, thought: str | None, answer: str) -> None:
    assert split(text) == (thought, answer)
    assert streamed([text], split_think_tags=True).said == (thought, answer)
    assert whole({"content": text}, split_think_tags=True).said == (thought, answer)


def test_without_the_setting_the_text_stays_and_is_counted() -> None:
    found = streamed(["<think>Hm.</think>Hi."])
    assert found.said == (None, "<think>Hm.</think>Hi.")
    assert found.signs == {Sign.THINK_TAGS}


@given(TEXTS, CUTS, st.booleans(), st.sampled_from(["stop", "length"]))
@settings(max_examples=100)
@example(text="<think>a</think>b", cuts=[1, 7, 9, 12], rides=True, finish="stop")
def test_where_the_text_is_cut_changes_nothing(text: str, cuts: list[int], rides: bool, finish: str) -> None:
    at_once = streamed([text], finish, split_think_tags=True)
    found = streamed(pieces(text, cuts), finish, rides=rides, split_think_tags=True)
    assert (found.said, found.signs) == (at_once.said, at_once.signs)
    assert whole({"content": text}, finish, split_think_tags=True).said == found.said


@given(TEXTS, CUTS)
def test_thought_and_answer_are_the_text_without_the_two_tags(text: str, cuts: list[int]) -> None:
    thought, answer = streamed(pieces(text, cuts), split_think_tags=True).said
    if thought is None:
        assert answer == text
    else:
        assert thought + answer in (text.replace(OPEN, "", 1), text.replace(OPEN, "", 1).replace(CLOSE, "", 1))


@given(TEXTS, CUTS)
def test_all_that_is_held_back_comes_with_the_finish_reason_at_the_latest(text: str, cuts: list[int]) -> None:
    found = streamed(pieces(text, cuts), "length", split_think_tags=True)
    (last,) = [chunk for chunk in found.chunks if chunk.finished]
    assert last is found.chunks[-1]
    assert sum(chunk.text_bytes for chunk in found.chunks) == len((found.said[1] or "").encode())
    assert sum(chunk.thought_bytes for chunk in found.chunks) == len((found.said[0] or "").encode())


@given(TEXTS, TEXTS, CUTS, st.randoms())
def test_two_choices_are_split_apart_from_one_another(
    first: str, second: str, cuts: list[int], chance: Any
) -> None:
    events = [
        [event({"content": part}, index=index) for part in pieces(text, cuts)] + [event({}, "stop", index)]
        for index, text in enumerate((first, second))
    ]
    mixed = []
    while any(events):
        mixed.append(chance.choice([queue for queue in events if queue]).pop(0))
    choices = read(*mixed, split_think_tags=True).body["choices"]
    messages = [choice["message"] for choice in choices]
    assert [(each.get("reasoning_content"), each["content"]) for each in messages] == [
        streamed([text], split_think_tags=True).said for text in (first, second)
    ]


def test_while_a_tag_may_come_nothing_is_promised_to_the_client() -> None:
    found = streamed(["\n", "<th", "ink>", "Hm."], split_think_tags=True)
    assert [chunk.commits for chunk in found.chunks] == [False, False, True, True, True]
    assert [chunk.thought_bytes for chunk in found.chunks] == [0, 0, 1, 3, 0]


def test_white_space_without_end_is_not_held_back() -> None:
    found = streamed(["\n"] * 200, split_think_tags=True)
    assert found.said == (None, "\n" * 200)
    assert sum(chunk.commits for chunk in found.chunks) > 100
    assert split(" " * 65 + "<think>x</think>") == (None, " " * 65 + "<think>x</think>")


def test_where_the_thought_has_its_own_name_a_tag_is_text() -> None:
    text = "<think>x</think> is how it is written."
    found = read(event({"reasoning_content": "Hm."}), event({"content": text}, "stop"), split_think_tags=True)
    assert found.said == ("Hm.", text)
    assert whole({"reasoning_content": "Hm.", "content": text}, split_think_tags=True).said == ("Hm.", text)


@pytest.mark.parametrize("empty", [None, ""])
def test_an_empty_thought_beside_the_content_is_no_thought_of_its_own(empty: str | None) -> None:
    first = event({"reasoning_content": empty, "content": "<think>Hm.</th"})
    found = read(first, event({"content": "ink>Hi."}, "stop"), split_think_tags=True)
    assert found.said == ("Hm.", "Hi.")


def test_a_thought_under_its_own_name_frees_what_was_held_for_a_tag() -> None:
    events = [event({"content": "<th"}), event({"reasoning_content": "Hm."}), event({"content": "e>"}, "stop")]
    assert read(*events, split_think_tags=True).said == ("Hm.", "<the>")


def test_calls_and_parts_pass_a_split_answer_untouched() -> None:
    call = {"index": 0, "id": "f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    found = read(
        event({"content": "<think>Hm.</think>"}),
        event({"tool_calls": [call]}, "tool_calls"),
        split_think_tags=True,
    )
    assert found.said == ("Hm.", "")
    assert found.message["tool_calls"] == [{name: call[name] for name in ("id", "type", "function")}]
    parts = [{"type": "text", "text": "<think>x</think>"}]
    assert whole({"content": parts}, split_think_tags=True).said == (None, parts)


def test_an_answer_that_breaks_off_still_gives_what_was_held_back() -> None:
    found = read(event({"content": "<think>Hm"}), event({"content": "m.</th"}), split_think_tags=True)
    assert found.has_failed
    assert found.said == ("Hmm.</th", "")
    assert found.chunks[-1].data["id"] == "c-1"


def test_an_answer_that_had_not_begun_may_still_be_asked_for_elsewhere() -> None:
    found = read(event({"role": "assistant", "content": "<thi"}), split_think_tags=True)
    assert found.has_failed
    assert not any(chunk.commits for chunk in found.chunks)
