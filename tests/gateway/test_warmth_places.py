"""How a conversation is known again, and that branches of one do not disturb each other."""

import msgspec

from backends.json import encode
from backends.messages import read_heads
from kimi_gateway.core.prefix import conversation_name, places_to_look, places_to_write
from kimi_gateway.core.repair import Repair, RepairPlan
from kimi_gateway.core.sending import ToolsMemo, first_difference, thought_runs
from kimi_gateway.core.thought_record import Thought
from support.warming import Ask, Caller, Message, answer, conversation, served, tool, words

Raw = msgspec.Raw
GO_ON: Message = {"role": "user", "content": "Go on."}


def test_a_name_of_the_client_is_its_header_else_its_cache_key() -> None:
    by_header = conversation_name("run-1", Raw(b'"key"'))
    by_key = conversation_name(None, Raw(b'"key"'))
    assert by_header is not None
    assert by_key is not None
    assert (by_header.explicit, by_key.explicit) == (True, False)
    assert conversation_name("key", None) != by_key
    assert [conversation_name("", raw) for raw in (None, Raw(b"null"), Raw(b'""'))] == [None, None, None]


def test_the_newest_turn_comes_first_and_a_name_that_may_be_shared_last() -> None:
    caller = Caller()
    messages = conversation(3)
    plain = places_to_look(caller.prefix(messages, Ask())[0])
    named = places_to_look(caller.prefix(messages, Ask(conversation="run-1"))[0])
    keyed = places_to_look(caller.prefix(messages, Ask(cache_key="key"))[0])
    assert len(set(plain)) == 3
    assert named == [plain[0], named[1], *plain[1:]]
    assert keyed[:3] == plain
    assert len(keyed) == 4


def test_a_conversation_that_begins_is_looked_for_by_name_alone() -> None:
    caller = Caller()
    assert places_to_look(caller.prefix(conversation(0), Ask())[0]) == []
    assert len(places_to_look(caller.prefix(conversation(0), Ask(conversation="run-1"))[0])) == 1


def test_the_next_request_looks_first_where_the_answer_was_written() -> None:
    caller = Caller()
    messages = conversation(2)
    prefix, _ = caller.prefix(messages, Ask())
    keys = prefix.answered(answer("new"))
    written = places_to_write(prefix, keys, b"")
    looked = places_to_look(caller.prefix([*messages, answer("new"), GO_ON], Ask())[0])
    assert written[0] == looked[0]
    assert set(written) < set(looked)


def test_a_client_that_reserialises_is_known_again() -> None:
    caller = Caller()
    messages = served(caller, 3)
    parts = [
        {**message, "content": [{"type": "text", "text": f" {message['content']}\n"}]}
        if message["role"] == "assistant"
        else message
        for message in messages
    ]
    assert caller.ask(parts, answer("new")).warmth.promised


def test_two_branches_each_find_their_own_record() -> None:
    caller = Caller()
    start = served(caller, 3)
    first = [*start[:-1], {"role": "user", "content": words(2000, "one way")}]
    second = [*start[:-1], {"role": "user", "content": words(50, "another way")}]
    for number in range(3):
        for way in (first, second):
            seen = caller.ask(way, answer(number))
            assert (seen.warmth.reason, seen.loss.reason) == ("", "")
            way += [answer(number), GO_ON]
            caller.now_s += 20


def test_a_second_answer_to_the_same_question_loses_nothing() -> None:
    caller = Caller()
    messages = served(caller, 3)
    for number in range(3):
        seen = caller.ask(messages, answer(number))
        assert (seen.warmth.reason, seen.loss.reason) == ("", "")


def test_branches_with_efforts_of_their_own_do_not_speak_for_each_other() -> None:
    caller = Caller()
    messages = served(caller, 3)
    low = caller.ask(messages, answer("low"), Ask(effort="low"))
    high = caller.ask(messages, answer("high"), Ask(effort="high"))
    assert (low.loss.reason, high.loss.reason) == ("effort", "")


def test_conversations_under_one_cache_key_are_told_apart() -> None:
    caller = Caller()
    ask = Ask(cache_key="everybody")
    served(caller, 3, ask)
    other: list[Message] = [{"role": "user", "content": words(900, "other")}]
    for number in range(3):
        seen = caller.ask(other, answer(f"other {number}"), ask)
        assert (seen.warmth.reason, seen.loss.reason) == ("", "")
        other += [answer(f"other {number}"), GO_ON]
    stranger = [*conversation(2, 300)[1:-1], GO_ON]
    assert caller.ask(stranger, answer("new"), ask).warmth.would_read_tokens == 0


def test_examples_that_many_conversations_begin_with_make_them_no_one_conversation() -> None:
    caller = Caller()
    examples = conversation(2)[:-1]
    for number in range(3):
        messages = [*examples, {"role": "user", "content": words(600, number)}]
        for turn in range(2):
            seen = caller.ask(messages, answer((number, turn)))
            assert (seen.warmth.reason, seen.loss.reason) == ("", "")
            messages += [answer((number, turn)), GO_ON]


