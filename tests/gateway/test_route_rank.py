"""Ranking: who is refused by which filter, and what each policy puts first."""

from typing import Any

import pytest
from msgspec.structs import replace

from backends.faults import Fault, FaultKind
from kimi_gateway.core.routing.candidate import Abilities, Candidate, Pace, Policy, Tariff, Wants, policy_of
from kimi_gateway.core.routing.facts import Load, Out, Quota
from kimi_gateway.core.routing.filters import FILTERS
from kimi_gateway.core.routing.rank import Ranking, rank
from pricing.estimate import Estimate

PRO = Tariff(read=200, fresh=2_000, output=10_000, meter="write_5m")
PACE = Pace(first_s=0.5, fresh_s=0.0001, token_s=0.02, answer_s=20.0)
MOONSHOT = Abilities(max_n=1, thinking_off=False, remote_media=False, files=True)
NOW_S = 1_000.0


def exactly(tokens: int) -> Estimate:
    return Estimate(tokens, tokens, tokens)


def target(name: str, place: int = 0, **facts: Any) -> Candidate:
    made = Candidate(name, f"account-{name}", "model", place, tariff=PRO, pace=PACE)
    return replace(made, **facts)


def wants(tokens: int = 20_000, **facts: object) -> Wants:
    return replace(Wants(now_s=NOW_S, key=b"conversation", prompt=exactly(tokens)), **facts)


def names(found: Ranking) -> list[str]:
    return [one.name for one in found.ranked]


def out(kind: FaultKind, until_s: float | None, *, probing: bool = False) -> Out:
    return Out(Fault(kind, "it said so"), until_s, probing)


OTHER = target("other", 1)


# --- filters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "facts", "by", "why", "param"),
    [
        (wants(pinned="other"), {}, "pinned", "x-kimi-target names other", "x-kimi-target"),
        (wants(), {"model": ""}, "model", "does not serve this model", "model"),
        (wants(priced_only=True), {"tariff": None}, "rights", "no price", ""),
        (wants(priced_only=True), {"tariff": None, "by_the_hour": True}, "rights", "no price", ""),
        (wants(32_768), {"window": 32_768}, "context", "32768 tokens, the prompt at least 32768", "messages"),
        (wants(n=2), {"abilities": MOONSHOT}, "capability", "gives 1 answer a request, not 2", "n"),
        (wants(thinking_off="thinking"), {"abilities": MOONSHOT}, "capability", "thinking off", "thinking"),
        (
            wants(remote_media="messages[0].content[1]"),
            {"abilities": MOONSHOT},
            "capability",
            "public addresses",
            "messages[0].content[1]",
        ),
        (
            wants(file="messages[2].content[0]", file_account="account-other"),
            {"abilities": Abilities(files=False)},
            "capability",
            "takes no uploaded files",
            "messages[2].content[0]",
        ),
        (
            wants(file="messages[2].content[0]", file_account="account-other"),
            {"abilities": MOONSHOT},
            "capability",
            "belongs to account account-other, this is account-it",
            "messages[2].content[0]",
        ),
        (wants(), {"out": out(FaultKind.QUOTA, NOW_S + 300)}, "out", "account is empty, for another 300.0 s", ""),
        (wants(), {"out": out(FaultKind.AUTH, None)}, "out", "until the configuration is read again", ""),
        (wants(), {"out": out(FaultKind.SERVER, NOW_S + 9)}, "out", "failed too often (server)", ""),
        (wants(), {"out": out(FaultKind.SERVER, NOW_S - 1, probing=True)}, "out", "one request tries it now", ""),
        (wants(), {"out": out(FaultKind.RATE, NOW_S + 31)}, "out", "rate limit is reached", ""),
    ],
)
def test_the_first_filter_that_refuses_a_target_is_named(
    asked: Wants, facts: dict[str, Any], by: str, why: str, param: str
) -> None:
    found = rank(asked, [target("it", **facts), OTHER], Policy())
    assert names(found) == ["other"]
    (refused,) = found.refused
    assert (refused.candidate.name, refused.filter, refused.param) == ("it", by, param)
    assert why in refused.why
    alone = rank(asked, [target("it", **facts)], Policy())
    assert (alone.ranked, [one.filter for one in alone.refused]) == ((), [by])


