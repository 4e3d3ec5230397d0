"""The routing simulation of `bench/routing.py`, with a small fleet: its parts are what they are taken to be."""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEED = 11


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """The program, which is in no package: its folder is on the path while it is loaded."""
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        yield importlib.import_module("routing")
    finally:
        sys.path.remove(str(ROOT / "bench"))


@pytest.fixture(scope="module")
def small(bench: ModuleType) -> Any:
    """The mix of targets with a fleet of 36 conversations."""
    return bench.Scenario("small", bench.MIX, bench.Fleet(conversations=36, arrive_s=200.0, mean_turns=7.0))


@pytest.fixture(scope="module")
def found(bench: ModuleType, small: Any) -> dict[str, Any]:
    """The figures by policy."""
    policies = ("cost", "round-robin", "conversation hash")
    return {one.policy: one for one in bench.run_seed(small, SEED, policies)}


def test_every_policy_has_the_same_work(found: dict[str, Any]) -> None:
    assert len({(one.requests, one.prompt_tokens) for one in found.values()}) == 1
    assert next(iter(found.values())).requests > 150


def test_a_route_by_cost_is_cheaper_than_a_hash_of_the_conversation_and_that_than_round_robin(
    found: dict[str, Any],
) -> None:
    assert found["cost"].usd < found["conversation hash"].usd < found["round-robin"].usd
    assert found["cost"].cache_share > found["round-robin"].cache_share + 0.05


def test_the_dollars_are_those_of_the_invoices_and_every_request_went_somewhere(found: dict[str, Any]) -> None:
    for one in found.values():
        assert sum(one.target_usd.values()) == pytest.approx(one.usd)
        assert sum(one.share.values()) == pytest.approx(1.0)
        assert all(usd > 0 for usd in one.target_usd.values())


def test_a_run_is_the_same_each_time(bench: ModuleType, small: Any, found: dict[str, Any]) -> None:
    assert bench.run_seed(small, SEED, ["cost"])[0] == found["cost"]


def test_the_conversations_of_a_seed_begin_alike_where_they_say_so(small: Any) -> None:
    fleet = importlib.import_module("routing_fleet")
    talks = fleet.talks_of(replace(small.fleet, repeated_share=0.5), SEED, (256,))
    same = [(a, b) for a in talks for b in talks if a is not b and (a.kind, a.question) == (b.kind, b.question)]
    assert same
    for one, other in same:
        shared = one.turns[0].prompt_tokens // 256
        assert one.blocks[256][:shared] == other.blocks[256][:shared]
        assert one.blocks[256][-1] != other.blocks[256][-1] or len(one.turns) == len(other.turns) == 1


def test_the_verdict_compares_with_the_cheapest_of_the_others(bench: ModuleType, found: dict[str, Any]) -> None:
    made = replace(found["cost"], usd=80.0, ttft_p95_s=2.0)
    runs = [
        made,
        replace(made, policy="a", usd=100.0, ttft_p95_s=2.0),
        replace(made, policy="b", usd=95.0, ttft_p95_s=1.9),
    ]
    worse = [replace(made, usd=90.0), *runs[1:]]
    one = bench.verdict({run.policy: [run] for run in runs})
    assert (one.other, round(one.fewer, 4), round(one.slower, 4)) == ("b", 0.1579, 1.0526)
    assert not one.holds
    assert bench.worst({1: runs, 2: worse})[0] == 2
    assert bench.as_json({1: runs, 2: worse})["worst_seed"]["fewer"] == round(1 - 90 / 95, 4)
