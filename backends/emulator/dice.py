"""Repeatable chance: the same seed gives the same rolls on every machine and Python."""

import hashlib
import struct

_ROLLS_AT_ONCE = 16


class Dice:
    """A stream of numbers from a seed, by SHAKE-128; not for secrets."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._round = 0
        self._rolls: list[int] = []

    def below(self, sides: int) -> int:
        """A number from 0 to `sides` - 1; `sides` at most about 60,000."""
        if not self._rolls:
            data = hashlib.shake_128(self._seed + self._round.to_bytes(8, "big")).digest(2 * _ROLLS_AT_ONCE)
            self._rolls = list(struct.unpack(f">{_ROLLS_AT_ONCE}H", data))
            self._round += 1
        return self._rolls.pop() % sides

    def around(self, middle: int) -> int:
        """A number within a quarter of `middle`, at least 1."""
        spread = middle // 4
        return max(1, middle - spread + self.below(2 * spread + 1))
