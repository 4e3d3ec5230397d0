"""Any course of a conversation against the emulator's cache: growth loses nothing, and every loss is explained."""

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from kimi_gateway.core.warm_record import RECORD_BYTES_MAX, pack
from support.warming import BLOCK, Ask, Caller, Message, Seen, tool, words

FORMAT = {
    "type": "json_schema",
    "json_schema": {
        "name": "out",
        "schema": {"type": "object", "properties": {f"f{i}": {"type": "string"} for i in range(60)}},
    },
}
FIELDS: list[dict[str, Any]] = [
    {},
    {"tool_choice": "required"},
    {"tool_choice": "none"},
    {"response_format": {"type": "json_object"}},
    {"response_format": FORMAT},
]
TOOLS = (tool("search", 100), tool("read", 400))

sizes = st.integers(0, 900)
turns = st.fixed_dictionaries(
    {
        "question": sizes,
        "text": sizes,
        "thought": st.none() | sizes,
        "calls": st.booleans(),
        "reminder": st.integers(0, 60),
        "fields": st.sampled_from(FIELDS),
        "gap_s": st.floats(0, 298),
    }
)


def _answer(turn: dict[str, Any], number: object) -> list[Message]:
    """An answer, with a tool's result behind it where it calls one."""
    said: Message = {"role": "assistant", "content": words(turn["text"], number)}
    if turn["thought"] is not None:
        said["reasoning_content"] = words(turn["thought"], f"thought {number}")
    if not turn["calls"]:
        return [said]
    function = {"name": "search", "arguments": '{"query": "Kimi"}'}
    said["tool_calls"] = [{"id": "search:0", "type": "function", "function": function}]
    return [said, {"role": "tool", "tool_call_id": "search:0", "content": words(50, number)}]


@settings(max_examples=60, deadline=None)
@given(
    course=st.lists(turns, min_size=1, max_size=14),
    tools=st.sampled_from([(), TOOLS]),
    reports=st.booleans(),
    named=st.booleans(),
)
def test_a_conversation_that_only_grows_in_time_loses_nothing(
    course: list[dict[str, Any]], tools: tuple[dict[str, Any], ...], reports: bool, named: bool
) -> None:
    caller = Caller(reports=reports)
    ask = Ask(tools=tools, cache_key="session" if named else None)
    messages: list[Message] = [{"role": "system", "content": words(300)}]
    for number, turn in enumerate(course):
        if messages[-1]["role"] != "tool":
            messages.append({"role": "user", "content": words(turn["question"], f"question {number}")})
        if turn["reminder"] > 50:  # grows at its end by a system message
            messages.append({"role": "system", "content": words(turn["reminder"], number)})
        said, *results = _answer(turn, number)
        fields = turn["fields"] if tools or "tool_choice" not in turn["fields"] else {}
        seen = caller.ask(messages, said, replace(ask, fields=fields))
        assert (seen.warmth.reason, seen.loss.reason) == ("", "")
        assert seen.warmth.promised or number == 0
        assert seen.warmth.expected_read_tokens <= seen.split.cache_read
        messages += [said, *results]
        caller.now_s += turn["gap_s"]


@dataclass
class Branch:
    """One course of a conversation, which others may have left."""

    messages: list[Message]
    ask: Ask
    seen: list[Seen] = field(default_factory=list)


