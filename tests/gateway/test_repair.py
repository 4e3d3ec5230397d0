"""Thinking repair as a whole: a client sends its history back without thoughts, and what the upstream gets."""

import json
from collections.abc import Callable

import msgspec
import pytest

from backends.json import encode
from backends.messages import read_heads
from kimi_gateway.core.digest import TurnMemo, read_history
from kimi_gateway.core.repair import RepairPlan, placeholder_for, repair, spliced
from kimi_gateway.core.thought_record import Owner
from support.cases import case
from support.repairing import (
    ASK,
    CALL,
    ME,
    MORE,
    RESULT,
    SAID,
    SHORT,
    SYSTEM,
    THANKS,
    WHOLE,
    Gateway,
    Message,
    edited,
    raws,
    stripped,
    thoughts,
)


@pytest.fixture
def gateway() -> Gateway:
    served = Gateway()
    served.served(WHOLE)
    return served


# --- the table ------------------------------------------------------------------------------------------------


def reserialised(messages: list[Message]) -> list[Message]:
    """What Kimi Code does: arguments parsed and written anew; here their members change places too."""
    calls = [dict(call) for call in messages[2]["tool_calls"]]
    arguments = json.loads(calls[0]["function"]["arguments"])
    again = json.dumps(dict(reversed(arguments.items())), separators=(",", ":")).replace("1.0", "1")
    calls[0]["function"] = {"arguments": again, "name": "get_weather"}
    return edited(messages, 2, tool_calls=calls)


def renumbered(messages: list[Message]) -> list[Message]:
    calls = [messages[2]["tool_calls"][0] | {"id": "get_weather_0"}]
    return edited(edited(messages, 2, tool_calls=calls), 3, tool_call_id="get_weather_0")


RECOGNISED: dict[str, Callable[[list[Message]], list[Message]]] = {
    "as it was": lambda messages: messages,
    "outer white space": lambda messages: edited(messages, 4, content="\n" + messages[4]["content"] + "  "),
    "content null or absent": lambda messages: edited(messages, 2, content=None),
    "JSON re-serialised": reserialised,
    "string to parts": lambda messages: edited(
        messages, 4, content=[{"type": "text", "text": messages[4]["content"]}]
    ),
    "user's string to parts": lambda messages: edited(
        messages, 1, content=[{"type": "text", "text": ASK["content"]}]
    ),
    "ids renumbered": renumbered,
    "system prompt changed": lambda messages: edited(messages, 0, content="You are someone else."),
    "system prompt dropped": lambda messages: messages[1:],
    "null thoughts": lambda messages: [
        message | {"reasoning_content": None} if message["role"] == "assistant" else message
        for message in messages
    ],
}


@pytest.mark.parametrize("habit", RECOGNISED)
def test_it_recognises_a_history(gateway: Gateway, habit: str) -> None:
    messages = RECOGNISED[habit](stripped(WHOLE))
    assert thoughts(gateway.sent(messages)) == [" I will call.\n", "Short.", "Polite."]
    assert gateway.plan(messages).disclosure == "repaired=3"


@pytest.mark.parametrize(
    "older",
    [[], [{"role": "user", "content": "Summary: nothing yet."}], [{"role": "assistant", "content": "Hm."}]],
)
def test_it_recognises_a_history_whose_oldest_turns_were_dropped_or_summed_up(older: list[Message]) -> None:
    gateway = Gateway()
    gateway.served([{"role": "user", "content": "Hi"}, SHORT, *WHOLE[1:]])
    messages = [*older, *stripped(WHOLE[1:])]
    assert gateway.plan(messages).conversation == b""  # what follows is another one, so none grows for ever
    # "Welcome." is too short to be known without all that came before it.
    assert thoughts(gateway.sent(messages))[-3:] == [" I will call.\n", "Short.", ...]
    assert (
        gateway.plan(messages).disclosure
        == f"repaired=2,missing={1 + sum(m['role'] == 'assistant' for m in older)}"
    )


