"""The bounded store: whose thoughts, found by what, and which go when room runs out."""

import gc
import tracemalloc
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_gateway.core.thought_record import (
    Owner,
    Record,
    RecordError,
    Thought,
    owner_of,
    pack,
    thought_in,
    unpack,
)
from kimi_gateway.core.thoughts import THOUGHT_OVERHEAD_BYTES
from support.thoughts import ANNE, BOB, OTHER, OVERHEAD, found, keys, sized, store, thought

# --- whose ----------------------------------------------------------------------------------------------------


def raw(**members: object) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in members.items()}


def test_nobody_finds_anothers_thought() -> None:
    thoughts = store()
    thoughts.keep(ANNE, keys("turn", "anchor"), thought(), 0)
    for owner in (BOB, OTHER, Owner("team-a"), Owner("team-b", b"anne")):
        assert found(thoughts, owner, keys("turn", "anchor")) is None
    assert found(thoughts, ANNE, keys("turn", "anchor")) == thought()


def test_an_owner_is_the_key_and_the_end_user_that_the_request_names() -> None:
    plain = owner_of("k", {})
    assert plain == Owner("k") == owner_of("k", raw(user=None, safety_identifier=""))
    names: list[dict[str, object]] = [
        {"user": "a"},
        {"user": "b"},
        {"safety_identifier": "a"},
        {"safety_identifier": "a", "user": "a"},
        {"user": ["a"]},
        {"user": 1},
        {"user": 0},
    ]
    owners = {owner_of("k", raw(**name)) for name in names}
    assert len(owners | {plain}) == 8
    assert owner_of("k", {"user": msgspec.Raw(b'"\\u0061"')}) == owner_of("k", raw(user="a"))
    assert owner_of("other", raw(user="a")) not in owners


def test_an_end_user_that_is_not_json_is_known_by_its_bytes() -> None:
    one, two = (owner_of("k", {"user": msgspec.Raw(data)}) for data in (b'"\\ud800"', b'"\\ud801"'))
    assert len({one, two, Owner("k")}) == 3


# --- what is stored -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"reasoning_content": ' a"\n'}, Thought(b'" a\\"\\n"')),
        ({"reasoning_content": ""}, Thought(b'""')),
        ({"reasoning_content": None}, None),
        ({}, None),
        ({"reasoning_details": []}, None),
        ({"reasoning_content": 7}, None),
        (
            {"reasoning_content": "a", "reasoning_details": [{"type": "reasoning.text", "text": "a", "index": 0}]},
            Thought(b'"a"', b'[{"type":"reasoning.text","text":"a","index":0}]'),
        ),
        (
            {"reasoning_content": None, "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]},
            Thought(None, b'[{"type":"reasoning.encrypted","data":"x"}]'),
        ),
    ],
)
def test_the_thought_of_an_answer_is_kept_as_it_is(message: Any, expected: Thought | None) -> None:
    assert thought_in(message) == expected


def test_the_thought_of_a_cut_answer_says_so() -> None:
    assert thought_in({"reasoning_content": "a"}, partial=True) == Thought(b'"a"', None, True)


@given(
    text=st.none() | st.binary(max_size=50),
    details=st.none() | st.binary(max_size=50),
    partial=st.booleans(),
    anchor=st.none() | st.binary(max_size=32),
)
def test_a_record_survives_being_packed(
    text: bytes | None, details: bytes | None, partial: bool, anchor: bytes | None
) -> None:
    record = Record(Thought(text, details, partial), b"c" * 32, anchor, b"v" * 32)
    assert unpack(pack(record)) == record


@given(damage=st.binary(max_size=60))
def test_damaged_records_are_one_kind_of_error(damage: bytes) -> None:
    whole = pack(Record(thought(), b"c" * 32, None, b"v" * 32))
    for data in (damage, b"\x01" + damage, whole[:-1], b"\x02" + whole[1:], whole + b"x"):
        if data != whole:
            with pytest.raises(RecordError):
                unpack(data)


