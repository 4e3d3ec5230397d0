"""Work in pieces: a generator that yields where others may go on, and returns what it made."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def whole(steps: Generator[None, None, T]) -> T:
    """What the steps make, with nothing in between."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: T = end.value
            return made
