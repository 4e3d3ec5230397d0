"""Conversations in the process: thoughts as the store keeps them, and a bounded number of notes."""

from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from kimi_gateway.adapters.state.memory import MemoryConversations
from kimi_gateway.adapters.state.opening import open_state
from kimi_gateway.core.thought_record import Owner
from kimi_gateway.core.thoughts import Bounds
from support.thoughts import ANNE, BOB, OTHER, keys, thought

T = TypeVar("T")
P, Q = b"p" * 32, b"q" * 32


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; it must not wait for anything."""
    with pytest.raises(StopIteration) as stop:
        work.send(None)
    result: T = stop.value.value
    return result


def note(kept: MemoryConversations, owner: Owner, *places: bytes) -> bytes | None:
    return at_once(kept.recall(owner, [], places)).note


def put(kept: MemoryConversations, owner: Owner, text: bytes, *places: bytes) -> None:
    at_once(kept.keep(owner, [], places=places, note=text))


def test_thoughts_are_found_by_their_owner_and_nothing_waits() -> None:
    kept = MemoryConversations(Bounds(), Clock())
    at_once(kept.keep(ANNE, [(keys(1, "a"), thought()), (keys(2), thought("two"))]))
    found = at_once(kept.recall(ANNE, [keys(1), keys(3), keys(9, "a")], [])).found
    assert [hit and (hit.thought, hit.by) for hit in found] == [(thought(), "chain"), None, (thought(), "anchor")]
    assert at_once(kept.recall(BOB, [keys(1)], [])).found == [None]
    assert at_once(kept.statistics())["thoughts"] == 2
    assert at_once(kept.forget_key("team-a")) == 2
    assert at_once(kept.recall(ANNE, [keys(1)], [])).found == [None]
    at_once(kept.close())


def test_a_conversation_goes_on_under_the_name_that_a_find_gave() -> None:
    kept = MemoryConversations(Bounds(), Clock())
    at_once(kept.keep(ANNE, [(keys(1), thought())]))
    (hit,) = at_once(kept.recall(ANNE, [keys(1)], [])).found
    assert hit is not None
    at_once(kept.keep(ANNE, [(keys(2), thought())], conversation=hit.conversation))
    assert at_once(kept.statistics())["conversations"] == 1


def test_a_note_is_found_at_the_first_place_that_has_one_by_its_owner_alone() -> None:
    kept = MemoryConversations(Bounds(), Clock())
    put(kept, ANNE, b"one", P, Q)
    put(kept, ANNE, b"two", Q)
    assert note(kept, ANNE, b"no such place", Q, P) == b"two"
    assert note(kept, ANNE, P, Q) == b"one"
    assert note(kept, BOB, P) is note(kept, OTHER, P) is None
    assert at_once(kept.forget_key("team-a")) == 0
    assert note(kept, ANNE, P, Q) is None


def test_a_note_lives_from_its_last_use() -> None:
    clock = Clock()
    kept = MemoryConversations(Bounds(retention_s=100), clock)
    put(kept, ANNE, b"one", P)
    put(kept, ANNE, b"two", Q)
    clock.now_s = 99
    assert note(kept, ANNE, P) == b"one"
    clock.now_s = 100
    assert note(kept, ANNE, Q) is None
    clock.now_s = 198
    assert note(kept, ANNE, P) == b"one"
    clock.now_s = 298
    assert note(kept, ANNE, P) is None
    assert at_once(kept.statistics())["notes"] == 0


def test_a_flood_of_notes_takes_no_more_than_its_room_and_nobody_elses() -> None:
    kept = MemoryConversations(Bounds(), Clock(), max_notes=20)
    for number in range(5):
        put(kept, OTHER, b"note", b"%032d" % number)
    for number in range(100):
        put(kept, ANNE, b"note", b"%032d" % number)
    assert at_once(kept.statistics())["notes"] == 20
    assert [note(kept, OTHER, b"%032d" % number) for number in range(5)] == [b"note"] * 5
    assert note(kept, ANNE, b"%032d" % 84) is None
    assert note(kept, ANNE, b"%032d" % 85) == b"note"


def test_a_note_of_more_than_a_kilobyte_is_refused() -> None:
    kept = MemoryConversations(Bounds(), Clock())
    with pytest.raises(ValueError, match="1024 bytes, not 1025"):
        at_once_raising(kept.keep(ANNE, [], places=[P], note=bytes(1025)))
    put(kept, ANNE, bytes(1024), P)
    assert note(kept, ANNE, P) == bytes(1024)


def at_once_raising(work: Coroutine[Any, Any, object]) -> None:
    work.send(None)


def test_memory_is_opened_without_a_server_and_has_nothing_to_say() -> None:
    state = open_state("memory://", on_outage="closed", bounds=Bounds(), secret=None, mono=Clock())
    assert isinstance(state.conversations, MemoryConversations)
    assert (state.link, state.embedded, state.shown) == (None, None, "memory://")
    assert at_once(state.look()) == ()
    at_once(state.close())
