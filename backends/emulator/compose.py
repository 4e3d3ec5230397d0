"""The answer itself: thought, text or calls, cut at stop sequences and at the output limit.

Pure: the same prompt and seed give the same answer, streamed or not and on either tier (Highspeed serves the same
weights). Thought comes first and uses up the limit first, so an answer may be all thought.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from backends.emulator.dice import Dice
from backends.emulator.instances import make_instance
from backends.emulator.request import ChatRequest, Message
from backends.emulator.sentences import text_of, thought_of
from backends.emulator.tokens import count, cut
from backends.emulator.wishes import Wishes, follows_results, last_user_text, read_wishes
from backends.json import JsonObject, encode

Finish = Literal["stop", "length", "tool_calls"]
CALL_TOKENS = 4
"""Tokens of the frame of a call, besides its name and arguments."""

_QUOTE_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A tool call of the answer; ids are unique within the turn only, as K3's are."""

    id: str
    name: str
    arguments: str

    @property
    def frame_tokens(self) -> int:
        """Tokens before its arguments."""
        return CALL_TOKENS + count(self.name)


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice. `tokens` is everything generated for it."""

    thought: str
    text: str
    calls: tuple[MadeCall, ...]
    finish: Finish
    tokens: int


def compose(
    request: ChatRequest,
    *,
    effort: str,
    seed: bytes,
    limit_tokens: int,
    thought_tokens: Mapping[str, int],
    text_tokens: int,
) -> Answer:
    """One answer of at most `limit_tokens`. `thought_tokens` (by effort) and `text_tokens` are the usual lengths.

    Raises `Refusal` for a directive that cannot be followed.
    """
    dice = Dice(seed + b"wishes")
    wishes = read_wishes(request, dice)
    usual = dice.around(thought_tokens[effort])
    thought = thought_of(
        f"Synthetic thought of the Kimi emulator, effort {effort}.",
        tokens=usual if wishes.thought_tokens is None else wishes.thought_tokens,
        seed=seed + b"thought",
        exact=wishes.thought_tokens is not None,
    )
    if wishes.calls:
        return _within(limit_tokens, thought, "", _make_calls(wishes, dice), "tool_calls")
    text = _text(request, wishes, effort, seed, dice.around(text_tokens))
    return _within(limit_tokens, thought, _until_stop(text, request.stop), (), "stop")


def _make_calls(wishes: Wishes, dice: Dice) -> tuple[MadeCall, ...]:
    made: list[MadeCall] = []
    for at, wanted in enumerate(wishes.calls):
        name = wanted.tool.name
        arguments = wanted.arguments
        if arguments is None:
            arguments = _object(make_instance({"type": "object", **(wanted.tool.parameters or {})}, dice))
        made.append(MadeCall(f"{name}:{at}", name, encode(arguments).decode()))
    return tuple(made)


def _object(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _text(request: ChatRequest, wishes: Wishes, effort: str, seed: bytes, usual_tokens: int) -> str:
    if request.format.kind == "json_schema":
        return encode(make_instance(request.format.schema or {}, Dice(seed + b"schema"))).decode()
    if request.format.kind == "json_object":
        return encode(_free_object(last_user_text(request.messages), effort)).decode()
    if request.messages[-1].partial:
        opening = f" (synthetic continuation by the Kimi emulator, effort {effort})."
    else:
        opening = f"Synthetic answer of the Kimi emulator, effort {effort}. {_reference(request.messages)}"
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


def _until_stop(text: str, stops: tuple[str, ...]) -> str:
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(found)] if found else text


def _within(limit: int, thought: str, text: str, calls: tuple[MadeCall, ...], finish: Finish) -> Answer:
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
    return Answer(thought, text, tuple(kept), finish, max(1, limit - left))
