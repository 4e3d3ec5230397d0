"""Every example that `kimi-pricing --help` gives works as it stands."""

import contextlib
import os
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pricing.cli import app
from pricing.ledger.store import Store
from support.ledger_rows import settled_row

COMMANDS = ("rates", "report", "show")


def run(directory: Path, *words: str) -> Result:
    """Runs the command in a directory."""
    unset: dict[str, str | None] = {name: None for name in os.environ if name.startswith("KIMI_")}
    with contextlib.chdir(directory):
        return CliRunner().invoke(app, words, env=unset, prog_name="kimi-pricing")


def test_the_overview_names_every_command(tmp_path: Path) -> None:
    overview = run(tmp_path, "--help").stdout
    assert all(command in overview for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_runs(tmp_path: Path, command: str) -> None:
    help_text = run(tmp_path, command, "--help").stdout
    lines = [line.strip() for line in help_text.splitlines()]
    examples = [shlex.split(line)[1:] for line in lines if line.startswith("kimi-pricing ")]
    assert len(examples) >= 2
    store = Store(f"sqlite:///{tmp_path / 'kimi-ledger.db'}", create=True)
    store.upsert([settled_row(word) for words in examples for word in words if word.startswith("kr_")])
    store.close()
    for words in examples:
        done = run(tmp_path, *words)
        assert done.exit_code == 0, (words, done.stderr)
        assert done.stdout
