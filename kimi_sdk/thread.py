"""A conversation: its turns as they go over the wire, and what they have used and cost so far. Pure.

A turn enters the history only when its answer is there. A failed call therefore leaves everything as it was.
"""

from copy import deepcopy
from decimal import Decimal

from backends.json import JsonObject
from kimi_sdk.errors import InvalidInput
from kimi_sdk.reply import Reply, history_message
from pricing.usage import TokenUsage


class Thread:
    """The turns of one conversation, with its totals.

    `cost` sums what is known; `unpriced` counts the answers whose cost is not.
    """

    def __init__(self, system: str | None = None) -> None:
        self._turns: list[JsonObject] = []
        if system:
            self._turns.append({"role": "system", "content": _sendable(system)})
        self.usage = TokenUsage()
        self.cost = Decimal(0)
        self.unpriced = 0

    @property
    def messages(self) -> list[JsonObject]:
        """A copy of all turns in Moonshot's form, the thoughts among them."""
        return deepcopy(self._turns)

    def with_question(self, text: str) -> list[JsonObject]:
        """What to send to ask this: all turns and the new one, which is not part of the history yet.

        Raises `InvalidInput` for a question that no server takes.
        """
        content = _sendable(text)
        if not content.strip():
            raise InvalidInput("the question must not be empty: an empty user turn is refused")
        return [*self._turns, {"role": "user", "content": content}]

    def accept(self, question: str, reply: Reply) -> None:
        """Counts an answer and keeps it with its question.

        An empty answer is counted but not kept: an assistant turn without content is refused in the next
        request (platform.kimi.ai/docs/api/chat), and would end the conversation.
        """
        if not reply.is_empty:
            self._turns += [{"role": "user", "content": question}, history_message(reply)]
        if reply.usage is not None:
            self.usage += reply.usage
        if reply.cost is None:
            self.unpriced += 1
        else:
            self.cost += reply.cost


def _sendable(text: object) -> str:
    """The text itself. Raises `InvalidInput` where it is none or cannot be written as UTF-8."""
    if not isinstance(text, str):
        raise InvalidInput(f"a turn must be a text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise InvalidInput(f"the text holds half a character at position {err.start}: {err.reason}") from err
    return text
