"""What the Makefile's targets would do, without doing it."""

import os
import shutil
import subprocess

import pytest

from support.pages import ROOT


def planned(*words: str) -> list[str]:
    """The commands that `make` would run."""
    if shutil.which("make") is None:
        pytest.skip("make is not here")
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_run_takes_further_options() -> None:
    assert planned("run", "ARGS=--port 8001")[-1].endswith("kimi-gateway serve --emulator-if-empty --port 8001")
    assert planned("run")[-1].split() == [".venv/bin/kimi-gateway", "serve", "--emulator-if-empty"]


def test_an_installation_is_announced() -> None:
    commands = planned("-B", "install")
    assert commands[0].startswith('echo "installing into .venv')
    assert "pip install" in "\n".join(commands[1:])
