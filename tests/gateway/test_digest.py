"""Canonical digests: what a client may do to a turn without changing it, and what changes it."""

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from backends.json import JsonObject, encode
from backends.messages import MessageHead, read_heads
from kimi_gateway.core.digest import History, TurnDigest, TurnKeys, TurnMemo, is_large, read_history, turn_digest

USER = {"role": "user", "content": "Weather in Paris?"}
CALL = {"id": "Bash:0", "type": "function", "function": {"name": "Bash", "arguments": '{"command": "ls", "n": 1}'}}
TURN = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "Bash:0", "content": "18C"}
LONG = "A sentence of more than thirty-two characters."


def heads_of(*messages: object) -> list[MessageHead]:
    return read_heads(msgspec.Raw(encode(messages)))


def head_of(text: str | bytes) -> MessageHead:
    """The head of one message, given as JSON."""
    data = text.encode() if isinstance(text, str) else text
    return read_heads(msgspec.Raw(b"[" + data + b"]"))[0]


def digest(message: object) -> bytes:
    return turn_digest(heads_of(message)[0]).value


def history(*messages: object) -> History:
    return read_history(heads_of(*messages), TurnMemo())


def keys(*messages: object) -> TurnKeys:
    """The keys of the last message, an assistant's."""
    return history(*messages).keys[len(messages) - 1]


def called(arguments: object, **members: object) -> JsonObject:
    function: Any = {"name": "Bash", "arguments": arguments}
    return {
        "role": "assistant",
        "tool_calls": [{"id": "Bash:0", "type": "function", "function": function} | members],
    }


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "assistant", "content": " \n a b\t"}, {"role": "assistant", "content": "a b"}),
        ({"role": "assistant", "content": "a\u3000"}, {"role": "assistant", "content": "a"}),
        ({"role": "user", "content": "ab"}, {"role": "user", "content": [{"type": "text", "text": "ab"}]}),
        (
            {"role": "user", "content": "ab"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ),
        ({"role": "user", "content": "ab"}, {"role": "user", "content": ["a", "b"]}),
        ({"role": "assistant", "content": None}, {"role": "assistant"}),
        ({"role": "assistant", "content": ""}, {"role": "assistant", "content": []}),
        ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "a", "reasoning_content": "r"}),
        ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "a", "tool_calls": []}),
        ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "a", "tool_calls": None}),
        (RESULT, {"role": "tool", "tool_call_id": "Bash_0", "content": "18C"}),
        (TURN, {"role": "assistant", "content": "", "tool_calls": [CALL | {"id": "Bash_0", "index": 0}]}),
        (called('{"a": 1, "b": [2]}'), called('{"b":[2],"a":1}')),
        (called('{"a": "\\u00e9"}'), called('{"a":"é"}')),
        (called('{"a": 1.0, "b": 1e2, "c": 0.10}'), called('{"a":1,"b":100,"c":0.1}')),
        (called('{"a": 1e21}'), called('{"a":1000000000000000000000.0}')),
        (called("{}"), called("")),
        (called({"a": 1}), called('{"a":1}')),
        (called(" {oops "), called("{oops")),
        (
            {"role": "user", "content": [IMAGE | {"cache_control": {"type": "ephemeral"}}]},
            {"role": "user", "content": [IMAGE]},
        ),
    ],
)
def test_what_clients_do_to_a_turn_leaves_its_digest(one: object, other: object) -> None:
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "assistant", "content": "a"}, {"role": "user", "content": "a"}),
        ({"role": "assistant", "content": "a b"}, {"role": "assistant", "content": "a  b"}),
        ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "A"}),
        ({"role": "assistant", "content": "a"}, TURN),
        (called('{"a": 1}'), called('{"a": 2}')),
        (called('{"a": 1}'), called('{"a": "1"}')),
        (called('{"a": 1.5}'), called('{"a": "15e-1"}')),
        (called('{"a": 9007199254740993}'), called('{"a": 9007199254740992}')),
        (called('{"a": 0.1}'), called('{"a": 0.10000000000000000555}')),
        (called('{"a": [1, 2]}'), called('{"a": [2, 1]}')),
        (called("{oops"), called("{oops}")),
        (called('{"a": null}'), called("{}")),
        (called("{}"), called("{}", function={"name": "Bosh", "arguments": "{}"})),
        (
            {"role": "assistant", "tool_calls": [CALL, CALL]},
            {"role": "assistant", "tool_calls": [CALL]},
        ),
        ({"role": "user", "content": [IMAGE]}, {"role": "user", "content": [IMAGE, IMAGE]}),
        (
            {"role": "user", "content": [IMAGE]},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "ms://other"}}]},
        ),
        ({"role": "user", "content": "[1]"}, {"role": "user", "content": [1]}),
    ],
)
def test_an_edited_turn_has_another_digest(one: object, other: object) -> None:
    assert digest(one) != digest(other)