def test_a_turn_that_the_client_made_up_keeps_the_conversation() -> None:
    caller = Caller()
    messages = served(caller, 3)
    caller.ask(messages, answer(3))
    made_up = [*messages, answer(3), GO_ON, {"role": "assistant", "content": "(interrupted)"}, GO_ON]
    seen = caller.ask(made_up, answer("new"))
    assert (seen.warmth.reason, seen.loss.reason) == ("", "")
    assert seen.warmth.expected_read_tokens == seen.split.cache_read > 0


def test_the_id_stays_while_a_conversation_grows_moves_and_loses_its_beginning() -> None:
    caller = Caller()
    messages = served(caller, 3)
    ids = set()
    for ask in (Ask(), Ask(target="b"), Ask(effort="low")):
        seen = caller.ask(messages, answer("x"), ask)
        messages = [*messages, answer("x"), GO_ON]
        assert seen.record is not None
        ids.add(seen.record.shown_id)
    dropped = caller.ask([messages[0], *messages[3:]], answer("x"))
    assert dropped.record is not None
    ids.add(dropped.record.shown_id)
    assert len(ids) == 1
    assert len(ids.pop()) == 16


def test_a_reminder_that_moves_with_the_end_costs_only_the_end() -> None:
    caller = Caller()
    messages = conversation(0)
    reminder: Message = {"role": "system", "content": words(300, "remember")}
    for number in range(5):
        seen = caller.ask([*messages, reminder], answer(number))
        messages += [answer(number), {"role": "user", "content": words(700, f"next {number}")}]
        caller.now_s += 10
        assert seen.loss.tokens <= 300 + 256
    assert seen.warmth.expected_read_tokens > 0.6 * seen.split.cache_read


def test_tools_in_a_system_message_count_where_they_stand() -> None:
    caller = Caller()
    declared: Message = {"role": "system", "content": "", "tools": [tool("search", 600)]}
    messages = [conversation(1)[0], declared, *conversation(1)[1:]]
    caller.ask(messages, answer("new"))
    grown = [*messages, answer("new"), {**declared, "tools": [tool("write", 600)]}, GO_ON]
    assert caller.ask(grown, answer("more")).loss.reason == ""
    changed = [grown[0], {**declared, "tools": [tool("read", 600)]}, *grown[2:], answer("more"), GO_ON]
    assert caller.ask(changed, answer("last")).loss.reason == "history_edited"


def test_lists_of_tools_are_the_same_whatever_the_order_of_their_keys() -> None:
    memo = ToolsMemo(max_entries=2)
    plain = memo.digest(Raw(b'[{"type":"function","function":{"name":"a","parameters":{"x":1.50,"y":2}}}]'))
    other = memo.digest(Raw(b'[{"function":{"parameters":{"y":2,"x":1.50},"name":"a"}, "type":"function"}]'))
    assert plain == other
    assert memo.digest(Raw(b'["a","b"]')) != memo.digest(Raw(b'["b","a"]'))
    assert [memo.digest(raw) for raw in (None, Raw(b"null"), Raw(b"[ ]"))] == [b"", b"", b""]
    assert memo.digest(Raw(b'["\\ud800"]')) == memo.digest(Raw(b'["\\ud800"]')) != b""


def _runs(*thoughts: object, plan: RepairPlan | None = None) -> list[int]:
    messages = [{"role": "assistant", "reasoning_content": thought} for thought in thoughts]
    return list(thought_runs(read_heads(Raw(encode([*messages, GO_ON]))), plan))


def test_turns_with_and_without_a_thought_are_counted_in_runs() -> None:
    assert _runs() == []
    assert _runs("a", "b", "", None, " \n", "c") == [2, 3, 1]
    assert _runs("", "a") == [0, 1, 1]
    assert _runs(*["a"] * 300) == [0xAC, 2]


def test_a_thought_that_is_put_back_counts_and_one_that_is_trimmed_does_not() -> None:
    plan = RepairPlan(
        turns=4,
        repairs=tuple(
            Repair(index, Thought(text), text=True, calls=True) for index, text in ((1, b'"because"'), (2, b'""'))
        ),
        bare=(3,),
    )
    assert _runs("a", None, None, None, plan=plan) == [2, 2]


def test_what_does_not_fit_into_the_runs_is_not_compared() -> None:
    alternating = [None if index % 2 else "a" for index in range(40)]
    assert len(_runs(*alternating)) == 16
    changed = [*alternating[:30], "b", *alternating[31:]]
    other = [*alternating[:5], "b", *alternating[6:]]
    whole = bytes(_runs(*alternating))
    assert first_difference(whole, bytes(_runs(*changed))) is None
    assert first_difference(whole, bytes(_runs(*other))) == 5


def test_runs_differ_where_one_turn_has_a_thought_in_only_one_of_them() -> None:
    for earlier, later, turn in (
        (["a"] * 3, ["a"] * 5, None),
        (["a"] * 3, ["a"] * 3 + [None], None),
        (["a"] * 3, ["a", None, "a"], 1),
        ([None, "a"], ["a", "a"], 0),
        ([], ["a"], None),
        (["a"], [None], 0),
    ):
        assert first_difference(bytes(_runs(*earlier)), bytes(_runs(*later))) == turn
