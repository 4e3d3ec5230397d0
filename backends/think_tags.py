"""A thought that an engine left in the content as `<think>…</think>`, split off while the text streams.

Only where the operator says so (`split_think_tags` on the target): the same characters may be the answer. So the
narrow rule, the one that engines' own parsers follow:

* Only a block at the very beginning, white space before it aside; later tags are text (code, an explanation).
* The first `</think>` ends it, whatever stands inside; a second `<think>` is part of the thought.
* An unclosed block is all thought: the answer was cut while the model was thinking.
* A `</think>` without its `<think>` (the template has opened it in the prompt, as K2.5's does) is left alone: the
  text before it has gone to the client as it came, and an answer is not held back for a tag that may never come.
  It is counted (`Sign.THINK_TAGS`); the cure is the engine's `--reasoning-parser`.
* Where the thought has come under its own name the engine's parser works, and a tag in the content is text.

Nothing is lost or told twice: thought and content, one after the other, are the text without the two tags. White
space before the block goes with the thought, white space after it stays with the answer.
"""

from enum import Enum
from typing import Final

OPEN: Final = "<think>"
CLOSE: Final = "</think>"

_LEAD_CHARS_MAX: Final = 64
"""White space that may stand before the block. More is an answer of white space, which must not be held back."""


class _State(Enum):
    BEFORE = 0
    INSIDE = 1
    OVER = 2


class ThinkSplitter:
    """The content of one choice in, its thought and its answer out; any cut of the text gives the same two.

    What may be part of a tag is held back until more has come, at most `</think>` less one character, and the
    white space before a block.
    """

    __slots__ = ("_held", "_state")

    def __init__(self) -> None:
        self._held = ""
        self._state = _State.BEFORE

    def feed(self, text: str) -> tuple[str | None, str]:
        """What is certain: thought and answer. The thought is None while, and where, there is no block; "" says
        that one has been opened."""
        text = self._held + text
        self._held = ""
        if self._state is _State.BEFORE:
            return self._before(text)
        if self._state is _State.INSIDE:
            return self._inside(text)
        return None, text

    def finish(self) -> tuple[str | None, str]:
        """What was still held back; from now on all is answer."""
        held, state = self._held, self._state
        self._held, self._state = "", _State.OVER
        return (held, "") if state is _State.INSIDE and held else (None, held)

    def stand_down(self) -> None:
        """The thought comes under its own name: a block that has not begun is none."""
        if self._state is _State.BEFORE:
            self._state = _State.OVER

    def _before(self, text: str) -> tuple[str | None, str]:
        said = text.lstrip()
        lead = text[: len(text) - len(said)]
        if len(lead) <= _LEAD_CHARS_MAX:
            if said.startswith(OPEN):
                self._state = _State.INSIDE
                thought, answer = self._inside(said[len(OPEN) :])
                return lead + (thought or ""), answer
            if OPEN.startswith(said):
                self._held = text
                return None, ""
        self._state = _State.OVER
        return None, text

    def _inside(self, text: str) -> tuple[str | None, str]:
        thought, tag, answer = text.partition(CLOSE)
        if tag:
            self._state = _State.OVER
            return thought, answer
        start = text.rfind("<")
        if start >= 0 and CLOSE.startswith(text[start:]):
            self._held = text[start:]
            return text[:start], ""
        return text, ""
