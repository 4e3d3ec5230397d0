"""Conversations kept in a Valkey or Redis that several gateways share.

The rules are those of `kimi_gateway.core.thoughts`, run by the server's scripts. Thoughts are packed, sealed and
put under hidden places here (`seal`); the scripts see sizes, times and digests.

Bytes are counted as in memory: what Python needs around a thought covers what Valkey 9 needs around it, the record
and the seal included (about 500 bytes, and 1,900 for a conversation, an owner and a key of its own, by its own
count: `test_the_bytes_that_are_counted_cover_what_the_server_uses`). An allocator that rounds large values up, by
a quarter at most, comes on top; the server's maxmemory has to leave room for that.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

from kimi_gateway.adapters.state.link import Argument, Link, Script
from kimi_gateway.adapters.state.notes import NOTES_MAX, check_note
from kimi_gateway.adapters.state.scripts import FORGET, KEEP, RECALL, STATISTICS
from kimi_gateway.adapters.state.seal import Seal, SealError
from kimi_gateway.core.digest import TurnKeys
from kimi_gateway.core.thought_record import Owner, Record, RecordError, Thought, pack, unpack
from kimi_gateway.core.thoughts import (
    CONVERSATION_OVERHEAD_BYTES,
    THOUGHT_OVERHEAD_BYTES,
    Bounds,
    By,
    Counts,
    Found,
)
from kimi_gateway.ports import Remembered

T = TypeVar("T")

PREFIX: Final = "{kimi}:"

_TTL_GRACE_S: Final = 60.0  # the scripts, which keep the sums, come first as long as anything runs
_RECALL_BYTES_MAX: Final = 16_777_216  # no window of a million tokens holds more; the newest come first
_QUICK_BYTES: Final = 262_144  # what takes longer than about a millisecond belongs in the thread
_NOBODY: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class _Who:
    """An owner as the store knows it."""

    key: bytes
    user: bytes

    @property
    def id(self) -> bytes:
        return self.key + self.user


@dataclass(frozen=True, slots=True)
class _Stored:
    """A record as it came, and where it lay."""

    keys: TurnKeys
    by: By
    conversation: bytes
    place: bytes
    data: bytes


class ValkeyConversations:
    """`kimi_gateway.ports.Conversations` on a server.

    `wall` is a clock in seconds that replaces the server's. Counts are those of this process, sizes those of the
    store. `Found.conversation` is the store's own name for one; `keep` takes that, or the chain of a
    conversation's first thought.
    """

    def __init__(
        self,
        link: Link,
        bounds: Bounds,
        seal: Seal,
        wall: Callable[[], float] | None = None,
        *,
        prefix: str = PREFIX,
        max_notes: int = NOTES_MAX,
        recall_bytes_max: int = _RECALL_BYTES_MAX,
    ) -> None:
        self._link = link
        self._bounds = bounds
        self._seal = seal
        self._wall = wall
        self._prefix = prefix.encode()
        self._max_notes = max_notes
        self._recall_bytes_max = recall_bytes_max
        self._counts = Counts()
        self._unreadable = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="seals")

    async def recall(self, owner: Owner, wanted: Sequence[TurnKeys], places: Sequence[bytes]) -> Remembered:
        if not wanted and not places:
            return Remembered([])
        who = self._who(owner)
        chains = [self._place(b"chain", who, keys.chain) for keys in wanted]
        anchors = [self._place(b"anchor", who, keys.anchor) if keys.anchor else _NOBODY for keys in wanted]
        hidden = [self._place(b"note", who, place) for place in places]
        signs, heads, records, notes, expired = await self._run(
            RECALL, who, b"".join(chains), b"".join(anchors), b"".join(hidden), self._recall_bytes_max
        )
        self._counts.expired += expired
        stored = _stored(wanted, signs.decode(), heads, records)
        size = sum([len(record) for record in records])
        found = await self._beside(size, lambda: [self._opened(who, item) for item in stored])
        self._count(found)
        return Remembered(found, self._note(who, hidden, notes))

    async def keep(
        self,
        owner: Owner,
        thoughts: Sequence[tuple[TurnKeys, Thought]],
        *,
        conversation: bytes = b"",
        places: Sequence[bytes] = (),
        note: bytes | None = None,
    ) -> None:
        check_note(note)
        if not thoughts and (note is None or not places):
            return
        who = self._who(owner)
        size = sum(thought.size_bytes for _, thought in thoughts)
        written = await self._beside(
            size, lambda: [self._written(who, keys, thought, conversation) for keys, thought in thoughts]
        )
        notes: list[bytes] = []
        for place in places if note is not None else ():
            hidden = self._place(b"note", who, place)
            notes += (hidden, self._seal.seal(note or b"", b"note" + who.id + hidden))
        outcomes, expired, evicted, evicted_bytes = await self._run(
            KEEP,
            who,
            self._bounds.max_bytes,
            self._bounds.max_bytes_per_key,
            CONVERSATION_OVERHEAD_BYTES,
            conversation,
            self._place(b"chain", who, conversation) if conversation else b"",
            self._max_notes,
            len(written),
            *(argument for item in written for argument in item),
            *notes,
        )
        for outcome in outcomes.decode().split():
            setattr(self._counts, outcome, getattr(self._counts, outcome) + 1)
        self._counts.expired += expired
        self._counts.evicted += evicted
        self._counts.evicted_bytes += evicted_bytes

    async def forget_key(self, key: str) -> int:
        forgotten, expired = await self._run(FORGET, self._who(Owner(key)))
        self._counts.expired += expired
        self._counts.forgotten += forgotten
        return int(forgotten)

    async def statistics(self) -> dict[str, int]:
        sizes = await self._run(STATISTICS, _Who(bytes(16), _NOBODY))
        self._counts.expired += sizes[4]
        named = dict(zip(("bytes", "thoughts", "conversations", "notes"), sizes[:4], strict=True))
        counts = {item.name: int(getattr(self._counts, item.name)) for item in fields(self._counts)}
        return named | counts | {"unreadable": self._unreadable}

    async def close(self) -> None:
        """Ends the thread; the link may be in use by others and is closed by who made it."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self, script: Script, who: _Who, *args: Argument) -> Any:
        now = str(int(self._wall() * 1e6)) if self._wall is not None else ""
        retention_s = self._bounds.retention_s
        ttl_s = retention_s + min(_TTL_GRACE_S, retention_s / 10)
        common: tuple[Argument, ...] = (now, int(retention_s * 1e6), max(1, int(ttl_s * 1e3)), who.key, who.user)
        return await self._link.run(script, [self._prefix], [*common, *args])

    async def _beside(self, size_bytes: int, work: Callable[[], T]) -> T:
        """What the work gives; in the thread where it would hold up the loop. One thread: several would only take
        turns at the interpreter's lock."""
        if size_bytes <= _QUICK_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _who(self, owner: Owner) -> _Who:
        key = self._seal.digest(b"key", owner.key.encode("utf-8", "surrogatepass"))[:16]
        return _Who(key, self._seal.digest(b"user", key, owner.end_user))

    def _place(self, kind: bytes, who: _Who, digest: bytes) -> bytes:
        """Where this owner's things lie; two owners of the same conversation have nothing in common there."""
        return self._seal.digest(kind, who.id, digest)

    def _written(
        self, who: _Who, keys: TurnKeys, thought: Thought, conversation: bytes
    ) -> tuple[bytes, bytes, bytes, int, bytes]:
        """A thought as the script takes it: chain, anchor, digest of the thought, size, record."""
        chain = self._place(b"chain", who, keys.chain)
        anchor = self._place(b"anchor", who, keys.anchor) if keys.anchor else b""
        same = self._seal.digest(b"thought", who.id, *_marked(thought.text), *_marked(thought.details))[:16]
        data = pack(Record(thought, keys.chain, keys.anchor, conversation or keys.chain))
        record = self._seal.seal(data, b"thought" + who.id + chain)
        return chain, anchor, same, thought.size_bytes + THOUGHT_OVERHEAD_BYTES, record

    def _opened(self, who: _Who, stored: _Stored | None) -> Found | None:
        """The thought of a record that is what it was found as; None for any other, which is counted."""
        if stored is None:
            return None
        try:
            record = unpack(self._seal.open(stored.data, b"thought" + who.id + stored.place))
        except (SealError, RecordError):
            self._unreadable += 1
            return None
        wanted = stored.keys.chain if stored.by == "chain" else stored.keys.anchor
        if (record.chain if stored.by == "chain" else record.anchor) != wanted:
            self._unreadable += 1
            return None
        return Found(record.thought, stored.conversation, stored.by)

    def _note(self, who: _Who, hidden: Sequence[bytes], notes: Sequence[bytes]) -> bytes | None:
        for place, data in zip(hidden, notes, strict=True):
            if data:
                try:
                    return self._seal.open(data, b"note" + who.id + place)
                except SealError:
                    self._unreadable += 1
        return None

    def _count(self, found: Sequence[Found | None]) -> None:
        for item in found:
            if item is None:
                self._counts.not_found += 1
            elif item.by == "chain":
                self._counts.found_by_chain += 1
            else:
                self._counts.found_by_anchor += 1


def _marked(text: bytes | None) -> tuple[bytes, bytes]:
    """A text as two fields of a digest: one that is empty is not one that is absent."""
    return (b"", b"") if text is None else (b"+", text)


def _stored(
    wanted: Sequence[TurnKeys], signs: str, heads: bytes, records: Sequence[bytes]
) -> list[_Stored | None]:
    """The records of a reply, by sign: "c" found by the chain, "a" by the anchor, "-" not at all. For each that
    is there the heads have its conversation and the place of its chain, 32 bytes each."""
    stored: list[_Stored | None] = []
    at = 0
    for keys, sign, record in zip(wanted, signs, records, strict=True):
        if sign == "-":
            stored.append(None)
            continue
        by: By = "chain" if sign == "c" else "anchor"
        stored.append(_Stored(keys, by, heads[at : at + 32], heads[at + 32 : at + 64], record))
        at += 64
    return stored
