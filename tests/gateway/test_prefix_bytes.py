"""The bytes of a history that two requests share: to one target they are the same, as long as the store has the
conversation. Upstreams cache by them.

Clients keep their thoughts, drop them or spell them otherwise, and change what they were told in every way in
which a turn is known again.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from backends.catalog import DIALECTS
from kimi_gateway.core.thoughts import Bounds
from support.encoding import InProcess, Message, Sent
from support.histories import PARAMETERS

TOOL = {"type": "function", "function": {"name": "look", "description": "Look", "parameters": PARAMETERS}}
LONG = "A text of more than thirty-two characters, so that it is known again. "

# --- what clients do to an answer ---------------------------------------------------------------------------


def keep(message: Message) -> Message:
    return message


def drop(message: Message) -> Message:
    return {name: value for name, value in message.items() if not name.startswith("reasoning")}


def null(message: Message) -> Message:
    return {**drop(message), "reasoning_content": None}


def as_reasoning(message: Message) -> Message:
    """vLLM's spelling of the same thought."""
    thought = message.get("reasoning_content")
    return {**drop(message), **({"reasoning": thought} if thought is not None else {})}


def without_details(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != "reasoning_details"}


THOUGHTS = (keep, drop, null, as_reasoning, without_details)


def untouched(message: Message) -> Message:
    return message


def in_parts(message: Message) -> Message:
    text = message["content"]
    return {**message, "content": [{"type": "text", "text": text}]} if isinstance(text, str) and text else message


def trimmed(message: Message) -> Message:
    text = message["content"]
    return {**message, "content": text.strip()} if isinstance(text, str) else message


def null_content(message: Message) -> Message:
    return {**message, "content": message["content"] or None} if "tool_calls" in message else message


def reserialised(message: Message) -> Message:
    return _with_calls(
        message, lambda at, call: {**call["function"], "arguments": _spaced(call["function"]["arguments"])}
    )


def renumbered(message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    return {**message, "tool_calls": [{**call, "id": f"n_{at}"} for at, call in enumerate(message["tool_calls"])]}


def _with_calls(message: Message, change: Callable[[int, Any], Any]) -> Message:
    if "tool_calls" not in message:
        return message
    calls = [{**call, "function": change(at, call)} for at, call in enumerate(message["tool_calls"])]
    return {**message, "tool_calls": calls}


def _spaced(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), indent=1, sort_keys=True)
    except ValueError:
        return arguments


VISIBLE = (untouched, in_parts, trimmed, null_content, reserialised, renumbered)

# --- conversations ------------------------------------------------------------------------------------------

DETAILS = [{"type": "reasoning.text", "text": "one", "id": "r1", "format": "unknown", "index": 0}]
calls = st.lists(
    st.builds(
        lambda id, arguments: {
            "id": id,
            "type": "function",
            "function": {"name": "look", "arguments": arguments},
        },
        id=st.sampled_from(["look:0", "look:1", "call_é", "a"]),
        arguments=st.sampled_from(["{}", '{"b": 1.0, "a": "é"}', '{"x":[1,2]}', ""]),
    ),
    max_size=2,
)


@st.composite
def answers(draw: st.DrawFn) -> Message:
    text = draw(
        st.sampled_from(["", "Ok.", f" {LONG}\n", "Zwölf Grad, und der Wind kommt aus Westen über den Fluß."])
    )
    made: Message = {"role": "assistant", "content": text}
    thought = draw(st.sampled_from([None, "", " ", "one", 'two\n"quoted" \u2028 é', "three" * 20]))
    if thought is not None:
        made["reasoning_content"] = thought
        if thought and draw(st.integers(0, 3)) == 0:
            made["reasoning_details"] = [{**DETAILS[0], "text": thought}]
    wanted = draw(calls)
    return {**made, "tool_calls": wanted} if wanted else made


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[list[Message], Message]]:
    """Rounds: the messages that a client adds, and the answer it gets."""
    rounds: list[tuple[list[Message], Message]] = []
    added: list[Message] = [{"role": "system", "content": LONG}] if draw(st.booleans()) else []
    added.append({"role": "user", "content": "Begin."})
    for number in range(draw(st.integers(2, 5))):
        answer = draw(answers())
        rounds.append((added, answer))
        results = [
            {"role": "tool", "tool_call_id": f"?{at}", "content": f"{number}.{at}"}
            for at, _ in enumerate(answer.get("tool_calls", []))
        ]
        added = results or [{"role": "user", "content": f"Question {number}?"}]
    rounds.append((added, {"role": "assistant", "content": "The end."}))
    return rounds


