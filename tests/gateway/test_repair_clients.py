"""Thinking repair with the habits of recorded clients, the cases, and any conversation at all."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.json import encode
from backends.messages import read_heads
from kimi_gateway.core.digest import TurnMemo, read_history
from kimi_gateway.core.repair import plan_repair, wanted
from kimi_gateway.core.thought_record import Owner, Thought
from support.cases import case
from support.repairing import (
    ASK,
    ME,
    RESULT,
    SYSTEM,
    THANKS,
    WHOLE,
    Gateway,
    Message,
    stripped,
    thoughts,
)
from support.shared import shared_path

# --- cases and recorded clients -------------------------------------------------------------------------------


def test_hist_01_and_03_need_no_repair_and_leave_as_they_came() -> None:
    for name in ("hist-01", "hist-03"):
        messages = case(name)["given"]["client_request"]["messages"]
        assert Gateway().plan(messages).disclosure == "intact"
        assert Gateway().sent(messages) == messages


def test_hist_02_gets_its_thought_from_the_store_and_a_placeholder_without() -> None:
    given = case("hist-02")["given"]
    messages = given["client_request"]["messages"]
    answer = messages[1] | {"content": None, "reasoning_content": given["gateway"]["turn_1_reasoning"]}
    gateway = Gateway()
    gateway.answered(messages[:1], answer)
    expect = case("hist-02")["expect"]
    assert gateway.sent(messages)[1]["reasoning_content"] == "secret plan"
    one_of = expect["without_store"]["upstream_body"]["messages[1].reasoning_content"]["one_of"]
    assert Gateway().sent(messages)[1]["reasoning_content"] in one_of


def test_rsn_03_an_empty_thought_is_stored_and_comes_back_empty() -> None:
    given = case("rsn-03")["given"]
    messages = given["client_request"]["messages"]
    gateway = Gateway()
    gateway.answered(messages[:1], given["turn_1_upstream"]["choices"][0]["message"])
    assert gateway.plan(messages).disclosure == "intact"
    assert gateway.sent(messages) == gateway.sent(stripped(messages)) == messages
    assert gateway.plan(stripped(messages)).disclosure == "repaired=1"


def test_tool_04_the_same_id_in_two_turns_is_two_thoughts() -> None:
    messages = case("tool-04")["given"]["client_request"]["messages"]
    gateway = Gateway()
    gateway.served(messages)
    assert gateway.sent(stripped(messages)) == messages


RECORDED = {
    "kimi-code-npm": 4,
    "kimi-cli-python": 1,
    "kosong-kimi-sdk": 3,
    "langchain-moonshot": 1,
    "openai-npm": 2,
    "openai-python": 2,
    "pydantic-ai": 4,
}
"""Recorded 2026-11-30. How many assistant turns each file has that follow an answer of the recorder."""


@pytest.mark.parametrize("client", RECORDED)
def test_the_recorded_habits_of_a_client_are_recognised(client: str) -> None:
    lines = shared_path(f"transcripts/client-{client}.jsonl").read_text().splitlines()
    gateway, asked, seen = Gateway(), [], 0
    for line in map(json.loads, lines):
        if line.get("path") == "/v1/chat/completions":
            asked = line["body"]["messages"]
            plan = gateway.plan(stripped(asked)).towards(keeps_details=False)
            seen += plan.turns
            assert plan.disclosure in ("", f"repaired={plan.turns}")
            assert set(thoughts(gateway.sent(stripped(asked)))) <= {
                "The user asks something simple. I answer briefly."
            }
        elif line.get("response", {}).get("kind", "").startswith("chat.completion"):
            gateway.answered(asked, recorded_answer(line["response"]["tool"]))
    assert seen >= RECORDED[client]


def recorded_answer(tool: dict[str, str] | None) -> Message:
    """What the recorder answered."""
    message: Message = {
        "role": "assistant",
        "reasoning_content": "The user asks something simple. I answer briefly.",
    }
    if tool is None:
        return message | {"content": "Kimi says hello."}
    function = {"name": tool["name"], "arguments": tool["args"]}
    return message | {
        "content": None,
        "tool_calls": [{"id": tool["id"], "type": "function", "function": function}],
    }


def test_aider_edits_what_was_said_so_its_thoughts_are_missing() -> None:
    """It writes the thought into the text and moves the question's reminder: no visible turn is what it was."""
    lines = [json.loads(line) for line in shared_path("transcripts/client-aider.jsonl").read_text().splitlines()]
    first, second = (line["body"]["messages"] for line in lines if "body" in line)
    gateway = Gateway()
    gateway.answered(first, recorded_answer(None))
    plan = gateway.plan(second)
    assert plan.disclosure == f"missing={plan.turns}"


# --- the prefix that the upstream has cached ------------------------------------------------------------------


