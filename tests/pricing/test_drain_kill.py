"""Kill -9 of a process that books as fast as it can: every request it told of is in the ledger exactly once."""

import signal
import time
from pathlib import Path

from pricing.ledger.address import ledger_id
from pricing.ledger.drain import Drainer
from pricing.ledger.journal_files import list_journals
from pricing.ledger.store import Store
from support.ledger_rows import ledger_url
from support.processes import START_TIMEOUT_S, clean_environment
from support.zygote import fork

ROUNDS = 4


def run_and_kill(directory: Path, name: str, *, after_s: float) -> list[str]:
    """The ids that a child told before it was killed."""
    words = [ledger_url(directory), str(directory / "j"), name]
    told, errors = directory / f"{name}.txt", directory / f"{name}.errors.txt"
    module = "support.journal_child"
    child = fork(module, words, directory=directory, env=clean_environment(), stdout=told, stderr=errors)
    try:
        end_s = time.monotonic() + START_TIMEOUT_S
        while not told.stat().st_size:
            assert time.monotonic() < end_s, errors.read_text()
            time.sleep(0.001)
        time.sleep(after_s)
    finally:
        child.kill()
        assert child.wait(10) == -signal.SIGKILL
    return [line.decode().strip() for line in told.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def test_no_acknowledged_request_is_lost_and_none_is_doubled(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    for number in range(ROUNDS):
        # The next child adopts what the last one left, and is killed while it may still be doing so.
        acknowledged += run_and_kill(tmp_path, f"child{number}", after_s=0.05 + 0.05 * number)
    url = ledger_url(tmp_path)
    Store(url, create=True).close()
    drainer = Drainer(tmp_path / "j", url, own=None)
    drainer.drain_once()
    drainer.close()
    assert list_journals(tmp_path / "j", ledger_id(url)) == []
    store = Store(url)
    states = store.settled_state(acknowledged)
    rows = {row.by["status"]: row for row in store.report(("status",))}
    store.close()
    assert len(acknowledged) == len(set(acknowledged)) > 100
    assert all(states.get(request_id) for request_id in acknowledged)
    # A child may die between booking a request and telling of it, at most once each.
    assert 0 <= rows["ok"].requests - len(acknowledged) <= ROUNDS
    assert rows["ok"].cost_nano == rows["ok"].requests * 11_400
    assert set(rows) == {"ok", "unsettled"}
    assert rows["unsettled"].requests >= len(acknowledged) // 6 - ROUNDS
