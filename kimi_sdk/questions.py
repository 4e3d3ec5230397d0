"""What the application says, as turns of a conversation: checked, and in the words of the wire."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from backends.dialect import Dialect
from backends.json import Json, encode
from kimi_sdk.errors import InvalidInput
from kimi_sdk.parts import Part, content_of, refused_part, sendable
from kimi_sdk.tools_calls import ToolCall, ToolResult

Asked: TypeAlias = str | Part | Sequence[str | Part | ToolResult]
"""What a chat can be asked: a text, parts of a question in their order, results of the calls that it waits for."""


def system_turn(text: object) -> bytes:
    """A system message. Raises `InvalidInput` where it is no text or cannot be written as UTF-8."""
    return encode({"role": "system", "content": sendable(text)})


def question_turns(question: Asked, dialect: Dialect) -> list[bytes]:
    """The turns that a question is: one of the user's, or one for each tool result. Raises `InvalidInput` for what
    no server takes, or this one does not."""
    asked: Any = question
    if isinstance(asked, Sequence) and asked and all(isinstance(part, ToolResult) for part in asked):
        return [_result_turn(part) for part in asked]
    content: Json = content_of(asked)
    if refusal := refused_part(content, dialect):
        raise InvalidInput(refusal)
    return [encode({"role": "user", "content": content})]


def tool_turn(result: ToolResult) -> bytes:
    """The turn that gives the model what a tool came to. Halves of characters in it become U+FFFD, or the whole
    character where both are there: a tool that has run does not run again for one."""
    content = result.content.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return encode({**result.as_message(), "content": content})


def _result_turn(result: ToolResult) -> bytes:
    if not isinstance(result.call, ToolCall):
        raise InvalidInput(f"a ToolResult needs the ToolCall that it answers, not {result.call!r:.80}")
    sendable(result.content)
    return encode(result.as_message())
