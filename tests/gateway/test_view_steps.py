"""A body that is read in pieces has the view, or the error, that it has when it is read at once."""

import json
from typing import Any

import pytest

from backends.pieces import whole
from kimi_gateway.core.view import read, read_steps
from kimi_gateway.errors import InvalidRequest

USER = {"role": "user", "content": "Wie weit? " * 200}


def body_of(*messages: object, **fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": list(messages), **fields}, ensure_ascii=False).encode()


def outcome(reading: Any) -> Any:
    """The view, or what the error says."""
    try:
        return reading()
    except InvalidRequest as err:
        return str(err), err.code, err.param


@pytest.mark.parametrize(
    "body",
    [
        body_of(*[USER] * 1200, stream=True, max_tokens=None, n=2),
        body_of(USER, {"role": "assistant", "content": None, "partial": True}, thinking={"effort": "low"}),
        body_of(*[USER] * 900, {"role": 3}, USER),
        body_of(*[USER] * 900, {"content": "no role"}),
        body_of(*[USER] * 3, "no object"),
        body_of(),
        b"[1]",
        body_of(USER)[:-1] + b',"user":"\xff"}',
    ],
)
def test_pieces_and_the_whole_agree(body: bytes) -> None:
    assert outcome(lambda: whole(read_steps(body))) == outcome(lambda: read(body))


def test_many_messages_are_read_in_many_pieces() -> None:
    assert len(list(read_steps(body_of(*[USER] * 3000)))) > 10
