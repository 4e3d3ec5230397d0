"""Errors come through pickle and copy as they were: worker processes hand them on that way."""

import copy
import pickle
from decimal import Decimal
from typing import Any

import pytest

import kimi_sdk
from kimi_sdk import (
    BadOutput,
    ConnectionFailed,
    KimiError,
    MaxCostReached,
    NoAnswerInTime,
    RateLimited,
    StreamCut,
    ThinkingExhausted,
    TooManyRounds,
)
from kimi_sdk.reply import Reply

REPLY = Reply(
    text="half", thinking=None, tool_calls=(), usage=None, cost=None, cost_source="unknown", finish_reason="",
    model="kimi-k3.1-pro", tier=None, effort="max", target=None, request_id="kr_1",
    message={"role": "assistant", "content": "half"}, raw={},
)  # fmt: skip
OWN: dict[type[KimiError], dict[str, Any]] = {
    StreamCut: {"reply": REPLY},
    ThinkingExhausted: {"reply": REPLY},
    TooManyRounds: {"reply": REPLY, "rounds": 3},
    ConnectionFailed: {"was_sent": True, "request_id": "kr_1"},
    NoAnswerInTime: {"was_sent": True},
    BadOutput: {"text": "{}", "problems": ("name: missing",)},
    MaxCostReached: {"max_cost": Decimal("1.10"), "spent": Decimal(1), "reserved": Decimal(0), "bound": None},
}
KINDS = [kind for kind in vars(kimi_sdk).values() if isinstance(kind, type) and issubclass(kind, KimiError)]


def made(kind: type[KimiError]) -> KimiError:
    if issubclass(kind, kimi_sdk.RequestRefused):
        return kind("what and why", status=429, code="rate", request_id="kr_1", retry_after_s=7.0)
    return kind("what and why", **OWN.get(kind, {}))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_is_the_same_after_pickle_and_copy(kind: type[KimiError]) -> None:
    error = made(kind)
    error.add_note("while translating")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is kind
        assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))


def test_the_typed_error_behind_another_goes_along() -> None:
    error = made(StreamCut)
    error.__cause__ = made(RateLimited)

    other = pickle.loads(pickle.dumps(error))

    assert isinstance(other.__cause__, RateLimited)
    assert other.__cause__.retry_after_s == 7.0
