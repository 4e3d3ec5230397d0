"""The books over the journal: booked before the upstream, refused or served when nothing can be booked."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest

from kimi_gateway.adapters.ledger import JournalBooks, open_books
from kimi_gateway.errors import LedgerUnavailable
from kimi_gateway.logs import LineWriter, Log
from kimi_gateway.settings import Ledger, Timing
from pricing.ledger.errors import LedgerError
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


def fill(made: JournalBooks) -> None:
    for number in range(10_000):
        made.open(row(f"kr_{number}", message="x" * 500))


def test_a_full_journal_refuses_with_a_503_and_lets_open_requests_end(tmp_path: Path) -> None:
    with books(ledger(tmp_path, max_journal_bytes=65536)) as (made, stream):
        made.open(row("kr_first"))
        with pytest.raises(LedgerUnavailable) as caught:
            fill(made)
        assert (caught.value.status, caught.value.code) == (503, "ledger_unavailable")
        assert str(tmp_path) not in caught.value.message
        made.settled(row("kr_first", "ok"))
        assert made.unbooked == 0
        made.close(10)
    assert stream.getvalue().count("could not be booked") == 1
    assert "max_journal_bytes" in stream.getvalue()


def test_a_full_journal_serves_where_the_operator_says_so(tmp_path: Path) -> None:
    with books(ledger(tmp_path, max_journal_bytes=65536, on_full="serve")) as (made, _):
        fill(made)
        assert made.unbooked > 9_000
        assert made.problem() == ""


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
