"""Errors that carry what came of an answer; part of the tree in `kimi_sdk.errors`."""

from kimi_sdk.errors import KimiError
from kimi_sdk.reply import Reply


class ThinkingExhausted(KimiError):
    """The thinking used up the output limit, so there is no answer. `reply` has the thinking, usage and cost."""

    def __init__(self, message: str, *, reply: Reply) -> None:
        super().__init__(message, request_id=reply.request_id)
        self.reply = reply


class StreamCut(KimiError):
    """The answer broke off after it had begun.

    `reply` has what came: text, thinking, tool calls (incomplete ones too), an estimated cost. `__cause__` is the
    typed error that ended it. `chat.resume()` continues.
    """

    def __init__(self, message: str, *, reply: Reply) -> None:
        super().__init__(message, request_id=reply.request_id)
        self.reply = reply


class TooManyRounds(KimiError):
    """The model still wants tools after `rounds` rounds. `reply` is its last turn; `chat.resume()` goes on."""

    def __init__(self, message: str, *, reply: Reply, rounds: int) -> None:
        super().__init__(message, request_id=reply.request_id)
        self.reply = reply
        self.rounds = rounds
