"""Histories that were read before and have grown since: known as wholes, and the same as if read anew."""

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from backends.json import JsonObject, encode
from backends.messages import MessageHead, read_heads
from kimi_gateway.core.digest import History, TurnDigest, TurnKeys, TurnMemo, read_history

ANSWER: JsonObject = {"role": "assistant", "content": "An answer of more than thirty-two characters."}
CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}

messages = st.builds(
    lambda role, content, more: {"role": role, "content": content, **more},
    st.sampled_from(["user", "assistant", "assistant", "tool", "system", "developer"]),
    st.sampled_from(["Hm.", "A text of more than thirty-two characters, for an anchor.", ["part"], None]),
    st.sampled_from([{}, {}, {"tool_calls": [CALL]}, {"reasoning_content": "So."}]),
)


class Counting(TurnMemo):
    """A memo that counts what it is asked for."""

    asked = 0

    @override
    def digest(self, head: MessageHead) -> TurnDigest:
        self.asked += 1
        return TurnMemo.digest(self, head)


def read(said: Sequence[Any], memo: TurnMemo) -> History:
    """The history of a body with these messages, known as a whole where it was read before."""
    slices = msgspec.json.decode(encode(said), type=list[msgspec.Raw])
    return read_history(read_heads(msgspec.Raw(encode(said))), memo, slices)


def shown(history: History) -> tuple[dict[int, TurnKeys], Sequence[bytes], TurnKeys, str]:
    return history.keys, history.digests, history.tail.answer(ANSWER), history.tail.prefix


def talk(turns: int) -> list[dict[str, Any]]:
    """So many questions and answers, and a question."""
    said = [{"role": role, "content": f"{role} {turn}"} for turn in range(turns) for role in ("user", "assistant")]
    return [*said, {"role": "user", "content": "And?"}]


def test_a_history_that_has_grown_by_an_answer_is_read_from_there_on() -> None:
    memo = Counting()
    read(talk(20), memo)
    memo.asked = 0
    read([*talk(20), ANSWER, {"role": "user", "content": "Why?"}], memo)
    assert memo.asked == 2


def test_a_request_that_is_sent_again_is_not_read_again() -> None:
    memo = Counting()
    first = read(talk(20), memo)
    memo.asked = 0
    assert shown(read(talk(20), memo)) == shown(first)
    assert memo.asked == 0


@settings(max_examples=60)
@given(said=st.lists(messages, min_size=12, max_size=24), more=st.lists(messages, max_size=4), data=st.data())
def test_what_has_grown_or_was_edited_is_the_same_as_if_read_anew(
    said: list[dict[str, Any]], more: list[dict[str, Any]], data: st.DataObject
) -> None:
    memo = TurnMemo()
    place = data.draw(st.integers(0, len(said) - 1))
    edited = [*said[:place], data.draw(messages), *said[place + 1 :]]
    continued = {"role": "assistant", "content": "It begins so", "partial": True}
    requests = [said, [*said, continued], [*said, ANSWER, *more], edited, [*edited, ANSWER, *more], said]
    for request in requests:
        assert shown(read(request, memo)) == shown(read(request, TurnMemo()))
    assert shown(read(said, memo)) == shown(read_history(read_heads(msgspec.Raw(encode(said))), TurnMemo()))


def test_a_memo_lets_go_of_histories() -> None:
    memo = TurnMemo(max_readings=100)
    for number in range(40):
        read([*talk(20), {"role": "user", "content": f"{number}"}], memo)
        assert memo.readings <= 6
