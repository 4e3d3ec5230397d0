"""The books over the journal: booked before the upstream, refused or served when nothing can be booked."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Literal

import pytest

from kimi_gateway.adapters.ledger import JournalBooks, open_books
from kimi_gateway.errors import LedgerUnavailable
from kimi_gateway.logs import LineWriter, Log
from kimi_gateway.settings import Ledger, Timing
from pricing.ledger.drain import Drainer
from pricing.ledger.errors import LedgerError
from pricing.ledger.journal import JournalWriter
from pricing.ledger.row import LedgerRow, Status
from pricing.ledger.store import Store


def row(request_id: str, status: Status = "open", message: str = "") -> LedgerRow:
    return LedgerRow(request_id=request_id, started_at=1_796_040_000.0, status=status, message=message)


class Clock:
    """Seconds that a test moves on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def ledger(tmp_path: Path, **changes: object) -> Ledger:
    return Ledger(
        url=f"sqlite:///{tmp_path / 'ledger.db'}",
        journal_dir=str(tmp_path / "journal"),
        **changes,  # type: ignore[arg-type]  # a test's shorthand
    )


@contextmanager
def books(ledger: Ledger, clock: Clock | None = None) -> Iterator[tuple[JournalBooks, StringIO]]:
    stream = StringIO()
    log = Log(LineWriter(stream, format="text"), wall=lambda: 0.0)
    made = open_books(ledger, Timing(), log=log, mono=clock or Clock())
    try:
        yield made, stream
    finally:
        made.close(10)
        log.close()


def test_what_is_booked_stands_in_the_ledger_after_the_close(tmp_path: Path) -> None:
    settings = ledger(tmp_path)
    with books(settings) as (made, _):
        made.open(row("kr_1"))
        made.progress(row("kr_1"))
        made.settled(row("kr_1", "ok"))
        assert made.problem() == ""
        assert made.close(10)
    store = Store(settings.url)
    found = store.get("kr_1")
    store.close()
    assert found is not None
    assert found.status == "ok"
    assert os.listdir(settings.journal_dir) == []


@dataclass(frozen=True, slots=True)
class Small:
    """Books over a small journal that nothing drains but the test."""

    books: JournalBooks
    drainer: Drainer
    stream: StringIO


@contextmanager
def small(
    tmp_path: Path,
    *,
    max_bytes: int = 40_000,
    on_full: Literal["refuse", "serve"] = "refuse",
) -> Iterator[Small]:
    settings = ledger(tmp_path)
    directory, clock = Path(settings.journal_dir), Clock()
    journal = JournalWriter(directory, settings.url, max_bytes=max_bytes, fsync=False)
    drainer = Drainer(directory, settings.url, own=journal)
    stream = StringIO()
    log = Log(LineWriter(stream, format="text"), wall=lambda: 0.0)
    made = JournalBooks(journal, drainer, on_full=on_full, log=log, mono=clock)
    try:
        yield Small(made, drainer, stream)
    finally:
        made.close(10)
        log.close()


def serve(made: JournalBooks, count: int) -> int:
    """Serves requests one after another until one is refused; how many were not, at most `count`."""
    for number in range(count):
        told = made.problem()
        try:
            made.open(row(f"kr_{number}", message="x" * 500))
        except LedgerUnavailable:
            assert told == "the journal is full"  # and /ready had said so
            return number
        assert told == ""
        made.settled(row(f"kr_{number}", "ok"))
    return count


def test_a_full_journal_refuses_with_a_503_and_lets_open_requests_end(tmp_path: Path) -> None:
    with small(tmp_path) as made:
        made.books.open(row("kr_first"))
        assert serve(made.books, 1000) < 100
        with pytest.raises(LedgerUnavailable) as caught:
            made.books.open(row("kr_last"))
        assert (caught.value.status, caught.value.code) == (503, "ledger_unavailable")
        assert str(tmp_path) not in caught.value.message
        made.books.settled(row("kr_first", "ok"))
        assert made.books.lost == 0
        made.books.close(10)
    assert made.stream.getvalue().count("could not be booked") == 1
    assert "max_journal_bytes" in made.stream.getvalue()


def test_requests_are_served_again_as_soon_as_the_ledger_has_caught_up(tmp_path: Path) -> None:
    with small(tmp_path) as made:
        for _ in range(5):
            assert 10 < serve(made.books, 1000) < 100
            made.drainer.drain_once()
            assert made.books.problem() == ""


def test_with_a_ledger_that_keeps_up_a_small_journal_never_fills(tmp_path: Path) -> None:
    with small(tmp_path) as made:
        for _ in range(50):
            assert serve(made.books, 20) == 20
            made.drainer.drain_once()


def booked(settings: Ledger) -> int:
    """The requests in the ledger, once all that is left of journals is in it as well."""
    heir = Drainer(Path(settings.journal_dir), settings.url, own=None)
    heir.drain_once()
    heir.close()
    store = Store(settings.url)
    (whole,) = store.report([])
    store.close()
    return whole.requests


def test_a_full_journal_serves_where_the_operator_says_so_and_books_when_it_can(tmp_path: Path) -> None:
    with small(tmp_path, on_full="serve") as made:
        assert serve(made.books, 1000) == 1000
        assert made.books.problem() == ""
        for _ in range(100):
            made.drainer.drain_once()
            made.books.settled(row("kr_last", "ok"))  # any booking brings along what waits in memory
        assert made.books.close(10)
        assert made.books.lost == 0
    assert booked(ledger(tmp_path)) == 1001


def test_what_waits_for_room_at_the_end_goes_into_the_journal_that_is_left(tmp_path: Path) -> None:
    with small(tmp_path, on_full="serve") as made:
        assert serve(made.books, 90) == 90
        assert not made.books.close(10)
        assert made.books.lost == 0
    assert booked(ledger(tmp_path)) == 90


def test_complaints_are_rare_and_a_broken_journal_is_tried_again(tmp_path: Path) -> None:
    clock = Clock()
    with books(ledger(tmp_path), clock) as (made, stream):
        made.close(10)  # the journal takes nothing any more
        for _ in range(20):
            with pytest.raises(LedgerUnavailable):
                made.open(row("kr_1"))
        made.settled(row("kr_1", "ok"))
        assert made.problem() == "the journal cannot be written"
        clock.now += 11
        assert made.problem() == ""
        with pytest.raises(LedgerUnavailable):
            made.open(row("kr_2"))
        assert made.problem() != ""
        made.progress(row("kr_2"))
    assert stream.getvalue().count("could not be booked") == 2


@pytest.mark.parametrize("broken", ["journal", "ledger.db"])
def test_books_that_cannot_be_kept_stop_the_start(tmp_path: Path, broken: str) -> None:
    place = tmp_path / broken
    if broken == "journal":
        place.write_text("a file where a directory should be")
    else:
        place.mkdir()
    with pytest.raises(LedgerError), books(ledger(tmp_path)):
        pass
