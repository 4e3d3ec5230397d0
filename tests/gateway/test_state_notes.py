"""Notes on a real server: found where they belong, gone in time, bounded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kimi_gateway.core.thoughts import Bounds
from support.thoughts import ANNE, OTHER, keys
from support.valkey import Server, Shared, running

WIDE = Bounds(1 << 30, 1 << 30, 100.0)
P, Q = b"p" * 32, b"q" * 32


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(Path(tmp_path_factory.mktemp("v"))) as server:
        yield server


@pytest.fixture
def shared(server: Server) -> Iterator[Shared]:
    shared = Shared(server, WIDE)
    yield shared
    shared.close()


def test_a_note_is_found_at_the_first_place_that_has_one_and_lives_from_its_last_use(shared: Shared) -> None:
    shared.note(ANNE, [P, Q], b"one", 0)
    shared.note(ANNE, [Q], b"", 1)
    assert shared.recall(ANNE, [], [b"no such place", Q, P], 2).note == b""
    assert shared.recall(ANNE, [keys(1)], [P, Q], 50).note == b"one"
    assert shared.recall(ANNE, [], [Q], 102).note is None
    assert shared.recall(ANNE, [], [P], 149).note == b"one"
    assert shared.recall(ANNE, [], [P], 249).note is None
    assert shared.recall(ANNE, [], [], 249).note is None


def test_a_flood_of_notes_takes_no_more_than_its_room_and_nobody_elses(server: Server) -> None:
    shared = Shared(server, WIDE, max_notes=12)
    places = [b"%032d" % number for number in range(30)]
    shared.note(OTHER, places[:4], b"note", 0)
    for place in places:
        shared.note(ANNE, [place], b"note", 1)
    assert shared.statistics()["notes"] == 12
    assert [shared.recall(OTHER, [], [place], 2).note for place in places[:4]] == [b"note"] * 4
    assert [shared.recall(ANNE, [], [place], 2).note for place in places[21:23]] == [None, b"note"]
    shared.close()


def test_a_note_of_more_than_a_kilobyte_is_refused(shared: Shared) -> None:
    with pytest.raises(ValueError, match="1024 bytes, not 1025"):
        shared.note(ANNE, [P], bytes(1025), 0)
    shared.note(ANNE, [P], bytes(1024), 0)
    assert shared.recall(ANNE, [], [P], 0).note == bytes(1024)
