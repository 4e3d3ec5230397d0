"""The shared store against the model of the one in memory: the same sequences of calls, the same promises."""

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from gateway.test_thoughts_model import OWNERS, StoreMachine
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from typing_extensions import override

from kimi_gateway.core.digest import TurnKeys
from kimi_gateway.core.thought_record import Owner
from kimi_gateway.core.thoughts import Bounds, ThoughtStore
from support.thoughts import ANNE, BOB, OTHER, OVERHEAD, keys, sized, store
from support.valkey import Server, Shared, running

PHASES = [phase for phase in Phase if phase is not Phase.shrink]  # with a server it outlasts the time for a test


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(Path(tmp_path_factory.mktemp("v"))) as server:
        yield server


class SharedMachine(StoreMachine):
    """The model's machine over a shared store. One owner cannot be deleted there, only a key."""

    server: ClassVar[Server]

    def __init__(self) -> None:
        super().__init__()
        self.shared = Shared(self.server, Bounds(self.MAX, self.PER_KEY, self.RETENTION_S))
        self.store = cast(ThoughtStore, self.shared)

    @override
    @rule(owner=st.sampled_from(OWNERS), whole_key=st.just(True))
    def forget(self, owner: Owner, whole_key: bool) -> None:
        self.shared.forget_key(owner.key)
        for name in [name for name in self.kept if name[0].key == owner.key]:
            del self.kept[name]
        assert self.shared.owner_bytes(owner) == 0

    @override
    def teardown(self) -> None:
        """With everything forgotten nothing is left on the server but sums that are nought."""
        for key in "abc":
            self.shared.forget_key(key)
        sums = self.shared.raw.hgetall(self.shared.name("meta"))
        left = self.shared.names()
        self.shared.close()
        assert set(sums.values()) <= {b"0"}
        assert left in ([], [self.shared.name("meta")])


def test_any_sequence_of_calls_keeps_the_bounds_of_a_shared_store(server: Server) -> None:
    SharedMachine.server = server
    run_state_machine_as_test(
        SharedMachine,
        settings=settings(
            max_examples=10,
            stateful_step_count=20,
            deadline=None,
            phases=PHASES,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


@settings(max_examples=20, deadline=None, phases=PHASES)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["keep", "find"]), st.integers(0, 9), st.integers(OVERHEAD, 6000)), max_size=30
    )
)
def test_for_one_caller_a_shared_store_is_a_plain_lru(server: Server, steps: list[tuple[str, int, int]]) -> None:
    bound = 16_000
    shared = Shared(server, Bounds(1 << 30, bound))
    model: OrderedDict[int, int] = OrderedDict()
    for action, name, size in steps:
        if action == "find":
            assert (shared.find(ANNE, [keys(name)], 0) != [None]) == (name in model)
        elif name not in model:
            shared.keep(ANNE, keys(name), sized(size), 0)
            while sum(model.values()) + size > bound:
                model.popitem(last=False)
            model[name] = size
        else:
            assert shared.keep(ANNE, keys(name), sized(size), 0) == "known"
        if name in model:
            model.move_to_end(name)
        assert shared.size_bytes == sum(model.values())
    shared.close()


Step = tuple[str, int, int, int, int]


@settings(max_examples=25, deadline=None, phases=PHASES)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["keep", "keep", "keep", "find", "wait"]),
            st.integers(0, 4),
            st.integers(0, 7),
            st.integers(0, 9),
            st.integers(OVERHEAD, 9000),
        ),
        max_size=25,
    )
)
def test_a_shared_store_does_what_the_one_in_memory_does(server: Server, steps: list[Step]) -> None:
    """Step by step: outcomes, what is found by what, and who holds how much. One turn is looked up at a time, and
    sizes differ: among what was used at the same moment and among equals each chooses in its own way."""
    bounds = Bounds(40_000, 25_000, 50.0)
    one, other = store(bounds.max_bytes, bounds.max_bytes_per_key, bounds.retention_s), Shared(server, bounds)
    now_s = 0.0
    for number, (action, who, name, anchor, size) in enumerate(steps):
        owner, turn = OWNERS[who], keys((who, name), anchor % 4)
        now_s += 20.0 if action == "wait" else 1e-3
        if action == "keep":
            home = keys((who, anchor)).chain
            text = sized(size + 16 * number + who)
            arguments: Any = (owner, turn, text, now_s)
            assert one.keep(*arguments, conversation=home) == other.keep(*arguments, conversation=home)
        for wanted in (turn, keys("no such chain", anchor % 4), TurnKeys(keys((who, anchor)).chain, None)):
            now_s += 1e-3
            hits = [each.find(owner, [wanted], now_s)[0] for each in (one, other)]
            assert len({hit and (hit.thought.text, hit.by) for hit in hits}) == 1
        assert [one.owner_bytes(each) for each in OWNERS] == [other.owner_bytes(each) for each in OWNERS]
        assert (one.size_bytes, one.thoughts) == (other.size_bytes, other.thoughts)
    other.close()


