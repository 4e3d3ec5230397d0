"""Ends of requests that could not be booked at once: kept, bounded, and booked as soon as that works."""

import asyncio
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import pytest
from typing_extensions import override

from kimi_gateway.adapters.ledger import JournalBooks
from kimi_gateway.adapters.unwritten import Unwritten
from kimi_gateway.errors import LedgerUnavailable
from kimi_gateway.logs import LineWriter, Log
from pricing.ledger.drain import Drainer
from pricing.ledger.errors import JournalError
from pricing.ledger.journal import JournalWriter
from pricing.ledger.records import encode
from pricing.ledger.row import LedgerRow
from pricing.ledger.store import Store
from support.ledger_rows import ledger_url, open_row, settled_row
from support.processes import run_module


class Moody(JournalWriter):
    """A journal on a disk that is full whenever a test says so."""

    broken = False
    opens_fit = False  # a short record may fit where a long one does not

    @override
    def append_open(self, row: LedgerRow) -> None:
        if not self.opens_fit:
            self._check()
        super().append_open(row)

    @override
    def append_settled(self, row: LedgerRow) -> None:
        self._check()
        super().append_settled(row)

    def _check(self) -> None:
        if self.broken:
            raise JournalError("the disk is full; make room on it")


@dataclass(slots=True)
class Lab:
    """Books over such a journal; the clock moves on by `step_s` whenever it is read."""

    directory: Path
    unwritten: Unwritten = field(default_factory=Unwritten)
    step_s: float = 0.0
    stream: StringIO = field(default_factory=StringIO)
    now: float = 100.0
    journal: Moody = field(init=False)
    books: JournalBooks = field(init=False)
    log: Log = field(init=False)

    def __post_init__(self) -> None:
        url = ledger_url(self.directory)
        journal_dir = self.directory / "journal"
        Store(url, create=True).close()
        self.journal = Moody(journal_dir, url, max_bytes=1 << 24, fsync=False)
        self.log = Log(LineWriter(self.stream, format="json"), wall=lambda: 0.0)
        self.books = JournalBooks(
            self.journal,
            Drainer(journal_dir, url, own=self.journal),
            on_full="refuse",
            log=self.log,
            mono=self.mono,
            unwritten=self.unwritten,
        )

    def mono(self) -> float:
        self.now += self.step_s
        return self.now

    def end(self, *names: str) -> None:
        """These requests end."""
        for name in names:
            self.books.settled(settled_row(name))

    def statuses(self, *names: str) -> list[str | None]:
        """What the ledger has in the end."""
        self.books.close(10)
        store = Store(ledger_url(self.directory))
        rows = [store.get(name) for name in names]
        store.close()
        return [None if row is None else row.status for row in rows]


@contextmanager
def lab(directory: Path, **options: object) -> Iterator[Lab]:
    made = Lab(directory, **options)  # type: ignore[arg-type]  # a test's shorthand
    try:
        yield made
    finally:
        made.books.close(10)
        made.log.close()


def test_an_end_that_the_disk_had_no_room_for_is_booked_with_the_next_request(tmp_path: Path) -> None:
    with lab(tmp_path) as made:
        for name in ("a", "b"):
            made.books.open(open_row(name))
        made.journal.broken = True
        made.end("a", "b")
        assert made.books.problem() == "the journal cannot be written"
        made.journal.broken = False
        made.books.open(open_row("c"))
        assert made.books.problem() == ""
        assert (len(made.unwritten), made.books.lost) == (0, 0)
        made.end("c")
        assert made.statuses("a", "b", "c") == ["ok", "ok", "ok"]


def test_nothing_new_takes_the_room_that_an_end_needs(tmp_path: Path) -> None:
    with lab(tmp_path) as made:
        made.books.open(open_row("a"))
        made.journal.broken = made.journal.opens_fit = True
        made.end("a")
        with pytest.raises(LedgerUnavailable):
            made.books.open(open_row("b"))


def test_what_waits_is_booked_without_any_request(tmp_path: Path) -> None:
    async def main(made: Lab) -> None:
        made.books.open(open_row("a"))
        made.journal.broken = True
        made.end("a")
        retrying = asyncio.create_task(made.books.keep_writing(every_s=0.01))
        await asyncio.sleep(0.05)
        assert len(made.unwritten) == 1
        made.journal.broken = False
        for _ in range(500):
            if not made.books.problem():
                break
            await asyncio.sleep(0.01)
        retrying.cancel()
        with suppress(asyncio.CancelledError):
            await retrying
        assert len(made.unwritten) == 0

    with lab(tmp_path) as made:
        asyncio.run(main(made))
        assert made.statuses("a") == ["ok"]
    assert made.stream.getvalue().count("takes records again") == 1


