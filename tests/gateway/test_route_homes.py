"""Conversations at home: who may come where others have their caches, and what is believed of a cache."""

import pytest
from msgspec.structs import replace

from backends.messages import read_heads
from kimi_gateway.core.digest import TurnMemo
from kimi_gateway.core.routing.candidate import Candidate, Pace, Policy, Tariff, Wants
from kimi_gateway.core.routing.facts import Quota
from kimi_gateway.core.routing.rank import rank
from kimi_gateway.core.routing.shared_prefix import Opening, SharedPrefixes, opening_of
from kimi_gateway.core.view import Raw
from kimi_gateway.core.warmth import Warmth
from pricing.estimate import Estimate

PACE = Pace(first_s=0.5, fresh_s=0.0001, token_s=0.02, answer_s=10.0)
DEAR = Candidate("dear", "dear", "m", 0, tariff=Tariff(200, 2_000, 10_000), pace=PACE, quota=Quota(20))
CHEAP = Candidate("cheap", "cheap", "m", 1, tariff=Tariff(80, 800, 4_000), pace=PACE, quota=Quota(10))
A = ("a", "m")


def wants(tokens: int) -> Wants:
    return Wants(now_s=1_000.0, key=b"conversation", prompt=Estimate(tokens, tokens, tokens))


def first(asked: Wants, *targets: Candidate) -> str:
    return rank(asked, targets, Policy()).ranked[0].name


# --- newcomers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [20, 0])
@pytest.mark.parametrize(("in_flight", "chosen"), [(3, "cheap"), (4, "dear"), (9, "dear")])
def test_a_newcomer_leaves_the_rest_of_a_cheap_target_to_those_who_are_at_home_there(
    in_flight: int, chosen: str, limit: int
) -> None:
    dear = replace(DEAR, quota=Quota(limit), in_flight=2)
    assert first(wants(10_000), dear, replace(CHEAP, in_flight=in_flight)) == chosen


def test_who_is_at_home_on_a_cheap_target_stays_while_there_is_a_place() -> None:
    assert first(wants(10_000), DEAR, replace(CHEAP, in_flight=9, read_tokens=9_000)) == "cheap"


def test_a_newcomer_that_saves_more_than_it_costs_others_comes_all_the_same() -> None:
    assert first(wants(200_000), DEAR, replace(CHEAP, in_flight=9)) == "cheap"


def test_where_every_target_is_crowded_the_price_decides_as_ever() -> None:
    assert first(wants(10_000), replace(DEAR, in_flight=19), replace(CHEAP, in_flight=9)) == "cheap"


def test_of_equal_targets_those_are_taken_whose_first_token_comes_as_soon() -> None:
    slow = replace(DEAR, name="slow", account="slow", place=1, pace=replace(PACE, first_s=0.8))
    even = replace(DEAR, name="even", account="even", place=2, pace=replace(PACE, first_s=0.6))
    keys = [b"%d" % number for number in range(200)]
    chosen = [first(replace(wants(10_000), key=key), DEAR, slow, even) for key in keys]
    assert {name: chosen.count(name) > 60 for name in ("dear", "even", "slow")} == {
        "dear": True,
        "even": True,
        "slow": False,
    }
    crowded = [replace(one, in_flight=12) for one in (DEAR, even)]
    assert first(wants(10_000), crowded[0], slow, crowded[1]) == "slow"


# --- what is believed of a cache --------------------------------------------------------------------------------


def opening() -> Opening:
    texts = ("You are an agent of a fleet. " * 1_000, "What is new? " * 400)
    body = f'[{{"role":"system","content":"{texts[0]}"}},{{"role":"user","content":"{texts[1]}"}}]'
    return opening_of(read_heads(Raw(body.encode())), tools=b"", tools_bytes=0, effort="max", memo=TurnMemo())


def asked(book: SharedPrefixes, own: Warmth, *, read: int | None, at_s: float) -> None:
    one = opening()
    reads = book.expected(*A, one, own, at_s)
    book.sent(*A, one, 0, at_s)
    book.reported(*A, one, reads, read, at_s)


def test_a_cache_that_was_lost_after_an_hour_is_believed_as_ever_after_a_minute() -> None:
    book = SharedPrefixes()
    for age_s in (400.0, 500.0, 600.0):
        asked(book, Warmth(expected_read_tokens=50_000, age_s=age_s), read=0, at_s=1_000.0)
    young = book.expected(*A, opening(), Warmth(expected_read_tokens=50_000, age_s=60.0), 1_000.0)
    old = book.expected(*A, opening(), Warmth(expected_read_tokens=50_000, age_s=700.0), 1_000.0)
    assert young.tokens == 50_000
    assert old.tokens < 25_000


def test_a_target_that_loses_what_is_young_is_not_believed_what_is_young() -> None:
    book = SharedPrefixes()
    for _ in range(3):
        asked(book, Warmth(expected_read_tokens=50_000, age_s=10.0), read=0, at_s=1_000.0)
    found = book.expected(*A, opening(), Warmth(expected_read_tokens=50_000, age_s=60.0), 1_000.0)
    assert found.tokens < 25_000


def test_a_conversations_own_beginning_is_not_taken_for_what_others_have_left() -> None:
    book = SharedPrefixes()
    one = opening()
    book.sent(*A, one, 300.0, 0.0)
    guess = one.beginnings[0].tokens
    own = Warmth(expected_read_tokens=guess * 95 // 100, age_s=5.0)  # the guess was 5 % too high
    found = book.expected(*A, one, own, 10.0)
    assert (found.tokens, found.shared) == (own.expected_read_tokens, False)
    assert book.expected(*A, one, Warmth(), 10.0).shared
