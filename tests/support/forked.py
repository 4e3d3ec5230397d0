"""Gateways in one directory for tests that kill them by the dozen, or that need some with different settings.

They are forked (`support.zygote`). Their wall clocks may be moved: `Clock`.
"""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.processes import BASE_URL, clean_environment
from support.zygote import Clock, Fork, fork

__all__ = ["Clock", "Forked", "Nursery", "nursery"]

_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Forked:
    """A running gateway. `base_url` ends in /v1; `output` is the file it prints to."""

    process: Fork
    base_url: str
    output: Path

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid


class Nursery:
    """Starts and kills gateways in one directory, which holds their configuration."""

    def __init__(self, directory: Path, env: Mapping[str, str]) -> None:
        self._directory = directory
        self._env = clean_environment(env)
        self._alive: dict[int, Fork] = {}
        self._started = 0

    def start(self, config_text: str | None = None, *, clock: Clock | None = None) -> Forked:
        """A gateway that answers; `config_text` replaces the configuration for it and those that follow.

        Raises `AssertionError` with its output where it does not come up.
        """
        config = self._directory / "kimi-gateway.toml"
        if config_text is not None:
            config.write_text(config_text, "utf-8")
        self._started += 1
        output = self._directory / f"output-{self._started}.txt"
        words = ["serve", "--config", config.name, "--port", "0"]
        process = fork(
            "kimi_gateway",
            words,
            directory=self._directory,
            env=self._env,
            stdout=output,
            stderr=output,
            clock=clock,
        )
        self._alive[process.pid] = process
        end = time.monotonic() + _START_TIMEOUT_S
        strangers = BASE_URL.findall(config.read_text("utf-8"))
        while not (found := [url for url in BASE_URL.findall(_read(output)) if url not in strangers]):
            assert time.monotonic() < end, f"the gateway does not come up:\n{_read(output)}"
            assert process.poll() is None, f"the gateway ended:\n{_read(output)}"
            time.sleep(_POLL_S)
        return Forked(process, found[0], output)

    def kill(self, gateway: Forked, how: signal.Signals = signal.SIGKILL) -> int:
        """Ends it and waits for that; its exit code, or minus the signal that ended it."""
        gateway.process.send_signal(how)
        code = gateway.process.wait(_STOP_TIMEOUT_S)
        del self._alive[gateway.pid]
        return code

    def close(self) -> None:
        """Kills what still runs."""
        for process in self._alive.values():
            process.kill()
            process.wait(_STOP_TIMEOUT_S)


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
    return path.read_text("utf-8", "replace")
