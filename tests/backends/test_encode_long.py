"""Long lists of messages are copied to their place instead of being encoded: the bytes are the same."""

from typing import Any

import msgspec
import pytest

from backends.catalog import DIALECTS, foreign_fields
from backends.encode import Wish, encode_request
from backends.json import encode
from backends.messages import read_heads


def body_of(count: int, dialect: str, **fields: Any) -> bytes:
    """The upstream's body for so many messages, the client's written with blanks of its own."""
    messages = b", ".join(b'{"role": "user",  "content": "n%d \\u00e9"}' % number for number in range(count))
    known = DIALECTS[dialect]
    decoded = msgspec.json.decode(b"[%b]" % messages, type=list[msgspec.Raw])
    raw = {name: msgspec.Raw(encode(value)) for name, value in fields.items()}
    wish = Wish(
        fields={"model": msgspec.Raw(b'"m"'), **raw},
        messages=decoded,
        heads=read_heads(msgspec.Raw(b"[%b]" % messages)),
        model="kimi-k3.1-pro",
        extra_body={"top_k": 5},
    )
    return encode_request(wish, known, foreign_fields(known)).body


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
@pytest.mark.parametrize("count", [63, 64, 65, 300])
def test_a_list_of_any_length_is_written_the_same_way(dialect: str, count: int) -> None:
    body = body_of(count, dialect, temperature=1.0, user="someone")
    found = msgspec.json.decode(body)
    assert [message["content"] for message in found["messages"]] == [f"n{number} é" for number in range(count)]
    few = msgspec.json.decode(body_of(1, dialect, temperature=1.0, user="someone"))
    assert {**found, "messages": 0} == {**few, "messages": 0}
    assert list(found) == list(few), "members stand in the same order, which a cached prefix hangs on"
    assert body.count(b'{"role": "user",  "content": "n') == count, "messages are the client's very bytes"