def test_two_calls_in_another_order_are_another_turn() -> None:
    other = CALL | {"function": {"name": "Read", "arguments": "{}"}}
    assert digest({"role": "assistant", "tool_calls": [CALL, other]}) != digest(
        {"role": "assistant", "tool_calls": [other, CALL]}
    )


def test_a_call_that_is_no_function_counts_by_all_but_its_id() -> None:
    def custom(call_id: str, text: str) -> object:
        call = {"id": call_id, "type": "custom", "custom": {"name": "sh", "input": text}}
        return {"role": "assistant", "tool_calls": [call]}

    assert digest(custom("a", "ls")) == digest(custom("b", "ls"))
    assert digest(custom("a", "ls")) != digest(custom("a", "rm"))


@pytest.mark.parametrize("data", [rb'"\ud800"', b"[" * 3000 + b"]" * 3000, b"\xff", b""])
def test_what_cannot_be_decoded_is_known_by_its_bytes(data: bytes) -> None:
    one = turn_digest(MessageHead(role="user", content=msgspec.Raw(data)))
    same = turn_digest(MessageHead(role="user", content=msgspec.Raw(data), reasoning_content=msgspec.Raw(b"1")))
    other = turn_digest(MessageHead(role="tool", content=msgspec.Raw(data)))
    assert one == same
    assert one.value != other.value
    assert not one.substantial


def test_a_chain_leaves_system_messages_out() -> None:
    plain = keys(USER, TURN)
    assert (
        keys({"role": "system", "content": "Be Kimi."}, USER, {"role": "developer", "content": "!"}, TURN) == plain
    )
    assert keys(USER, {"role": "system", "tools": [{"type": "function"}]}, TURN) == plain


def test_an_anchor_survives_the_loss_of_older_turns_and_a_chain_does_not() -> None:
    older = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    summary = {"role": "user", "content": "Summary: they said hello."}
    whole = keys(*older, USER, TURN, RESULT, TURN)
    for kept in ([], older[1:], [summary], [summary, older[1]]):
        cut = keys(*kept, USER, TURN, RESULT, TURN)
        assert cut.anchor == whole.anchor is not None
        assert cut.chain != whole.chain


def test_an_anchor_reaches_back_to_the_last_user_turn_and_includes_it() -> None:
    whole = keys(USER, TURN, RESULT, TURN)
    edited_user = keys({"role": "user", "content": "Weather in Rome?"}, TURN, RESULT, TURN)
    edited_result = keys(USER, TURN, RESULT | {"content": "19C"}, TURN)
    assert len({whole.anchor, edited_user.anchor, edited_result.anchor}) == 3


def test_without_a_user_turn_or_substance_there_is_only_the_chain() -> None:
    assert keys(TURN).anchor is None
    assert keys(USER, {"role": "assistant", "content": "x" * 31}).anchor is None
    assert keys(USER, {"role": "assistant", "content": " " * 9 + "x" * 31}).anchor is None
    assert keys(USER, {"role": "assistant", "content": "x" * 32}).anchor is not None
    assert keys(USER, TURN).anchor is not None


def test_two_assistant_turns_merged_match_neither() -> None:
    first, second = {"role": "assistant", "content": LONG}, {"role": "assistant", "content": LONG[::-1]}
    merged = keys(USER, {"role": "assistant", "content": LONG + LONG[::-1]})
    apart = history(USER, first, second)
    assert {merged.chain, merged.anchor}.isdisjoint({*astuple(apart.keys[1]), *astuple(apart.keys[2])})


