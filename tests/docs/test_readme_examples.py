"""The README's examples run as they stand against what `make run` starts.

A block `sh run` or `python run` is executed in the gateway's directory, with its real address in place of
http://127.0.0.1:8000 and the id of the last request in place of the one written there. A block `sh starts` is a
program that serves until it is told to stop. The block `text output` behind either is what must be printed: each
line in its order, with … for whatever varies.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import openai
import pytest
from typer.testing import CliRunner

from kimi_gateway.cli import app as gateway_app
from pricing.cli import app as pricing_app
from support.commands import commands
from support.lab import ledger_url, wait_for_row
from support.pages import Block, blocks, page, unprinted
from support.processes import BASE_URL, Gateway, clean_environment, gateway_process, program

WRITTEN_URL = "http://127.0.0.1:8000"
WRITTEN_ID = "kr_01JD9QK6Z3V8X2M4N5P7R9T1W0"
REAL_ID = re.compile(r"kr_[0-9A-Z]{26}")
PORT = re.compile(r"--port \d+")
WIDE = {"COLUMNS": "160"}
"""The page shows tables as a terminal does that has room for them."""
PROGRAMS = {"kimi-gateway": gateway_app, "kimi-pricing": pricing_app}


@dataclass(frozen=True, slots=True)
class Example:
    """A block to execute, and the lines that it must print."""

    block: Block
    expected: tuple[str, ...]

    @property
    def needs(self) -> str:
        """The program it cannot do without."""
        return "curl" if self.block.text.startswith("curl") else "sh"


def examples(text: str, mark: str) -> Iterator[Example]:
    """The blocks with that mark and what stands behind each."""
    found = blocks(text)
    for block, following in zip(found, [*found[1:], Block("", "", 0)], strict=True):
        if mark in block.marks:
            lines = following.text.splitlines() if following.info == "text output" else []
            yield Example(block, tuple(lines))


def in_process(words: Sequence[str], directory: Path) -> tuple[int, str]:
    """Exit code and output of one of our own commands, without the second that starting it takes."""
    unset: dict[str, str | None] = {name: None for name in os.environ if name.startswith("KIMI_")}
    with contextlib.chdir(directory):
        done = CliRunner().invoke(PROGRAMS[words[0]], list(words[1:]), env={**unset, **WIDE}, prog_name=words[0])
    return done.exit_code, done.stdout if done.exit_code == 0 else done.output


def in_thread(code: str, place: str) -> str:
    """What Python code prints, run beside other code. Clients that it leaves open are closed."""
    printed = StringIO()
    names: dict[str, Any] = {"print": partial(print, file=printed), "__name__": "__main__"}
    exec(compile(code, place, "exec"), names)
    for value in names.values():
        if isinstance(value, openai.OpenAI):
            value.close()
    return printed.getvalue()


def in_shell(code: str, place: str, directory: Path, programs: Path) -> str:
    """What a shell prints for the code. Raises `AssertionError` where it fails."""
    path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    env = clean_environment({"PATH": os.pathsep.join(path)})
    done = subprocess.run(
        ["sh", "-e", "-c", code], cwd=directory, env=env, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, f"{place}: {done.stderr}\n{done.stdout}"
    return done.stdout


def executed(example: Example, gateway: Gateway, programs: Path, last_id: str = "") -> str:
    """What a block prints. `programs` holds our commands, for shells. Raises where it fails."""
    code = example.block.text.replace(WRITTEN_URL, gateway.root_url).replace(WRITTEN_ID, last_id)
    directory, place = gateway.ledger.parent, f"README.md:{example.block.line}"
    if example.block.language == "python":
        return in_thread(code, place)
    is_one_command = code.strip().count("\n") == 0 and not set(code) & set("|>")
    if code.split()[0] not in PROGRAMS or not is_one_command:
        return in_shell(code, place, directory, programs)
    exit_code, printed = in_process(shlex.split(code), directory)
    assert exit_code == 0, f"{place}: {printed}"
    return printed


def settled_requests(gateway: Gateway) -> int:
    """How many requests have ended; an answer is counted before its client has all of it."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"{gateway.root_url}/metrics") as reply:
        shown = reply.read().decode()
    return sum(int(float(count)) for count in re.findall(r"^kimi_requests_total{.*} (.+)$", shown, re.MULTILINE))


def last_request(gateway: Gateway) -> str:
    """The id of the request that ended last, once log and ledger have all of them."""
    ids: list[str] = []
    deadline = time.monotonic() + 10
    while len(ids) < settled_requests(gateway) and time.monotonic() < deadline:
        time.sleep(0.02)
        ids = REAL_ID.findall(gateway.program.stderr())
    for request_id in ids:
        wait_for_row(ledger_url(gateway), request_id)
    return ids[-1]


def test_every_example_runs_and_prints_what_the_readme_says(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(examples(page("README.md"), "run"))
    absent = {example.needs for example in found if shutil.which(example.needs) is None}
    present = [example for example in found if example.needs not in absent]
    assert len(present) >= 8
    first = next(at for at, example in enumerate(present) if "kimi-pricing" in example.block.text)
    config = "[server]\ndrain_grace_s = 0\n"
    with commands() as programs, gateway_process(config, arguments=["--emulator-if-empty"]) as gateway:
        run = partial(executed, gateway=gateway, programs=programs)
        monkeypatch.setenv("KIMI_BASE_URL", gateway.base_url)
        monkeypatch.delenv("KIMI_API_KEY", raising=False)
        with ThreadPoolExecutor(max_workers=8) as pool:  # the questions; most of their time is the emulator's pace
            answers = list(pool.map(run, present[:first]))
            last_id = last_request(gateway)
            # What the commands show is of the requests before them.
            present = [*present[:first], *sorted(present[first:], key=lambda one: one.block.language == "python")]
            later = next(at for at in range(first, len(present)) if present[at].block.language == "python")
            answers += [run(example, last_id=last_id) for example in present[first:later]]
            answers += pool.map(run, present[later:])
    for example, printed in zip(present, answers, strict=True):
        assert unprinted(example.expected, printed) == [], f"README.md:{example.block.line}:\n{printed}"
    if absent:
        pytest.skip(f"the rest ran, but {', '.join(absent)} is not here")


STARTS = list(examples(page("README.md"), "starts"))


@pytest.mark.parametrize("example", STARTS, ids=[found.block.text.split()[1] for found in STARTS])
def test_a_program_starts_says_where_it_is_and_ends_when_told(example: Example, tmp_path: Path) -> None:
    (tmp_path / "kimi-gateway.toml").write_text("[server]\ndrain_grace_s = 0\n", "utf-8")
    command = PORT.sub("--port 0", example.block.text.strip()).split()
    assert command[command.index("--port") + 1] == "0"
    installed = Path(sys.executable).parent / command[0]
    with program([str(installed), *command[1:]], directory=tmp_path, ready=BASE_URL) as started:
        assert unprinted(example.expected, started.stdout()) == []
        assert started.stop() == 0


def test_a_line_that_is_not_printed_is_found() -> None:
    printed = 'a: 1\n{"cost": 0.25, "id": "x"}\n'
    assert unprinted(["a: 1", '"cost": …"id"'], printed) == []
    assert unprinted(["a: 2"], printed) == ["a: 2"]
    assert unprinted(['"cost": …"id"', "a: 1"], printed) == ["a: 1"]
