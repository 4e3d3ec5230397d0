"""Kill -9 of a process that books as fast as it can: every request it told of is in the ledger exactly once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from pricing.ledger.address import ledger_id
from pricing.ledger.drain import Drainer
from pricing.ledger.journal_files import list_journals
from pricing.ledger.store import Store
from support.ledger_rows import ledger_url

TESTS = Path(__file__).parents[1]
ROUNDS = 4


def run_and_kill(directory: Path, name: str, *, after_s: float) -> list[str]:
    """The ids that a child told before it was killed."""
    command = [sys.executable, "-m", "support.journal_child", ledger_url(directory), str(directory / "j"), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=TESTS, env=dict(os.environ)) as child:
        assert child.stdout is not None
        told = [child.stdout.readline()]
        end = time.monotonic() + after_s
        while time.monotonic() < end:
            told.append(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        told += child.stdout.readlines()
    return [line.decode().strip() for line in told if line.endswith(b"\n")]


def test_no_acknowledged_request_is_lost_and_none_is_doubled(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    for number in range(ROUNDS):
        # The next child adopts what the last one left, and is killed while it may still be doing so.
        acknowledged += run_and_kill(tmp_path, f"child{number}", after_s=0.1 + 0.1 * number)
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
