"""The store of thoughts against models: a plain LRU for one caller, and any sequence of calls of many."""

from collections import OrderedDict
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kimi_gateway.core.digest import TurnKeys
from kimi_gateway.core.thought_record import Owner, Thought
from kimi_gateway.core.thoughts import THOUGHT_OVERHEAD_BYTES, Found
from support.thoughts import ANNE, OVERHEAD, found, keys, sized, store


@settings(max_examples=100)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["keep", "find"]), st.integers(0, 9), st.integers(OVERHEAD, 6000)), max_size=60
    )
)
def test_for_one_caller_it_is_a_plain_lru(steps: list[tuple[str, int, int]]) -> None:
    bound = 16_000
    thoughts = store(max_bytes_per_key=bound)
    model: OrderedDict[int, int] = OrderedDict()
    for action, name, size in steps:
        if action == "find":
            hit = found(thoughts, ANNE, keys(name))
            assert (hit is not None) == (name in model)
        elif name not in model:
            thoughts.keep(ANNE, keys(name), sized(size), 0)
            while sum(model.values()) + size > bound:
                model.popitem(last=False)
            model[name] = size
        else:
            assert thoughts.keep(ANNE, keys(name), sized(size), 0) == "known"
        if name in model:
            model.move_to_end(name)
        assert thoughts.size_bytes == sum(model.values())


@dataclass
class Kept:
    """What the model knows of one conversation: its turns with their thoughts, and when it was last used."""

    owner: Owner
    turns: dict[TurnKeys, Thought]
    used_s: float


OWNERS = [Owner(key, user) for key in ("a", "b") for user in (b"", b"1")] + [Owner("c")]


class StoreMachine(RuleBasedStateMachine):
    """Any sequence of calls against a model that remembers everything and knows what may be gone."""

    MAX, PER_KEY, RETENTION_S = 50_000, 30_000, 50.0

    def __init__(self) -> None:
        super().__init__()
        self.store = store(self.MAX, self.PER_KEY, self.RETENTION_S)
        self.now_s = 0.0
        self.kept: dict[tuple[Owner, bytes], Kept] = {}
        self.count = 0

    @rule(
        owner=st.sampled_from(OWNERS),
        size=st.integers(0, 12_000),
        anchor=st.integers(0, 3),
        extend=st.booleans(),
        again=st.booleans(),
    )
    def keep(self, owner: Owner, size: int, anchor: int, extend: bool, again: bool) -> None:
        self.store.expire(self.now_s)
        mine = [kept for kept in self.kept.values() if kept.owner == owner]
        self.count += 1
        new = keys((owner, self.count), anchor)
        if again and mine:
            new = next(iter(mine[-1].turns))
        home = mine[-1] if extend and mine else None
        conversation = next(iter(home.turns)).chain if home is not None else b""
        text = Thought(b"%d " % self.count + b"x" * size)
        before = {each: self.store.owner_bytes(each) for each in OWNERS}
        keys_before = {key: self.store.key_bytes(key) for key in "abc"}
        outcome = self.store.keep(owner, new, text, self.now_s, conversation=conversation)
        self._is_fair(owner, before, keys_before, outcome, text)
        if outcome == "kept":
            if home is not None and self._alive(home):
                home.turns[new] = text
            else:
                home = self.kept[owner, new.chain] = Kept(owner, {new: text}, self.now_s)
            home.used_s = self.now_s
        elif outcome == "known":
            mine[-1].used_s = self.now_s

    def _alive(self, kept: Kept) -> bool:
        """Whether the store has the conversation, asked by its first turn; a use of it."""
        first = next(iter(kept.turns))
        (hit,) = self.store.find(kept.owner, [TurnKeys(first.chain, None)], self.now_s)
        if hit is not None:
            kept.used_s = self.now_s
        return hit is not None

    def _is_fair(
        self, owner: Owner, before: dict[Owner, int], keys_before: dict[str, int], outcome: str, text: Thought
    ) -> None:
        holding = [key for key, size in keys_before.items() if size or key == owner.key]
        fair = self.MAX // len(holding)
        own = self.store.key_bytes(owner.key)
        for key in holding:
            if key != owner.key and (own > fair or keys_before[key] <= fair):
                assert self.store.key_bytes(key) >= min(keys_before[key], fair)
        users = [each for each in before if each.key == owner.key and (before[each] or each == owner)]
        fair_in_key = self.PER_KEY // len(users)
        wanted = before[owner] + text.size_bytes + OVERHEAD
        if wanted <= fair_in_key and keys_before[owner.key] + text.size_bytes + OVERHEAD <= fair:
            assert outcome != "refused"

    @rule(owner=st.sampled_from(OWNERS), other=st.sampled_from(OWNERS))
    def find(self, owner: Owner, other: Owner) -> None:
        for kept in [kept for kept in self.kept.values() if kept.owner == other]:
            hits = self.store.find(owner, [TurnKeys(turn.chain, None) for turn in kept.turns], self.now_s)
            if owner != other:
                assert hits == [None] * len(hits)
                continue
            gone = self.now_s >= kept.used_s + self.RETENTION_S
            expected: list[Thought | None] = list(kept.turns.values())
            assert [hit.thought if hit else None for hit in hits] in (
                [[None] * len(hits)] if gone else [expected, [None] * len(hits)]
            )
            if not gone and not self.store.counts.evicted:
                assert None not in hits
            if None not in hits:
                kept.used_s = self.now_s
            else:
                del self.kept[other, next(iter(kept.turns)).chain]

    @rule(owner=st.sampled_from(OWNERS), anchor=st.integers(0, 3))
    def find_by_anchor(self, owner: Owner, anchor: int) -> None:
        (hit,) = self.store.find(owner, [keys("no such chain", anchor)], self.now_s)
        if hit is None:
            return
        assert isinstance(hit, Found)
        homes = [
            kept
            for kept in self.kept.values()
            if kept.owner == owner and (hit.thought, keys("", anchor).anchor) in self._anchored(kept)
        ]
        assert len(homes) == 1
        homes[0].used_s = self.now_s

    def _anchored(self, kept: Kept) -> list[tuple[Thought, bytes | None]]:
        return [(text, turn.anchor) for turn, text in kept.turns.items()]

    @rule(by_s=st.sampled_from([0.0, 0.0, 1.0, 20.0, 60.0]))
    def wait(self, by_s: float) -> None:
        self.now_s += by_s

    @rule(owner=st.sampled_from(OWNERS), whole_key=st.booleans())
    def forget(self, owner: Owner, whole_key: bool) -> None:
        if whole_key:
            self.store.forget_key(owner.key)
            gone = [name for name in self.kept if name[0].key == owner.key]
        else:
            self.store.forget(owner)
            gone = [name for name in self.kept if name[0] == owner]
        for name in gone:
            del self.kept[name]
        assert self.store.owner_bytes(owner) == 0

    @invariant()
    def bounds_hold_and_sums_add_up(self) -> None:
        sizes = [self.store.key_bytes(key) for key in "abc"]
        assert sum(sizes) == self.store.size_bytes <= self.MAX
        assert max(sizes) <= self.PER_KEY
        assert sum(self.store.owner_bytes(owner) for owner in OWNERS) == self.store.size_bytes
        assert self.store.size_bytes >= self.store.thoughts * THOUGHT_OVERHEAD_BYTES


StoreMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_any_sequence_of_calls_keeps_the_bounds = StoreMachine.TestCase