@pytest.mark.parametrize("target", ["moonshot", "openrouter", "vllm", "sglang"])
def test_the_bytes_of_a_shared_prefix_do_not_change_from_turn_to_turn(target: str) -> None:
    gateway = Gateway()
    before: list[bytes] = []
    for end in (4, 6, 8):
        gateway.served(WHOLE[:end])
        sent = [bytes(raw) for raw in gateway.encoded(stripped(WHOLE[:end]), to=target)]
        assert sent[: len(before)] == before
        before = sent
        # A second conversation with the same visible turns and other thoughts changes nothing in the first.
        gateway.served(
            [m | {"reasoning_content": "other"} if m["role"] == "assistant" else m for m in WHOLE[:end]]
        )


def test_two_gateways_with_one_store_plan_alike() -> None:
    gateway = Gateway()
    gateway.served(WHOLE)
    other = Gateway(store=gateway.store)
    assert other.plan(stripped(WHOLE)) == gateway.plan(stripped(WHOLE))


# --- properties -----------------------------------------------------------------------------------------------

answers = st.builds(
    lambda text, thought, calls: {
        "role": "assistant",
        "content": text,
        **({"reasoning_content": thought} if thought is not None else {}),
        **({"tool_calls": [{"id": "a:0", "function": {"name": name, "arguments": "{}"}} for name in calls]}),
    },
    text=st.sampled_from(
        ["", "Ok.", "A text of more than thirty-two characters", "Another long text with no short end"]
    ),
    thought=st.none() | st.sampled_from(["", " ", "one", "two"]),
    calls=st.lists(st.sampled_from(["ls", "cat"]), max_size=2),
)
others = st.sampled_from(
    [
        ASK,
        THANKS,
        RESULT,
        SYSTEM,
        {"role": "assistant", "content": "Written by hand."},
        {"role": "user", "content": []},
    ]
)
conversations = st.lists(answers | others, min_size=1, max_size=7)


@settings(max_examples=120)
@given(
    served=st.lists(st.tuples(st.sampled_from([ME, Owner("b")]), conversations), max_size=4),
    asked=conversations,
    cut=st.integers(0, 3),
)
def test_it_never_invents_never_crosses_and_never_replaces(
    served: list[tuple[Owner, list[Message]]], asked: list[Message], cut: int
) -> None:
    gateway = Gateway()
    mine: set[tuple[bytes, str]] = set()
    for owner, conversation in served:
        marked = [
            message | {"reasoning_content": owner.key + message["reasoning_content"]}
            if "reasoning_content" in message
            else message
            for message in conversation
        ]
        gateway.served(marked, owner=owner)
        if owner == ME:
            mine |= {(encode(stripped([message])), message["reasoning_content"]) for message in had(marked)}
    for _, conversation in [*served, (ME, asked)]:
        history = conversation[cut:]
        if not history:
            continue
        plan = gateway.plan(stripped(history)).towards(keeps_details=False)
        for message, sent in zip(history, gateway.sent(stripped(history)), strict=True):
            thought = sent.pop("reasoning_content", "")
            assert sent == stripped([message])[0]
            assert thought == "" or (encode([sent]), thought) in mine
        assert len(plan.repairs) + plan.missing == plan.turns
        for message, sent in zip(history, gateway.sent(history), strict=True):
            assert "reasoning_content" not in message or sent == message


def had(conversation: list[Message]) -> list[Message]:
    """The turns that have a thought."""
    return [message for message in conversation if "reasoning_content" in message]


@settings(max_examples=80)
@given(conversation=conversations)
def test_what_was_served_whole_comes_back_whole(conversation: list[Message]) -> None:
    gateway = Gateway()
    gateway.served(conversation)
    history = stripped(conversation)
    for message, sent in zip(conversation, gateway.sent(history), strict=True):
        assert "reasoning_content" not in message or sent == message


def test_the_two_halves_serve_a_store_elsewhere() -> None:
    """A store that must be awaited is asked between `wanted` and `plan_repair`."""
    gateway = Gateway()
    gateway.served(WHOLE)
    heads = read_heads(msgspec.Raw(encode(stripped(WHOLE))))
    wants = wanted(read_history(heads, TurnMemo()), heads)
    hits = gateway.store.find(ME, [want.keys for want in wants], 0)
    assert plan_repair(heads, wants, hits) == gateway.plan(stripped(WHOLE))
    assert [hit.thought if hit else None for hit in hits] == [
        Thought(encode(text)) for text in (" I will call.\n", "Short.", "Polite.")
    ]


def test_a_history_that_needs_nothing_is_asked_for_its_newest_turn_only() -> None:
    gateway = Gateway()
    gateway.served(WHOLE)
    heads = read_heads(msgspec.Raw(encode(WHOLE)))
    assert [want.index for want in wanted(read_history(heads, TurnMemo()), heads)] == [6]
    assert gateway.plan(WHOLE).conversation == gateway.plan(stripped(WHOLE)).conversation != b""