Put = tuple[Owner, object, int, object]
"""Whose thought, of which turn, how large with its overhead, in which turn's conversation (None: a new one)."""

C = Owner("team-c")
SCENES: dict[str, tuple[Bounds, list[Put], dict[str, int]]] = {
    "a flood of one key leaves the others their fair share": (
        Bounds(120_000, 120_000),
        [*((OTHER, n, 4000, None) for n in range(15)), *((ANNE, n, 4000, None) for n in range(60))],
        {"team-a": 60_000, "team-b": 60_000},
    ),
    "a flood of end users reaches no further than its key": (
        Bounds(120_000, 120_000),
        [
            *((OTHER, n, 4000, None) for n in range(15)),
            *((Owner("team-a", b"%d" % n), n, 4000, None) for n in range(60)),
        ],
        {"team-a": 60_000, "team-b": 60_000},
    ),
    "end users of one key share its room": (
        Bounds(1 << 30, 60_000),
        [*((ANNE, n, 4000, None) for n in range(40)), *((BOB, n, 4000, None) for n in range(40))],
        {"team-a": 60_000},
    ),
    "who stays within the share loses nothing of its own": (
        Bounds(100_000, 1 << 30),
        [(ANNE, "a", 5000, None), *((OTHER, n, 5000, None) for n in range(19)), (ANNE, "b", 5000, None)],
        {"team-a": 10_000, "team-b": 90_000},
    ),
    "a growing conversation does not go for itself": (
        Bounds(1 << 30, 10_000),
        [(ANNE, "a", 8000, None), (ANNE, "b", 6000, "a")],
        {"team-a": 8000},
    ),
    "a growing conversation above the share spares the modest": (
        Bounds(1 << 30, 60_000),
        [(ANNE, "a", 35_000, None), (BOB, "b", 20_000, None), (ANNE, "c", 13_000, "a")],
        {"team-a": 55_000},
    ),
    "a growing conversation takes what a smaller one has above the share": (
        Bounds(100_000, 1 << 30),
        [
            (ANNE, "a", 50_000, None),
            (C, "c", 10_000, None),
            *((OTHER, n, 4000, None) for n in range(10)),
            (ANNE, "b", 3000 + OVERHEAD, "a"),
        ],
        {"team-a": 53_768, "team-b": 36_000, "team-c": 10_000},
    ),
    "the larger of two above the share gives first": (
        Bounds(100_000, 1 << 30),
        [
            *((OTHER, n, 4000, None) for n in range(10)),
            (C, "c", 5000, None),
            *((ANNE, n, 5000, None) for n in range(11)),
            (ANNE, "more", 8000, None),
        ],
        {"team-a": 53_000, "team-b": 40_000, "team-c": 5000},
    ),
    "a huge one above the share gives way to a modest newcomer": (
        Bounds(100_000, 100_000),
        [(OTHER, "huge", 99_000, None), (ANNE, "new", 5000, None)],
        {"team-a": 5000, "team-b": 0},
    ),
    "one that is larger than the room drives nothing out": (
        Bounds(10_000, 1 << 30),
        [(OTHER, "a", 4000, None), (ANNE, "a", 4000, None), (ANNE, "b", 10_001, None)],
        {"team-a": 4000, "team-b": 4000},
    ),
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_room_is_shared_as_in_memory(server: Server, scene: tuple[Bounds, list[Put], dict[str, int]]) -> None:
    bounds, puts, held = scene
    one, other = ThoughtStore(bounds), Shared(server, bounds)
    for number, (owner, name, size, home) in enumerate(puts):
        arguments: Any = (owner, keys(name), sized(size), number * 1e-3)
        conversation = keys(home).chain if home is not None else b""
        outcomes = [store.keep(*arguments, conversation=conversation) for store in (one, other)]
        assert outcomes[0] == outcomes[1]
    assert {key: one.key_bytes(key) for key in held} == {key: other.key_bytes(key) for key in held} == held
    assert one.counts.evicted == other.counts.evicted
    assert one.counts.evicted_bytes == other.counts.evicted_bytes
    other.close()
