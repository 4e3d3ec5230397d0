"""Connections shared by a chat and its forks: made for the first call, closed with the chat that they began
with."""

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakSet, ref

T = TypeVar("T")


class Shared(Generic[T]):
    """One thing used by several. It is closed when its owner leaves, or everybody else that used it has left, but
    never during a call; a later call has another one made. Methods that may end it give back what is to be closed.
    """

    def __init__(self, make: Callable[[], T], owner: object) -> None:
        self._make = make
        self._owner = ref(owner)
        self._held: T | None = None
        self._users: WeakSet[object] = WeakSet()
        self._calls = 0
        self._is_ending = False
        self._lock = Lock()

    def enter(self, user: object) -> T:
        """The thing, for a call."""
        with self._lock:
            self._users.add(user)
            self._calls += 1
            if self._held is None:
                self._held = self._make()
            return self._held

    def exit(self) -> T | None:
        """Ends a call."""
        with self._lock:
            self._calls -= 1
            return self._ended()

    def leave(self, user: object) -> T | None:
        """`user` makes no further call for now."""
        with self._lock:
            self._users.discard(user)
            self._is_ending = self._is_ending or user is self._owner() or not self._users
            return self._ended()

    def _ended(self) -> T | None:
        if not self._is_ending or self._calls:
            return None
        self._is_ending = False
        held, self._held = self._held, None
        return held
