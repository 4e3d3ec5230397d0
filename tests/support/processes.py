"""Programs under test in processes of their own: started, waited for by output or HTTP, ended by pid.

`python -m kimi_gateway` and `python -m pricing` are forked from a process that has imported them
(`support.zygote`), which takes a tenth of the time; with `anew=True` Python starts as for everybody.
"""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from support.zygote import Fork, fork

BASE_URL = re.compile(r"http://(?:127\.0\.0\.1|localhost|\[::1\]):\d+/v1")
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
_CLEAN_UP_S = 1.0  # at the end of a context nobody waits for a drain
_POLL_S = 0.01
_FORKED: Final = ("kimi_gateway", "pricing")
_NOT_INHERITED = re.compile(
    r"KIMI_|MOONSHOT_|OPENROUTER_|VLLM_|SGLANG_|OPENAI_|(https?|all|no)_proxy$|PYTEST_", re.IGNORECASE
)


def free_port() -> int:
    """A port that was free a moment ago; prefer port 0 where the program can report what it got."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without what the product reads, so that a developer's keys cannot change a test."""
    kept = {name: value for name, value in os.environ.items() if not _NOT_INHERITED.match(name)}
    return {**kept, "PYTHONUNBUFFERED": "1", **(extra or {})}


class Program:
    """A running program. `directory` is its working directory; output goes to files there."""

    def __init__(
        self, command: Sequence[str], directory: Path, env: Mapping[str, str] | None = None, *, anew: bool = False
    ) -> None:
        self.directory = directory
        self._out = directory / "stdout.txt"
        self._err = directory / "stderr.txt"
        self._process = _started(command, directory, clean_environment(env), self._out, self._err, anew=anew)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def stdout(self) -> str:
        """What it has printed so far."""
        return self._out.read_text("utf-8", "replace")

    def stderr(self) -> str:
        """What it has said on standard error so far."""
        return self._err.read_text("utf-8", "replace")

    def output(self) -> str:
        """Both, standard output first."""
        return self.stdout() + self.stderr()

    def wait_for_line(self, pattern: re.Pattern[str], timeout_s: float = START_TIMEOUT_S) -> re.Match[str]:
        """The first match in the output. Raises `AssertionError` with the output where it does not come."""
        found: list[re.Match[str]] = []

        def seen() -> bool:
            match = pattern.search(self.output())
            found.extend([match] if match else [])
            return bool(found)

        self._wait(seen, timeout_s, f"output with {pattern.pattern!r}")
        return found[0]

    def wait_for_http(self, url: str, timeout_s: float = START_TIMEOUT_S) -> int:
        """The status of the first answer to GET `url`. Raises `AssertionError` where none comes."""
        status: list[int] = []

        def answered() -> bool:
            status.extend(_get(url))
            return bool(status)

        self._wait(answered, timeout_s, f"an answer of {url}")
        return status[0]

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """The exit code. Raises `AssertionError` where it does not end in time."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as err:
            raise AssertionError(f"still running after {timeout_s} s; its output:\n{self.output()}") from err

    def signal(self, number: int) -> None:
        """Sends a signal to this process alone."""
        self._process.send_signal(number)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Asks it to end (SIGTERM); the exit code. Raises `AssertionError` where it does not end in time."""
        self._process.terminate()
        return self.wait(timeout_s)

    def kill(self) -> int:
        """Ends it without warning (SIGKILL), its children not; the exit code."""
        self._process.kill()
        return self.wait()

    def clean_up(self) -> None:
        """Ends it and whatever it started, politely for a second; for the end of a context."""
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLEAN_UP_S)
        with suppress(ProcessLookupError):  # none left
            os.killpg(self.pid, signal.SIGKILL)  # the session's id is the process's: only its own children
        self._process.wait(STOP_TIMEOUT_S)

    def _wait(self, true: Callable[[], bool], timeout_s: float, what: str) -> None:
        end_s = time.monotonic() + timeout_s
        while not true():
            code = self._process.poll()
            if code is not None and not true():
                raise AssertionError(f"ended with {code} before {what}; its output:\n{self.output()}")
            if time.monotonic() > end_s:
                raise AssertionError(f"no {what} within {timeout_s} s; its output:\n{self.output()}")
            time.sleep(_POLL_S)


