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

    @property
    def open_calls(self) -> tuple[str, ...]:
        """Names of the tools that the last turn calls and nobody has answered yet."""
        last = json.loads(self.turns[-1]) if self.turns else {}
        calls = last.get("tool_calls") or ()
        return tuple(str(call.get("function", {}).get("name")) for call in calls if isinstance(call, dict))

    def accept(self, turns: Sequence[bytes], reply: Reply) -> None:
        """Keeps the turns of a call, and its answer.

        An empty answer is not kept: an assistant turn without content is refused in the next request
        (platform.kimi.ai/docs/api/chat), and would end the conversation.
        """
        if reply.is_empty:
            return
        self.turns += [*turns, encode(reply.message)]
        if reply.usage is not None:
            self.counted = Counted(len(self.turns), reply.usage.prompt + reply.usage.output)

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
        try:
            turns.append(encode({"role": message["role"], **message}))
        except (TypeError, ValueError) as err:
            raise InvalidInput(f"messages[{at}] cannot be written as JSON: {err}") from err
    return turns
