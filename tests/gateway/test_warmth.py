"""Each change to a request shows its reason, and only its own, with the tokens that were lost by it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kimi_gateway.core.sending import Sending
from kimi_gateway.core.warmth import TTL_S, predict
from support.warming import BLOCK, PRO, Ask, Caller, Message, answer, served, tool, words

TURNS = 4
TOOLS = (tool("search"), tool("read"))
PLAIN = Ask(tools=TOOLS)

Changed = tuple[list[Message], Ask, float]


def _edited(messages: list[Message], place: int, **members: object) -> list[Message]:
    return [*messages[:place], dict(messages[place]) | members, *messages[place + 1 :]]


def without_thought(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != "reasoning_content"}


# What is changed, and the reason it has: messages, request, seconds.
CHANGES: dict[str, tuple[Callable[[list[Message]], Changed], str]] = {
    "nothing": (lambda old: (old, PLAIN, 0), ""),
    "time": (lambda old: (old, PLAIN, 300), "expired"),
    "effort": (lambda old: (old, replace(PLAIN, effort="low"), 0), "effort"),
    "effort left out": (lambda old: (old, replace(PLAIN, effort=None), 0), "effort"),
    "tools": (lambda old: (old, replace(PLAIN, tools=(*TOOLS, tool("write"))), 0), "tools"),
    "order of tools": (lambda old: (old, replace(PLAIN, tools=TOOLS[::-1]), 0), "tools"),
    "tools cut down": (lambda old: (old, replace(PLAIN, narrowed="read"), 0), "tools"),
    "tools and effort": (lambda old: (old, replace(PLAIN, tools=TOOLS[:1], effort="low"), 0), "tools"),
    "target": (lambda old: (old, replace(PLAIN, target="vllm"), 0), "target"),
    "model": (lambda old: (old, replace(PLAIN, model="kimi-k3.1-pro-highspeed"), 0), "model"),
    "time and target": (lambda old: (old, replace(PLAIN, target="vllm"), 300), "expired"),
    "question": (lambda old: (_edited(old, 1, content=words(700, "other")), PLAIN, 0), "history_edited"),
    "system prompt": (lambda old: (_edited(old, 0, content=words(400, "other")), PLAIN, 0), "history_edited"),
    "beginning dropped": (lambda old: ([old[0], *old[3:]], PLAIN, 0), "history_edited"),
    "thought gone": (
        lambda old: ([*old[:2], without_thought(old[2]), *old[3:]], PLAIN, 0),
        "thinking_lost",
    ),
    "thought blank": (lambda old: (_edited(old, 2, reasoning_content="  "), PLAIN, 0), "thinking_lost"),
    "all thoughts gone": (lambda old: ([without_thought(one) for one in old], PLAIN, 0), "thinking_lost"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_shows_its_reason_before_and_after(change: str) -> None:
    changed, reason = CHANGES[change]
    caller = Caller()
    messages, ask, seconds = changed(served(caller, TURNS, PLAIN))
    caller.now_s += seconds
    seen = caller.ask(messages, answer("new"), ask)
    assert (seen.warmth.reason, seen.loss.reason, seen.loss.measured) == (reason, reason, bool(reason))
    would = seen.warmth.would_read_tokens
    assert seen.loss.tokens == (
        min(would, seen.split.total // BLOCK * BLOCK) - seen.split.cache_read if reason else 0
    )
    assert would > 3 * 1400
    assert seen.warmth.expected_read_tokens <= seen.split.cache_read


@pytest.mark.parametrize("change", CHANGES)
def test_where_reads_are_not_reported_the_prediction_stands(change: str) -> None:
    changed, reason = CHANGES[change]
    caller = Caller(reports=False)
    messages, ask, seconds = changed(served(caller, TURNS, PLAIN))
    caller.now_s += seconds
    seen = caller.ask(messages, answer("new"), ask)
    assert (seen.loss.reason, seen.loss.measured) == (reason, False)
    assert seen.record is not None
    assert seen.record.lines[0].read_tokens is None


@pytest.mark.parametrize("change", ["effort", "target", "time", "question", "thought gone"])
def test_a_report_that_all_was_read_overrules_a_predicted_loss(change: str) -> None:
    changed, reason = CHANGES[change]
    caller = Caller()
    messages, ask, seconds = changed(served(caller, TURNS, PLAIN))
    caller.now_s += seconds * 2 / 3
    before = dict(caller.notes)
    caller.ask(messages, None, ask)  # somebody else with the same messages
    caller.notes = before
    caller.now_s += seconds * 2 / 3
    seen = caller.ask(messages, answer("new"), ask)
    assert seen.split.cache_read >= seen.split.total - BLOCK
    assert (seen.warmth.reason, seen.warmth.expected_read_tokens < seen.split.cache_read) == (reason, True)
    assert seen.loss.reason == ""


def test_what_is_said_of_a_first_turn_is_nothing() -> None:
    seen = Caller().ask([{"role": "user", "content": words(2000)}], answer(0))
    assert (seen.warmth.would_read_tokens, seen.warmth.age_s, seen.loss.reason) == (0, None, "")


def test_an_upstream_that_forgot_is_named_as_the_upstream() -> None:
    caller = Caller()
    seen = caller.ask(served(caller, TURNS), answer("new"), cached=False)
    assert (seen.warmth.reason, seen.loss.reason) == ("", "upstream")
    assert seen.loss.tokens == seen.warmth.would_read_tokens


def test_an_engine_promises_nothing_and_never_expires() -> None:
    caller = Caller(promises=False)
    messages = served(caller, TURNS)
    caller.now_s += 80_000
    seen = caller.ask(messages, answer("new"))
    assert not seen.warmth.promised
    assert seen.warmth.age_s == 80_010
    assert seen.warmth.expected_read_tokens == seen.warmth.would_read_tokens > 0
    assert seen.loss.reason == "upstream"


@pytest.mark.parametrize(("gap_s", "reason", "promised"), [(100, "", True), (400, "expired", False)])
def test_between_begin_and_end_of_a_long_answer_the_cache_is_in_doubt(
    gap_s: int, reason: str, promised: bool
) -> None:
    caller = Caller()
    whole = served(caller, TURNS)
    caller.ask(whole, answer("long"), took_s=150 if promised else 350)
    caller.now_s += gap_s - 350 if not promised else gap_s
    seen = caller.ask([*whole, answer("long"), {"role": "user", "content": "Go on."}], answer("next"))
    assert seen.warmth.reason == ""
    assert (seen.warmth.promised, seen.warmth.in_doubt) == (promised, not promised)
    assert seen.loss.reason == reason


def test_the_lifetime_of_the_first_write_stays() -> None:
    caller = Caller()
    messages = served(caller, TURNS, Ask(ttl="1h"))
    caller.now_s += 1800
    locked = caller.ask(messages, answer("new"), Ask(ttl="5m"))
    assert (locked.loss.reason, locked.split.ttl) == ("", "1h")
    assert locked.record is not None
    assert locked.record.lines[0].ttl_s == TTL_S["1h"]


def test_after_it_expired_the_lifetime_is_the_one_asked_for() -> None:
    caller = Caller()
    messages = served(caller, TURNS, Ask(ttl="5m"))
    caller.now_s += 1800
    seen = caller.ask(messages, answer("new"), Ask(ttl="1h"))
    assert seen.loss.reason == "expired"
    assert seen.record is not None
    assert seen.record.lines[0].ttl_s == TTL_S["1h"]


def test_two_efforts_in_turn_keep_two_lines_warm() -> None:
    caller = Caller()
    messages = served(caller, TURNS)
    low = caller.ask(messages, answer("low"), Ask(effort="low"))
    assert low.loss.reason == "effort"
    messages = [*messages, answer("low"), {"role": "user", "content": words(100)}]
    high = caller.ask(messages, answer("high"))
    assert high.warmth.expected_read_tokens == high.split.cache_read
    assert high.loss.tokens == low.split.total // BLOCK * BLOCK - high.split.cache_read
    assert high.loss.reason == "effort"


def test_a_request_with_its_tools_cut_down_leaves_the_whole_list_warm() -> None:
    caller = Caller()
    messages = served(caller, TURNS, PLAIN)
    narrowed = caller.ask(messages, answer("one"), replace(PLAIN, narrowed="search"))
    assert narrowed.loss.reason == "tools"
    messages = [*messages, answer("one"), {"role": "user", "content": words(10)}]
    seen = caller.ask(messages, answer("two"), PLAIN)
    assert seen.warmth.expected_read_tokens == seen.split.cache_read > 4 * 1400


def test_back_on_the_first_target_its_older_prefix_counts() -> None:
    caller = Caller()
    messages = served(caller, TURNS)
    moved = caller.ask(messages, answer("moved"), Ask(target="vllm"))
    assert moved.loss.reason == "target"
    messages = [*messages, answer("moved"), {"role": "user", "content": words(1000)}]
    back = caller.ask(messages, answer("back"))
    assert back.warmth.expected_read_tokens == back.split.cache_read > 0
    assert (back.loss.reason, back.loss.tokens < moved.loss.tokens) == ("target", True)


def test_trimmed_thoughts_at_a_smaller_target_are_a_move_and_not_lost_thoughts() -> None:
    caller = Caller()
    messages = [without_thought(one) for one in served(caller, TURNS)]
    assert caller.ask(messages, answer("new"), Ask(target="small")).loss.reason == "target"


def test_a_thought_put_back_later_changes_the_prefix_too() -> None:
    caller = Caller()
    whole = served(caller, 1)
    bare = [without_thought(one) for one in whole]
    caller.ask(bare, answer(1))
    more = {"role": "user", "content": words(50)}
    seen = caller.ask([*whole, answer(1), more], answer(2))
    assert (seen.warmth.reason, seen.loss.reason) == ("thinking_lost", "thinking_lost")


@pytest.mark.parametrize("ask", [Ask(), Ask(conversation="run-1")])
def test_a_request_that_got_no_answer_renews_the_record_and_takes_nothing_from_it(ask: Ask) -> None:
    caller = Caller()
    messages = served(caller, TURNS, ask)
    for _ in range(5):
        caller.now_s += 200
        cut = caller.ask(messages, None, ask)
        assert (cut.warmth.reason, cut.loss.reason, cut.warmth.promised) == ("", "", True)
    again = caller.ask(messages, answer("again"), ask)
    assert again.warmth.expected_read_tokens > 3 * 1400


def test_a_cut_that_changed_the_effort_takes_nothing_from_those_who_go_on() -> None:
    caller = Caller()
    messages = served(caller, TURNS)
    caller.ask(messages, None, Ask(effort="low"))
    seen = caller.ask(messages, answer("new"))
    assert (seen.warmth.reason, seen.loss.reason) == ("", "")
    assert seen.warmth.expected_read_tokens > 3 * 1400


def test_before_a_first_answer_there_is_nothing_to_keep() -> None:
    caller = Caller()
    seen = caller.ask([{"role": "user", "content": words(2000)}], None, Ask(conversation="run-1"))
    assert (seen.record, caller.notes) == (None, {})


def test_a_cut_answer_is_kept_under_what_was_delivered() -> None:
    caller = Caller()
    messages = served(caller, TURNS)
    delivered = {"role": "assistant", "content": "As far as"}
    caller.ask(messages, delivered)
    seen = caller.ask([*messages, delivered, {"role": "user", "content": "Go on."}], answer("rest"))
    assert seen.loss.reason == ""
    assert seen.warmth.expected_read_tokens == seen.split.cache_read


def test_a_format_at_the_end_of_the_prompt_is_no_part_of_the_prefix() -> None:
    schema = {"type": "object", "properties": {f"field_{index}": {"type": "string"} for index in range(200)}}
    wanted = {"type": "json_schema", "json_schema": {"name": "out", "schema": schema}}
    caller = Caller()
    ask = Ask(fields={"response_format": wanted})
    messages = served(caller, TURNS, ask)
    for where in (ask, Ask()):
        seen = caller.ask(messages, answer("new"), where)
        assert (seen.warmth.reason, seen.loss.reason) == ("", "")
        messages = [*messages, answer("new"), {"role": "user", "content": "Go on."}]


def test_a_target_at_another_clock_is_never_older_than_now() -> None:
    caller = Caller()
    messages = served(caller, TURNS)
    caller.now_s -= 1000
    seen = caller.ask(messages, answer("new"))
    assert (seen.warmth.age_s, seen.warmth.reason, seen.warmth.promised) == (0.0, "", True)


def test_models_of_one_name_at_two_targets_are_two_caches() -> None:
    caller = Caller()
    messages = served(caller, TURNS, Ask(target="a", model=PRO))
    seen = caller.ask(messages, answer("new"), Ask(target="b", model=PRO))
    assert (seen.loss.reason, seen.split.cache_read) == ("target", 0)


def test_no_more_is_said_to_be_lost_than_the_prompt_is_likely_to_have() -> None:
    caller = Caller()
    old = served(caller, TURNS)
    prefix, thoughts = caller.prefix([old[0], *old[-3:]], Ask())
    sending = Sending("moonshot", PRO, "high", thoughts=thoughts, ttl_s=300, prompt_tokens=1500)
    record = caller.note(prefix)
    warmth = predict(record, prefix, sending, caller.now_s)
    assert warmth.would_read_tokens > 3 * 1400
    assert (warmth.reason, warmth.loss(1500).tokens) == ("history_edited", 1280)
    assert predict(record, prefix, replace(sending, prompt_tokens=200), caller.now_s).reason == ""
