"""Requests that may come twice under one `Idempotency-Key`: what is known of each, within bounds.

    nothing  -- claim -->  running  -- finish -->  kept  -- after the retention time -->  nothing
                              |
                              +-- release, or nobody renews the lease -->  nothing

A kept one has its answer, or no more than the fact that there was one: the answer was too large, or had to make
room for others. It is then refused and not run once more, because it would be paid for once more.

The book is not told the time by a clock, but with every call; it must not run backwards.
"""

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal, TypeAlias

import msgspec

from kimi_gateway.core.thought_record import Owner

RECORD_OVERHEAD_BYTES: Final = 768
"""What a record takes beside its answer, in Python and in a Valkey."""

_RECORD_VERSION: Final = 1
MARKS_SHARE: Final = 8
"""The part of the room that records without an answer may hold; beyond it the oldest go."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """An answer as it was sent: the status, the headers as ASGI has them, and all bytes of the body."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.body) + sum(len(name) + len(value) for name, value in self.headers)


Standing: TypeAlias = Literal["taken", "running", "other", "not_kept"]
"""What a claim meets: nothing, so that it is the caller's now; the same request under way; another body under this
key; a request that was answered and whose answer is not there any more."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds and bytes. `lease_s`: how long a claim holds that nobody renews."""

    retention_s: float = 86_400.0
    lease_s: float = 60.0
    max_bytes: int = 64 * 1024 * 1024
    max_answer_bytes: int = 4 * 1024 * 1024

    def fits(self, answer: Answer) -> bool:
        """Whether an answer is small enough to be kept at all."""
        return len(answer.body) <= self.max_answer_bytes


@dataclass(frozen=True, slots=True)
class Place:
    """Whose request under which key: the name of the caller's key, and a digest of its end user and the
    idempotency key (32 bytes)."""

    key: str
    id: bytes


def place_of(owner: Owner, idempotency_key: str) -> Place:
    """The place of a caller's request."""
    return Place(
        owner.key, sha256(b"%d:%b" % (len(owner.end_user), owner.end_user) + idempotency_key.encode()).digest()
    )


class RecordError(ValueError):
    """The bytes are no answer of this version."""


_answers = msgspec.msgpack.Decoder(Answer)
_packer = msgspec.msgpack.Encoder()


def pack(answer: Answer) -> bytes:
    """The answer as bytes: its version, then MessagePack. Encryption goes around them."""
    return bytes([_RECORD_VERSION]) + _packer.encode(answer)


def unpack(data: bytes) -> Answer:
    """The answer of these bytes. Raises `RecordError`."""
    if data[:1] != bytes([_RECORD_VERSION]):
        raise RecordError(f"the answer is not of version {_RECORD_VERSION}")
    try:
        return _answers.decode(memoryview(data)[1:])
    except msgspec.DecodeError as err:
        raise RecordError(f"the answer is damaged ({err})") from err


@dataclass(frozen=True, slots=True)
class _Running:
    digest: bytes
    token: bytes
    until_s: float


@dataclass(frozen=True, slots=True)
class _Kept:
    digest: bytes
    answer: Answer | None
    at_s: float

    @property
    def size_bytes(self) -> int:
        return self.answer.size_bytes if self.answer is not None else 0


