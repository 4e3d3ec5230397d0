"""Ctrl-C: it cancels what may be cancelled, once, and never the program."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Decides what Ctrl-C does. Outside of `open` nothing, so that a second one does not break off the
    tidying up after the first."""

    def __init__(self) -> None:
        self._is_open = False

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Ctrl-C comes to these rules meanwhile. For the main thread only."""
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def open(self) -> Iterator[None]:
        """The first Ctrl-C meanwhile raises `KeyboardInterrupt`."""
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_open:
            self._is_open = False
            raise KeyboardInterrupt
