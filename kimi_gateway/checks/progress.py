"""One line on standard error that says what is being waited for, on a terminal only."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

_CLEAR: Final = "\r\x1b[2K"
_WIDTH: Final = 79


class Progress:
    """Says what is under way; silent where the stream is no terminal. Belongs to one event loop."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None
        self._waiting: dict[str, None] = {}

    @contextmanager
    def waiting_for(self, name: str) -> Iterator[None]:
        """Names one thing for as long as the context lives."""
        self._waiting[name] = None
        self._draw()
        try:
            yield
        finally:
            del self._waiting[name]
            self._draw()

    def _draw(self) -> None:
        if self._stream is not None:
            self._stream.write(_CLEAR + _line(self._waiting))
            self._stream.flush()


def _line(names: Iterable[str]) -> str:
    """The line, cut to the width of a terminal; empty when nothing is left."""
    text = ", ".join(names)
    line = f"waiting for {text} …" if text else ""
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"
