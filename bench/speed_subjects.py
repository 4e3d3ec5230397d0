"""What `bench/speed.py` measures, running: the gateway with all on, its variants, peers, the bare upstream."""

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from speed_peers import Peer, home_of
from speed_process import HERE, free_port, plain_env, started, stop

GATEWAY: Final = "gateway"
DIRECT: Final = "direct"
GATEWAY_START_S: Final = 60.0
PEER_START_S: Final = 120.0
_CONFIG: Final = """\
[server]
port = {port}
workers = {workers}
drain_grace_s = 0
drain_timeout_s = 1
[ledger]
url = "{ledger}"
journal_dir = "{directory}/journal"
[state]
url = "{state}"
[[targets]]
name = "moonshot"
dialect = "moonshot"
base_url = "http://127.0.0.1:{upstream}/v1"
api_key_env = "BENCH_UPSTREAM_KEY"
context_window = 2097152
[[keys]]
name = "team-a"
key_env = "BENCH_KEY"
budget_usd = "9000000.00"
rpm = 1000000000
tpm = 1000000000000000
concurrency = 100000
"""
"""The window is twice Kimi's: 4 MB may be all of that, and then thoughts are left out for want of room."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that runs and can be asked. `pid` is the root of the processes whose CPU and memory count."""

    name: str
    port: int
    pid: int
    path: str = "/health"
    headers: Mapping[str, str] = field(default_factory=dict)
    repairs: bool = False
    start_s: float = 0.0
    process: subprocess.Popen[bytes] | None = None

    def asked(self) -> dict[str, Any]:
        """What every command to the clients has to say of it."""
        return {"port": self.port, "pid": self.pid, "headers": dict(self.headers)}


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to run the gateway."""

    name: str = GATEWAY
    workers: int = 1
    state: str = "memory://"
    ledger: str = ""


def config_text(directory: Path, *, port: int, upstream: int, variant: Variant = Variant()) -> str:
    """The configuration of a gateway whose files are in that directory. Its key is in `BENCH_KEY`."""
    ledger = variant.ledger or f"sqlite:///{directory}/ledger.db"
    values = {"workers": variant.workers, "state": variant.state, "ledger": ledger, "directory": directory}
    return _CONFIG.format(port=port, upstream=upstream, **values)


def gateway(variant: Variant, upstream: int, directory: Path) -> Subject:
    """A gateway with a key that has a budget and limits, thoughts, contract, ledger, metrics, its log in a file.

    Raises `StartError`.
    """
    directory.mkdir(parents=True)
    key, port = f"kg-{secrets.token_hex(16)}", free_port()
    config = directory / "kimi-gateway.toml"
    config.write_text(config_text(directory, port=port, upstream=upstream, variant=variant), "utf-8")
    command = [sys.executable, "-m", "kimi_gateway", "serve", "--config", str(config)]
    env = plain_env(BENCH_KEY=key, BENCH_UPSTREAM_KEY="sk-bench-upstream")
    process, took_s = started(command, env, directory, port=port, path="/health", wait_s=GATEWAY_START_S)
    headers = {"authorization": f"Bearer {key}"}
    return Subject(variant.name, port, process.pid, "/health", headers, True, took_s, process)


def peer_subject(peer: Peer, root: Path, upstream: int, directory: Path) -> Subject:
    """A peer in front of the upstream. Raises `StartError`, `speed_peers.Absent`."""
    directory.mkdir(parents=True)
    start = peer.start(home_of(peer, root), upstream, directory)
    process, took_s = started(
        start.command, plain_env(**start.env), directory, port=start.port, path=start.path, wait_s=PEER_START_S
    )
    headers = {"authorization": "Bearer sk-bench", **start.headers}
    return Subject(peer.name, start.port, process.pid, start.path, headers, False, took_s, process)


def direct(upstream: int, pid: int) -> Subject:
    """The upstream itself: what is no gateway's doing."""
    return Subject(DIRECT, upstream, pid)


def end(subject: Subject) -> None:
    """Ends what was started for it."""
    if subject.process is not None:
        stop(subject.process)


Starter = Callable[[Path], Subject]
"""Starts a subject with its files in that directory."""


@contextmanager
def variants(upstream: int, directory: Path, names: frozenset[str]) -> Iterator[dict[str, Starter]]:
    """The ways to run the gateway, with the servers that they need, for as long as the context is open."""
    sys.path.append(str(HERE.parent / "tests"))
    from support.postgres import postgres
    from support.valkey import running

    ways = [Variant(), Variant("2 workers", workers=2), Variant("embedded", state="embedded://")]
    with ExitStack() as stack:
        if "Redis" in names:
            (directory / "redis").mkdir()
            server = stack.enter_context(running(directory / "redis", password=secrets.token_hex(8)))
            ways.append(Variant("Redis", state=f"redis://:{server.password}@127.0.0.1:{server.port}/0"))
        if "PostgreSQL" in names:
            ways.append(Variant("PostgreSQL", ledger=stack.enter_context(postgres()).new_database()))
        yield {
            way.name: lambda place, way=way: gateway(way, upstream, place)  # type: ignore[misc]  # a default binds it
            for way in ways
        }
