"""The bounded store of thoughts: whose they are, what they hang on, and which go when room runs out.

A thought belongs to an *owner* (a key's name and, where the request names one, its end user), hangs on the chain
and the anchor of its turn (`kimi_gateway.core.digest`) and lives in a *conversation*: the thoughts whose
chains extend one another. Conversations leave whole, because half of one would change the bytes of a shared
prefix and lose the upstream's cache; any use renews them. For the same reason the first thought of a turn stays:
a second answer with the very same visible history does not replace it.

Room is shared fairly. Callers compete for it on two levels, keys for `max_bytes` and the end users of one key for
`max_bytes_per_key`, and on each the largest gives first. Who holds more than a fair share (the room divided by
those who hold anything) never brings another below it, but gives up its own oldest or is refused; who stays
within the share gets it. Bytes are counted with what Python needs around them, so the bounds hold for memory.

A pure data structure: one thread, time passed in. A store elsewhere keeps `thought_record.Record`s.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal

import msgspec

from kimi_gateway.core.digest import TurnKeys
from kimi_gateway.core.shares import Ranking
from kimi_gateway.core.thought_record import Owner, Thought

By = Literal["chain", "anchor"]
Outcome = Literal["kept", "known", "refused"]

# Measured with CPython 3.11, rounded up (`test_the_bytes_that_are_counted_cover_the_memory_that_is_used`).
THOUGHT_OVERHEAD_BYTES: Final = 768
CONVERSATION_OVERHEAD_BYTES: Final = 2048  # with an owner of its own

_ALIKE_MAX: Final = 8  # so many thoughts under one anchor are compared; more are no single one


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept, over all and per key name, and how long after the last use."""

    max_bytes: int = 268_435_456
    max_bytes_per_key: int = 67_108_864
    retention_s: float = 86_400.0


class Found(msgspec.Struct, frozen=True, gc=False):
    """A stored thought, its conversation, and by which key it was found."""

    thought: Thought
    conversation: bytes
    by: By


@dataclass(slots=True)
class Counts:
    """What happened since the start. Evictions and expiries count conversations."""

    kept: int = 0
    known: int = 0
    refused: int = 0
    found_by_chain: int = 0
    found_by_anchor: int = 0
    not_found: int = 0
    evicted: int = 0
    evicted_bytes: int = 0
    expired: int = 0
    forgotten: int = 0


class _Conversation:
    __slots__ = ("caller", "id", "size_bytes", "thoughts", "used_s")

    def __init__(self, caller: "_Caller", conversation: bytes, now_s: float) -> None:
        self.caller = caller
        self.id = conversation
        self.used_s = now_s
        self.size_bytes = CONVERSATION_OVERHEAD_BYTES
        self.thoughts: dict[bytes, tuple[Thought, bytes | None]] = {}  # by chain, with the anchor


class _Caller:
    """One owner's thoughts. `conversations` are in the order of their last use."""

    __slots__ = ("anchors", "chains", "conversations", "key", "name", "rank", "size_bytes")

    def __init__(self, end_user: bytes, key: "_Key") -> None:
        self.name: Hashable = end_user
        self.size_bytes = self.rank = 0
        self.key = key
        self.conversations: OrderedDict[bytes, _Conversation] = OrderedDict()
        self.chains: dict[bytes, _Conversation] = {}
        self.anchors: dict[bytes, dict[bytes, None]] = {}

    def next_out(self) -> _Conversation:
        """Its least recently used conversation."""
        return next(iter(self.conversations.values()))


class _Key:
    """The callers of one key."""

    __slots__ = ("callers", "name", "rank", "size_bytes")

    def __init__(self, name: str) -> None:
        self.name: Hashable = name
        self.size_bytes = self.rank = 0
        self.callers: Ranking[_Caller] = Ranking()

    def next_out(self) -> _Conversation:
        """The least recently used conversation of its largest caller."""
        largest = self.callers.largest()
        assert largest is not None, "a key without callers is taken out"
        return largest.next_out()


