"""The private server: private, bounded, and never longer alive than who started it."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis

from kimi_gateway.adapters.state import Embedded, EmbeddedError, open_state
from kimi_gateway.adapters.state.embedded import maxmemory_bytes
from kimi_gateway.core.thoughts import Bounds
from support.thoughts import ANNE, keys, thought
from support.valkey import SECRET, client_of

MIB = 1 << 20
SMALL = Bounds(max_bytes=8 * MIB)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose path is short enough for a socket below it, in whatever process the test runs."""
    with tempfile.TemporaryDirectory(prefix="k") as directory:
        yield Path(directory)


def client(url: str) -> redis.Redis:
    return client_of(url.removeprefix("unix://"))


def server_at(url: str) -> psutil.Process:
    """The server's process."""
    with client(url) as asked:
        return psutil.Process(asked.info("server")["process_id"])


def becomes_true(condition: Callable[[], bool], within_s: float = 5.0) -> bool:
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if condition():
            return True
        time.sleep(0.01)
    return False


def gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_it_is_private_bounded_and_gone_when_closed() -> None:
    with Embedded.start(bounds=SMALL) as url, client(url) as asked:
        directory = Path(url.removeprefix("unix://")).parent
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        facts = asked.info()
        assert facts["tcp_port"] == 0
        assert (facts["maxmemory"], facts["maxmemory_policy"]) == (maxmemory_bytes(SMALL), "noeviction")
        assert asked.config_get("save", "appendonly") == {"save": "", "appendonly": "no"}
        server = server_at(url)
        assert os.getsid(server.pid) != os.getsid(0)  # Ctrl-C is not for it
    assert becomes_true(lambda: gone(server))
    assert not directory.exists()


def test_it_does_not_survive_a_parent_that_is_killed(place: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from kimi_gateway.adapters.state import Embedded\n"
        "with Embedded.start(Path(sys.argv[1])) as url:\n"
        "    print(url, flush=True)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(place)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent, parent.stdout as output:
        server = server_at(output.readline().decode().strip())
        shell = server.parent()
        assert shell is not None
        parent.kill()
        parent.wait()
        assert becomes_true(lambda: gone(server) and gone(shell))
        assert becomes_true(lambda: not list(place.iterdir()))


def test_one_that_dies_is_started_again_empty() -> None:
    with Embedded.start(bounds=SMALL) as url:
        with client(url) as asked:
            asked.set("name", "value")
        first = server_at(url)
        first.send_signal(signal.SIGKILL)
        assert becomes_true(lambda: answers(url))
        assert server_at(url) != first
        with client(url) as asked:
            assert asked.get("name") is None


def answers(url: str) -> bool:
    try:
        with client(url) as asked:
            return bool(asked.ping())
    except redis.ConnectionError:
        return False


def test_a_forked_process_that_closes_it_ends_it_for_nobody() -> None:
    embedded = Embedded(SMALL)
    url = embedded.launch()
    child = os.fork()
    if child == 0:
        embedded.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert answers(url)
    with pytest.raises(EmbeddedError, match="already started"):
        embedded.launch()
    embedded.close()
    embedded.close()
    assert not answers(url)
    with pytest.raises(EmbeddedError, match="was not started"):
        _ = embedded.url


def test_what_keeps_it_from_starting_is_said(place: Path) -> None:
    deep = place / ("x" * 100)
    deep.mkdir()
    with pytest.raises(EmbeddedError, match="too long a path for a socket; set TMPDIR"):
        Embedded(SMALL, directory=deep).launch()
    assert not list(deep.iterdir())
    with pytest.raises(EmbeddedError, match="no place for its socket"):
        Embedded(SMALL, directory=place / "absent").launch()
    with pytest.raises(EmbeddedError, match=r"did not start: .+"):
        Embedded(Bounds(max_bytes=-(1 << 40)), directory=place).launch()
    assert [path for path in place.iterdir() if path != deep] == []


def test_state_in_a_private_server_is_kept_and_its_server_ends_with_it() -> None:
    async def main() -> None:
        state = open_state("embedded://", on_outage="open", bounds=SMALL, secret=SECRET, mono=time.monotonic)
        assert state.embedded is not None
        server = server_at(state.embedded.url)
        assert maxmemory_bytes(SMALL) > 2 * SMALL.max_bytes
        assert state.shown == "embedded://"
        assert await state.look() == ()
        await state.conversations.keep(ANNE, [(keys(1), thought())])
        (hit,) = (await state.conversations.recall(ANNE, [keys(1)], [])).found
        assert hit is not None
        assert hit.thought == thought()
        await state.close()
        assert becomes_true(lambda: gone(server))

    asyncio.run(main())