MISSING: dict[str, Callable[[list[Message]], list[Message]]] = {
    "an edited turn": lambda messages: edited(messages, 4, content="It has nineteen degrees in Paris."),
    "an edited call": lambda messages: edited(
        messages,
        2,
        tool_calls=[{"id": "x", "function": {"name": "get_weather", "arguments": '{"city": "Rome", "days": 1}'}}],
    ),
    "an edited question": lambda messages: edited(messages, 1, content="Weather in Rome?"),
    "two assistant turns merged": lambda messages: [
        *messages[:2],
        messages[2] | {"content": messages[4]["content"]},
        *messages[3:4],
        *messages[5:],
    ],
}


@pytest.mark.parametrize("habit", MISSING)
def test_from_the_first_edit_on_thoughts_are_missing(gateway: Gateway, habit: str) -> None:
    messages = MISSING[habit](stripped(WHOLE))
    first = next(index for index, message in enumerate(messages) if message != stripped(WHOLE)[index])
    sent = gateway.sent(messages)
    assert sent[:first] == [*WHOLE[:first]]
    assert all(message.get("reasoning_content", "") == "" for message in sent[first:])
    assert gateway.plan(messages).missing == sum(message["role"] == "assistant" for message in messages[first:])


@pytest.mark.parametrize("other", [Owner("team-b"), Owner("team-a", b"someone"), Owner("team-b", b"someone")])
def test_another_callers_thoughts_are_missing(gateway: Gateway, other: Owner) -> None:
    assert thoughts(gateway.sent(stripped(WHOLE), owner=other)) == ["", ..., ...]
    assert gateway.plan(stripped(WHOLE), owner=other).disclosure == "missing=3"


def test_evicted_thoughts_are_missing(gateway: Gateway) -> None:
    gateway.store.forget(ME)
    assert gateway.plan(stripped(WHOLE)).disclosure == "missing=3"


# --- what was sent is not touched -----------------------------------------------------------------------------


def test_a_thought_that_the_client_sent_is_never_replaced(gateway: Gateway) -> None:
    messages = edited(edited(stripped(WHOLE), 2, reasoning_content="mine"), 4, reasoning_content="")
    assert thoughts(gateway.sent(messages)) == ["mine", "", "Polite."]
    assert gateway.plan(messages).disclosure == "repaired=1"
    assert gateway.plan(edited(messages, 6, reasoning="x")).disclosure == "intact"


def test_with_nothing_missing_the_arguments_come_back() -> None:
    messages = raws(WHOLE)
    heads = read_heads(msgspec.Raw(encode(WHOLE)))
    plan = Gateway().plan(WHOLE).towards(keeps_details=False, room_tokens=0)
    out, out_heads = spliced(messages, heads, plan, placeholder=b'""', keeps_details=False)
    assert out is messages
    assert out_heads is heads
    assert plan.disclosure == "intact"


def test_an_untouched_message_stays_the_clients_slice(gateway: Gateway) -> None:
    data = b'[{"role":"user",  "content":"Weather in Paris?"} , {"content":"x", "role":"assistant", "k":1.50}]'
    messages, heads = msgspec.json.decode(data, type=list[msgspec.Raw]), read_heads(msgspec.Raw(data))
    gateway.answered([ASK], {"role": "assistant", "content": "x", "reasoning_content": "r"})
    plan = repair(read_history(heads, TurnMemo()), heads, ME, gateway.store, 0)
    out, _ = spliced(messages, heads, plan, placeholder=b'""', keeps_details=False)
    assert out[0] is messages[0]
    assert bytes(out[1]) == b'{"content":"x", "role":"assistant", "k":1.50,"reasoning_content":"r"}'


def test_without_an_assistant_turn_there_is_nothing_to_say(gateway: Gateway) -> None:
    assert gateway.plan([SYSTEM, ASK]).disclosure == ""
    assert RepairPlan().towards(keeps_details=True).disclosure == ""


def test_null_and_absent_stay_where_nothing_is_found() -> None:
    messages = [
        ASK,
        {"role": "assistant", "content": "a", "reasoning_content": None},
        THANKS,
        stripped([SHORT])[0],
    ]
    assert Gateway().sent([*messages, MORE]) == [*messages, MORE]


