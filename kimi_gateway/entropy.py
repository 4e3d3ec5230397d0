"""Random bits of the operating system, fetched in larger pieces: a call of it costs 20 µs here, a request needs
three numbers."""

import os
from typing import Final

_PIECE_BYTES: Final = 4096


class Entropy:
    """Gives out each byte once. A forked child begins with none of its parent's."""

    def __init__(self) -> None:
        self._piece = b""
        self._at = 0
        os.register_at_fork(after_in_child=self._forget)

    def bits(self, count: int) -> int:
        """So many random bits as a number, fit for tokens that nobody may guess."""
        size = (count + 7) // 8
        end = self._at + size
        if end > len(self._piece):
            self._piece = os.urandom(max(size, _PIECE_BYTES))
            self._at, end = 0, size
        value = int.from_bytes(self._piece[self._at : end], "big")
        self._at = end
        return value >> (8 * size - count)

    def _forget(self) -> None:
        self._piece, self._at = b"", 0
