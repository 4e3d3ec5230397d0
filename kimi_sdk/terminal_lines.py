"""What somebody types, as whole messages: several lines by a trailing backslash, a fenced block, or a paste."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TextIO

FENCE: Final = '"""'
COMMAND: Final = re.compile(r"/(?P<name>[a-z]+)(?:[ \t]+(?P<rest>\S.*?))?[ \t]*")
"""A line that is a command as a whole; /usr/bin is none, and neither is what a space stands before."""
PROMPT: Final = "> "
FURTHER: Final = ". "
_PASTE_GAP_S: Final = 0.03
"""A paste comes in one piece; nobody types the next line so soon."""


@dataclass(frozen=True, slots=True)
class Message:
    """What somebody wants to say. `is_typed`: line by line, not pasted. Only there does `@path` name a file: a
    text from elsewhere shall not have one sent."""

    text: str
    is_typed: bool


def read_message(read_line: Callable[[str], str], is_more_there: Callable[[], bool]) -> Message:
    """The next message. `read_line` takes the text to prompt with; what it raises (`EOFError`, an interrupt)
    passes, and what was typed of the message till then is forgotten.

    A line that is followed at once by another was pasted, and they are one message; but a command is one line.
    """
    line = read_line(PROMPT)
    if line.lstrip().startswith(FENCE):
        return Message(_fenced(line, read_line), is_typed=False)
    if COMMAND.fullmatch(line):
        return Message(line, is_typed=True)
    lines, is_typed = [line], "\n" not in line
    while True:
        if _is_continued(lines[-1]):
            lines[-1] = lines[-1][:-1]
        elif is_more_there():
            is_typed = False
        else:
            return Message("\n".join(lines), is_typed)
        lines.append(read_line(FURTHER))


def _fenced(line: str, read_line: Callable[[str], str]) -> str:
    """Everything up to the next fence."""
    held = line.lstrip().removeprefix(FENCE)
    while not held.rstrip().endswith(FENCE):
        held += "\n" + read_line(FURTHER)
    return held.rstrip().removesuffix(FENCE).strip("\n")


def _is_continued(line: str) -> bool:
    """It ends with a backslash that is not itself the end of a written backslash."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


class Keyboard:
    """A terminal's lines, with editing and history where Python has them."""

    def __init__(self, stdin: TextIO) -> None:
        self._stdin = stdin
        with suppress(ImportError):
            import readline

            if "libedit" not in (readline.__doc__ or ""):
                readline.parse_and_bind("set enable-bracketed-paste on")  # Python switches it off
                readline.parse_and_bind("set enable-active-region off")  # else what was pasted stands reversed

    def read_message(self) -> Message:
        """The next message. Raises `EOFError`, `KeyboardInterrupt`."""
        return read_message(input, self._is_more_there)

    def _is_more_there(self) -> bool:
        if sys.platform == "win32":
            return False  # nothing tells it there
        import select

        with _terminal_mode(self._stdin, by_line=False):  # by line, an unfinished one would not count
            return bool(select.select([self._stdin], [], [], _PASTE_GAP_S)[0])

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """What is typed meanwhile is kept for the next message, and not shown amid an answer."""
        with _terminal_mode(self._stdin, echoes=False):
            yield


@contextmanager
def _terminal_mode(stdin: TextIO, *, by_line: bool = True, echoes: bool = True) -> Iterator[None]:
    """The terminal without some of its habits; nothing changes where it has none."""
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    try:
        fd = stdin.fileno()
        before: list[Any] = termios.tcgetattr(fd)
    except (termios.error, OSError, ValueError):
        yield
        return
    changed = before[:]
    changed[3] &= ~((0 if by_line else termios.ICANON) | (0 if echoes else termios.ECHO))
    termios.tcsetattr(fd, termios.TCSANOW, changed)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)
