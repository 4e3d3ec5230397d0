"""From the journal into the ledger: in time, exactly once, whatever dies or is away."""

import logging
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pricing.ledger.address import ledger_id
from pricing.ledger.drain import Drainer
from pricing.ledger.errors import LedgerDown, LedgerMissing
from pricing.ledger.framing import frame
from pricing.ledger.journal import JournalWriter
from pricing.ledger.journal_files import list_journals
from pricing.ledger.store import Store
from pricing.ledger.undrained import undrained
from support.ledger_rows import ledger_url, open_row, settled_row


class Clock:
    """Unix seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1_796_040_000.0

    def __call__(self) -> float:
        return self.now


class Lab:
    """A directory with a ledger, a journal and a clock; processes are writer and drainer pairs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = ledger_url(directory)
        self.journal = directory / "journal"
        self.clock = Clock()

    def writer(self, *, segment_bytes: int = 1 << 20) -> JournalWriter:
        """The journal of one process."""
        return JournalWriter(self.journal, self.url, max_bytes=1 << 24, fsync=False, segment_bytes=segment_bytes)

    def drainer(self, own: JournalWriter | None, *, interval_s: float = 0.01, adopt_s: float = 60) -> Drainer:
        """The drainer of one process, on the clock of the lab."""
        return Drainer(self.journal, self.url, own=own, interval_s=interval_s, adopt_s=adopt_s, clock=self.clock)

    def statuses(self, *request_ids: str) -> list[str | None]:
        """What the ledger says of these requests; nothing where it is not there yet."""
        try:
            store = Store(self.url)
        except LedgerMissing:
            return [None for _ in request_ids]
        rows = [store.get(request_id) for request_id in request_ids]
        store.close()
        return [None if row is None else row.status for row in rows]

    def files(self) -> list[str]:
        """The journals that are left."""
        return [file.name for file in list_journals(self.journal, ledger_id(self.url))]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """An empty place."""
    return Lab(tmp_path)


def eventually(claim: Callable[[], bool], *, timeout_s: float = 10) -> None:
    """Waits until the claim holds."""
    end = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.005)


def test_a_settled_request_is_a_row_at_once_and_an_open_one_after_a_second(lab: Lab) -> None:
    writer = lab.writer()
    drainer = lab.drainer(writer)
    writer.append_open(open_row("short"))
    writer.append_settled(settled_row("short"))
    writer.append_open(open_row("long"))
    assert drainer.drain_once() == 1
    assert lab.statuses("short", "long") == ["ok", None]
    lab.clock.now += 1.1
    assert drainer.drain_once() == 1
    store = Store(lab.url)
    row = store.get("long")
    store.close()
    assert row is not None
    assert (row.status, row.owner, row.lease_until) == ("open", writer.owner, lab.clock.now + 60)
    writer.append_settled(settled_row("long"))
    assert drainer.drain_once() == 1
    assert lab.statuses("long") == ["ok"]
    drainer.close()
    writer.close()


def test_the_thread_drains_and_a_clean_end_leaves_no_file(lab: Lab) -> None:
    writer = lab.writer()
    drainer = lab.drainer(writer)
    drainer.start()
    for number in range(50):
        writer.append_open(open_row(f"r{number}"))
        writer.append_settled(settled_row(f"r{number}"))
    eventually(lambda: lab.statuses("r49") == ["ok"])
    writer.append_settled(settled_row("last"))
    assert drainer.stop(timeout_s=10)
    writer.close()
    assert lab.statuses("last") == ["ok"]
    assert list(lab.journal.iterdir()) == []


def test_a_request_under_way_at_the_end_leaves_the_file_for_adoption(lab: Lab) -> None:
    writer = lab.writer()
    drainer = lab.drainer(writer)
    writer.append_open(open_row("a", completion_tokens=3))
    assert not drainer.stop(timeout_s=10)
    writer.close()
    assert len(lab.files()) == 1
    other = lab.drainer(None)
    assert other.drain_once() == 1
    other.close()
    assert lab.statuses("a") == ["unsettled"]
    assert lab.files() == []


def test_segments_are_deleted_when_all_in_them_is_in_the_ledger(lab: Lab) -> None:
    writer = lab.writer(segment_bytes=2000)
    drainer = lab.drainer(writer)
    writer.append_open(open_row("long"))
    for number in range(20):
        writer.append_settled(settled_row(f"r{number}"))
    assert len(lab.files()) > 4
    drainer.drain_once()
    kept = lab.files()
    assert kept[0].endswith("000000.journal")  # `long` is not in the ledger yet
    lab.clock.now += 2
    drainer.drain_once()
    assert len(lab.files()) == 1
    writer.append_settled(settled_row("long"))
    drainer.drain_once()
    assert lab.statuses("long", "r0", "r19") == ["ok", "ok", "ok"]
    assert drainer.stop(timeout_s=10)
    writer.close()
    assert lab.files() == []