def test_the_answer_to_a_history_has_the_keys_that_it_has_in_the_next_one() -> None:
    messages = [{"role": "system", "content": "Be Kimi."}, USER, TURN, RESULT]
    answer: JsonObject = {"role": "assistant", "content": LONG, "reasoning_content": "Because."}
    assert history(*messages).tail.answer(answer) == keys(*messages, answer)
    short: JsonObject = {"role": "assistant", "content": "Ok."}
    assert history(*messages).tail.answer(short) == keys(*messages, short)
    assert history(*messages).tail.answer({**TURN}) == keys(*messages, TURN)  # type: ignore[dict-item]  # plain JSON


def test_a_continued_prefix_and_its_answer_are_one_turn() -> None:
    prefix = {"role": "assistant", "content": '{"a": ', "partial": True}
    asked = history(USER, prefix)
    joined = keys(USER, {"role": "assistant", "content": '{"a": 12345678901234567890123456}'})
    assert asked.tail.answer({"role": "assistant", "content": "12345678901234567890123456}"}) == joined
    assert asked.keys[1] == keys(USER, {"role": "assistant", "content": '{"a": '})


def test_keys_are_the_same_in_every_process() -> None:
    """They are stored where other gateways read them: a change of the rules must change the labels."""
    call = sha256(b'call/1 4 22\nBash{"command":"ls","n":1}').digest()
    turn = sha256(b"turn/1 9 0 0 32\nassistant" + call).digest()
    user = sha256(b"turn/1 4 17 0 0\nuserWeather in Paris?").digest()
    image = sha256(b'{"image_url":{"url":"data:image/png;base64,AAAA"},"type":"image_url"}').digest()
    assert digest(TURN) == turn
    assert digest({"role": "user", "content": [IMAGE]}) == sha256(b"turn/1 4 0 32 0\nuser" + image).digest()
    assert keys(USER, TURN).chain == sha256(b"chain/1\n" + user + turn).digest()
    assert (
        keys({"role": "user", "content": "Hi"}, USER, TURN).anchor == sha256(b"anchor/1\n" + user + turn).digest()
    )


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([USER], False),
        ([USER] * 180, False),
        ([USER] * 193, True),
        ([USER | {"content": "x" * 190_000}], False),
        ([USER | {"content": "x" * 90_000}] * 3, True),
        ([called("x" * 200_000)], True),
        ([TURN | {"reasoning_content": "x" * 200_000}], False),
    ],
)
def test_only_long_histories_are_large(messages: list[object], expected: bool) -> None:
    assert is_large(heads_of(*messages)) is expected


def test_a_memo_gives_what_was_computed_and_stays_within_its_bound() -> None:
    memo = TurnMemo(max_entries=8)
    turns = heads_of(*({"role": "user", "content": f"message {number}"} for number in range(50)))
    for _ in range(2):
        assert [memo.digest(turn) for turn in turns] == [turn_digest(turn) for turn in turns]
        assert len(memo) <= 16


def test_a_memo_remembers_the_older_half() -> None:
    memo = TurnMemo(max_entries=4)
    turns = heads_of(*({"role": "user", "content": f"message {number}"} for number in range(6)))
    first = [memo.digest(turn) for turn in turns]
    assert memo.digest(turns[0]) is first[0]


def test_a_memo_tells_fields_apart_that_are_joined_alike() -> None:
    memo = TurnMemo()
    one = memo.digest(head_of('{"role":"user","content":"a","tool_calls":[]}'))
    two = memo.digest(head_of('{"role":"user","content":["a"]}'))
    three = memo.digest(head_of('{"role":"user\\"a\\"","tool_calls":[]}'))
    assert len({one, two, three}) == 2
    assert one == two


# --- properties ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """A turn as it is meant; `written` gives one of the many ways to write it."""

    role: str
    text: str
    images: tuple[str, ...]
    calls: tuple[tuple[str, Any], ...]

    @property
    def meaning(self) -> object:
        return (
            self.role,
            self.text.strip(),
            self.images,
            tuple((name, _canonical(args)) for name, args in self.calls),
        )