def test_a_journal_that_stays_broken_is_not_given_up_on_after_a_while(tmp_path: Path) -> None:
    with lab(tmp_path) as made:
        made.books.open(open_row("a"))
        made.journal.broken = True
        made.end("a")
        made.now += 60
        assert made.books.problem() == "the journal cannot be written"


def test_what_waits_is_written_a_few_milliseconds_at_a_time(tmp_path: Path) -> None:
    names = [f"r{number}" for number in range(40)]
    with lab(tmp_path) as made:
        for name in names:
            made.books.open(open_row(name))
        made.journal.broken = True
        made.end(*names)
        made.journal.broken = False
        made.step_s = 0.001
        made.books.open(open_row("next"))
        assert 30 < len(made.unwritten) < 40
        made.step_s = 0.0
        made.end("next")
        assert made.statuses(*names, "next") == ["ok"] * 41


def test_what_exceeds_the_bound_is_counted_and_said(tmp_path: Path) -> None:
    with lab(tmp_path, unwritten=Unwritten(max_rows=2)) as made:
        for name in ("a", "b", "c", "d"):
            made.books.open(open_row(name))
        made.journal.broken = True
        made.end("a", "b")
        made.now += 60
        made.end("c", "d")
        assert made.books.lost == 2
        made.journal.broken = False
        assert made.statuses("a", "b", "c", "d") == ["ok", "ok", None, None]
    said = made.stream.getvalue()
    assert "the end of a could not be booked yet and waits in memory: the disk is full" in said
    assert "the end of c is lost" in said
    assert '"lost":2' in said.splitlines()[-1]


def test_the_bound_counts_bytes_as_well() -> None:
    rows = [settled_row(f"r{number}", message="x" * 1000) for number in range(3)]
    unwritten = Unwritten(max_bytes=2 * len(encode(rows[0])))
    assert [unwritten.keep(row) for row in rows] == [True, True, False]
    seen: list[LedgerRow] = []
    unwritten.write(seen.append, lambda: not seen)
    assert seen == rows[:1]
    assert unwritten.keep(rows[2])
    unwritten.write(seen.append, lambda: True)
    assert seen == rows
    assert unwritten.forget() == 0


def test_a_disk_that_stays_full_to_the_end_costs_the_end_and_says_so(tmp_path: Path) -> None:
    with lab(tmp_path) as made:
        made.books.open(open_row("a"))
        made.journal.broken = True
        made.end("a")
        assert not made.books.close(10)
        assert made.books.lost == 1
    assert "the ends of 1 requests are lost, they could not be booked: the disk is full" in made.stream.getvalue()
    heir = Drainer(tmp_path / "journal", ledger_url(tmp_path), own=None)
    heir.drain_once()
    heir.close()
    assert made.statuses("a") == ["unsettled"]  # that it was served stays known


FULL_DISK = """
    import resource, sys, time
    from io import StringIO
    from pathlib import Path
    from kimi_gateway.adapters.ledger import open_books
    from kimi_gateway.errors import LedgerUnavailable
    from kimi_gateway.logs import LineWriter, Log
    from kimi_gateway.settings import Ledger, Timing
    from pricing.ledger.store import Store
    from support.ledger_rows import open_row, settled_row

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    home, how = Path(sys.argv[1]), sys.argv[2]
    ledger = Ledger(url=f"sqlite:///{home / 'ledger.db'}", journal_dir=str(home / "journal"))
    log = Log(LineWriter(StringIO(), format="json"), wall=lambda: 0.0)
    books = open_books(ledger, Timing(), log=log, mono=time.monotonic)
    names = [f"r{number}" for number in range(40)]
    for name in names:
        books.open(open_row(name))
    (journal,) = (home / "journal").glob("*.journal")
    limit(journal.stat().st_size + 1000)  # in the middle of the second record from here
    for name in names:
        books.settled(settled_row(name, message="x" * 300))
    refused = 0
    try:
        books.open(open_row("refused"))
    except LedgerUnavailable:
        refused = 1
    problem = books.problem()
    limit(resource.RLIM_INFINITY)
    if how == "next":
        books.open(open_row("next"))
        books.settled(settled_row("next"))
    complete = books.close(10)
    store = Store(ledger.url)
    print(refused, problem, complete, books.lost, {store.get(name).status for name in names})
    store.close()
    log.close()
    print(list((home / "journal").iterdir()))
"""


@pytest.mark.parametrize("how", ["next", "close"])
def test_a_full_disk_loses_no_end_and_damages_nothing(tmp_path: Path, how: str) -> None:
    """A file-size limit stands in for the disk, in a process of its own: it would hit this one's files as well."""
    done = run_module("-c", textwrap.dedent(FULL_DISK), str(tmp_path), how, directory=tmp_path)
    assert done.stdout.splitlines() == ["1 the journal cannot be written True 0 {'ok'}", "[]"], done.stderr
