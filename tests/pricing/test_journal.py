"""The journal: one locked file per process, one write per record, nothing deleted before it is in the ledger."""

import fcntl
import os
import stat
import textwrap
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pricing.ledger.address import ledger_id, redacted
from pricing.ledger.errors import JournalError, JournalFull
from pricing.ledger.framing import frame
from pricing.ledger.journal import JournalWriter
from pricing.ledger.journal_files import Located, NewerFormat, list_journals, lock_left_behind, open_reader
from pricing.ledger.records import Opened, Progressed, Settled
from support.ledger_rows import ledger_url, open_row, settled_row
from support.processes import run_module

URL = "sqlite:///ledger.db"


def new_writer(directory: Path, *, max_bytes: int = 1 << 24, segment_bytes: int = 1 << 20) -> JournalWriter:
    """A writer with small limits."""
    return JournalWriter(directory, URL, max_bytes=max_bytes, fsync=False, segment_bytes=segment_bytes)


def records(path: Path) -> list[Opened | Progressed | Settled]:
    """All whole records of a file."""
    reader = open_reader(path)
    try:
        found = [*reader.read(), *reader.read_rest()]
    finally:
        reader.close()
    return [item.record for item in found if isinstance(item, Located)]


def only_file(directory: Path) -> Path:
    """The one journal of a directory."""
    (file,) = list_journals(directory, ledger_id(URL))
    return file.path


def used_bytes(directory: Path) -> int:
    """What lies in a directory."""
    return sum(path.stat().st_size for path in directory.iterdir())


def fill(writer: JournalWriter) -> None:
    """Writes until nothing new is taken."""
    while not writer.full:
        writer.append_settled(settled_row("a"))


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    opened, progress, settled = open_row("a"), open_row("a", completion_tokens=3), settled_row("a")
    writer.append_open(opened)
    writer.append_progress(progress)
    writer.append_settled(settled)
    assert records(only_file(tmp_path)) == [Opened(opened), Progressed(progress), Settled(settled)]
    writer.close()


