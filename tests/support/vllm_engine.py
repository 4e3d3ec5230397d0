"""vLLM's own server on this machine's CPU, with the tiny model, in processes of its own.

`make test-engines` installs it; tests skip, saying why, where it is not there.
"""

import http.client
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from support.compose import ROOT
from support.processes import Program, program
from support.shared import shared_path

KEY = "sk-vllm-test"
MODEL = "kimi-k3.1-pro"
RUNS_AT_MOST = 4
"""Requests that the engine runs at one time; others wait."""
_START_S = 600.0  # 25 s on two idle cores
_TELL_S = 10.0
_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}


def environment() -> Path:
    """The virtual environment with vLLM in it. Skips, saying why, where there is none."""
    venv = Path(os.environ.get("KIMI_ENGINES_VENV") or ROOT / ".venv-engines")
    if (venv / ".vllm-installed").is_file():
        return venv
    why = venv / "why-not.txt"
    reason = why.read_text().strip() if why.is_file() else "make test-engines installs it"
    pytest.skip(f"vLLM is not installed in {venv.name}: {reason}")


@dataclass(frozen=True, slots=True)
class VllmEngine:
    """A vLLM that is ready to answer."""

    program: Program
    port: int

    @property
    def root_url(self) -> str:
        """Its address without /v1."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """Its address as a target has it."""
        return f"{self.root_url}/v1"

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", self.metrics(), re.MULTILINE)
        assert found, f"vLLM has no metric {name}"
        return sum(map(float, found))

    def metrics(self) -> str:
        """All metrics as text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def running(self) -> int:
        """Requests that it is at."""
        return int(self.metric("vllm:num_requests_running"))

    def wait_until_running(self, count: int, timeout_s: float) -> float:
        """How long it took until it ran so many. Raises `AssertionError` where that does not come."""
        begun_s = time.monotonic()
        while (found := self.running()) != count:
            passed_s = time.monotonic() - begun_s
            assert passed_s < timeout_s, f"{found} running after {passed_s:.1f} s, expected {count}"
            time.sleep(0.05)
        return time.monotonic() - begun_s

    def core_pid(self) -> int:
        """The process in which the model runs."""
        children = psutil.Process(self.program.pid).children(recursive=True)
        (core,) = (child for child in children if "EngineCore" in " ".join([child.name(), *child.cmdline()]))
        return core.pid


@contextmanager
def vllm_engine(options: Sequence[str] = ()) -> Iterator[VllmEngine]:
    """A vLLM with the tiny model, ended with all its processes."""
    venv, model = environment(), shared_path("engines/kimi-tiny-swa")
    with _held_port() as port, program(_command(venv, model, port, options), env=_ENV) as started:
        _wait(started, port)
        yield VllmEngine(started, port)


@contextmanager
def _held_port() -> Iterator[int]:
    """A port that the system gives to nobody else, bound and not listened on; vLLM may share it, by SO_REUSEADDR.

    It binds only after loading itself, which takes up to a minute on a busy machine.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def _command(venv: Path, model: Path, port: int, options: Sequence[str]) -> list[str]:
    return [
        *(["nice", "-n", "10"] if shutil.which("nice") else []),
        *(str(venv / "bin" / "vllm"), "serve", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("--served-model-name", MODEL, "moonshotai/Kimi-K3.1-Pro", "--api-key", KEY),
        *("--dtype", "bfloat16", "--max-model-len", "8192", "--max-num-seqs", str(RUNS_AT_MOST)),
        *("--tokenizer-mode", "kimi_k3", "--reasoning-parser", "kimi_k3", "--tool-call-parser", "kimi_k3"),
        *("--enable-auto-tool-choice", "--enable-prefix-caching", "--enable-prompt-tokens-details"),
        *("--enable-request-id-headers", "--enforce-eager", *options),
    ]


def _wait(started: Program, port: int) -> None:
    """Waits until it answers, and says meanwhile that it does."""
    begun_s = time.monotonic()
    print(f"\n  vLLM starts on port {port}", flush=True)
    while True:
        try:
            status = started.wait_for_http(f"http://127.0.0.1:{port}/health", _TELL_S)
        except AssertionError as err:
            passed_s = time.monotonic() - begun_s
            if "ended with" in str(err) or passed_s > _START_S:
                raise
            print(f"  vLLM starts: {passed_s:.0f} s", flush=True)
            continue
        assert status == 200, f"/health answers {status}; its output:\n{started.output()}"
        print(f"  vLLM is ready after {time.monotonic() - begun_s:.0f} s", flush=True)
        return