def test_filters_are_asked_in_their_order() -> None:
    asked = wants(32_768, pinned="other", priced_only=True, n=2)
    facts: dict[str, Any] = {
        "model": "",
        "tariff": None,
        "window": 32_768,
        "abilities": MOONSHOT,
        "out": out(FaultKind.AUTH, None),
    }
    cures: list[tuple[Wants, dict[str, Any]]] = [
        (asked, facts),
        (replace(asked, pinned=None), facts),
        (replace(asked, pinned=None), facts | {"model": "m"}),
        (replace(asked, pinned=None), facts | {"model": "m", "tariff": PRO}),
        (replace(asked, pinned=None, prompt=exactly(9)), facts | {"model": "m", "tariff": PRO}),
        (replace(asked, pinned=None, prompt=exactly(9), n=1), facts | {"model": "m", "tariff": PRO}),
    ]
    found = [rank(one, [target("it", **two)], Policy()).refused[0].filter for one, two in cures]
    assert found == list(FILTERS)


def test_what_a_request_without_a_target_is_answered_by_is_the_refusal_that_came_last() -> None:
    asked = wants(32_768, n=2)
    found = rank(asked, [target("a", window=1_000), target("b", 1, abilities=MOONSHOT)], Policy())
    assert found.decisive is not None
    assert found.decisive.param == "n"
    gone = target("c", 2, out=out(FaultKind.QUOTA, NOW_S + 5))
    found = rank(asked, [target("a", window=1_000), gone], Policy())
    assert [one.candidate.name for one in found.out] == ["c"]
    assert found.decisive is found.out[0]


def test_a_rate_limit_that_ends_soon_is_waited_for_and_its_time_named() -> None:
    cooling = target("it", out=out(FaultKind.RATE, NOW_S + 3), read_tokens=19_000)
    found = rank(wants(), [cooling, OTHER], Policy())
    assert names(found) == ["it", "other"]
    assert found.ranked[0].not_before_s == NOW_S + 3
    assert found.ranked[0].wait_s == pytest.approx(3 + 0.5 + 0.1)


def test_a_target_whose_time_is_over_is_asked_again() -> None:
    assert names(rank(wants(), [target("it", out=out(FaultKind.SERVER, NOW_S))], Policy())) == ["it"]


def test_where_the_bounds_leave_the_window_open_an_exact_count_is_asked_for_only_if_it_can_change_something() -> (
    None
):
    small, large = target("small", window=100_000), target("large", 1)
    near = wants(prompt=Estimate(60_000, 1_000, 240_000))
    far = wants(prompt=Estimate(40_000, 1_000, 160_000))
    over = wants(prompt=Estimate(120_000, 1_000, 480_000))
    assert rank(near, [small, large], Policy("order")).needs_exact
    assert not rank(far, [small, large], Policy("order")).needs_exact
    assert not rank(near, [small], Policy("order")).needs_exact
    assert not rank(near, [small, target("twin", 1, window=100_000)], Policy("order")).needs_exact
    assert names(rank(over, [small, large], Policy("order"))) == ["large", "small"]
    assert names(rank(wants(99_999), [small, large], Policy("order"))) == ["small", "large"]


# --- policies ---------------------------------------------------------------------------------------------------

CHEAP = Tariff(read=180, fresh=1_800, output=9_000)
SLOW = Pace(first_s=3.0, fresh_s=0.001, token_s=0.1, answer_s=60.0)


@pytest.mark.parametrize(
    ("policy", "targets", "expected"),
    [
        ("order", [target("a"), target("b", 1, tariff=CHEAP, read_tokens=19_000)], ["a", "b"]),
        ("cost", [target("a"), target("b", 1, tariff=CHEAP)], ["b", "a"]),
        # 5,000 warm tokens at 0.20 instead of 2.00 outweigh a tenth off the price of 20,000.
        ("cost", [target("a", tariff=CHEAP), target("b", 1, read_tokens=5_000)], ["b", "a"]),
        # Machines paid by the hour cost nothing more, until the wait costs more than tokens do.
        ("cost", [target("a"), target("b", 1, tariff=None, by_the_hour=True)], ["b", "a"]),
        (
            "cost",
            [target("a"), target("b", 1, tariff=None, by_the_hour=True, load=Load(8, 160, NOW_S))],
            ["a", "b"],
        ),
        # No price known: not free.
        ("cost", [target("a", tariff=None), target("b", 1)], ["b", "a"]),
        ("fastest", [target("a", pace=SLOW), target("b", 1)], ["b", "a"]),
        ("fastest", [target("a", load=Load(2, 30, NOW_S)), target("b", 1)], ["b", "a"]),
        # Nobody has measured it, so it counts as the fastest.
        ("fastest", [target("a", pace=SLOW), target("b", 1, pace=None)], ["b", "a"]),
        ("least-busy", [target("a", in_flight=3), target("b", 1, in_flight=2)], ["b", "a"]),
        ("least-busy", [target("a", in_flight=3), target("b", 1, load=Load(3, 1, NOW_S))], ["a", "b"]),
        ("least-busy", [target("a", in_flight=3, weight=2.0), target("b", 1, in_flight=2)], ["a", "b"]),
        ("weights", [target("a", weight=0.0), target("b", 1)], ["b", "a"]),
        ("order", [target("a", weight=0.0), target("b", 1)], ["b", "a"]),
    ],
)
def test_a_policy_puts_first_what_it_is_named_after(
    policy: str, targets: list[Candidate], expected: list[str]
) -> None:
    assert names(rank(wants(), targets, policy_of(policy))) == expected


