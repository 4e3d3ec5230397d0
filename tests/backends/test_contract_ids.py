"""Ids of tool calls: verbatim where they may be, else rewritten and read back without loss."""

import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.catalog import DIALECTS, foreign_fields
from backends.contract import Incapable
from backends.dialect import Dialect
from backends.encode import Request, Wish, encode_request
from backends.json import as_object, decode, encode
from backends.messages import read_heads
from backends.tool_ids import ToolIdError, ToolIds, give_back

PATTERN = "[A-Za-z0-9_-]{1,64}"
PICKY = replace(DIALECTS["moonshot"], name="picky", tool_id_pattern=PATTERN)

plain = st.text(alphabet="abkid_-:. 09Ä", min_size=1, max_size=40)
rewritten = plain.map(ToolIds(PATTERN).to_target)
any_id = st.one_of(plain, rewritten, rewritten.map(ToolIds(PATTERN).to_target), st.text(min_size=1, max_size=50))


@pytest.mark.parametrize("id", ["call_1", "Bash_0", "a" * 64, "kid_!", "kid"])
def test_an_id_that_matches_is_sent_as_it_is(id: str) -> None:
    pattern = ".{1,64}"
    assert ToolIds(pattern).to_target(id) == id
    assert ToolIds(pattern).to_client(id) == id


@given(any_id)
def test_a_rewritten_id_matches_and_comes_back(id: str) -> None:
    ids = ToolIds(PATTERN)
    sent = ids.to_target(id)
    assert re.fullmatch(PATTERN, sent)
    assert ids.to_client(sent) == id
    assert ids.to_target(id) == sent


@given(any_id, any_id)
def test_two_ids_never_become_one(one: str, other: str) -> None:
    ids = ToolIds(PATTERN)
    assert (ids.to_target(one) == ids.to_target(other)) == (one == other)


@given(st.one_of(st.from_regex(PATTERN, fullmatch=True), rewritten))
def test_an_id_of_an_answer_goes_back_as_it_came(id: str) -> None:
    if not id.startswith("kih_"):
        assert ToolIds(PATTERN).to_target(ToolIds(PATTERN).to_client(id)) == id


def test_another_gateway_reads_back_what_fits_into_the_pattern() -> None:
    sent = ToolIds(PATTERN).to_target("search:0")
    assert sent != "search:0"
    assert ToolIds(PATTERN).to_client(sent) == "search:0"
    long = "functions.search:" + "0" * 60
    mine = ToolIds(PATTERN)
    assert mine.to_client(mine.to_target(long)) == long


def test_an_id_that_looks_rewritten_is_rewritten_too() -> None:
    ids = ToolIds(PATTERN)
    once = ids.to_target("a:0")
    twice = ids.to_target(once)
    assert len({"a:0", once, twice}) == 3
    assert ids.to_client(ids.to_client(twice)) == "a:0"


def test_a_pattern_that_nothing_can_meet_is_said() -> None:
    with pytest.raises(ToolIdError, match=re.escape("[0-9]{3}")):
        ToolIds("[0-9]{3}").to_target("a")
    dialect = replace(PICKY, tool_id_pattern="[0-9]{3}")
    with pytest.raises(Incapable) as caught:
        request(dialect, history("a"))
    assert caught.value.param == "messages[1]"


# --- requests -------------------------------------------------------------------------------------------------


def call(id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "read", "arguments": arguments}}


def history(*ids: str) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call(id) for id in ids]},
        *({"role": "tool", "tool_call_id": id, "content": "ok"} for id in ids),
    ]


def request(dialect: Dialect, messages: list[dict[str, Any]]) -> Request:
    raw = msgspec.Raw(encode(messages))
    wish = Wish({}, msgspec.json.decode(raw, type=list[msgspec.Raw]), read_heads(raw), "m")
    return encode_request(wish, dialect, foreign_fields(dialect))


def sent(made: Request) -> Any:
    return (as_object(decode(made.body)) or {})["messages"]


def test_calls_and_results_of_a_history_stay_pairs() -> None:
    messages = history("a_0", "search:0")
    made = request(PICKY, messages)
    assistant, *results = sent(made)[1:]
    written = [one["id"] for one in assistant["tool_calls"]]
    assert written[0] == "a_0"
    assert re.fullmatch(PATTERN, written[1])
    assert [one["tool_call_id"] for one in results] == written
    assert made.adjusted == ()
    assert made.tool_ids is not None
    assert [made.tool_ids.to_client(id) for id in written] == ["a_0", "search:0"]


def test_ids_in_an_answer_are_the_clients_again() -> None:
    made = request(PICKY, history("search:0"))
    ids = made.tool_ids
    assert ids is not None
    again = {"index": 0, "id": ids.to_target("search:0"), "function": {"name": "read"}}
    delta: Any = {"tool_calls": [again, {"index": 1, "id": "fresh_1"}, {"index": 0, "id": None}, {"index": 0}, 7]}
    give_back(delta, ids)
    assert [one.get("id") for one in delta["tool_calls"][:4]] == ["search:0", "fresh_1", None, None]
    bare: Any = {"tool_calls": None, "content": "a"}
    give_back(bare, ids)
    assert bare == {"tool_calls": None, "content": "a"}


def test_no_other_byte_changes_and_no_dialect_that_ships_rewrites() -> None:
    messages = history("search:0")
    for dialect in DIALECTS.values():
        made = request(dialect, messages)
        assert (sent(made), made.tool_ids) == (messages, None)
    body = request(PICKY, history("a_0")).body
    assert encode(history("a_0")) in body


def test_ids_are_rewritten_after_what_else_is_mended() -> None:
    messages = history("a:0", "b:0")
    messages[1]["tool_calls"][0]["function"]["arguments"] = "{"
    messages[2]["tool_call_id"] = "a_0"
    messages[3]["tool_call_id"] = "b_0"
    made = request(PICKY, messages)
    assistant, *results = sent(made)[1:]
    assert assistant["tool_calls"][0]["function"]["arguments"] == "{}"
    assert [one["id"] for one in assistant["tool_calls"]] == [one["tool_call_id"] for one in results]
    assert made.adjusted == (
        "messages[1].tool_calls[0].function.arguments",
        "messages[2].tool_call_id",
        "messages[3].tool_call_id",
    )


def test_a_call_that_is_left_out_does_not_come_back() -> None:
    messages = [*history("a:0"), {"role": "user", "content": "on"}]
    messages[1]["content"] = "I will"
    del messages[2]
    assert sent(request(PICKY, messages))[1] == {"role": "assistant", "content": "I will"}
