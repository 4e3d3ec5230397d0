"""Answers kept in a Valkey or Redis that several gateways share. The rules are `kimi_gateway.core.idempotency`'s.

Answers hold texts: they are packed and sealed here, under hidden places (`seal`); the scripts see sizes, times and
digests. Without a secret they lie there as they are, like thoughts.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from kimi_gateway.adapters.idempotency import scripts
from kimi_gateway.adapters.idempotency.waiting import Waiting
from kimi_gateway.adapters.state.link import Argument, Link, Script
from kimi_gateway.adapters.state.seal import Seal, SealError
from kimi_gateway.core.idempotency import (
    MARKS_SHARE,
    RECORD_OVERHEAD_BYTES,
    Answer,
    Bounds,
    Place,
    RecordError,
    Standing,
    pack,
    unpack,
)
from kimi_gateway.ports import StateUnavailable

PREFIX: Final = "{kimi}i:"

_T = TypeVar("_T")
_TTL_GRACE_S: Final = 60.0
_QUICK_BYTES: Final = 262_144  # what takes longer than about a millisecond belongs in a thread
_STANDINGS: Final[dict[bytes, Standing]] = {
    b"taken": "taken",
    b"running": "running",
    b"other": "other",
    b"not_kept": "not_kept",
}
_log: Final = logging.getLogger("kimi_gateway.idempotency")


class ValkeyAnswers:
    """`kimi_gateway.relay.idempotent.AnswerStore` on a server.

    `wall` is a clock in seconds that replaces the server's. A waiter looks after `look_first_s`, then less and
    less often, at least every `look_longest_s`.
    """

    def __init__(
        self,
        link: Link,
        bounds: Bounds,
        seal: Seal,
        wall: Callable[[], float] | None = None,
        *,
        prefix: str = PREFIX,
        look_first_s: float = 0.05,
        look_longest_s: float = 1.0,
    ) -> None:
        self._link = link
        self._bounds = bounds
        self._seal = seal
        self._wall = wall
        self._prefix = prefix.encode()
        self._waiting = Waiting(self._is_running, first_s=look_first_s, longest_s=look_longest_s)

    async def claim(self, place: Place, digest: bytes, token: bytes) -> Standing | Answer:
        where = self._id(place)
        reply = await self._run(scripts.CLAIM, where, token, self._body(where, digest), self._lease_us)
        if reply[0] != b"kept":
            return _STANDINGS[reply[0]]
        record: bytes = reply[1]
        try:
            return await _beside(len(record), lambda: unpack(self._seal.open(record, b"answer" + where)))
        except (SealError, RecordError) as err:
            _log.warning("a kept answer cannot be read: %s", err)
            return "not_kept"

    async def renew(self, place: Place, digest: bytes, token: bytes) -> bool:
        where = self._id(place)
        return bool(await self._run(scripts.RENEW, where, token, self._body(where, digest), self._lease_us))

    async def finish(self, place: Place, digest: bytes, token: bytes, answer: Answer | None) -> bool:
        where, size, record = self._id(place), 0, b""
        if answer is not None and self._bounds.fits(answer):
            size, packed = answer.size_bytes, answer
            record = await _beside(size, lambda: self._seal.seal(pack(packed), b"answer" + where))
        try:
            kept = await self._run(
                scripts.FINISH,
                where,
                token,
                *(self._body(where, digest), size, self._bounds.max_bytes, MARKS_SHARE, record),
            )
        finally:
            self._waiting.ring(place)
        return bool(kept)

    async def release(self, place: Place, token: bytes) -> None:
        try:
            await self._run(scripts.RELEASE, self._id(place), token)
        finally:
            self._waiting.ring(place)

    async def change(self, place: Place) -> None:
        await self._waiting.change(place)

    async def forget_key(self, key: str) -> int:
        return int(await self._run(scripts.FORGET, self._key(key) + bytes(32), b""))

    async def size_bytes(self) -> int:
        return int(await self._run(scripts.SIZE, bytes(48), b""))

    async def close(self) -> None:
        """Wakes who waits; the link may be in use by others and is closed by who made it."""
        self._waiting.close()

    async def _is_running(self, place: Place) -> bool:
        """Whether it still runs; false where nobody can tell: who asks next hears why."""
        try:
            return bool(await self._run(scripts.LOOK, self._id(place), b""))
        except StateUnavailable:
            return False

    async def _run(self, script: Script, where: bytes, token: bytes, *args: Argument) -> Any:
        now = str(int(self._wall() * 1e6)) if self._wall is not None else ""
        retention_s = self._bounds.retention_s
        common: tuple[Argument, ...] = (
            now,
            int(retention_s * 1e6),
            int((retention_s + _TTL_GRACE_S) * 1e3),
            RECORD_OVERHEAD_BYTES,
            where,
            token,
        )
        return await self._link.run(script, [self._prefix], [*common, *args])

    @property
    def _lease_us(self) -> int:
        return int(self._bounds.lease_s * 1e6)

    def _key(self, key: str) -> bytes:
        return self._seal.digest(b"key", key.encode("utf-8", "surrogatepass"))[:16]

    def _id(self, place: Place) -> bytes:
        key = self._key(place.key)
        return key + self._seal.digest(b"idempotency", key, place.id)

    def _body(self, where: bytes, digest: bytes) -> bytes:
        """Who reads the store has nothing to compare bodies with."""
        return self._seal.digest(b"body", where, digest)


async def _beside(size_bytes: int, work: Callable[[], _T]) -> _T:
    """What the work gives; in a thread where it would hold up the loop."""
    return work() if size_bytes <= _QUICK_BYTES else await asyncio.to_thread(work)