def test_a_full_target_stays_in_the_order() -> None:
    full = target("a", full=True, quota=Quota(concurrency=2), in_flight=2)
    assert names(rank(wants(), [full, OTHER], Policy("order"))) == ["a", "other"]


def test_weights_of_a_route_by_order_are_a_split() -> None:
    policy = policy_of("order", {"a": 3.0, "b": 1.0})
    targets = [target("a", weight=3.0), target("b", 1, weight=1.0)]
    first = [rank(wants(key=b"%d" % n), targets, policy).ranked[0].name for n in range(2_000)]
    assert 0.70 < first.count("a") / 2_000 < 0.80


def test_a_target_that_misses_the_deadline_goes_last_whatever_the_policy() -> None:
    late = target("a", pace=SLOW, tariff=CHEAP)
    for policy in ("order", "cost", "weights", "fastest", "least-busy"):
        found = rank(wants(deadline_s=60.0), [late, OTHER], policy_of(policy))
        assert names(found) == ["other", "a"]
        assert found.ranked[1].last == "misses the deadline"


# --- cost: warmth, crowds, waiting ------------------------------------------------------------------------------


def test_equal_replicas_keep_a_conversation_and_share_out_the_fleet() -> None:
    replicas = [target(f"vllm-{n}", n) for n in range(4)]
    first = [names(rank(wants(key=b"%d" % n), replicas, Policy())) for n in range(800)]
    assert first[:50] == [names(rank(wants(key=b"%d" % n), replicas[::-1], Policy())) for n in range(50)]
    counts = [[one[0] for one in first].count(f"vllm-{n}") for n in range(4)]
    assert min(counts) > 150


def test_a_shared_prefix_fills_one_target_and_then_the_next() -> None:
    warm = target("a", read_tokens=8_192, read_shared=True, quota=Quota(8))
    cold = target("b", 1, quota=Quota(8))
    assert names(rank(wants(), [replace(warm, in_flight=3), cold], Policy()))[0] == "a"
    found = rank(wants(), [replace(warm, in_flight=7), cold], Policy())
    assert (names(found), found.ranked[1].crowded) == (["b", "a"], True)


def test_a_running_conversation_stays_on_a_crowded_target() -> None:
    home = target("a", read_tokens=15_000, in_flight=40)
    found = rank(wants(), [home, OTHER], Policy())
    assert (names(found)[0], found.ranked[0].crowded) == ("a", False)


def test_who_waits_for_a_warm_place_is_held_back_from_a_free_cold_one_as_long_as_going_cold_takes() -> None:
    home = target("a", read_tokens=19_000, full=True, in_flight=20, quota=Quota(20))
    found = rank(wants(), [home, OTHER], Policy())
    assert names(found) == ["a", "other"]
    assert found.ranked[0].wait_s == pytest.approx(1 + 0.5 + 0.1)  # a place gets free every 20 s / 20
    assert found.ranked[1].not_before_s == pytest.approx(NOW_S + 1.9)  # 19,000 tokens more to compute
    assert found.ranked[1].place.not_before_s == found.ranked[1].not_before_s
    longer = rank(wants(), [replace(home, in_flight=5, quota=Quota(5)), OTHER], Policy())
    assert names(longer) == ["a", "other"]
    assert [one.not_before_s for one in longer.ranked] == [0.0, 0.0]


def test_where_all_are_full_each_waits_for_its_own_place_while_that_is_cheaper() -> None:
    home = target("a", read_tokens=19_000, full=True, in_flight=5, quota=Quota(5))
    full = target("b", 1, full=True, in_flight=5, quota=Quota(5))
    found = rank(wants(), [home, full], Policy())
    assert names(found) == ["a", "b"]
    assert found.ranked[1].not_before_s == pytest.approx(NOW_S + 4 + 1.9 + 10)
    dear = rank(wants(), [replace(home, read_tokens=500), full], Policy(wait_nano_per_hour=10**13))
    assert dear.ranked[1].not_before_s == pytest.approx(
        NOW_S + 4 + 0.05, abs=0.1
    )  # 900,000 nano-dollars are soon spent
    crowd = replace(home, queued=9)
    assert [one.not_before_s for one in rank(wants(), [crowd, full], Policy()).ranked] == [0.0, 0.0]