# --- placeholders ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("kimi-k3.1-pro", b'""'),
        ("kimi-k3.1-pro-highspeed", b'""'),
        ("moonshotai/Kimi-K3.1-Pro", b'""'),
        ("kimi-k2.6", b'" "'),
        ("moonshotai/kimi-k2.7-code", b'" "'),
        ("moonshotai/Kimi-K2-Thinking", b'" "'),
        ("anything", b'""'),
    ],
)
def test_a_placeholder_follows_the_model_family(model: str, expected: bytes) -> None:
    assert placeholder_for(model) == expected


@pytest.mark.parametrize("thought", [{}, {"reasoning_content": None}])
def test_only_tool_call_turns_get_a_placeholder_and_it_counts_as_missing(thought: Message) -> None:
    messages = stripped(WHOLE)
    messages[2] |= thought
    gateway = Gateway()
    assert thoughts(gateway.sent(messages)) == ["", ..., ...]
    assert gateway.plan(messages).towards(keeps_details=False).disclosure == "missing=3"


def test_an_empty_list_of_calls_is_no_tool_call_turn() -> None:
    messages = [ASK, {"role": "assistant", "content": "a", "tool_calls": []}, MORE]
    assert Gateway().sent(messages) == messages


# --- too long -------------------------------------------------------------------------------------------------


def test_the_oldest_are_left_out_of_a_request_that_would_be_too_long(gateway: Gateway) -> None:
    plan = gateway.plan(stripped(WHOLE))
    sizes = [len(encode(text)) for text in (" I will call.\n", "Short.", "Polite.")]
    for room, kept in ((sum(sizes), 3), (sum(sizes) - 1, 2), (sizes[2] + 1, 1), (sizes[2], 1), (0, 0), (-5, 0)):
        fitted = plan.towards(keeps_details=False, room_tokens=room)
        assert [item.index for item in fitted.repairs] == [2, 4, 6][3 - kept :]
        assert fitted.trimmed == 3 - kept
        assert fitted.bare == ((2,) if kept < 3 else ())
        assert fitted.missing == 0
    assert plan.towards(keeps_details=False, room_tokens=sizes[2]).disclosure == "repaired=1,trimmed=2"