def results_for(message: Message, added: Sequence[Message]) -> list[Message]:
    """The added messages, results under the ids that the client itself uses."""
    ids = iter([call["id"] for call in message.get("tool_calls", [])])
    return [{**one, "tool_call_id": next(ids)} if one["role"] == "tool" else one for one in added]


def requests_of(
    made: InProcess, rounds: Sequence[tuple[list[Message], Message]], back: Callable[[int, int, Message], Message]
) -> list[dict[str, Sent]]:
    """Holds a conversation; what each dialect would have been sent in each turn. `back` is what the client makes
    of the answer of a turn when it sends a later one."""
    sent: list[dict[str, Sent]] = []
    for turn in range(len(rounds)):
        messages: list[Message] = []
        for number, (added, answer) in enumerate(rounds[: turn + 1]):
            messages += results_for(messages[-1], added) if number else added
            if number < turn:
                messages.append(back(turn, number, answer))
        sent.append(made.sent(messages, tools=[TOOL]))
        made.answered(messages, rounds[turn][1], tools=[TOOL])
    return sent


@settings(max_examples=100, deadline=None)
@given(
    rounds=conversations(),
    thoughts=st.lists(st.sampled_from(THOUGHTS), min_size=6, max_size=6),
    visible=st.lists(st.sampled_from(VISIBLE), max_size=3),
)
def test_to_one_target_a_shared_prefix_keeps_its_bytes(
    rounds: list[tuple[list[Message], Message]],
    thoughts: list[Callable[[Message], Message]],
    visible: list[Callable[[Message], Message]],
) -> None:
    """A client treats an answer as it always does, each in its own way."""

    def back(turn: int, number: int, message: Message) -> Message:
        for change in visible:
            message = change(message)
        return thoughts[number](message)

    with nullcontext(InProcess()) as made:
        for earlier, later in pairwise(requests_of(made, rounds, back)):
            for name in DIALECTS:
                assert later[name].messages[: len(earlier[name].messages)] == earlier[name].messages
                assert later[name].rest == earlier[name].rest


@settings(max_examples=100, deadline=None)
@given(rounds=conversations(), choices=st.data())
def test_whether_a_client_still_has_a_thought_changes_nothing_that_is_said(
    rounds: list[tuple[list[Message], Message]], choices: st.DataObject
) -> None:
    """A client has a thought in one turn and not in the next: members may stand in another order then, no more."""

    def back(turn: int, number: int, message: Message) -> Message:
        return choices.draw(st.sampled_from(THOUGHTS))(message)

    with nullcontext(InProcess()) as made:
        for earlier, later in pairwise(requests_of(made, rounds, back)):
            for name in DIALECTS:
                before, after = said(earlier[name]), said(later[name])
                assert after[: len(before)] == before


def said(sent: Sent) -> list[Any]:
    """The messages as values. A turn that never had a thought has none, whether it is null or absent."""
    return [
        {name: value for name, value in message.items() if value is not None or name == "content"}
        for message in sent.values
    ]


def test_a_store_that_lost_the_conversation_changes_the_bytes_and_says_so() -> None:
    """The properties above can fail: they need the store."""
    asked: Message = {"role": "user", "content": "Begin."}
    answer: Message = {"role": "assistant", "content": LONG, "reasoning_content": "one"}
    history = [asked, drop(answer), {"role": "user", "content": "On."}]
    with nullcontext(InProcess(bounds=Bounds(retention_s=10.0))) as made:
        made.answered([asked], answer)
        before = made.sent(history)
        made.now_s = 11.0
        after = made.sent(history)
    for name in DIALECTS:
        assert (before[name].thinking, after[name].thinking) == ("repaired=1", "missing=1")
        assert before[name].messages[1] != after[name].messages[1]
