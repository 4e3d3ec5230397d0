"""Processes that start in a tenth of the time: forked from one that has imported the product already.

What runs after the fork is `python -m MODULE WORDS…` (or `python -c CODE WORDS…`) to its last instruction: a
process with its own directory, environment, output, signals and exit code. Only the imports are not done again.
Each test process has one such parent, made when it is first needed; it ends with the test process. Tests of the
start itself (the script, the libraries that may be missing) start Python anew.

Run as a module, this file is the parent: it reads orders from its standard input, a JSON object a line, and
answers each with one.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from mmap import PROT_READ, mmap
from pathlib import Path
from typing import Any, Final

_TESTS: Final = Path(__file__).parents[1]
_POLL_S: Final = 0.005
_FLAGS: Final = (os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_APPEND)
_SECONDS: Final = struct.Struct("d")
_IMPORTED: Final = (
    "kimi_gateway.cli",
    "kimi_gateway.checks.command",
    "kimi_gateway.lint",
    "pricing.cli",
    "pricing.ledger.migrations.upgrade",
)


class Clock:
    """How far the wall clocks of forked processes are ahead of this machine's. It may be moved while they run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.move(0.0)

    def move(self, ahead_s: float) -> None:
        """Sets them so many seconds ahead."""
        if not self.path.exists():
            self.path.write_bytes(bytes(_SECONDS.size))
        with self.path.open("r+b") as file:
            file.write(_SECONDS.pack(ahead_s))


class Fork:
    """A forked process, with those methods of `subprocess.Popen` that tests use."""

    def __init__(self, parent: "_Parent", order: Mapping[str, Any]) -> None:
        self._parent = parent
        self.pid = int(parent.ordered(order)["pid"])
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        if self.returncode is None:
            self.returncode = self._parent.ordered({"poll": self.pid})["code"]
        return self.returncode

    def wait(self, timeout: float) -> int:
        """The exit code once it ends. Raises `subprocess.TimeoutExpired`."""
        end_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end_s:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Sends a signal to this process alone; nothing where its end is known."""
        if self.poll() is None:  # until then nobody else has its process id
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)


def fork(
    module: str,
    words: Sequence[str],
    *,
    directory: Path,
    env: Mapping[str, str],
    stdin: Path | str = os.devnull,
    stdout: Path | str,
    stderr: Path | str,
    clock: Clock | None = None,
) -> Fork:
    """Starts `python -m MODULE WORDS…` in a session of its own; the module "-c" is code, the first of the words.

    `env` is the whole environment. The three files are its standard input and outputs, or a terminal; what an
    output held before is gone when this returns.
    """
    for output in (stdout, stderr):
        Path(output).write_bytes(b"")
    order = {
        "module": module,
        "words": list(words),
        "directory": str(directory),
        "env": dict(env),
        "files": [str(stdin), str(stdout), str(stderr)],
        "clock": str(clock.path) if clock is not None else None,
    }
    return Fork(_parent(), order)


class _Parent:
    """The process that forks, and the pipe to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        path = f"{_TESTS.parent}:{_TESTS}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.zygote"],
            cwd=_TESTS,
            env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests, which end it
        )
        atexit.register(self.close)

    def ordered(self, order: Mapping[str, Any]) -> Any:
        """The answer to an order."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """Ends it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait(10)


_parents: dict[int, _Parent] = {}


def _parent() -> _Parent:
    """This process's parent of forks."""
    if os.getpid() not in _parents:
        _parents[os.getpid()] = _Parent()
    return _parents[os.getpid()]


def _forked(order: Mapping[str, Any]) -> None:
    """Makes of a fork the process that was ordered, up to its first instruction."""
    os.setsid()
    os.chdir(order["directory"])
    for number, (path, flags) in enumerate(zip(order["files"], _FLAGS, strict=True)):
        opened = os.open(path, flags | os.O_NOCTTY)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(order["env"])
    if order["clock"] is not None:
        _follow(order["clock"])


def _follow(path: str) -> None:
    """From now on the wall clock is as far ahead as stands in the file. The machine's own is not touched."""
    real = time.time
    with Path(path).open("rb") as file:
        ahead = mmap(file.fileno(), _SECONDS.size, prot=PROT_READ)
    time.time = lambda: real() + _SECONDS.unpack(ahead)[0]


def _polled(pid: int) -> int | None:
    """The exit code of a fork, None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _next_order() -> dict[str, Any] | None:
    """Forks on order until the orders end: what this process is to become, None where it is still the parent."""
    alive: set[int] = set()
    # The standard files are for the forks: nothing of an order may wait in their buffers.
    with os.fdopen(os.dup(0), "rb") as orders, os.fdopen(os.dup(1), "wb", buffering=0) as answers:
        for line in orders:
            order: dict[str, Any] = json.loads(line)
            if "poll" in order:
                code = _polled(order["poll"])
                if code is not None:
                    alive.discard(order["poll"])
                answers.write(b'{"code": %s}\n' % json.dumps(code).encode())
                continue
            pid = os.fork()
            if pid == 0:
                return order
            alive.add(pid)
            answers.write(b'{"pid": %d}\n' % pid)
    for pid in alive:  # of tests that were killed themselves
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return None


def main() -> None:
    """Imports the product and forks; in a fork, runs what was ordered."""
    for module in _IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a fork's collections leave shared memory shared
    order = _next_order()
    if order is None:
        return
    _forked(order)
    if order["module"] == "-c":
        code, *words = order["words"]
        sys.argv = ["-c", *words]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        return
    sys.argv = [order["module"], *order["words"]]
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
