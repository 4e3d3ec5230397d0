"""Half a character in an upstream's answer costs that character and not the answer."""

import pytest

from backends.dialects.vllm import DIALECT
from backends.json import JsonError, decode_answer
from backends.reader import Chunk, ChunkReader


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (rb'"a \ud83d"', "a \ufffd"),
        (rb'"\ude00 b"', "\ufffd b"),
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (rb'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (rb'"\\ud83d"', "\\ud83d"),
    ],
)
def test_halves_become_the_replacement_character_and_pairs_stay(text: bytes, value: str) -> None:
    assert decode_answer(text) == value


def test_what_is_no_json_stays_none() -> None:
    with pytest.raises(JsonError):
        decode_answer(rb'{"a": "\ud83d"')


def test_an_emoji_that_was_split_between_two_events_does_not_end_the_answer() -> None:
    reader = ChunkReader(DIALECT)
    items = []
    for text in (rb"think \ud83d", rb"\ude00 on"):
        event = b'data: {"choices":[{"index":0,"delta":{"content":"' + text + b'"},"finish_reason":null}]}\n\n'
        items += reader.feed(event)
    assert [isinstance(item, Chunk) for item in items] == [True, True]
    assert not reader.signs
