"""A conversation: its turns as they go over the wire. Pure.

A turn enters the history only when its answer is there. A failed call therefore leaves everything as it was. Turns
are kept as the bytes they are sent as, so that a thought goes back byte for byte and the server finds its cache.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from backends.json import JsonObject, encode
from kimi_sdk.errors import InvalidInput
from kimi_sdk.reply import Reply
from kimi_sdk.sizes import Counted
from kimi_sdk.tools_calls import read_calls

_ROLES = frozenset({"system", "user", "assistant", "tool", "developer"})


@dataclass(slots=True)
class Thread:
    """The turns of one conversation. `counted`: what the server said of a beginning of it."""

    turns: list[bytes] = field(default_factory=list)
    counted: Counted | None = None

    @property
    def messages(self) -> list[JsonObject]:
        """A copy of all turns in Moonshot's form, the thoughts among them; its numbers are plain."""
        return [json.loads(turn) for turn in self.turns]

    @property
    def has_answer(self) -> bool:
        """The model has answered in it, so a server may have it cached."""
        return any(turn.startswith(b'{"role":"assistant"') for turn in self.turns)

    def check_question(self, turns: Sequence[bytes]) -> None:
        """Raises `InvalidInput` for a question where the model waits for the results of its calls, and for results
        of calls that it did not make."""
        waiting = self._open_calls()
        are_results = all(turn.startswith(b'{"role":"tool"') for turn in turns)
        if waiting and not are_results:
            raise InvalidInput(
                f"the model waits for the results of {', '.join(waiting.values())}: "
                "ask([ToolResult(call, content), …]) gives them; run() and stream() call the chat's tools by "
                "themselves"
            )
        strange = [id for id in _answered(turns) if id not in waiting] if are_results else []
        if strange:
            theirs = f"it waits for those of {', '.join(waiting)}" if waiting else "it waits for none"
            raise InvalidInput(f"a result is given for the call {strange[0]!r}, which nobody made: {theirs}")

    def _open_calls(self) -> dict[str, str]:
        """Ids and names of the tools that the last turn calls and nobody has answered yet."""
        last = json.loads(self.turns[-1]) if self.turns else {}
        return {call.id: call.name for call in read_calls(last)}

    def accept(self, turns: Sequence[bytes], reply: Reply) -> bool:
        """Keeps the turns of a call, and its answer; true where it has kept rounds of tools that still want one.

        An empty answer is not kept: an assistant turn without content is refused in the next request
        (platform.kimi.ai/docs/api/chat), and would end the conversation. The question goes with it, unless tools
        have run for it: what they did is done, and the model shall know of it.
        """
        if reply.is_empty:
            had_rounds = any(turn.startswith(b'{"role":"assistant"') for turn in turns)
            self.turns += turns if had_rounds else ()
            return had_rounds
        self.turns += [*turns, encode(reply.message)]
        if reply.usage is not None:
            self.counted = Counted(len(self.turns), reply.usage.prompt + reply.usage.output)
        return False

    def replace(self, turns: list[bytes]) -> bool:
        """Takes other turns instead; whether what the server has cached still stands at their beginning."""
        keeps = turns[: len(self.turns)] == self.turns
        if not keeps:
            self.counted = None
        self.turns = turns
        return keeps

    def reset(self) -> None:
        """Back to the system message it began with."""
        keeps = 1 if self.turns and self.turns[0].startswith(b'{"role":"system"') else 0
        del self.turns[keeps:]
        self.counted = None


def checked_turns(messages: object) -> list[bytes]:
    """Turns given by the application or read from a file. Raises `InvalidInput` that names the one at fault."""
    if not isinstance(messages, list | tuple):
        raise InvalidInput(f"messages must be a list, not {type(messages).__name__}")
    turns = []
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise InvalidInput(
                f"messages[{at}] must be an object with a role of {', '.join(sorted(_ROLES))}, not {message!r:.80}"
            )
        if problem := _misformed(message):
            raise InvalidInput(f"messages[{at}]: {problem}")
        try:
            turns.append(encode({"role": message["role"], **message}))
        except (TypeError, ValueError) as err:
            raise InvalidInput(f"messages[{at}] cannot be written as JSON: {err}") from err
    return turns


def _answered(turns: Sequence[bytes]) -> list[str]:
    return [str(json.loads(turn).get("tool_call_id")) for turn in turns]


def _misformed(message: dict[object, object]) -> str:
    """What of a turn cannot be read by what goes on with it, "" for nothing."""
    content = message.get("content")
    if isinstance(content, list | tuple):
        if not all(isinstance(part, dict) for part in content):
            return f"a list as content must hold objects such as {{'type': 'text', …}}, not {content!r:.80}"
    elif content is not None and not isinstance(content, str):
        return f"content must be a text or a list of parts, not {content!r:.80}"
    for name in ("reasoning_content", "tool_call_id", "name"):
        value = message.get(name)
        if value is not None and not isinstance(value, str):
            return f"{name} must be a text, not {value!r:.80}"
    calls = message.get("tool_calls")
    if calls is None:
        return ""
    if not isinstance(calls, list | tuple):
        return f"tool_calls must be a list, not {calls!r:.80}"
    return next((problem for call in calls if (problem := _misformed_call(call))), "")


def _misformed_call(call: object) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return f"a call of tool_calls must be an object with a function that is one, not {call!r:.80}"
    if not isinstance(function.get("name"), str):
        return f"a call of tool_calls needs the function's name, unlike {call!r:.80}"
    return "" if isinstance(call.get("id", ""), str) else f"a call's id must be a text, not {call['id']!r:.80}"
