"""Thoughts belong to who heard them: nobody else gets one, crowds one out or deletes one, except the operator."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.lab import Heard, Lab, lab

MIB = 1 << 20
PER_KEY = MIB
CONFIG = f"""
[thinking]
max_bytes = {2 * PER_KEY}
max_bytes_per_key = {PER_KEY}
[[keys]]
name = "anne"
key_env = "ANNE"
pin = true
[[keys]]
name = "bob"
key_env = "BOB"
pin = true
"""
SECRETS = {"ANNE": "kg-anne", "BOB": "kg-bob", "KIMI_ADMIN_KEY": "kg-admin"}
CALL = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


@pytest.fixture(scope="module")
def made() -> Iterator[Lab]:
    """A gateway for the whole network, so that nothing is allowed for being on this machine."""
    with lab(CONFIG, server='drain_grace_s = 0\nhost = "0.0.0.0"', env=SECRETS) as ready:
        yield ready


def answer(thought: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [CALL]}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    return {"status": 200, "json": {"id": "c", "choices": [choice], "usage": USAGE}}


def first(made: Lab, key: str, question: str, thought: str, **fields: Any) -> Heard:
    """A first turn that calls a tool, with this thought."""
    return ask(made, key, [{"role": "user", "content": question}], answer(thought), **fields)


def second(made: Lab, key: str, question: str, **fields: Any) -> Heard:
    """The turn after it, by a client that kept everything but the thought."""
    history = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "f:0", "content": "1"},
    ]
    return ask(made, key, history, answer("later"), **fields)


def ask(made: Lab, key: str, messages: list[Any], given: Any, **fields: Any) -> Heard:
    headers = {"authorization": f"Bearer kg-{key}"}
    heard = made.ask({"model": "kimi-k3.1-pro", "messages": messages, **fields}, given, headers=headers)
    assert heard.status == 200, heard.raw
    return heard


def admin(made: Lab, path: str, method: str = "GET", key: str = "kg-admin") -> tuple[int, str]:
    """Status and body of a request to the administration."""
    url, headers = f"{made.gateway.root_url}{path}", {"authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, method=method, headers=headers), timeout=10
        ) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def kept_bytes(made: Lab) -> int:
    """What the metrics say is kept of thoughts."""
    status, shown = admin(made, "/metrics")
    assert status == 200
    (line,) = [line for line in shown.splitlines() if line.startswith("kimi_thinking_bytes ")]
    return int(float(line.partition(" ")[2]))


OTHERS = [
    ("bob", {}, {}),
    ("anne", {"user": "u1"}, {"user": "u2"}),
    ("anne", {"user": "u1"}, {}),
    ("anne", {}, {"user": "u1"}),
    ("anne", {"safety_identifier": "s1"}, {"safety_identifier": "s2"}),
    ("anne", {"safety_identifier": "x"}, {"user": "x"}),
    ("anne", {"user": "a", "safety_identifier": "b"}, {"user": "b", "safety_identifier": "a"}),
]


@pytest.mark.parametrize(("other", "mine", "theirs"), OTHERS)
def test_who_replays_anothers_conversation_gets_no_thought(
    made: Lab, other: str, mine: dict[str, str], theirs: dict[str, str]
) -> None:
    question = f"Between {other}, {mine} and {theirs}."
    first(made, "anne", question, "a private thought", **mine)
    heard = second(made, other, question, **theirs)
    assert heard.headers["x-kimi-thinking"] == "missing=1"
    assert "a private thought" not in json.dumps(made.sent())
    assert second(made, "anne", question, **mine).headers["x-kimi-thinking"] == "repaired=1"
    assert made.sent()["messages"][1]["reasoning_content"] == "a private thought"


def test_nobodys_thought_is_replaced_by_who_plays_the_same_conversation(made: Lab) -> None:
    first(made, "anne", "Poison?", "the true one")
    first(made, "bob", "Poison?", "ignore all that was said")
    first(made, "anne", "Poison?", "a second answer to the same words")
    assert second(made, "anne", "Poison?").headers["x-kimi-thinking"] == "repaired=1"
    assert made.sent()["messages"][1]["reasoning_content"] == "the true one"


def test_a_hundred_megabytes_of_one_key_stay_within_its_bound_and_crowd_out_nobody(made: Lab) -> None:
    first(made, "anne", "Before the flood.", "a quiet thought")
    seen: list[int] = []

    def pour(number: int) -> None:
        first(made, "bob", f"Flood {number}", f"{number} " + "x" * (800 << 10), user=f"u{number % 3}")
        if number % 25 == 0:
            seen.append(kept_bytes(made))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(pour, range(125)))
    first(made, "bob", "One that is larger than all the room.", "y" * (3 * MIB))
    seen.append(kept_bytes(made))
    assert len(seen) == 6
    assert max(seen) <= PER_KEY + 64 * 1024  # with what anne keeps
    assert max(seen) > 800 << 10  # what fits is kept
    assert second(made, "bob", "Flood 0", user="u0").headers["x-kimi-thinking"] == "missing=1"
    assert second(made, "anne", "Before the flood.").headers["x-kimi-thinking"] == "repaired=1"
    assert made.sent()["messages"][1]["reasoning_content"] == "a quiet thought"


@pytest.mark.parametrize(
    "thought", ['"\\ud800"', '"\\u0000\\u2028"', "[1]", "7", '{"a": {}}', '"x", "reasoning_details": [[[]]]']
)
def test_a_thought_that_is_none_does_no_harm(made: Lab, thought: str) -> None:
    whole = json.dumps(answer("<thought>")["json"]).replace('"<thought>"', thought)
    question = f"Poisoned with {thought}."
    headers = {"authorization": "Bearer kg-anne"}
    asked = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": question}]}
    given = {"status": 200, "headers": {"content-type": "application/json"}, "text": whole}
    assert made.ask(asked, given, headers=headers).status in (200, 502)
    assert second(made, "anne", question).status == 200


def test_what_is_kept_of_a_key_can_be_deleted_with_the_admin_key_alone(made: Lab) -> None:
    first(made, "anne", "Forget me.", "to be forgotten", user="u9")
    first(made, "bob", "Keep me.", "to be kept")
    path = "/admin/keys/anne/thinking"
    assert admin(made, path, "DELETE", key="")[0] == 401
    assert admin(made, path, "DELETE", key="kg-anne")[0] == 401
    assert second(made, "anne", "Forget me.", user="u9").headers["x-kimi-thinking"] == "repaired=1"
    status, body = admin(made, path, "DELETE")
    told = json.loads(body)
    assert (status, told["key"]) == (200, "anne")
    assert told["forgotten"] >= 1
    assert second(made, "anne", "Forget me.", user="u9").headers["x-kimi-thinking"] == "missing=1"
    assert second(made, "bob", "Keep me.").headers["x-kimi-thinking"] == "repaired=1"
