"""What a target's window leaves: for thoughts that are put back, and for the answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.catalog import DIALECTS
from backends.json import encode
from kimi_gateway.core.repair import Repair, RepairPlan
from kimi_gateway.core.room import fitted, output_limit
from kimi_gateway.core.thought_record import Thought
from pricing.estimate import Estimate

WINDOW = 1_048_576
MOONSHOT = DIALECTS["moonshot"]


def plan_of(*sizes: int) -> RepairPlan:
    repairs = [
        Repair(2 * place + 1, Thought(encode("t" * size)), text=True, calls=False)
        for place, size in enumerate(sizes)
    ]
    return RepairPlan(turns=len(sizes), repairs=tuple(repairs))


def test_with_room_everything_is_put_back() -> None:
    plan = fitted(plan_of(1000, 2000), MOONSHOT, prompt=Estimate(100, 1, 400), window=WINDOW, output=0)
    assert plan.disclosure == "repaired=2"


def test_without_room_the_oldest_are_left_out_and_counted() -> None:
    plan = fitted(plan_of(4000, 4000, 400), MOONSHOT, prompt=Estimate(7000, 1, 9000), window=8192, output=100)
    assert plan.trimmed
    assert [item.index for item in plan.repairs] == sorted(item.index for item in plan.repairs)
    assert plan.repairs[-1].index == 5
    assert f"trimmed={plan.trimmed}" in plan.disclosure


@pytest.mark.parametrize(
    ("limit", "prompt", "window", "sent"),
    [
        (900, Estimate(100, 1, 400), WINDOW, 900),
        (WINDOW, Estimate(100, 1, 400), WINDOW, WINDOW - 400),
        (WINDOW, Estimate(500_000, 9000, 2_000_000), WINDOW, 16_000),
        (WINDOW, Estimate(1_000_000, 9000, 4_000_000), WINDOW, 1),
        (8192, Estimate(40, 1, 100), 8192, 8192 - 50),
    ],
)
def test_the_output_limit_is_what_the_window_leaves(limit: int, prompt: Estimate, window: int, sent: int) -> None:
    assert output_limit(limit, prompt=prompt, window=window) == sent


@given(st.integers(1, 2 * WINDOW), st.integers(0, WINDOW), st.integers(0, 4 * WINDOW), st.integers(1024, WINDOW))
def test_a_limit_is_never_raised_and_never_nothing(limit: int, tokens: int, more: int, window: int) -> None:
    sent = output_limit(limit, prompt=Estimate(tokens, 0, tokens + more), window=window)
    assert 1 <= sent <= limit