def test_leases_are_renewed_while_the_owner_lives_and_run_out_after(lab: Lab) -> None:
    writer = lab.writer()
    drainer = lab.drainer(writer)
    writer.append_open(open_row("a"))
    drainer.drain_once()
    for _ in range(10):
        lab.clock.now += 25
        drainer.drain_once()
    assert lab.statuses("a") == ["open"]
    other = lab.drainer(None)
    lab.clock.now += 61  # the owner is cut off: another host sees only its lease
    other.drain_once()
    assert lab.statuses("a") == ["unsettled"]
    writer.append_settled(settled_row("a"))
    drainer.drain_once()
    assert lab.statuses("a") == ["ok"]
    other.close()
    drainer.close()
    writer.close()


def test_an_outage_costs_nothing(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    (lab.directory / "ledger.db").mkdir()
    writer = lab.writer()
    drainer = lab.drainer(writer)
    drainer.start()
    eventually(lambda: drainer.problem is not None)
    for number in range(100):
        writer.append_open(open_row(f"r{number}"))
        writer.append_settled(settled_row(f"r{number}"))
    (lab.directory / "ledger.db").rmdir()
    eventually(lambda: drainer.problem is None)
    assert drainer.stop(timeout_s=10)
    writer.close()
    store = Store(lab.url)
    assert store.report(())[0].requests == 100
    store.close()
    messages = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert sum("does not take records" in message for message in messages) == 1


def test_a_ledger_whose_disk_is_full_gets_everything_when_there_is_room(lab: Lab) -> None:
    writer = lab.writer()
    drainer = lab.drainer(writer)
    writer.append_settled(settled_row("first"))
    drainer.drain_once()
    for number in range(200):
        writer.append_settled(settled_row(f"r{number}", message="x" * 1000))
    size_bytes = max(path.stat().st_size for path in lab.directory.iterdir() if path.is_file())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes + 8192, hard))
    try:
        with pytest.raises(LedgerDown):
            drainer.drain_once()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert drainer.drain_once() == 200
    assert drainer.stop(timeout_s=5)
    writer.close()
    store = Store(lab.url)
    assert store.report(())[0].requests == 201
    assert store.inconsistencies() == []
    store.close()


def test_a_failed_batch_is_booked_at_the_next_try(lab: Lab) -> None:
    (lab.directory / "ledger.db").mkdir()
    writer = lab.writer()
    drainer = lab.drainer(writer)
    writer.append_settled(settled_row("a"))
    with pytest.raises(LedgerDown):
        drainer.drain_once()
    (lab.directory / "ledger.db").rmdir()
    assert drainer.drain_once() == 1
    assert drainer.stop(timeout_s=5)
    writer.close()


def test_what_a_dead_process_left_is_adopted_at_the_start(lab: Lab) -> None:
    dead = lab.writer(segment_bytes=2000)
    dead.append_open(open_row("ended"))
    dead.append_open(open_row("cut", completion_tokens=1))
    for number in range(10):
        dead.append_settled(settled_row(f"r{number}"))
    dead.append_progress(open_row("cut", completion_tokens=8))
    dead.append_settled(settled_row("ended"))
    dead.close()
    (lab.journal / "x.0.journal.new").write_bytes(b"")
    writer = lab.writer()
    drainer = lab.drainer(writer)
    drainer.start()
    eventually(lambda: lab.statuses("cut") == ["unsettled"])
    assert drainer.stop(timeout_s=10)
    writer.close()
    assert lab.statuses("ended", "cut", "r9") == ["ok", "unsettled", "ok"]
    store = Store(lab.url)
    row = store.get("cut")
    store.close()
    assert row is not None
    assert row.completion_tokens == 8
    assert list(lab.journal.iterdir()) == []


def test_open_rows_of_a_dead_process_are_unsettled_although_their_segment_is_gone(lab: Lab) -> None:
    dead = lab.writer(segment_bytes=1000)
    its_drainer = lab.drainer(dead)
    dead.append_open(open_row("cut"))
    its_drainer.drain_once()
    lab.clock.now += 2
    for number in range(5):
        dead.append_settled(settled_row(f"r{number}"))
    its_drainer.drain_once()
    assert not lab.files()[0].endswith("000000.journal")
    assert lab.statuses("cut") == ["open"]
    its_drainer.close()
    dead.close()
    other = lab.drainer(None)
    other.drain_once()
    other.close()
    assert lab.statuses("cut") == ["unsettled"]