def _canonical(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments.strip()
    return json.dumps(arguments, sort_keys=True)


texts = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from([LONG, "", " a ", "Ok."])
some = st.text(st.characters(codec="utf-8"), max_size=4)
scalars = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | some
arguments = st.dictionaries(
    some, scalars | st.lists(scalars, max_size=2) | st.dictionaries(some, scalars, max_size=2), max_size=3
) | st.sampled_from(["{oops", "x: 1"])
turns = st.builds(
    Turn,
    role=st.sampled_from(["user", "assistant", "tool"]),
    text=texts,
    images=st.lists(st.sampled_from(["ms://a", "ms://b"]), max_size=2).map(tuple),
    calls=st.lists(st.tuples(st.sampled_from(["Bash", "Read"]), arguments), max_size=2).map(tuple),
)


def written(turn: Turn, draw: st.DataObject) -> MessageHead:
    """The turn in one of its spellings, with ids, thoughts and white space that say nothing."""
    pad = draw.draw(st.sampled_from(["", " ", "\n\t"]))
    text = pad + turn.text + pad
    cut = draw.draw(st.integers(0, len(text)))
    parts: Any = [{"type": "text", "text": text[:cut]}, {"text": text[cut:], "type": "text"}]
    parts += [{"type": "image_url", "image_url": {"url": url}} for url in turn.images]
    in_parts: bool = draw.draw(st.booleans())
    content = parts if turn.images or in_parts else text
    calls = [_call(name, value, draw) for name, value in turn.calls]
    message: dict[str, Any] = {"role": turn.role, "content": content}
    states_none: bool = draw.draw(st.booleans())
    message |= {"tool_calls": calls} if calls or states_none else {}
    message |= draw.draw(
        st.sampled_from(
            [{}, {"reasoning_content": "r"}, {"name": "n"}, {"tool_call_id": "x:1"}, {"partial": False}]
        )
    )
    members = list(message.items())
    return head_of(_dumped(dict(draw.draw(st.permutations(members))), draw))


def _call(name: str, value: Any, draw: st.DataObject) -> dict[str, Any]:
    stated = value if isinstance(value, str) else _dumped(value, draw)
    function = {"name": name, "arguments": stated}
    return {"id": draw.draw(st.sampled_from(["Bash:0", "Bash_0", ""])), "type": "function", "function": function}


def _dumped(value: Any, draw: st.DataObject) -> str:
    return json.dumps(
        value,
        ensure_ascii=draw.draw(st.booleans()),
        indent=draw.draw(st.sampled_from([None, 1])),
        sort_keys=draw.draw(st.booleans()),
    )


@settings(max_examples=150)
@given(turn=turns, draw=st.data())
def test_every_spelling_of_a_turn_has_its_digest(turn: Turn, draw: st.DataObject) -> None:
    memo = TurnMemo()
    one, other = written(turn, draw), written(turn, draw)
    assert turn_digest(one) == turn_digest(other) == memo.digest(one) == memo.digest(other)


@settings(max_examples=150)
@given(one=turns, other=turns, draw=st.data())
def test_two_meanings_have_two_digests(one: Turn, other: Turn, draw: st.DataObject) -> None:
    same = turn_digest(written(one, draw)).value == turn_digest(written(other, draw)).value
    assert same == (one.meaning == other.meaning)


@settings(max_examples=60)
@given(before=st.lists(turns, max_size=4), draw=st.data())
def test_a_history_has_the_same_keys_however_it_is_written(before: list[Turn], draw: st.DataObject) -> None:
    memo = TurnMemo(max_entries=2)
    one = read_history([written(turn, draw) for turn in before], memo)
    other = read_history([written(turn, draw) for turn in before], memo)
    answer: JsonObject = {"role": "assistant", "content": LONG}
    assert one.keys == other.keys
    assert one.tail.answer(answer) == other.tail.answer(answer)


@settings(max_examples=60)
@given(before=st.lists(turns, min_size=1, max_size=4), edited=turns, draw=st.data())
def test_an_edit_anywhere_before_changes_the_chain(before: list[Turn], edited: Turn, draw: st.DataObject) -> None:
    place = draw.draw(st.integers(0, len(before) - 1))
    after = [*before[:place], edited, *before[place + 1 :]]
    answer: JsonObject = {"role": "assistant", "content": LONG}
    one = read_history([written(turn, draw) for turn in before], TurnMemo()).tail.answer(answer)
    other = read_history([written(turn, draw) for turn in after], TurnMemo()).tail.answer(answer)
    same = before[place].meaning == edited.meaning
    assert (one.chain == other.chain) == same


@settings(max_examples=150)
@given(data=st.binary(max_size=40))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    content = msgspec.Raw(data)
    found = turn_digest(MessageHead(role="assistant", content=content, tool_calls=content))
    assert isinstance(found, TurnDigest)
    assert len(found.value) == 32
