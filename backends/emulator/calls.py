"""A tool call that an answer makes."""

from dataclasses import dataclass
from typing import Final

from backends.emulator.tokens import count

CALL_TOKENS: Final = 4
"""Tokens of the frame of a call, besides its name and arguments."""


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A tool call of the answer; `arguments` is JSON as text."""

    id: str
    name: str
    arguments: str

    @property
    def frame_tokens(self) -> int:
        """Tokens before its arguments."""
        return CALL_TOKENS + count(self.name)

    @property
    def tokens(self) -> int:
        """All its tokens."""
        return self.frame_tokens + count(self.arguments)