def test_the_file_is_private_and_locked(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "journal"
    writer = new_writer(directory)
    path = only_file(directory)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert lock_left_behind(path) is None
    with path.open("rb") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    writer.append_open(open_row("a"))
    writer.close()
    descriptor = lock_left_behind(path)
    assert descriptor is not None
    os.close(descriptor)


def test_no_secret_of_the_ledgers_url_is_in_the_journal(tmp_path: Path) -> None:
    url = "postgresql+psycopg://kimi:s3cret@db.internal:5432/books?sslpassword=hidden"
    writer = JournalWriter(tmp_path, url, max_bytes=1 << 20, fsync=False)
    (file,) = list_journals(tmp_path, ledger_id(url))
    head = file.path.read_bytes()
    assert b"kimi@db.internal:5432/books" in head
    assert b"s3cret" not in head
    assert b"hidden" not in head
    writer.close()


def test_spellings_of_one_ledger_have_one_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ledger_id("sqlite:///ledger.db") == ledger_id(ledger_url(tmp_path))
    postgres = {
        ledger_id(url)
        for url in (
            "postgresql://a:one@db/books",
            "postgresql+psycopg://a:two@DB:5432/books",
            "postgres://b@db/books?connect_timeout=5",
        )
    }
    assert len(postgres) == 1
    assert ledger_id("postgresql://a@db/other") not in postgres
    assert redacted("postgresql://a:one@db/books?x=1") == "postgresql://a@db/books"


def test_a_full_journal_refuses_progress_then_requests_and_never_the_end_of_one(tmp_path: Path) -> None:
    writer = new_writer(tmp_path, max_bytes=4000)
    writer.append_open(open_row("first"))
    while used_bytes(tmp_path) < 3600:
        writer.append_progress(open_row("first", message="x" * 100))
    with pytest.raises(JournalFull):
        writer.append_progress(open_row("first"))
    writer.append_open(open_row("second", message="x" * 400))
    with pytest.raises(JournalFull, match="max_journal_bytes"):
        writer.append_open(open_row("third"))
    writer.append_settled(settled_row("first"))
    writer.append_settled(settled_row("second", message="y" * 2000))
    with pytest.raises(JournalFull):
        writer.append_settled(settled_row("never opened here"))
    assert writer.full
    writer.close()


@given(st.lists(st.integers(0, 3000), min_size=30, max_size=40))
@settings(max_examples=30)
def test_full_is_what_the_next_request_is_told_however_long_its_record(sizes: list[int]) -> None:
    with TemporaryDirectory() as directory:
        writer = new_writer(Path(directory), max_bytes=20_000)
        answers = []
        for number, size in enumerate(sizes):
            full = writer.full
            try:
                writer.append_open(open_row(f"r{number}", message="x" * size))
            except JournalFull:
                answers.append((full, True))
            else:
                answers.append((full, False))
        assert {(True, True), (False, False)} >= set(answers)
        writer.close()


def test_several_segments_fit_into_a_small_journal(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, URL, max_bytes=40_000, fsync=False)
    fill(writer)
    sizes = [file.path.stat().st_size for file in writer.files()]
    assert len(sizes) > 8
    assert max(sizes) < 40_000 / 8
    assert sum(sizes) < 40_000 + 2000
    writer.close()


def test_a_segment_that_could_not_be_cut_is_cut_once_it_is_drained(tmp_path: Path) -> None:
    directory, aside = tmp_path / "journal", tmp_path / "aside"
    writer = new_writer(directory, max_bytes=20_000)
    directory.rename(aside)
    directory.touch()  # no further segment can be made
    fill(writer)
    (file,) = writer.files()
    size_bytes = (aside / file.name).stat().st_size
    writer.note_drained(file.segment, size_bytes)
    assert len(writer.files()) == 1
    directory.unlink()
    aside.rename(directory)
    writer.note_drained(file.segment, size_bytes)
    writer.drop(file.segment, damaged=False)
    assert not writer.full
    writer.append_open(open_row("next"))
    assert not file.path.exists()
    writer.close()


def test_what_others_keep_in_the_directory_counts(tmp_path: Path) -> None:
    (tmp_path / "left.journal").write_bytes(b"x" * 5000)
    writer = new_writer(tmp_path, max_bytes=4000)
    with pytest.raises(JournalFull):
        writer.append_open(open_row("a"))
    (tmp_path / "left.journal").unlink()
    writer.refresh()
    writer.append_open(open_row("a"))
    writer.close()


def test_a_full_segment_stays_locked_until_it_is_dropped(tmp_path: Path) -> None:
    writer = new_writer(tmp_path, segment_bytes=1000)
    for number in range(10):
        writer.append_settled(settled_row(f"r{number}"))
    files = writer.files()
    assert len(files) > 2
    assert all(lock_left_behind(file.path) is None for file in files)
    assert sum(len(records(file.path)) for file in files) == 10
    writer.drop(files[0].segment, damaged=False)
    writer.drop(files[1].segment, damaged=True)
    assert not files[0].path.exists()
    assert [path.name for path in tmp_path.glob("*.damaged")] == [files[1].name + ".damaged"]
    writer.drop(files[-1].segment, damaged=False)
    assert files[-1].path.exists()
    writer.close()


def test_a_journal_without_records_is_gone_when_closed(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(JournalError, match="closed"):
        writer.append_open(open_row("a"))


def test_a_journal_with_records_outside_the_ledger_stays(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.append_settled(settled_row("a"))
    writer.close()
    assert len(records(only_file(tmp_path))) == 1


def test_a_deleted_journal_is_made_anew(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "journal")
    only_file(tmp_path / "journal").unlink()
    (tmp_path / "journal").rmdir()
    writer.refresh()
    writer.append_settled(settled_row("a"))
    assert len(records(only_file(tmp_path / "journal"))) == 1
    writer.close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="journal_dir must be a local directory"):
        new_writer(tmp_path / "file" / "journal")


def test_a_damaged_head_costs_nothing_but_the_head(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.append_settled(settled_row("a"))
    writer.close()
    path = only_file(tmp_path)
    data = path.read_bytes()
    path.write_bytes(b"?" * 40 + data[40:])
    assert records(only_file(tmp_path)) == [Settled(settled_row("a"))]


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "newer.journal"
    head = b'{"kind":"head","format":99,"ledger_id":"x","ledger":"","owner":"o","pid":1,"segment":0}'
    path.write_bytes(frame(head))
    with pytest.raises(NewerFormat, match="format 99"):
        open_reader(path)


def test_a_row_that_json_cannot_hold_is_booked_with_replacements(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.append_settled(settled_row("a", message="half \ud800", raw_usage={"\udfff": Decimal("NaN")}))
    assert records(only_file(tmp_path)) == [
        Settled(settled_row("a", message="half \ufffd", raw_usage={"\ufffd": None}))
    ]
    writer.close()


def test_a_record_whose_number_is_out_of_range_is_damage_and_no_more(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    path = only_file(tmp_path)
    with path.open("ab") as file:
        file.write(
            frame(
                b'{"kind":"settled","row":{"request_id":"a","started_at":1,"raw_usage":{"x":1e%s}}}' % (b"9" * 30)
            )
        )
        file.write(
            frame(
                b'{"kind":"settled","row":{"request_id":"a","started_at":1,"raw_usage":{"x":%s}}}' % (b"[" * 9999)
            )
        )
    writer.append_settled(settled_row("b"))
    reader = open_reader(path)
    found = reader.read()
    reader.close()
    assert [isinstance(item, Located) for item in found] == [False, False, True]
    writer.close()


def test_half_a_record_is_taken_back_when_the_disk_is_full(tmp_path: Path) -> None:
    script = """
        import resource, signal, sys
        from pathlib import Path
        from pricing.ledger.errors import JournalError
        from pricing.ledger.journal import JournalWriter
        from support.ledger_rows import settled_row
        writer = JournalWriter(Path(sys.argv[1]), sys.argv[2], max_bytes=1 << 20, fsync=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
        refused = 0
        for number in range(9):
            try:
                writer.append_settled(settled_row(f"r{number}"))
            except JournalError as err:
                assert "full" in str(err) or "written" in str(err), err
                refused += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        writer.append_settled(settled_row("last"))
        print(refused)
    """
    done = run_module("-c", textwrap.dedent(script), str(tmp_path), URL, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    refused = int(done.stdout)
    (path,) = tmp_path.glob("*.journal")
    reader = open_reader(path)
    found = reader.read()
    reader.close()
    assert refused > 0
    assert len(found) == 9 - refused + 1
    assert all(isinstance(item, Located) for item in found)