class ThoughtStore:
    """The store in memory. The time comes in, in seconds of one clock; one that goes back stands still."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.counts = Counts()
        self.size_bytes = 0
        self.thoughts = 0
        self._keys: Ranking[_Key] = Ranking()
        self._by_age: OrderedDict[_Conversation, None] = OrderedDict()
        self._now_s = float("-inf")

    @property
    def conversations(self) -> int:
        return len(self._by_age)

    def key_bytes(self, key: str) -> int:
        """What one key holds."""
        share = self._keys.members.get(key)
        return share.size_bytes if share is not None else 0

    def owner_bytes(self, owner: Owner) -> int:
        """What one owner holds."""
        caller = self._caller(owner)
        return caller.size_bytes if caller is not None else 0

    def find(self, owner: Owner, wanted: Sequence[TurnKeys], now_s: float) -> list[Found | None]:
        """The thoughts of these turns, each None where there is none or no single one. Renews what it finds."""
        self._advance(now_s)
        caller = self._caller(owner)
        found = [self._find(caller, keys) if caller is not None else None for keys in wanted]
        self.counts.not_found += found.count(None)
        return found

    def keep(
        self, owner: Owner, keys: TurnKeys, thought: Thought, now_s: float, *, conversation: bytes = b""
    ) -> Outcome:
        """Stores the thought of a turn in that conversation of the owner, or in one of its own.

        `known`: the turn has one already, which is renewed. `refused`: there is no room that is the owner's.
        """
        self._advance(now_s)
        caller = self._caller(owner)
        known = caller.chains.get(keys.chain) if caller is not None else None
        if known is not None:
            self._renew(known)
            self.counts.known += 1
            return "known"
        joined = caller.conversations.get(conversation) if caller is not None else None
        if joined is not None:
            self._renew(joined)
        size = thought.size_bytes + THOUGHT_OVERHEAD_BYTES
        new = 0 if joined is not None else CONVERSATION_OVERHEAD_BYTES
        alone = size + (new if joined is None else joined.size_bytes)
        if alone > min(self.bounds.max_bytes, self.bounds.max_bytes_per_key) or not self._make_room(
            owner, size + new, joined
        ):
            self.counts.refused += 1
            return "refused"
        self._add(owner, keys, thought, size, joined)
        self.counts.kept += 1
        return "kept"

    def forget(self, owner: Owner) -> int:
        """Deletes the thoughts of one owner. Gives back how many."""
        caller = self._caller(owner)
        return self._forget(list(caller.conversations.values()) if caller is not None else [])

    def forget_key(self, key: str) -> int:
        """Deletes the thoughts of every owner under one key. Gives back how many."""
        share = self._keys.members.get(key)
        callers = list(share.callers.members.values()) if share is not None else []
        return self._forget([item for caller in callers for item in caller.conversations.values()])

    def expire(self, now_s: float) -> None:
        """Lets go of what was not used for the retention time; `find` and `keep` do so as well."""
        self._advance(now_s)

    def statistics(self) -> dict[str, int]:
        """Sizes and counts by name, for metrics."""
        counts = {item.name: int(getattr(self.counts, item.name)) for item in fields(self.counts)}
        return {"bytes": self.size_bytes, "thoughts": self.thoughts, "conversations": self.conversations} | counts

    def _advance(self, now_s: float) -> None:
        self._now_s = max(self._now_s, now_s)
        while self._by_age:
            oldest = next(iter(self._by_age))
            if oldest.used_s + self.bounds.retention_s > self._now_s:
                return
            self._remove(oldest)
            self.counts.expired += 1

    def _forget(self, conversations: Sequence[_Conversation]) -> int:
        before = self.thoughts
        for conversation in conversations:
            self._remove(conversation)
        self.counts.forgotten += before - self.thoughts
        return before - self.thoughts

    def _caller(self, owner: Owner) -> _Caller | None:
        key = self._keys.members.get(owner.key)
        return key.callers.members.get(owner.end_user) if key is not None else None

    def _find(self, caller: _Caller, keys: TurnKeys) -> Found | None:
        conversation = caller.chains.get(keys.chain)
        if conversation is not None:
            self.counts.found_by_chain += 1
            self._renew(conversation)
            return Found(conversation.thoughts[keys.chain][0], conversation.id, "chain")
        chains = caller.anchors.get(keys.anchor) if keys.anchor is not None else None
        if chains is None or len(chains) > _ALIKE_MAX:
            return None
        homes = [(chain, caller.chains[chain]) for chain in chains]
        thoughts = {home.thoughts[chain][0] for chain, home in homes}
        if len({(thought.text, thought.details) for thought in thoughts}) != 1:
            return None
        self.counts.found_by_anchor += 1
        for _, home in homes:
            self._renew(home)
        return Found(thoughts.pop(), homes[0][1].id, "anchor")

    def _renew(self, conversation: _Conversation) -> None:
        conversation.used_s = self._now_s
        conversation.caller.conversations.move_to_end(conversation.id)
        self._by_age.move_to_end(conversation)

    def _add(
        self, owner: Owner, keys: TurnKeys, thought: Thought, size_bytes: int, joined: _Conversation | None
    ) -> None:
        key = self._keys.members.get(owner.key) or self._keys.add(_Key(owner.key))
        caller = key.callers.members.get(owner.end_user) or key.callers.add(_Caller(owner.end_user, key))
        conversation = joined
        if conversation is None:
            conversation = _Conversation(caller, keys.chain, self._now_s)
            caller.conversations[conversation.id] = conversation
            self._by_age[conversation] = None
        new_bytes = size_bytes if joined is not None else size_bytes + conversation.size_bytes
        conversation.thoughts[keys.chain] = (thought, keys.anchor)
        conversation.size_bytes += size_bytes
        caller.chains[keys.chain] = conversation
        if keys.anchor is not None:
            caller.anchors.setdefault(keys.anchor, {})[keys.chain] = None
        self.thoughts += 1
        self._grow(caller, new_bytes)

    def _grow(self, caller: _Caller, by_bytes: int) -> None:
        self.size_bytes += by_bytes
        self._keys.resize(caller.key, by_bytes)
        caller.key.callers.resize(caller, by_bytes)

    def _remove(self, conversation: _Conversation) -> None:
        caller = conversation.caller
        del self._by_age[conversation], caller.conversations[conversation.id]
        for chain, (_, anchor) in conversation.thoughts.items():
            del caller.chains[chain]
            if anchor is not None:
                alike = caller.anchors[anchor]
                del alike[chain]
                if not alike:
                    del caller.anchors[anchor]
        self.thoughts -= len(conversation.thoughts)
        self._grow(caller, -conversation.size_bytes)
        if not caller.conversations:
            caller.key.callers.drop(caller)
        if not caller.key.callers.members:
            self._keys.drop(caller.key)

    def _make_room(self, owner: Owner, need_bytes: int, growing: _Conversation | None) -> bool:
        """Evicts until so many bytes more fit, never the conversation that grows; false where none may go."""
        while True:
            if self.key_bytes(owner.key) + need_bytes > self.bounds.max_bytes_per_key:
                victim = self._out_of_key(owner, need_bytes, growing)
            elif self.size_bytes + need_bytes > self.bounds.max_bytes:
                victim = self._out_of_all(owner, need_bytes, growing)
            else:
                return True
            if victim is None:
                return False
            self.counts.evicted += 1
            self.counts.evicted_bytes += victim.size_bytes
            self._remove(victim)

    def _out_of_all(self, owner: Owner, need_bytes: int, growing: _Conversation | None) -> _Conversation | None:
        own = self._keys.members.get(owner.key)
        other, first = self._keys.contest(own, need_bytes, self.bounds.max_bytes)
        if first and other is not None:
            return other.next_out()
        mine = self._out_of_key(owner, need_bytes, growing) if own is not None else None
        return mine or (other.next_out() if other is not None else None)

    def _out_of_key(self, owner: Owner, need_bytes: int, growing: _Conversation | None) -> _Conversation | None:
        key = self._keys.members[owner.key]
        own = key.callers.members.get(owner.end_user)
        room_bytes = min(self.bounds.max_bytes_per_key, key.size_bytes + need_bytes)
        other, first = key.callers.contest(own, need_bytes, room_bytes)
        if first and other is not None:
            return other.next_out()
        mine = own.next_out() if own is not None else None
        if mine is not None and mine is not growing:
            return mine
        return other.next_out() if other is not None else None
