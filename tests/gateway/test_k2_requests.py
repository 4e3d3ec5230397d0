"""What the gateway decides of a request to a K2 model: its effort as stated, and thoughts that it would refuse."""

from typing import Any

import msgspec
import pytest

from backends.json import encode
from backends.messages import MessageHead, read_heads
from kimi_gateway.core.effort import Effort, EffortWish, as_stated
from kimi_gateway.core.repair import Repair, RepairPlan, placeholder_for, spliced, with_empty_thoughts
from kimi_gateway.core.thought_record import Thought

CALL = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SPACE = placeholder_for("kimi-k2.6")


@pytest.mark.parametrize(
    ("wish", "stated"),
    [
        (EffortWish(), Effort()),
        (EffortWish(reasoning_effort="medium"), Effort("medium")),
        (EffortWish(thinking_effort="low", reasoning_effort="max"), Effort("low")),
        (EffortWish(reasoning_effort="ultra"), Effort()),
        (EffortWish(reasoning_effort="none"), Effort(off=True)),
        (EffortWish(thinking_type="disabled", reasoning_effort="high"), Effort(off=True)),
        (EffortWish(thinking_type="whatever"), Effort()),
    ],
)
def test_an_effort_that_passes_is_told_as_it_was_stated(wish: EffortWish, stated: Effort) -> None:
    assert as_stated(wish) == stated


def turns(*messages: dict[str, Any]) -> tuple[list[msgspec.Raw], list[MessageHead]]:
    raw = msgspec.Raw(encode([{"role": "assistant", **message} for message in messages]))
    return msgspec.json.decode(raw, type=list[msgspec.Raw]), read_heads(raw)


def test_an_empty_thought_of_a_tool_call_turn_is_as_good_as_missing() -> None:
    messages, heads = turns(
        {"tool_calls": [CALL], "reasoning_content": ""},
        {"tool_calls": [CALL], "reasoning": "", "reasoning_content": None},
        {"tool_calls": [CALL], "reasoning_content": "x"},
        {"tool_calls": [CALL], "reasoning_content": "", "reasoning": "x"},
        {
            "tool_calls": [CALL],
            "reasoning_content": "",
            "reasoning_details": [{"type": "reasoning.text", "text": "x"}],
        },
        {"tool_calls": [], "reasoning_content": ""},
        {"content": "a", "reasoning_content": ""},
    )
    plan = with_empty_thoughts(RepairPlan(turns=7, missing=1), heads, SPACE)
    assert (plan.bare, plan.disclosure) == ((0, 1), "missing=3")
    out, _ = spliced(messages, heads, plan, placeholder=SPACE, keeps_details=False)
    assert [msgspec.json.decode(message).get("reasoning_content") for message in out[:3]] == [" ", " ", "x"]
    assert [one is other for one, other in zip(out, messages, strict=True)] == [False, False, *[True] * 5]


def test_turns_that_are_bare_or_repaired_already_are_counted_once() -> None:
    _, heads = turns({"tool_calls": [CALL]}, {"tool_calls": [CALL], "reasoning_content": ""})
    fixed = Repair(1, Thought(text=b'"t"'), text=True, calls=True)
    plan = RepairPlan(turns=2, repairs=(fixed,), bare=(0,), missing=1)
    assert with_empty_thoughts(plan, heads, SPACE) == plan


def test_k3_keeps_an_empty_thought() -> None:
    _, heads = turns({"tool_calls": [CALL], "reasoning_content": ""})
    plan = RepairPlan(turns=1)
    assert with_empty_thoughts(plan, heads, placeholder_for("kimi-k3.1-pro")) is plan