# --- found by what --------------------------------------------------------------------------------------------


def test_a_chain_is_enough_and_an_anchor_serves_where_it_fails() -> None:
    thoughts = store()
    thoughts.keep(ANNE, keys("turn", "anchor"), thought(), 0)
    assert [hit and hit.by for hit in thoughts.find(ANNE, [keys("turn"), keys("other", "anchor")], 0)] == [
        "chain",
        "anchor",
    ]
    assert thoughts.find(ANNE, [keys("other", "else"), keys("other")], 0) == [None, None]
    assert thoughts.statistics() == {
        "bytes": OVERHEAD + thought().size_bytes,
        "thoughts": 1,
        "conversations": 1,
        "kept": 1,
        "known": 0,
        "refused": 0,
        "found_by_chain": 1,
        "found_by_anchor": 1,
        "not_found": 2,
        "evicted": 0,
        "evicted_bytes": 0,
        "expired": 0,
        "forgotten": 0,
    }


def test_an_anchor_that_two_thoughts_share_finds_neither() -> None:
    thoughts = store()
    thoughts.keep(ANNE, keys("one", "anchor"), thought("one"), 0)
    thoughts.keep(ANNE, keys("two", "anchor"), thought("two"), 50)
    assert found(thoughts, ANNE, keys("new", "anchor"), 60) is None
    assert found(thoughts, ANNE, keys("one", "anchor"), 60) == thought("one")
    thoughts.expire(150)  # the second was not used since
    assert found(thoughts, ANNE, keys("new", "anchor"), 150) == thought("one")


def test_the_same_thought_under_one_anchor_twice_is_one_thought() -> None:
    thoughts = store()
    for name in range(8):
        thoughts.keep(ANNE, keys(name, "anchor"), thought(), 0)
    assert found(thoughts, ANNE, keys("new", "anchor")) == thought()
    thoughts.keep(ANNE, keys("ninth", "anchor"), thought(), 0)
    assert found(thoughts, ANNE, keys("new", "anchor")) is None  # no longer worth comparing


def test_the_first_thought_of_a_turn_stays() -> None:
    """So the bytes of a prefix that was sent with it do not change."""
    thoughts = store()
    assert thoughts.keep(ANNE, keys("turn"), thought("first"), 0) == "kept"
    assert thoughts.keep(ANNE, keys("turn"), thought("second"), 1) == "known"
    assert found(thoughts, ANNE, keys("turn"), 2) == thought("first")


# --- how long -------------------------------------------------------------------------------------------------


def test_a_conversation_lives_from_its_last_use_and_leaves_whole() -> None:
    thoughts = store(retention_s=100)
    thoughts.keep(ANNE, keys(1), thought("one"), 0)
    thoughts.keep(ANNE, keys(2), thought("two"), 10, conversation=keys(1).chain)
    assert found(thoughts, ANNE, keys(1), 109) == thought("one")
    assert found(thoughts, ANNE, keys(2), 208) == thought("two")
    assert found(thoughts, ANNE, keys(1), 308) is None
    assert found(thoughts, ANNE, keys(2), 308) is None
    assert (thoughts.size_bytes, thoughts.thoughts, thoughts.conversations) == (0, 0, 0)


def test_a_thought_that_its_anchor_finds_is_used_and_renewed() -> None:
    thoughts = store(retention_s=100)
    thoughts.keep(ANNE, keys(1, "anchor"), thought(), 0)
    assert found(thoughts, ANNE, keys(2, "anchor"), 99) == thought()
    assert found(thoughts, ANNE, keys(2, "anchor"), 198) == thought()
    assert found(thoughts, ANNE, keys(2, "anchor"), 298) is None


def test_a_clock_that_goes_back_stands_still() -> None:
    thoughts = store(retention_s=100)
    thoughts.expire(1000)
    thoughts.keep(ANNE, keys(2), thought(), 0)
    assert found(thoughts, ANNE, keys(2), 1099) == thought()


