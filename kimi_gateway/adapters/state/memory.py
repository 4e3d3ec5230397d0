"""Conversations kept in the process: `memory://`, for one worker."""

from collections.abc import Callable, Sequence

from kimi_gateway.adapters.state.notes import NOTES_MAX, Notes, check_note
from kimi_gateway.core.digest import TurnKeys
from kimi_gateway.core.thought_record import Owner, Thought
from kimi_gateway.core.thoughts import Bounds, ThoughtStore
from kimi_gateway.ports import Remembered


class MemoryConversations:
    """`kimi_gateway.ports.Conversations` in the process. `mono` is a clock in seconds. Nothing here waits."""

    def __init__(self, bounds: Bounds, mono: Callable[[], float], *, max_notes: int = NOTES_MAX) -> None:
        self._store = ThoughtStore(bounds)
        self._notes = Notes(max_notes, bounds.retention_s)
        self._mono = mono

    def recall_now(self, owner: Owner, wanted: Sequence[TurnKeys], places: Sequence[bytes]) -> Remembered:
        now_s = self._mono()
        return Remembered(self._store.find(owner, wanted, now_s), self._notes.first(owner, places, now_s))

    async def recall(self, owner: Owner, wanted: Sequence[TurnKeys], places: Sequence[bytes]) -> Remembered:
        return self.recall_now(owner, wanted, places)

    def keep_now(
        self,
        owner: Owner,
        thoughts: Sequence[tuple[TurnKeys, Thought]],
        *,
        conversation: bytes = b"",
        places: Sequence[bytes] = (),
        note: bytes | None = None,
    ) -> None:
        check_note(note)
        now_s = self._mono()
        for keys, thought in thoughts:
            self._store.keep(owner, keys, thought, now_s, conversation=conversation)
        if note is not None:
            self._notes.put(owner, places, note, now_s)

    async def keep(
        self,
        owner: Owner,
        thoughts: Sequence[tuple[TurnKeys, Thought]],
        *,
        conversation: bytes = b"",
        places: Sequence[bytes] = (),
        note: bytes | None = None,
    ) -> None:
        self.keep_now(owner, thoughts, conversation=conversation, places=places, note=note)

    async def forget_key(self, key: str) -> int:
        self._notes.forget_key(key)
        return self._store.forget_key(key)

    async def statistics(self) -> dict[str, int]:
        return self._store.statistics() | {"notes": len(self._notes)}

    async def close(self) -> None:
        """Nothing to let go of."""
