"""Processes of `bench/speed.py`: started, waited for, measured by the system's accounting, ended by their ids."""

import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil

HERE: Final = Path(__file__).resolve().parent
POLL_S: Final = 0.005
STOP_S: Final = 10.0
_GONE: Final = (psutil.NoSuchProcess, psutil.ZombieProcess)


class StartError(Exception):
    """A process did not come up; the message says which and what it wrote last."""


def tree(pid: int) -> list[psutil.Process]:
    """The process and all that descend from it and are alive."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except _GONE:
        return []


def cpu_s(pid: int) -> float:
    """CPU seconds of a tree of processes, with those of children that have ended and were waited for."""
    used_s = 0.0
    for process in tree(pid):
        with suppress(*_GONE):
            times = process.cpu_times()
            used_s += times.user + times.system + times.children_user + times.children_system
    return used_s


def memory_bytes(pid: int) -> int:
    """Resident bytes of a tree of processes, each counted whole: what they share is counted more than once."""
    total = 0
    for process in tree(pid):
        with suppress(*_GONE):
            total += process.memory_info().rss
    return total


def free_port() -> int:
    """A port that nobody listened on just now."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def raise_descriptor_limit() -> None:
    """This process and those that it starts may open as many files as the system lets them."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def stop(process: subprocess.Popen[Any]) -> None:
    """Ends a process that was started here, and what descends from it."""
    descendants = tree(process.pid)[1:]
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for one in descendants:
        with suppress(*_GONE):
            one.kill()  # psutil sees to it that the id has not become another process's


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def started(
    command: Sequence[str], env: Mapping[str, str], directory: Path, *, port: int, path: str, wait_s: float
) -> tuple[subprocess.Popen[bytes], float]:
    """A process that answers 200 under a path, and how many seconds that took. Raises `StartError`.

    What it writes goes to `out.log` in its directory, as a service's would.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "out.log"
    began_s = time.monotonic()
    with log.open("ab") as file:
        process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=dict(env), cwd=directory
        )
    while not _answers(port, path):
        took_s = time.monotonic() - began_s
        if process.poll() is not None or took_s > wait_s:
            stop(process)
            said = log.read_text("utf-8", "replace")[-600:]
            how = f"ended with {process.returncode}" if took_s <= wait_s else f"did not answer in {wait_s:.0f} s"
            raise StartError(f"{Path(command[0]).name} {how}: {said}")
        time.sleep(POLL_S)
    return process, time.monotonic() - began_s


def plain_env(**more: str) -> dict[str, str]:
    """The environment of what is measured: none of our own variables, and none that would name a proxy."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, **more}


class Load:
    """The clients, in their process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def do(self, act: str, **asked: Any) -> dict[str, Any]:
        """What came of a command. Raises `StartError` where it went wrong."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": act, **asked}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {"error": f"{act}: the clients have ended"}
        if "error" in found:
            raise StartError(str(found["error"]))
        return found


@contextmanager
def clients() -> Iterator[Load]:
    """Clients for as long as the context is open."""
    command = [sys.executable, str(HERE / "speed_load.py")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Load(process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        stop(process)
        process.stdout.close()


@contextmanager
def upstream() -> Iterator[tuple[int, int]]:
    """The port of a fake upstream and its process id, for as long as the context is open."""
    command = [sys.executable, str(HERE / "speed_upstream.py")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), process.pid
    finally:
        stop(process)
        process.stdout.close()
