"""One thought, whatever it is called and however often it is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.json import Json, JsonObject
from backends.reasoning import View, details_text, respell_thought, says_more_than_text
from support.cases import case

ABSENT = object()


def respelled(part: JsonObject, seen: View = View.NONE) -> JsonObject:
    respell_thought(part, seen)
    return part


def test_moonshots_own_name_stays() -> None:
    assert respelled({"reasoning_content": "a", "content": "b"}) == {"reasoning_content": "a", "content": "b"}


def test_vllms_name_becomes_moonshots() -> None:
    assert respelled({"reasoning": "a"}) == {"reasoning_content": "a"}


def test_the_same_text_under_two_names_is_one_thought() -> None:
    assert respelled({"reasoning": "a", "reasoning_content": "a"}) == {"reasoning_content": "a"}


def test_a_thought_told_three_ways_is_not_doubled_and_its_details_stay() -> None:
    message = case("rsn-02")["given"]["upstream"][0]["json"]["choices"][0]["message"]
    details = list(message["reasoning_details"])
    made = respelled(dict(message))
    assert made["reasoning_content"] == "Need data."
    assert made["reasoning_details"] == details
    assert "reasoning" not in made


def test_text_is_read_from_the_details_where_nothing_else_tells_it() -> None:
    details: Json = [
        {"type": "reasoning.text", "text": "Need ", "index": 0},
        {"type": "reasoning.text", "text": "data.", "index": 0},
        {"type": "reasoning.encrypted", "data": "AAAA", "index": 1},
    ]
    made = respelled({"reasoning": None, "reasoning_details": details})
    assert made == {"reasoning_content": "Need data.", "reasoning_details": details}


def test_a_summary_is_the_thought_only_where_the_text_is_not_told() -> None:
    summary: Json = {"type": "reasoning.summary", "summary": "In short."}
    text: Json = {"type": "reasoning.text", "text": "At length."}
    assert details_text([summary]) == ("In short.", View.SUMMARY)
    assert details_text([summary, text]) == ("At length.", View.TEXT)


def test_details_that_repeat_an_earlier_plain_thought_are_not_added() -> None:
    details: Json = [{"type": "reasoning.text", "text": "Need data.", "signature": "s"}]
    assert respelled({"reasoning_details": details}, View.PLAIN) == {"reasoning_details": details}


def test_plain_text_after_details_is_still_taken() -> None:
    assert respelled({"reasoning": "b"}, View.TEXT) == {"reasoning_content": "b"}


@pytest.mark.parametrize(
    ("part", "thought"),
    [
        ({}, ABSENT),
        ({"reasoning_content": None}, None),
        ({"reasoning_content": ""}, ""),
        ({"reasoning": None}, None),
        ({"reasoning": ""}, ""),
        ({"reasoning": None, "reasoning_content": ""}, ""),
        ({"reasoning": "", "reasoning_content": None}, ""),
        ({"reasoning": "a", "reasoning_content": ""}, "a"),
        ({"reasoning": "", "reasoning_content": "a"}, "a"),
        ({"reasoning_details": []}, ABSENT),
        ({"reasoning_details": None, "reasoning": None}, None),
    ],
)
def test_empty_null_and_absent_stay_three_things(part: JsonObject, thought: object) -> None:
    assert respelled(dict(part)).get("reasoning_content", ABSENT) == thought


def test_a_field_of_that_name_that_is_no_text_passes_as_it_is() -> None:
    assert respelled({"reasoning": {"effort": "high"}}) == {"reasoning": {"effort": "high"}}


@given(
    st.dictionaries(
        st.sampled_from(["reasoning", "reasoning_content", "reasoning_details", "content"]),
        st.none()
        | st.text(max_size=3)
        | st.lists(st.dictionaries(st.sampled_from(["text", "summary"]), st.text())),
    ),
    st.sampled_from(View),
)
def test_respelling_twice_is_respelling_once(part: JsonObject, seen: View) -> None:
    once = respelled(dict(part), seen)
    assert respelled(dict(once), seen) == once


@pytest.mark.parametrize(
    ("details", "more"),
    [
        (None, False),
        ([], False),
        ([{"type": "reasoning.text", "text": "Hm.", "index": 0, "format": "unknown", "signature": None}], False),
        ([{"type": "reasoning.summary", "summary": "Hm."}], False),
        ([{"text": "Hm."}], False),
        ([{"type": "reasoning.text", "text": "Hm.", "signature": "s"}], True),
        ([{"type": "reasoning.text", "text": "Hm."}, {"type": "reasoning.encrypted", "data": "AA"}], True),
        ([{"type": "reasoning.later"}], True),
        (["Hm."], True),
    ],
)
def test_what_only_details_can_carry_is_known(details: Json, more: bool) -> None:
    assert says_more_than_text(details) == more