def test_files_of_living_processes_and_of_other_ledgers_are_left_alone(lab: Lab) -> None:
    living = lab.writer()
    living.append_settled(settled_row("a"))
    foreign = JournalWriter(lab.journal, "sqlite:///elsewhere.db", max_bytes=1 << 20, fsync=False)
    foreign.append_settled(settled_row("b"))
    foreign.close()
    Store(lab.url, create=True).close()
    other = lab.drainer(None)
    assert other.drain_once() == 0
    other.close()
    assert lab.statuses("a", "b") == [None, None]
    assert len(list(lab.journal.iterdir())) == 2
    living.close()


def test_a_damaged_journal_is_read_and_set_aside(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    dead = lab.writer()
    for request_id in ("first", "hurt", "last"):
        dead.append_settled(settled_row(request_id))
    dead.close()
    (file,) = list_journals(lab.journal, ledger_id(lab.url))
    data = bytearray(file.path.read_bytes())
    data[data.index(b'"hurt"') + 1] ^= 1
    file.path.write_bytes(data)
    Store(lab.url, create=True).close()
    other = lab.drainer(None)
    assert other.drain_once() == 2
    other.close()
    assert lab.statuses("first", "hurt", "last") == ["ok", None, "ok"]
    assert [path.suffix for path in lab.journal.iterdir()] == [".damaged"]
    assert any("are no record" in record.message for record in caplog.records)


def test_a_torn_last_record_costs_only_itself(lab: Lab) -> None:
    dead = lab.writer()
    dead.append_settled(settled_row("whole"))
    dead.append_settled(settled_row("torn"))
    dead.close()
    (file,) = list_journals(lab.journal, ledger_id(lab.url))
    os.truncate(file.path, file.path.stat().st_size - 20)
    Store(lab.url, create=True).close()
    other = lab.drainer(None)
    assert other.drain_once() == 1
    other.close()
    assert lab.statuses("whole", "torn") == ["ok", None]


def test_a_newer_format_is_left_to_a_newer_version(lab: Lab) -> None:
    dead = lab.writer()
    dead.append_settled(settled_row("a"))
    dead.close()
    (file,) = list_journals(lab.journal, ledger_id(lab.url))
    head = b'{"kind":"head","format":99,"ledger_id":"x","ledger":"","owner":"o","pid":1,"segment":0}'
    file.path.write_bytes(frame(head) + file.path.read_bytes())
    Store(lab.url, create=True).close()
    other = lab.drainer(None)
    assert other.drain_once() == 0
    other.close()
    assert file.path.exists()


def test_an_adoption_that_was_killed_begins_where_the_ledger_remembers(lab: Lab) -> None:
    dead = lab.writer()
    for number in range(3):
        dead.append_settled(settled_row(f"r{number}"))
    (file,) = dead.files()
    middle = file.path.read_bytes().index(b'"r2"')
    start_of_line = file.path.read_bytes().rindex(b"\n", 0, middle) + 1
    dead.close()
    store = Store(lab.url, create=True)
    store.book([settled_row("r0"), settled_row("r1")], {file.name: start_of_line})
    store.close()
    other = lab.drainer(None)
    assert other.drain_once() == 1
    other.close()
    assert lab.statuses("r0", "r1", "r2") == ["ok", "ok", "ok"]


def test_without_a_ledger_a_reader_drains_nothing(lab: Lab) -> None:
    dead = lab.writer()
    dead.append_settled(settled_row("a"))
    dead.close()
    other = lab.drainer(None)
    with pytest.raises(LedgerMissing):
        other.drain_once()
    assert len(lab.files()) == 1


def test_what_is_not_in_the_ledger_is_counted_exactly(lab: Lab) -> None:
    writer = lab.writer()
    drainer = lab.drainer(writer)
    writer.append_settled(settled_row("in"))
    writer.append_open(open_row("open in"))
    drainer.drain_once()
    lab.clock.now += 2
    drainer.drain_once()
    writer.append_open(open_row("out"))
    writer.append_settled(settled_row("out"))
    writer.append_settled(settled_row("open in"))
    store = Store(lab.url)
    missing = undrained(lab.journal, ledger_id(lab.url), store)
    assert missing.records == 3
    assert {request_id: row.status for request_id, row in missing.rows.items()} == {"out": "ok", "open in": "ok"}
    drainer.drain_once()
    assert undrained(lab.journal, ledger_id(lab.url), store).records == 0
    store.close()
    drainer.close()
    writer.close()
