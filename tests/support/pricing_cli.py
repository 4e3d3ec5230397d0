"""`kimi-pricing` run in this process, in a directory of its own, without the variables of whoever tests."""

import contextlib
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from pricing.cli import app
from pricing.ledger.row import LedgerRow
from pricing.ledger.store import Store


def run_pricing(
    directory: Path,
    *words: str,
    expect: int = 0,
    stdin: bytes | None = None,
    variables: Mapping[str, str] | None = None,
) -> Result:
    """What the command says; the exit code must be the expected one."""
    unset: dict[str, str | None] = {name: None for name in os.environ if name.startswith(("KIMI_", "XDG_"))}
    env = {**unset, "HOME": str(directory), "COLUMNS": "80", **(variables or {})}
    with contextlib.chdir(directory):
        done = CliRunner().invoke(app, words, env=env, input=stdin, prog_name="kimi-pricing")
    assert done.exit_code == expect, (words, done.stdout, done.stderr, done.exception)
    return done


def pricing_json(directory: Path, *words: str, **options: Any) -> Any:
    """What the command prints as JSON."""
    return json.loads(run_pricing(directory, *words, "--format", "json", **options).stdout)


def book_rows(directory: Path, rows: Iterable[LedgerRow]) -> None:
    """Puts rows into the ledger that the command reads by default in this directory."""
    store = Store(f"sqlite:///{directory / 'kimi-ledger.db'}", create=True)
    store.upsert(list(rows))
    store.close()


def help_examples(directory: Path, command: str) -> Iterator[list[str]]:
    """The words of every example in a command's help, without the program's name."""
    for line in run_pricing(directory, command, "--help").stdout.splitlines():
        if line.strip().startswith("kimi-pricing "):
            yield shlex.split(line)[1:]


def too_wide(printed: str, columns: int = 80) -> list[str]:
    """The lines of a table that do not fit the page; remarks are single lines elsewhere than on a terminal."""
    body = printed.rsplit("\n\n", 1)[0]
    return [line for line in body.splitlines() if len(line) > columns]