def test_deletion_takes_one_owners_thoughts_or_all_of_a_key() -> None:
    thoughts = store()
    for owner in (ANNE, BOB, OTHER):
        thoughts.keep(owner, keys(1, "a"), thought(), 0)
        thoughts.keep(owner, keys(2, "b"), thought(), 0, conversation=keys(1).chain)
    assert thoughts.forget(ANNE) == 2
    assert thoughts.forget(ANNE) == 0
    assert [found(thoughts, owner, keys(2)) for owner in (ANNE, BOB, OTHER)] == [None, thought(), thought()]
    assert thoughts.forget_key("team-a") == 2
    assert thoughts.forget_key("team-a") == 0
    assert [found(thoughts, owner, keys(1, "a")) for owner in (BOB, OTHER)] == [None, thought()]


# --- room -----------------------------------------------------------------------------------------------------


def test_the_least_recently_used_conversation_leaves_first_and_whole() -> None:
    thoughts = store(max_bytes_per_key=3 * 5000)
    thoughts.keep(ANNE, keys("a"), sized(4000), 0)
    thoughts.keep(
        ANNE, keys("a2"), Thought(b"x" * (1000 - THOUGHT_OVERHEAD_BYTES)), 1, conversation=keys("a").chain
    )
    thoughts.keep(ANNE, keys("b"), sized(5000), 2)
    thoughts.keep(ANNE, keys("c"), sized(5000), 3)
    found(thoughts, ANNE, keys("a"), 4)
    assert thoughts.keep(ANNE, keys("d"), sized(5000), 5) == "kept"
    left = [name for name in ("a", "a2", "b", "c", "d") if found(thoughts, ANNE, keys(name), 6) is not None]
    assert left == ["a", "a2", "c", "d"]
    thoughts.keep(ANNE, keys("e"), sized(5000), 7)
    left = [name for name in ("a", "a2", "c", "d", "e") if found(thoughts, ANNE, keys(name), 8) is not None]
    assert left == ["c", "d", "e"]


def test_a_conversation_that_grows_is_not_evicted_for_itself() -> None:
    thoughts = store(max_bytes_per_key=10_000)
    thoughts.keep(ANNE, keys("a"), sized(8000), 0)
    more = Thought(b"x" * 3000)
    assert thoughts.keep(ANNE, keys("b"), more, 1, conversation=keys("a").chain) == "refused"
    assert found(thoughts, ANNE, keys("a"), 2) == sized(8000)


def test_a_thought_larger_than_the_bound_is_refused_and_drives_nothing_out() -> None:
    thoughts = store(max_bytes=10_000)
    thoughts.keep(OTHER, keys("a"), sized(4000), 0)
    thoughts.keep(ANNE, keys("a"), sized(4000), 0)
    assert thoughts.keep(ANNE, keys("b"), sized(10_001), 0) == "refused"
    assert found(thoughts, OTHER, keys("a")) == found(thoughts, ANNE, keys("a")) == sized(4000)


def test_a_growing_conversation_above_the_share_spares_itself_and_the_modest() -> None:
    thoughts = store(max_bytes_per_key=60_000)
    thoughts.keep(ANNE, keys("a"), sized(35_000), 0)
    thoughts.keep(BOB, keys("b"), sized(20_000), 0)
    more = Thought(b"x" * 10_000)
    assert thoughts.keep(ANNE, keys("c"), more, 1, conversation=keys("a").chain) == "refused"
    assert (thoughts.owner_bytes(ANNE), thoughts.owner_bytes(BOB)) == (35_000, 20_000)


def test_a_growing_conversation_above_the_share_takes_what_a_smaller_one_has_above_it() -> None:
    thoughts = store(max_bytes=100_000)
    thoughts.keep(ANNE, keys("a"), sized(50_000), 0)
    thoughts.keep(Owner("team-c"), keys("c"), sized(10_000), 0)
    for number in range(10):
        thoughts.keep(OTHER, keys(number), sized(4000), 0)
    more = Thought(b"x" * 3000)
    assert thoughts.keep(ANNE, keys("b"), more, 1, conversation=keys("a").chain) == "kept"
    assert [thoughts.key_bytes(key) for key in ("team-a", "team-b", "team-c")] == [53_768, 36_000, 10_000]