class Walk(RuleBasedStateMachine):
    """Grows, changes, branches, moves and waits. The cache forgets nothing before its time, so that the upstream
    is never to blame, and what is said to be lost was not read."""

    def __init__(self) -> None:
        super().__init__()
        self.caller = Caller()
        self.branches: list[Branch] = []
        self.number = 0

    @initialize()
    def begin(self) -> None:
        self.branches.append(Branch([{"role": "system", "content": words(300)}], Ask(tools=TOOLS)))
        self._grow(self.branches[0], 400, 400)

    def _grow(self, branch: Branch, question: int, text: int) -> None:
        self.number += 1
        branch.messages.append({"role": "user", "content": words(question, f"question {self.number}")})
        said = {
            "role": "assistant",
            "content": words(text // 2, self.number),
            "reasoning_content": words(text // 2, f"thought {self.number}"),
        }
        seen = self.caller.ask(branch.messages, said, branch.ask)
        branch.messages.append(said)
        self._check(seen)

    def _check(self, seen: Seen) -> None:
        loss, warmth = seen.loss, seen.warmth
        assert loss.reason != "upstream"
        if loss:
            assert loss.tokens > BLOCK
            assert loss.tokens + seen.split.cache_read <= seen.split.total
            assert loss.reason == warmth.reason
        else:
            would = min(warmth.would_read_tokens, (seen.split.total - 1) // BLOCK * BLOCK)
            assert seen.split.cache_read >= would - BLOCK
        assert seen.record is not None
        assert len(pack(seen.record)) <= RECORD_BYTES_MAX

    def _one(self, choice: int) -> Branch:
        return self.branches[choice % len(self.branches)]

    @rule(choice=st.integers(0, 3), question=st.integers(10, 1200), text=sizes)
    def grow(self, choice: int, question: int, text: int) -> None:
        self._grow(self._one(choice), question, text)

    @rule(choice=st.integers(0, 3), effort=st.sampled_from(["low", "high", None]))
    def change_effort(self, choice: int, effort: str | None) -> None:
        branch = self._one(choice)
        branch.ask = replace(branch.ask, effort=effort)

    @rule(choice=st.integers(0, 3), tools=st.sampled_from([(), TOOLS, TOOLS[:1]]))
    def change_tools(self, choice: int, tools: tuple[dict[str, Any], ...]) -> None:
        branch = self._one(choice)
        branch.ask = replace(branch.ask, tools=tools, narrowed="")

    @rule(choice=st.integers(0, 3))
    def cut_tools_down_or_not(self, choice: int) -> None:
        branch = self._one(choice)
        if branch.ask.tools:
            branch.ask = replace(branch.ask, narrowed="" if branch.ask.narrowed else "search")

    @rule(choice=st.integers(0, 3), to=st.sampled_from(["a", "b"]), ttl=st.sampled_from(["5m", "1h"]))
    def move(self, choice: int, to: str, ttl: Any) -> None:
        branch = self._one(choice)
        branch.ask = replace(branch.ask, target=to, ttl=ttl)

    @rule(seconds=st.sampled_from([1, 100, 250, 320, 4000]))
    def wait(self, seconds: int) -> None:
        self.caller.now_s += seconds

    @rule(choice=st.integers(0, 3), place=st.integers(0, 40))
    def edit(self, choice: int, place: int) -> None:
        """Another text in an earlier message, or a thought gone."""
        messages = self._one(choice).messages
        place %= len(messages)
        message = dict(messages[place])
        if place % 3 or "reasoning_content" not in message:
            message["content"] = words(200, f"edited {self.number}")
        else:
            del message["reasoning_content"]
        messages[place] = message

    @rule(choice=st.integers(0, 3), back=st.integers(0, 8))
    def branch_off(self, choice: int, back: int) -> None:
        """A second course from an earlier point of the first."""
        one = self._one(choice)
        keep = max(3, len(one.messages) - 2 * back)
        if len(self.branches) < 4:
            self.branches.append(Branch(one.messages[: keep | 1], one.ask))

    @rule(choice=st.integers(0, 3), dropped=st.integers(1, 4))
    def drop_the_oldest(self, choice: int, dropped: int) -> None:
        messages = self._one(choice).messages
        if len(messages) > 2 * dropped + 3:
            del messages[1 : 2 * dropped + 1]


def test_in_any_course_every_loss_is_explained_and_none_is_invented() -> None:
    run_state_machine_as_test(Walk, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))
