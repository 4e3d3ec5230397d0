"""Notes on conversations: how large, how many, and the store of them in the process."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from kimi_gateway.core.thought_record import Owner

NOTE_BYTES_MAX: Final = 1024
NOTES_MAX: Final = 65_536

_Place = tuple[Owner, bytes]


def check_note(note: bytes | None) -> None:
    """Raises `ValueError` for a note that is too large to be one."""
    if note is not None and len(note) > NOTE_BYTES_MAX:
        raise ValueError(f"a note has at most {NOTE_BYTES_MAX} bytes, not {len(note)}")


class Notes:
    """A bounded number of notes. The key with the most gives first, of its own the one unused for longest."""

    def __init__(self, max_notes: int, retention_s: float) -> None:
        self._max_notes = max_notes
        self._retention_s = retention_s
        self._by_age: OrderedDict[_Place, tuple[bytes, float]] = OrderedDict()
        self._by_key: dict[str, OrderedDict[_Place, None]] = {}

    def __len__(self) -> int:
        return len(self._by_age)

    def first(self, owner: Owner, places: Sequence[bytes], now_s: float) -> bytes | None:
        """The note at the first place that has one; renews it."""
        self._expire(now_s)
        for place in places:
            kept = self._by_age.get((owner, place))
            if kept is not None:
                self._put((owner, place), kept[0], now_s)
                return kept[0]
        return None

    def put(self, owner: Owner, places: Sequence[bytes], note: bytes, now_s: float) -> None:
        """Writes the note at each place."""
        self._expire(now_s)
        for place in places:
            self._put((owner, place), note, now_s)
        while len(self._by_age) > self._max_notes:
            most = max(self._by_key, key=lambda key: len(self._by_key[key]))
            self._drop(next(iter(self._by_key[most])))

    def forget_key(self, key: str) -> None:
        """Deletes the notes of every owner under one key."""
        for place in list(self._by_key.get(key, ())):
            self._drop(place)

    def _put(self, place: _Place, note: bytes, now_s: float) -> None:
        self._by_age[place] = (note, now_s)
        self._by_age.move_to_end(place)
        mine = self._by_key.setdefault(place[0].key, OrderedDict())
        mine[place] = None
        mine.move_to_end(place)

    def _expire(self, now_s: float) -> None:
        while self._by_age:
            place, (_, used_s) = next(iter(self._by_age.items()))
            if used_s + self._retention_s > now_s:
                return
            self._drop(place)

    def _drop(self, place: _Place) -> None:
        del self._by_age[place]
        mine = self._by_key[place[0].key]
        del mine[place]
        if not mine:
            del self._by_key[place[0].key]