def test_cutting_in_steps_keeps_the_same_turns_out_while_a_history_grows() -> None:
    gateway = Gateway()
    history: list[Message] = []
    for number in range(12):
        question = {"role": "user", "content": f"Question {number}?"}
        answer = {"role": "assistant", "content": f"Answer {number}.", "reasoning_content": "x" * 98}
        gateway.answered([*history, question], answer)
        history += stripped([question, answer])
    firsts = []
    for turns in range(4, 13):
        plan = gateway.plan([*history[: 2 * turns], ASK])
        fitted = plan.towards(keeps_details=False, room_tokens=400, step_tokens=300)
        firsts.append(fitted.repairs[0].index // 2)
    assert firsts == [0, 3, 3, 3, 6, 6, 6, 9, 9]


def test_the_count_of_tokens_may_be_the_shells() -> None:
    gateway = Gateway()
    gateway.served(WHOLE)
    plan = gateway.plan(stripped(WHOLE))
    assert plan.towards(keeps_details=False, room_tokens=3, tokens_of=lambda _: 1).trimmed == 0
    assert plan.towards(keeps_details=False, room_tokens=2, tokens_of=lambda _: 1).trimmed == 1


# --- partial thoughts and prefixes ----------------------------------------------------------------------------


def test_a_cut_streams_thought_is_found_under_the_text_that_was_delivered(gateway: Gateway) -> None:
    cut = {"role": "assistant", "content": "In Rome it is", "reasoning_content": "I was thin"}
    gateway.answered(WHOLE, cut, partial=True)
    asked = [*stripped([*WHOLE, cut]), {"role": "user", "content": "Go on"}]
    assert thoughts(gateway.sent(asked))[-1] == "I was thin"
    longer = edited(asked, 8, content="In Rome it is twenty")
    assert thoughts(gateway.sent(longer))[-1] is ...


def test_a_turn_with_nothing_but_a_thought_is_known_too(gateway: Gateway) -> None:
    request = case("hist-04")["given"]["client_request"]["messages"]
    gateway.answered(request[:1], request[1], partial=True)
    assert gateway.sent(stripped(request)) == request


def test_a_prefix_to_continue_is_no_missing_turn_and_gets_what_was_thought_for_it(gateway: Gateway) -> None:
    prefix = {"role": "assistant", "content": "In Rome it is", "partial": True}
    assert gateway.plan([*stripped(WHOLE), prefix]).disclosure == "repaired=3"
    gateway.answered(
        WHOLE, {"role": "assistant", "content": "In Rome it is", "reasoning_content": "Cut"}, partial=True
    )
    assert gateway.plan([*stripped(WHOLE), prefix]).disclosure == "repaired=4"


def test_a_continued_answer_is_known_as_the_text_the_client_put_together(gateway: Gateway) -> None:
    prefix = {"role": "assistant", "content": "In Rome it is", "partial": True}
    gateway.answered([*WHOLE, prefix], {"role": "assistant", "content": " twenty.", "reasoning_content": "Sunny"})
    joined = {"role": "assistant", "content": "In Rome it is twenty."}
    assert thoughts(gateway.sent([*stripped(WHOLE), joined, THANKS]))[-1] == "Sunny"


# --- reasoning_details ----------------------------------------------------------------------------------------

DETAILS: list[Message] = [
    {"type": "reasoning.text", "text": "Short.", "signature": "s", "index": 0, "format": "unknown"}
]
SEALED: list[Message] = [{"type": "reasoning.encrypted", "data": "x", "id": "r1", "index": 0}]


def test_details_go_back_whole_to_who_keeps_them_and_as_text_to_others() -> None:
    gateway = Gateway()
    conversation = [ASK, SAID | {"reasoning_details": DETAILS}, THANKS]
    gateway.served(conversation)
    for target in ("openrouter", "moonshot", "vllm"):
        assert gateway.sent(stripped(conversation), to=target) == gateway.sent(conversation, to=target)
    assert gateway.sent(stripped(conversation), to="openrouter")[1]["reasoning_details"] == DETAILS
    assert gateway.sent(stripped(conversation)) == [ASK, SAID, THANKS]


def test_details_that_the_client_dropped_come_back_beside_its_own_text() -> None:
    gateway = Gateway()
    conversation = [ASK, SAID | {"reasoning_details": DETAILS}, THANKS, SHORT, MORE]
    gateway.served(conversation)
    sent = gateway.sent([ASK, SAID, THANKS, SHORT, MORE], to="openrouter")
    assert sent == gateway.sent(conversation, to="openrouter")
    assert sent[1]["reasoning_details"] == DETAILS
    assert gateway.plan([ASK, SAID, THANKS], details=True).towards(keeps_details=False).disclosure == "intact"
    other = [ASK, SAID | {"reasoning_content": "Something else."}, THANKS]
    assert gateway.plan(other, details=True).towards(keeps_details=True).disclosure == "intact"


def test_sealed_details_are_lost_on_a_target_that_takes_only_text() -> None:
    gateway = Gateway()
    conversation = [ASK, dict(CALL) | {"reasoning_content": None, "reasoning_details": SEALED}, RESULT]
    gateway.served(conversation)
    assert gateway.sent(stripped(conversation), to="openrouter")[1]["reasoning_details"] == SEALED
    assert gateway.sent(stripped(conversation))[1]["reasoning_content"] == ""
    assert gateway.plan(stripped(conversation)).towards(keeps_details=False).disclosure == "missing=1"
    assert gateway.plan(stripped(conversation)).towards(keeps_details=True).disclosure == "repaired=1"


def test_an_empty_list_of_details_is_no_thought(gateway: Gateway) -> None:
    messages = edited(stripped(WHOLE), 4, reasoning_details=[])
    assert gateway.plan(messages).disclosure == "repaired=3"
