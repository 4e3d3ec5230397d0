"""Digests by value: stores have records under them that older versions have written."""

import msgspec

from backends.json import JsonObject, encode
from backends.messages import read_heads
from kimi_gateway.core.digest import TurnMemo, read_history

CALL: JsonObject = {
    "id": "Bash:0",
    "type": "function",
    "function": {"name": "Bash", "arguments": '{"command": "ls", "n": 1}'},
}
TURN: JsonObject = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "Bash:0", "content": "18C"}


def test_digests_are_those_of_the_records_that_stores_have() -> None:
    seen = [{"type": "text", "text": " Weather in Páris? "}, {"type": "image_url", "image_url": {"url": "u"}}]
    sunny = {"role": "assistant", "content": "It is 18 degrees Celsius there, and sunny."}
    messages = [{"role": "user", "content": seen}, TURN, RESULT, sunny, {"role": "user", "content": "Thanks."}]
    found = read_history(
        read_heads(msgspec.Raw(encode([{"role": "system", "content": "Be Kimi."}, *messages]))), TurnMemo()
    )
    assert [value.hex()[:8] for value in found.digests] == [
        *("d9dc1376", "f4dc532b", "35509649", "263887d6", "154517ee", "65ae8f60"),
    ]
    said: JsonObject = {"role": "assistant", "content": "You are welcome, and come again whenever you like."}
    of_all = [*found.keys.values(), *map(found.tail.answer, [said, TURN])]
    assert [(one.chain.hex()[:8], (one.anchor or b"").hex()[:8]) for one in of_all] == [
        ("715e2064", "746e1ad5"),
        ("8af91959", "88f54d71"),
        ("c5d63c76", "76f8d312"),
        ("0cfbf637", "40aa42dd"),
    ]
