"""Gateways that start in a tenth of the time: forked from a process that has imported everything already.

For tests that kill gateways by the dozen, or that need some with different settings. What runs after the fork is
`kimi-gateway serve` as ever. Its wall clock may be moved: `Clock`. Run as a module, this file is that process: it
reads orders from standard input, a JSON object a line, and answers each.
"""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from mmap import PROT_READ, mmap
from pathlib import Path
from typing import Any, Final

from support.processes import BASE_URL, clean_environment

_TESTS: Final = Path(__file__).parents[1]
_START_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.005
_SECONDS: Final = struct.Struct("d")


class Clock:
    """How far the wall clocks of gateways are ahead of this machine's. It may be moved while they run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.move(0.0)

    def move(self, ahead_s: float) -> None:
        """Sets them so many seconds ahead."""
        if not self.path.exists():
            self.path.write_bytes(bytes(_SECONDS.size))
        with self.path.open("r+b") as file:
            file.write(_SECONDS.pack(ahead_s))


@dataclass(frozen=True, slots=True)
class Forked:
    """A running gateway. `base_url` ends in /v1; `output` is the file it prints to."""

    pid: int
    base_url: str
    output: Path


class Nursery:
    """Starts and kills gateways in one directory, which holds their configuration."""

    def __init__(self, directory: Path, env: Mapping[str, str]) -> None:
        self._directory = directory
        self._alive: dict[int, Forked] = {}
        self._started = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.forked"],
            cwd=_TESTS,
            env={**clean_environment(env), "PYTHONPATH": f"{_TESTS.parent}:{_TESTS}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, config_text: str | None = None, *, clock: Clock | None = None) -> Forked:
        """A gateway that answers; `config_text` replaces the configuration for it and those that follow.

        Raises `AssertionError` with its output where it does not come up.
        """
        if config_text is not None:
            (self._directory / "kimi-gateway.toml").write_text(config_text, "utf-8")
        self._started += 1
        output = self._directory / f"output-{self._started}.txt"
        arguments = ["serve", "--config", "kimi-gateway.toml", "--port", "0"]
        order = {"arguments": arguments, "directory": str(self._directory), "output": str(output)}
        order |= {"clock": str(clock.path)} if clock is not None else {}
        pid = int(self._ordered(order)["pid"])
        self._alive[pid] = Forked(pid, "", output)
        end = time.monotonic() + _START_TIMEOUT_S
        strangers = BASE_URL.findall((self._directory / "kimi-gateway.toml").read_text("utf-8"))
        while not (found := [url for url in BASE_URL.findall(_read(output)) if url not in strangers]):
            assert time.monotonic() < end, f"the gateway does not come up:\n{_read(output)}"
            time.sleep(_POLL_S)
        self._alive[pid] = Forked(pid, found[0], output)
        return self._alive[pid]

    def kill(self, gateway: Forked, how: signal.Signals = signal.SIGKILL) -> int:
        """Ends it and waits for that; the wait status. Nobody else has its process id before that."""
        os.kill(gateway.pid, how)
        status = int(self._ordered({"wait": gateway.pid})["status"])
        del self._alive[gateway.pid]
        return status

    def close(self) -> None:
        """Kills what still runs."""
        for gateway in list(self._alive.values()):
            with suppress(ProcessLookupError):
                self.kill(gateway)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _ordered(self, order: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def nursery(directory: Path, config_text: str, env: Mapping[str, str]) -> Iterator[Nursery]:
    """Gateways with this configuration in this directory; none is left afterwards."""
    (directory / "kimi-gateway.toml").write_text(config_text, "utf-8")
    made = Nursery(directory, env)
    try:
        yield made
    finally:
        made.close()


def _read(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.exists() else ""


def _become(order: Mapping[str, Any]) -> None:
    """What a child does after the fork; never comes back."""
    code = 1
    try:
        from kimi_gateway.cli import app

        os.setsid()
        os.chdir(order["directory"])
        with Path(order["output"]).open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        if "clock" in order:
            _follow(order["clock"])
        code = int(app(args=order["arguments"], standalone_mode=False) or 0)
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _follow(path: str) -> None:
    """From now on the wall clock is as far ahead as stands in the file. The machine's own is not touched."""
    real = time.time
    with Path(path).open("rb") as file:
        ahead = mmap(file.fileno(), _SECONDS.size, prot=PROT_READ)
    time.time = lambda: real() + _SECONDS.unpack(ahead)[0]


def main() -> None:
    """Forks on order until the orders end."""
    import kimi_gateway.cli  # noqa: F401  # everything a gateway needs, once for all

    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            answer = {"status": os.waitpid(order["wait"], 0)[1]}
        else:
            pid = os.fork()
            if pid == 0:
                _become(order)
            answer = {"pid": pid}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
