"""A text that a regular expression of a JSON Schema accepts, made up with the dice.

Read is what schemas use of ECMA-262: literals, `.`, classes and their ranges, `\\d \\w \\s` and their opposites,
groups, alternatives and counted repetition. Anchors count as nothing, since whole texts are made. Looking ahead or
behind, word boundaries and references to groups are not followed: then there is no text.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from backends.emulator.dice import Dice

_MAX_PATTERN: Final = 2_000
_MAX_DEPTH: Final = 40
_MAX_TEXT: Final = 10_000
_TRIES: Final = 12
_SHORT: Final = 40
_LOWER: Final = "abcdefghijklmnopqrstuvwxyz"
_DIGITS: Final = "0123456789"
_WORDS: Final = _LOWER + _LOWER.upper() + _DIGITS + "_"
_PRINTED: Final = "".join(chr(code) for code in range(0x20, 0x7F))
_CLASSES: Final = {"d": _DIGITS, "w": _WORDS, "s": " "}
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}

_Writer = Callable[[Dice, int], str]
"""Writes one text for a part of the pattern; the number says how often more than needed a part is repeated."""


def make_match(pattern: str, dice: Dice, *, least: int = 0, most: int | None = None) -> str | None:
    """A text of `least` to `most` characters; None where the pattern is not read or no such text was found."""
    if len(pattern) > _MAX_PATTERN:
        return None
    try:
        write = _Reader(pattern).whole()
        # First short ones, then longer and longer; more than once, since branches differ in length.
        short = (1, 0, *range(2, min(least, _SHORT) + 1))
        for extra in (*short, *short, *short, *(max(least, 1) * factor for factor in range(1, _TRIES))):
            text = write(dice, min(extra, _MAX_TEXT))
            if least <= len(text) and (most is None or len(text) <= most):
                return text
    except _Unread:
        pass
    return None


class _Unread(Exception):
    """The pattern holds something that is not read here, or grows beyond any sensible size."""


@dataclass(slots=True)
class _Reader:
    """Reads a pattern from left to right into a writer."""

    text: str
    at: int = field(default=0, init=False)
    depth: int = field(default=0, init=False)

    def whole(self) -> _Writer:
        write = self._alternatives()
        if self.at < len(self.text):
            raise _Unread
        return write

    def _alternatives(self) -> _Writer:
        branches = [self._sequence()]
        while self._takes("|"):
            branches.append(self._sequence())
        if len(branches) == 1:
            return branches[0]
        return lambda dice, extra: branches[dice.below(len(branches))](dice, extra)

    def _sequence(self) -> _Writer:
        parts: list[_Writer] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            parts.append(self._repeated(self._atom()))
        return lambda dice, extra: _bounded("".join([part(dice, extra) for part in parts]))

    def _atom(self) -> _Writer:
        match self._next():
            case "^" | "$":
                return lambda dice, extra: ""
            case "(":
                return self._group()
            case "[":
                return _one_of(self._class())
            case ".":
                return _one_of(_LOWER)
            case "\\":
                return _one_of(self._escape())
            case "*" | "+" | "?":
                raise _Unread
            case char:
                return _one_of(char)

    def _group(self) -> _Writer:
        if self._takes("?"):
            if self._takes("<") and self._peek() not in "=!":
                self.at = self._find(">") + 1
            elif not self._takes(":"):
                raise _Unread
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _Unread
        write = self._alternatives()
        self.depth -= 1
        if not self._takes(")"):
            raise _Unread
        return write

    def _repeated(self, write: _Writer) -> _Writer:
        bounds = self._bounds()
        if bounds is None:
            return write
        least, most = bounds
        self._takes("?")  # lazy: the same texts

        def several(dice: Dice, extra: int) -> str:
            times = least + extra if most is None else min(least + extra, most)
            return _bounded("".join([write(dice, min(extra, 1)) for _ in range(min(times, _MAX_TEXT))]))

        return several

    def _bounds(self) -> tuple[int, int | None] | None:
        """How often the part before may stand; None where nothing is said of it."""
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._takes(sign):
                return bounds
        if self._peek() != "{":
            return None
        end = self._find("}")
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        if not low.isdecimal() or not (high.isdecimal() or high == ""):
            raise _Unread
        self.at = end + 1
        least = int(low[:9])
        return least, (least if not comma else int(high[:9]) if high else None)

    def _class(self) -> str:
        """The characters of a class whose bracket is open."""
        opposite = self._takes("^")
        chars = ""
        while not self._takes("]"):
            first = self._class_part()
            if len(first) == 1 and self._peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                last = self._class_part()
                if len(last) != 1 or last < first:
                    raise _Unread
                first = "".join(map(chr, range(ord(first), min(ord(last), ord(first) + 200) + 1)))
            chars += first
        return "".join([char for char in _PRINTED if char not in chars]) if opposite else chars

    def _class_part(self) -> str:
        char = self._next()
        return self._escape() if char == "\\" else char

    def _escape(self) -> str:
        """The characters that stand for a backslash and what follows it."""
        char = self._next()
        if char.lower() in _CLASSES:
            chars = _CLASSES[char.lower()]
            return chars if char.islower() else "".join([other for other in _PRINTED if other not in chars])
        if char in _ESCAPED:
            return _ESCAPED[char]
        if char in "xu":
            width = 2 if char == "x" else 4
            code, self.at = self.text[self.at : self.at + width], self.at + width
            try:
                return chr(int(code, 16))
            except ValueError as err:
                raise _Unread from err
        if char.isalnum():
            raise _Unread
        return char

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise _Unread
        self.at += 1
        return char

    def _takes(self, char: str) -> bool:
        taken = self._peek() == char
        self.at += taken
        return taken

    def _find(self, char: str) -> int:
        end = self.text.find(char, self.at)
        if end < 0:
            raise _Unread
        return end


def _one_of(chars: str) -> _Writer:
    if not chars:
        raise _Unread
    return lambda dice, extra: chars[dice.below(len(chars))]


def _bounded(text: str) -> str:
    if len(text) > _MAX_TEXT:
        raise _Unread
    return text
