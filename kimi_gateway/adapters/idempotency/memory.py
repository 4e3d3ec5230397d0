"""Answers kept in the process: `memory://`, for one worker."""

from collections.abc import Callable

from kimi_gateway.adapters.idempotency.waiting import Waiting
from kimi_gateway.core.idempotency import Answer, Bounds, IdempotencyBook, Place, Standing


class MemoryAnswers:
    """`kimi_gateway.relay.idempotent.AnswerStore` in the process. `mono` is a clock in seconds."""

    def __init__(self, bounds: Bounds, mono: Callable[[], float]) -> None:
        self._book = IdempotencyBook(bounds)
        self._mono = mono
        self._waiting = Waiting()

    async def claim(self, place: Place, digest: bytes, token: bytes) -> Standing | Answer:
        return self._book.claim(place, digest, token, self._mono())

    async def renew(self, place: Place, digest: bytes, token: bytes) -> bool:
        return self._book.renew(place, digest, token, self._mono())

    async def finish(self, place: Place, digest: bytes, token: bytes, answer: Answer | None) -> bool:
        kept = self._book.finish(place, digest, token, answer, self._mono())
        self._waiting.ring(place)
        return kept

    async def release(self, place: Place, token: bytes) -> None:
        self._book.release(place, token)
        self._waiting.ring(place)

    async def change(self, place: Place) -> None:
        await self._waiting.change(place)

    async def forget_key(self, key: str) -> int:
        return self._book.forget_key(key)

    async def size_bytes(self) -> int:
        return self._book.size_bytes

    async def close(self) -> None:
        self._waiting.close()
