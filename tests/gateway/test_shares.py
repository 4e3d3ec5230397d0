"""The ranking of those who share the room, and who has to give."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_gateway.core.shares import Ranking


@dataclass
class Block:
    size_bytes: int


@dataclass(eq=False)
class Member:
    name: Hashable
    size_bytes: int = 0
    rank: int = 0
    blocks: list[Block] = field(default_factory=list)

    def next_out(self) -> Block:
        return self.blocks[0]


def ranking(**sizes: list[int]) -> Ranking[Member]:
    members: Ranking[Member] = Ranking()
    for name, blocks in sizes.items():
        member = members.add(Member(name, blocks=[Block(size) for size in blocks]))
        members.resize(member, sum(blocks))
    return members


def contest(members: Ranking[Member], own: str | None, *, need: int, room: int) -> tuple[str | None, bool]:
    other, first = members.contest(members.members[own] if own else None, need, room)
    return (str(other.name) if other else None), first


def test_who_stays_within_the_share_takes_from_the_largest() -> None:
    members = ranking(a=[10], b=[60], c=[30])
    assert contest(members, "a", need=5, room=100) == ("b", True)
    assert contest(members, None, need=25, room=100) == ("b", True)


def test_who_is_above_the_share_never_brings_another_below_it() -> None:
    assert contest(ranking(a=[60], b=[30, 10]), "a", need=5, room=100) == (None, False)
    assert contest(ranking(a=[51], b=[100]), "a", need=5, room=100) == (None, False)
    assert contest(ranking(a=[30], b=[30]), "a", need=30, room=60) == (None, False)


def test_a_newcomer_is_one_more_to_share_with() -> None:
    assert contest(ranking(a=[50], b=[50]), None, need=33, room=100) == ("a", True)
    assert contest(ranking(a=[50], b=[50]), None, need=40, room=100) == (None, False)


def test_who_is_above_the_share_takes_from_a_larger_one_first_and_from_a_smaller_one_last() -> None:
    assert contest(ranking(a=[50], b=[20, 50]), "a", need=5, room=100) == ("b", True)
    assert contest(ranking(a=[80], b=[10, 60]), "a", need=5, room=100) == ("b", False)


def test_alone_there_is_nobody_to_take_from() -> None:
    assert contest(ranking(a=[60]), "a", need=5, room=60) == (None, False)
    assert contest(ranking(), None, need=5, room=60) == (None, False)


def test_of_equals_the_one_unchanged_for_longest_is_first() -> None:
    members = ranking(a=[5], b=[5])
    members.resize(members.members["a"], 0)
    largest = members.largest()
    assert largest is not None
    assert largest.name == "b"


@settings(max_examples=150)
@given(steps=st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 9)), max_size=200), besides=st.integers(0, 5))
def test_the_largest_is_what_a_search_would_find(steps: list[tuple[int, int]], besides: int) -> None:
    members: Ranking[Member] = Ranking()
    for name, by_bytes in steps:
        member = members.members.get(name)
        if member is not None and by_bytes < -1:
            members.drop(member)
        else:
            members.resize(member or members.add(Member(name)), max(by_bytes, 0))
        for left_out in (None, members.members.get(besides)):
            expected = [each.size_bytes for each in members.members.values() if each is not left_out]
            largest = members.largest(left_out)
            assert (largest.size_bytes if largest else None) == max(expected, default=None)
            assert largest is None or members.members[largest.name] is largest
