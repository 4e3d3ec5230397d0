"""The answer itself: thought, text or calls, cut at stop sequences and at the output limit.

Pure: the same prompt and seed give the same answer, streamed or not and on either tier (Highspeed serves the same
weights). Thought comes first and uses up the limit first, so an answer may be all thought.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from backends.emulator.calls import MadeCall
from backends.emulator.channels import as_channels, call_channel
from backends.emulator.dice import Dice
from backends.emulator.instances import make_instance
from backends.emulator.request import ChatRequest, Message
from backends.emulator.sentences import text_of, thought_of
from backends.emulator.tokens import count, cut
from backends.emulator.wishes import Wishes, follows_results, last_user_text, read_wishes
from backends.json import JsonObject, encode

_QUOTE_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice. `tokens` is everything generated for it, `matched` the stop sequence that ended it."""

    thought: str
    text: str
    calls: tuple[MadeCall, ...]
    finish: str
    tokens: int
    matched: str = ""

    @property
    def thought_tokens(self) -> int:
        """The part of `tokens` that is thought."""
        return count(self.thought)


@dataclass(frozen=True, slots=True)
class Manner:
    """How answers are made here: the usual lengths in tokens (of a thought by effort), the ids of calls from name,
    number and a digest, and what the dialect does with calls. `forced_finish` is the finish reason of a call that
    the request named; `one_call` heeds `parallel_tool_calls: false`; `leaks_calls` writes the call that
    `tool_choice: none` forbids into the text."""

    thought_tokens: Mapping[str, int]
    text_tokens: int
    call_id: Callable[[str, int, bytes], str]
    forced_finish: str = "tool_calls"
    one_call: bool = False
    leaks_calls: bool = False


def compose(request: ChatRequest, *, effort: str, seed: bytes, limit_tokens: int, manner: Manner) -> Answer:
    """One answer of at most `limit_tokens`. `effort` is empty where thinking is off.

    Raises `Refusal` for a directive that cannot be followed.
    """
    dice = Dice(seed + b"wishes")
    wishes = read_wishes(request, dice, though_forbidden=manner.leaks_calls)
    thought = _thought(wishes, effort, seed, dice, manner)
    if not wishes.calls:
        text = _text(request, wishes, effort, seed, dice.around(manner.text_tokens))
        text, matched = _until_stop(text, request.stop)
        answer = _within(limit_tokens, thought, text, (), "stop")
        return replace(answer, matched=matched if answer.finish == "stop" else "")
    calls = _make_calls(wishes, dice, seed, manner)
    if manner.one_call and request.raw.get("parallel_tool_calls") is False:
        calls = calls[:1]
    if request.tool_choice == "none":
        return _within(limit_tokens, thought, call_channel(calls), (), "stop")
    finish = manner.forced_finish if request.tool_choice == "specified" else "tool_calls"
    return _within(limit_tokens, thought, "", calls, finish)


def unparsed(answer: Answer, *, thinks: bool, limit_tokens: int) -> Answer:
    """The same answer from a server that has no parser: one text with the channels' marks in it."""
    text = as_channels(answer.thought if thinks else None, answer.text, answer.calls)
    finish = "length" if answer.finish == "length" else "stop"
    return _within(limit_tokens, "", text, (), finish)


def _thought(wishes: Wishes, effort: str, seed: bytes, dice: Dice, manner: Manner) -> str:
    if not effort:
        return ""
    usual = dice.around(manner.thought_tokens[effort])
    return thought_of(
        f"Synthetic thought of the Kimi emulator, effort {effort}.",
        tokens=usual if wishes.thought_tokens is None else wishes.thought_tokens,
        seed=seed + b"thought",
        exact=wishes.thought_tokens is not None,
    )


def _make_calls(wishes: Wishes, dice: Dice, seed: bytes, manner: Manner) -> tuple[MadeCall, ...]:
    made: list[MadeCall] = []
    for at, wanted in enumerate(wishes.calls):
        name = wanted.tool.name
        arguments = wanted.arguments
        if arguments is None:
            arguments = _object(make_instance({"type": "object", **(wanted.tool.parameters or {})}, dice))
        digest = hashlib.blake2b(seed + b"call" + bytes([at % 256]), digest_size=16).digest()
        made.append(MadeCall(manner.call_id(name, at, digest), name, encode(arguments).decode()))
    return tuple(made)


def _object(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _text(request: ChatRequest, wishes: Wishes, effort: str, seed: bytes, usual_tokens: int) -> str:
    if request.format.kind == "json_schema":
        return encode(make_instance(request.format.schema or {}, Dice(seed + b"schema"))).decode()
    if request.format.kind == "json_object":
        return encode(_free_object(last_user_text(request.messages), effort)).decode()
    if request.messages[-1].partial:
        opening = f" (synthetic continuation by the Kimi emulator, effort {effort or 'none'})."
    else:
        said = f"Synthetic answer of the Kimi emulator, effort {effort or 'none'}."
        opening = f"{said} {_reference(request.messages)}"
    return text_of(
        opening,
        tokens=usual_tokens if wishes.text_tokens is None else wishes.text_tokens,
        seed=seed + b"text",
        exact=wishes.text_tokens is not None,
    )


def _reference(messages: tuple[Message, ...]) -> str:
    """A sentence that shows what the answer refers to: the tool results, or the last user message."""
    if not follows_results(messages):
        return f'You wrote: "{_quoted(last_user_text(messages))}".'
    names: dict[str, str] = {}
    said: list[str] = []
    for message in messages:
        if message.role == "assistant":
            names = {call.id: call.name for call in message.calls}
            said = []
        elif message.role == "tool":
            said.append(f'{names.get(message.call_id or "", "A tool")} returned: "{_quoted(message.text)}".')
    return " ".join(said)


def _quoted(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _QUOTE_CHARACTERS else line[:_QUOTE_CHARACTERS] + "..."


def _free_object(text: str, effort: str) -> JsonObject:
    """An object with a member for each word in quotes, as prompts for JSON name their keys."""
    keys = [word for part in text.replace('"', "'").replace("`", "'").split("'")[1::2] if (word := part.strip())]
    note: JsonObject = {"note": f"synthetic answer of the Kimi emulator, effort {effort}"}
    return {**{key: f"synthetic {key}" for key in keys if key.isidentifier()}, **note}


def _until_stop(text: str, stops: tuple[str, ...]) -> tuple[str, str]:
    """The text up to the first stop sequence in it, and that sequence; the whole text and nothing without one."""
    found = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not found:
        return text, ""
    at, stop = min(found)
    return text[:at], stop


def _within(limit: int, thought: str, text: str, calls: tuple[MadeCall, ...], finish: str) -> Answer:
    """The answer as far as the limit lets it come. A call whose name no longer fits is not made."""
    left = limit - count(thought)
    if left < 0:
        return Answer(cut(thought, limit), "", (), "length", limit)
    if count(text) > left:
        return Answer(thought, cut(text, left), (), "length", limit)
    left -= count(text)
    kept: list[MadeCall] = []
    for call in calls:
        left -= call.frame_tokens
        if left < 0:
            return Answer(thought, text, tuple(kept), "length", limit)
        kept.append(MadeCall(call.id, call.name, cut(call.arguments, left)))
        left -= count(call.arguments)
        if left < 0:
            return Answer(thought, text, tuple(kept), "length", limit)
    return Answer(thought, text, tuple(kept), finish, min(limit, max(1, limit - left)))
