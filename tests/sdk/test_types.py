"""What type checkers make of application code: `Reply[City].output` is a `City`, and mistakes are refused."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
USER = Path(__file__).with_name("typed_user.py").read_text("utf-8")
MISTAKES = """

def mistaken(chat: Chat, other: AsyncChat, reply: Reply[City]) -> None:
    print(reply.output.height)
    reply.text = ""
    chat.effort = "medium"
    Chat(effort="medium")
    chat.ask("hi", prefix="{", output=City)
    chat.ask(3)
    print(other.ask("hi").output)
"""


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """The application's code, and behind it lines that have to be refused."""
    path = tmp_path / "user.py"
    path.write_text(USER + MISTAKES, "utf-8")
    return path


def refused(command: list[str], pattern: str) -> tuple[list[int], str]:
    """The lines that a checker refuses, counted from the mistakes on, and all it says."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
    said = done.stdout + done.stderr
    begin = USER.count("\n")
    return sorted({int(line) - begin for line in re.findall(pattern, said)}), said


@pytest.mark.timeout(180)  # the first run of a checkout has no cache
def test_mypy_infers_the_output_and_finds_each_mistake(user: Path) -> None:
    lines, said = refused(
        [sys.executable, "-m", "mypy", "--no-error-summary", str(user)], r"user\.py:(\d+): error"
    )

    assert lines == list(range(4, 11)), said


def test_pyright_infers_the_output_and_finds_each_mistake(user: Path) -> None:
    program = shutil.which("basedpyright", path=str(Path(sys.executable).parent)) or shutil.which("basedpyright")
    if program is None:
        pytest.skip("basedpyright is not installed")
    settings = user.with_name("pyrightconfig.json")
    settings.write_text(json.dumps({"extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}))
    command = [program, "--level", "error", "--project", str(settings), "--pythonpath", sys.executable]

    lines, said = refused(command, r"user\.py:(\d+):\d+ - error")

    assert lines == list(range(4, 11)), said
