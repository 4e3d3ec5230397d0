"""What the terminal shows: answers as they come, the thinking dimmed, and what they cost.

Without colours the thinking stands behind a bar. Control characters of an answer are shown, not obeyed: a text
from outside shall neither clear the screen nor set its title.
"""

import textwrap
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final, Literal

from pricing.usage import TokenUsage

WIDTH_MAX: Final = 80
_DIM: Final = "\x1b[2m"
_PLAIN: Final = "\x1b[0m"
_BAR: Final = "| "
_SHOWN: Final = (
    {code: 0x2400 + code for code in range(32)} | {127: 0x2421} | {code: 0xFFFD for code in range(128, 160)}
)
_VISIBLE: Final = {code: shown for code, shown in _SHOWN.items() if chr(code) not in "\n\t"}
_PLACES_USD: Final = Decimal("0.000001")

Section = Literal["", "thinking", "text"]


class Screen:
    """One place to write to. `has_colour` for dimmed text, `shows_thinking` for any thinking at all."""

    def __init__(
        self, write: Callable[[str], object], *, has_colour: bool, shows_thinking: bool = True, width: int = 80
    ) -> None:
        self._write = write
        self._has_colour = has_colour
        self._shows_thinking = shows_thinking
        self._width = min(width, WIDTH_MAX)
        self._section: Section = ""
        self._at_line_start = True

    # --- answers ----------------------------------------------------------------------------------------------

    def thinking(self, text: str) -> None:
        """A piece of the thinking."""
        if not self._shows_thinking or not text:
            return
        self._enter("thinking")
        shown = visible(text)
        if not self._has_colour:
            shown = self._behind_bar(shown)
        self._put(f"{_DIM}{shown}{_PLAIN}" if self._has_colour else shown, ends=shown)

    def text(self, text: str) -> None:
        """A piece of the answer."""
        if not text:
            return
        self._enter("text")
        shown = visible(text)
        self._put(shown, ends=shown)

    def end(self) -> None:
        """The answer is over, whole or not: the next thing begins on a line of its own."""
        self._section = ""
        self._fresh_line()

    # --- everything else --------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Words of this program, within the width; lines that are indented stay as they are."""
        self.end()
        for line in visible(text).split("\n"):
            kept = line if line.startswith(" ") else self._filled(line)
            self._put(kept + "\n", ends="\n")

    def aside(self, text: str) -> None:
        """A dimmed line."""
        self.end()
        shown = self._filled(visible(text))
        self._put(f"{_DIM}{shown}{_PLAIN}\n" if self._has_colour else f"{shown}\n", ends="\n")

    def _filled(self, text: str) -> str:
        # Addresses and paths stay whole: somebody will copy them.
        return textwrap.fill(text, self._width, break_on_hyphens=False, break_long_words=False)

    def _enter(self, section: Section) -> None:
        if self._section == section:
            return
        if self._section:
            self._fresh_line()
            self._put("\n", ends="\n")
        self._section = section

    def _behind_bar(self, text: str) -> str:
        barred = text.replace("\n", "\n" + _BAR)
        if text.endswith("\n"):
            barred = barred.removesuffix(_BAR)  # its line has not begun yet
        return _BAR + barred if self._at_line_start else barred

    def _fresh_line(self) -> None:
        if not self._at_line_start:
            self._put("\n", ends="\n")

    def _put(self, text: str, *, ends: str) -> None:
        if text:
            self._write(text)
            self._at_line_start = ends.endswith("\n")


def visible(text: str) -> str:
    """The text with its control characters as pictures of them, but for line ends and tabs."""
    return text.replace("\r\n", "\n").translate(_VISIBLE)


def usage_line(usage: TokenUsage | None, cost: Decimal | None, source: str = "") -> str:
    """What one answer took, in one line."""
    return f"{tokens(usage)} · {dollars(cost, source)}"


def tokens(usage: TokenUsage | None) -> str:
    """Tokens in, out, and what of those in was cached."""
    if usage is None:
        return "tokens unknown"
    cached = f" ({usage.cache_read:,} cached)" if usage.cache_read else ""
    return f"{usage.prompt:,} tokens in{cached}, {usage.output:,} out"


def dollars(cost: Decimal | None, source: str = "") -> str:
    """An amount with as many digits as say something."""
    if cost is None:
        return "cost unknown"
    shown = cost.quantize(_PLACES_USD, ROUND_HALF_EVEN) if cost else Decimal(0)
    marked = {"cards": " by the rate cards", "estimate": " estimated"}.get(source, "")
    return f"{shown:f} USD{marked}"