def test_who_stays_within_the_share_loses_nothing_of_its_own() -> None:
    thoughts = store(max_bytes=100_000)
    thoughts.keep(ANNE, keys("a"), sized(5000), 0)
    for number in range(19):
        thoughts.keep(OTHER, keys(number), sized(5000), 1)
    thoughts.keep(ANNE, keys("b"), sized(5000), 2)
    assert [thoughts.key_bytes(key) for key in ("team-a", "team-b")] == [10_000, 90_000]


def test_a_flood_of_one_caller_leaves_the_others_their_fair_share() -> None:
    thoughts = store(max_bytes=30 * 4000, max_bytes_per_key=30 * 4000)
    for number in range(15):
        thoughts.keep(OTHER, keys(number), sized(4000), 0)
    for number in range(1000):
        thoughts.keep(ANNE, keys(number), sized(4000), 1)
    assert thoughts.key_bytes(OTHER.key) == 15 * 4000
    assert thoughts.key_bytes(ANNE.key) == 15 * 4000
    assert thoughts.counts.evicted == 985


def test_end_users_of_one_key_share_its_room_fairly() -> None:
    thoughts = store(max_bytes_per_key=30 * 4000)
    for number in range(100):
        thoughts.keep(ANNE, keys(number), sized(4000), 0)
    for number in range(100):
        thoughts.keep(BOB, keys(number), sized(4000), 1)
    assert thoughts.owner_bytes(ANNE) == thoughts.owner_bytes(BOB) == 15 * 4000


def test_a_flood_of_end_users_cannot_reach_beyond_its_key() -> None:
    thoughts = store(max_bytes=30 * 4000, max_bytes_per_key=30 * 4000)
    for number in range(15):
        thoughts.keep(OTHER, keys(number), sized(4000), 0)
    for number in range(1000):
        thoughts.keep(Owner("team-a", str(number).encode()), keys(number), sized(4000), 1)
    assert thoughts.key_bytes(OTHER.key) == 15 * 4000
    assert thoughts.key_bytes("team-a") == 15 * 4000


def test_one_huge_conversation_above_the_share_gives_way_to_a_modest_newcomer() -> None:
    thoughts = store(max_bytes=100_000, max_bytes_per_key=100_000)
    thoughts.keep(OTHER, keys("huge"), sized(99_000), 0)
    assert thoughts.keep(ANNE, keys("new"), sized(5000), 1) == "kept"
    assert thoughts.key_bytes(OTHER.key) == 0


def test_memory_stays_bounded_however_much_comes_and_goes() -> None:
    thoughts = store(max_bytes=100_000)
    for number in range(200):
        thoughts.keep(ANNE, keys(number, number), sized(4000), 0)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(3000):
            thoughts.keep(ANNE, keys((number,), number + 1000), sized(4000), 0)
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert thoughts.counts.evicted > 3000
    assert grown < 200_000


def test_the_bytes_that_are_counted_cover_the_memory_that_is_used() -> None:
    for owners, conversations, turns in ((1, 1, 700), (1, 700, 1), (700, 1, 1), (20, 10, 5)):
        gc.collect()
        tracemalloc.start()
        try:
            thoughts = store()
            for number in range(owners * conversations * turns):
                owner = Owner("k", b"%d" % (number // (conversations * turns)))
                home = keys(number - number % turns).chain
                text = Thought(sha256(b"%d" % number).digest() * 4)
                thoughts.keep(owner, keys(number, number), text, 0, conversation=home)
            gc.collect()
            used, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert thoughts.thoughts == owners * conversations * turns
        assert 0.2 * thoughts.size_bytes < used < thoughts.size_bytes + 10_000
