"""The model's own text before a parser has read it: the channels of K3's encoding (in our words, from its recorded
leaks). A server without a reasoning parser, or whose tool parser is off, sends this as content."""

from collections.abc import Sequence

from backends.emulator.calls import MadeCall
from backends.json import Json, JsonError, as_object, decode, encode

_OPEN, _CLOSE, _SEP = "<|open|>", "<|close|>", "<|sep|>"


def as_channels(thought: str | None, text: str, calls: Sequence[MadeCall]) -> str:
    """Everything after the opening of the thought: thought (None: there is no such channel), answer, calls."""
    said = f"{_OPEN}response{_SEP}{text}{_CLOSE}response{_SEP}"
    if thought is not None:
        said = f"{thought}{_CLOSE}think{_SEP}{said}"
    return said + (call_channel(calls) if calls else "")


def call_channel(calls: Sequence[MadeCall]) -> str:
    """The channel that holds the calls."""
    said = "".join(_call(call, index) for index, call in enumerate(calls, 1))
    return f"{_OPEN}tools{_SEP}{said}{_CLOSE}tools{_SEP}"


def _call(call: MadeCall, index: int) -> str:
    try:
        arguments = as_object(decode(call.arguments.encode("utf-8", "surrogatepass"))) or {}
    except JsonError:
        arguments = {}
    said = "".join(_argument(key, value) for key, value in arguments.items())
    return f'{_OPEN}call tool="{call.name}" index="{index}"{_SEP}{said}{_CLOSE}call{_SEP}'


def _argument(key: str, value: Json) -> str:
    text = value if isinstance(value, str) else encode(value).decode()
    return f'{_OPEN}argument key="{key}" type="{_type(value)}"{_SEP}{text}{_CLOSE}argument{_SEP}'


def _type(value: Json) -> str:
    match value:
        case str():
            return "string"
        case bool():
            return "boolean"
        case dict():
            return "object"
        case list():
            return "array"
        case None:
            return "null"
        case _:
            return "number"