def _started(
    command: Sequence[str], directory: Path, env: Mapping[str, str], out: Path, err: Path, *, anew: bool
) -> subprocess.Popen[bytes] | Fork:
    """The process of a command, the leader of a session: its children can be ended with it, and nothing else."""
    if not anew and list(command[:2]) == [sys.executable, "-m"] and command[2] in _FORKED:
        return fork(command[2], command[3:], directory=directory, env=env, stdout=out, stderr=err)
    with out.open("wb") as stdout, err.open("wb") as stderr:
        return subprocess.Popen(
            list(command),
            cwd=directory,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )


def run_module(
    module: str,
    *words: str,
    directory: Path,
    env: Mapping[str, str] | None = None,
    timeout_s: float = START_TIMEOUT_S,
    stdout: Path | str | None = None,
    stderr: Path | str | None = None,
) -> subprocess.CompletedProcess[str]:
    """What `python -m MODULE WORDS…` says until it ends by itself; forked, as programs are. See `zygote.fork`.

    An output for which a file or a terminal is given goes there and is "" in what comes back.
    """
    with tempfile.TemporaryDirectory(prefix="kimi-test-") as own:
        out, err = Path(own) / "stdout", Path(own) / "stderr"
        process = fork(
            module,
            words,
            directory=directory,
            env=clean_environment(env),
            stdout=stdout or out,
            stderr=stderr or err,
        )
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        said = [path.read_text("utf-8", "replace") if path.exists() else "" for path in (out, err)]
        return subprocess.CompletedProcess([module, *words], code, *said)


def _get(url: str) -> list[int]:
    """The status of one GET in a list, which is empty where nothing answers."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=2)
    try:
        connection.request("GET", parts.path or "/")
        return [connection.getresponse().status]
    except (OSError, http.client.HTTPException):
        return []
    finally:
        connection.close()


@contextmanager
def program(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    directory: Path | None = None,
    ready: re.Pattern[str] | None = None,
    anew: bool = False,
) -> Iterator[Program]:
    """A running program, once `ready` stood in its output; it and its temporary directory are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="kimi-test-") as own:
        started = Program(command, directory or Path(own), env, anew=anew)
        try:
            if ready is not None:
                started.wait_for_line(ready)
            yield started
        finally:
            started.clean_up()


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway in a process. `base_url` ends in /v1; `root_url` is the same without it."""

    program: Program
    base_url: str
    ledger: Path  # the SQLite file, where the configuration names one or none
    journal_dir: Path

    @property
    def root_url(self) -> str:
        """The address without /v1, for /health, /ready and /metrics."""
        return self.base_url.removesuffix("/v1")

    @property
    def pid(self) -> int:
        """The process id."""
        return self.program.pid

    def output(self) -> str:
        """What it printed so far."""
        return self.program.output()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM; the exit code."""
        return self.program.stop(timeout_s)

    def kill(self) -> int:
        """SIGKILL; the exit code."""
        return self.program.kill()


@contextmanager
def gateway_process(
    config_text: str,
    env: Mapping[str, str] | None = None,
    *,
    arguments: Sequence[str] = (),
    directory: Path | None = None,
    anew: bool = False,
) -> Iterator[Gateway]:
    """A `kimi-gateway serve` on a port of the system's choice, ready to answer.

    The configuration is written into the working directory, so relative paths in it (ledger, journal) lie there;
    a `directory` of the caller's survives, so that another gateway can be started on the same ledger.
    """
    with tempfile.TemporaryDirectory(prefix="kimi-test-") as own:
        home = directory or Path(own)
        (home / "kimi-gateway.toml").write_text(config_text, "utf-8")
        command = [sys.executable, "-m", "kimi_gateway", "serve", "--config", "kimi-gateway.toml", "--port", "0"]
        with program([*command, *arguments], env=env, directory=home, anew=anew) as started:
            strangers = BASE_URL.findall("\n".join([config_text, *(env or {}).values()]))
            base_url = started.wait_for_line(_other_than(strangers)).group()
            root = base_url.removesuffix("/v1")
            started.wait_for_http(f"{root}/health")
            yield Gateway(started, base_url, *_books(home, config_text))


def _other_than(urls: Sequence[str]) -> re.Pattern[str]:
    """A base URL that is none of these: a gateway may print its targets as well as itself."""
    known = "|".join(map(re.escape, urls)) or "(?!)"
    return re.compile(rf"(?!(?:{known})\b){BASE_URL.pattern}")


def _books(home: Path, config_text: str) -> tuple[Path, Path]:
    """Where the configuration puts the ledger's file and the journal."""
    ledger = tomllib.loads(config_text).get("ledger", {})
    url = str(ledger.get("url", "sqlite:///kimi-ledger.db"))
    return home / url.removeprefix("sqlite:///"), home / str(ledger.get("journal_dir", ".kimi-journal"))