class IdempotencyBook:
    """All that one process knows. `digest` is that of a request's body, `token` the name of one attempt at it."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._running: OrderedDict[Place, _Running] = OrderedDict()  # by the end of their leases
        self._kept: OrderedDict[Place, _Kept] = OrderedDict()  # the oldest first
        self._answers: dict[str, OrderedDict[Place, None]] = {}  # by key, the oldest first
        self._bytes_by_key: dict[str, int] = {}
        self._marks: OrderedDict[Place, None] = OrderedDict()  # kept without an answer, by when that came to be
        self._answer_bytes = 0

    @property
    def size_bytes(self) -> int:
        """All that is kept, with its overhead."""
        return self._answer_bytes + len(self._kept) * RECORD_OVERHEAD_BYTES

    def claim(self, place: Place, digest: bytes, token: bytes, now_s: float) -> Standing | Answer:
        """Takes the place where it is free; else says who has it, or gives back the answer."""
        self._expire(now_s)
        kept = self._kept.get(place)
        if kept is not None:
            return "other" if kept.digest != digest else kept.answer or "not_kept"
        running = self._running.get(place)
        if running is not None:
            return "other" if running.digest != digest else "running"
        self._run(place, digest, token, now_s)
        return "taken"

    def renew(self, place: Place, digest: bytes, token: bytes, now_s: float) -> bool:
        """Extends a lease, also one that ran out and that nobody has taken since; false where it is another's."""
        if not self._is_mine(place, token, now_s):
            return False
        self._run(place, digest, token, now_s)
        return True

    def finish(self, place: Place, digest: bytes, token: bytes, answer: Answer | None, now_s: float) -> bool:
        """Keeps the answer (None: the fact alone) until the retention time is over; false where the place is
        another's by now, which keeps it."""
        if not self._is_mine(place, token, now_s):
            return False
        self._running.pop(place, None)
        if answer is not None and not self._bounds.fits(answer):
            answer = None
        self._kept[place] = _Kept(digest, answer, now_s)
        if answer is None:
            self._marks[place] = None
        else:
            self._answers.setdefault(place.key, OrderedDict())[place] = None
            self._weigh(place.key, answer.size_bytes)
        self._make_room()
        return True

    def release(self, place: Place, token: bytes) -> None:
        """Gives a place up, so that the next one may try."""
        running = self._running.get(place)
        if running is not None and running.token == token:
            del self._running[place]

    def forget_key(self, key: str) -> int:
        """Deletes the answers kept under a key's name; gives back how many."""
        places = list(self._answers.get(key, ()))
        for place in places:
            self._drop(place)
        return len(places)

    def _is_mine(self, place: Place, token: bytes, now_s: float) -> bool:
        self._expire(now_s)
        running = self._running.get(place)
        return place not in self._kept and (running is None or running.token == token)

    def _run(self, place: Place, digest: bytes, token: bytes, now_s: float) -> None:
        self._running[place] = _Running(digest, token, now_s + self._bounds.lease_s)
        self._running.move_to_end(place)

    def _expire(self, now_s: float) -> None:
        while self._running and next(iter(self._running.values())).until_s <= now_s:
            self._running.popitem(last=False)
        while self._kept and next(iter(self._kept.values())).at_s + self._bounds.retention_s <= now_s:
            self._drop(next(iter(self._kept)))

    def _make_room(self) -> None:
        """Until all is within bounds: the key with the most gives its oldest answer, of which a mark stays; where
        marks have more than their share, the oldest goes."""
        bounds = self._bounds
        while self.size_bytes > bounds.max_bytes:
            too_many = len(self._marks) * RECORD_OVERHEAD_BYTES * MARKS_SHARE > bounds.max_bytes
            if too_many or not self._answers:
                self._drop(next(iter(self._marks)))
                continue
            most = max(self._bytes_by_key, key=lambda key: self._bytes_by_key[key])
            place = next(iter(self._answers[most]))
            kept = self._kept[place]
            self._forget_answer(place, kept)
            self._kept[place] = _Kept(kept.digest, None, kept.at_s)
            self._marks[place] = None

    def _drop(self, place: Place) -> None:
        kept = self._kept[place]
        if kept.answer is not None:
            self._forget_answer(place, kept)
        self._marks.pop(place, None)
        del self._kept[place]

    def _forget_answer(self, place: Place, kept: _Kept) -> None:
        mine = self._answers[place.key]
        del mine[place]
        if not mine:
            del self._answers[place.key]
        self._weigh(place.key, -kept.size_bytes)

    def _weigh(self, key: str, by_bytes: int) -> None:
        self._answer_bytes += by_bytes
        self._bytes_by_key[key] = self._bytes_by_key.get(key, 0) + by_bytes
        if key not in self._answers:
            del self._bytes_by_key[key]
