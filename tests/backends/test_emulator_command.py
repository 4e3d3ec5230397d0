"""`kimi-gateway emulate` with its dialects and its fault file."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from backends.emulator.profiles import PROFILES
from kimi_gateway.cli import app
from support.misbehaving import Upstream, misbehaving
from support.processes import BASE_URL, program

COMMAND = [sys.executable, "-m", "kimi_gateway", "emulate", "--port", "0", "--pace", "0"]


@pytest.mark.parametrize("dialect", list(PROFILES))
def test_each_dialect_is_served_with_its_faults(dialect: str, tmp_path: Path) -> None:
    file = tmp_path / "faults.toml"
    file.write_text('[service]\ncontext_tokens = 9999\n[[faults]]\nkind = "reset"\nrequests = [2]\n', "utf-8")
    command = [*COMMAND, "--dialect", dialect, "--faults", str(file)]
    with program(command, ready=BASE_URL) as started:
        address = started.wait_for_line(BASE_URL).group()
        held = Upstream(int(address.removesuffix("/v1").rpartition(":")[2]))
        model = held.get("/v1/models").json["data"][0]
        ends = [held.ask(model=model["id"]) for _ in range(3)]
    assert 9999 in (model.get("context_length"), model.get("max_model_len"))
    assert [(heard.status, heard.end) for heard in ends] == [(200, "closed"), (0, "reset"), (200, "closed")]


def stopped(*arguments: str) -> tuple[int, str]:
    """Exit code and what was printed by a command that does not start."""
    done = CliRunner().invoke(app, ["emulate", "--port", "0", *arguments])
    return done.exit_code, done.output


def test_a_dialect_that_it_does_not_speak_ends_it() -> None:
    code, said = stopped("--dialect", "klingon")
    assert code == 2
    assert "it speaks moonshot, openrouter, vllm, sglang" in said


def test_a_fault_file_with_mistakes_ends_it_and_names_each(tmp_path: Path) -> None:
    file = tmp_path / "faults.toml"
    file.write_text("sede = 1\n[[faults]]\nkind = 'cutt'\n", "utf-8")
    code, said = stopped("--faults", str(file))
    assert code == 2
    assert "sede: there is no such key; did you mean seed?" in said
    assert "faults[0].kind: there is no kind 'cutt'; did you mean cut?" in said


def test_a_fault_file_that_is_not_there_ends_it(tmp_path: Path) -> None:
    code, said = stopped("--faults", str(tmp_path / "none.toml"))
    assert (code, "none.toml" in said) == (2, True)


def test_the_same_seed_gives_the_same_answer_in_every_dialect() -> None:
    def text(dialect: str, seed: int) -> str:
        with misbehaving(dialect=dialect, seed=seed) as held:
            said: str = held.ask(model=PROFILES[dialect].models[0].id).json["choices"][0]["message"]["content"]
            return said

    assert len({text(dialect, 5) for dialect in (*PROFILES, *PROFILES)}) == 1
    assert text("vllm", 5) != text("vllm", 6)
