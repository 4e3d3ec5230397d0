"""The command in processes of its own: what it refuses and how it says so."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kimi_gateway import __version__
from kimi_gateway.cli import app
from support.processes import BASE_URL, program, run_module
from support.scripted import ScriptedUpstream

KIMI = [sys.executable, "-m", "kimi_gateway"]


def run(*words: str, directory: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What a command says that ends by itself."""
    return run_module("kimi_gateway", *words, directory=directory, env=env)


def test_without_a_target_it_exits_with_2_and_says_how_to_name_one(tmp_path: Path) -> None:
    ended = run("serve", directory=tmp_path)
    assert ended.returncode == 2
    assert ended.stdout == ""
    for word in ("MOONSHOT_API_KEY", "VLLM_BASE_URL", "[[targets]]", "--emulator-if-empty"):
        assert word in ended.stderr
    assert not list(tmp_path.iterdir())


def test_mistakes_exit_with_2_a_line_each_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "kimi-gateway.toml").write_text("[server]\nprot = 1\nworkers = 0\n")
    ended = run("serve", "--port", "70000", directory=tmp_path)
    assert ended.returncode == 2
    assert "3 mistakes in the configuration (kimi-gateway.toml)" in ended.stderr
    assert 'did you mean "port"?' in ended.stderr
    assert "server.port (from --port): must be at most 65535" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_any_key_it_listens_on_loopback_only(tmp_path: Path) -> None:
    env = {"VLLM_BASE_URL": "http://127.0.0.1:9/v1"}
    ended = run("serve", "--host", "0.0.0.0", "--port", "0", directory=tmp_path, env=env)
    assert ended.returncode == 2
    assert "server.host: 0.0.0.0 can be reached from other machines" in ended.stderr
    assert "keys create" in ended.stderr


def test_a_taken_port_exits_with_2_and_the_remedy(tmp_path: Path) -> None:
    with ScriptedUpstream() as other:
        ended = run(
            "serve", "--port", str(other.port), directory=tmp_path, env={"VLLM_BASE_URL": "http://127.0.0.1:9/v1"}
        )
        assert ended.returncode == 2
        assert f"port {other.port} on 127.0.0.1 is taken" in ended.stderr
        assert "--port" in ended.stderr
        ended = run("emulate", "--port", str(other.port), directory=tmp_path)
        assert ended.returncode == 2
        assert "is taken" in ended.stderr


def test_a_ledger_that_cannot_be_used_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / ".kimi-journal").write_text("in the way")
    ended = run_module(
        "kimi_gateway", "serve", "--port", "0", directory=tmp_path, env={"VLLM_BASE_URL": "http://127.0.0.1:9/v1"}
    )
    assert ended.returncode == 2
    assert "the ledger cannot be used" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("package", ["uvicorn", "typer", "sqlalchemy", "alembic"])
def test_without_the_servers_libraries_it_exits_with_2_and_the_install_line(tmp_path: Path, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from kimi_gateway.__main__ import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.returncode == 2
    assert "pip install 'kimi-gateway[server]'" in ended.stderr
    assert package in ended.stderr


def test_help_shows_every_option_and_examples() -> None:
    runner = CliRunner()
    assert "emulate" in runner.invoke(app, ["--help"]).output
    serve = runner.invoke(app, ["serve", "--help"]).output
    emulate = runner.invoke(app, ["emulate", "--help"]).output
    for option in ("--config", "--host", "--port", "--workers", "--emulator-if-empty", "--log-format"):
        assert option in serve
    for option in ("--dialect", "--port", "--permissive", "--stream-ttl-headers", "--pace", "--seed"):
        assert option in emulate
    assert "Examples:" in serve
    assert "Examples:" in emulate
    for command in ("serve", "emulate", "check", "lint-tools"):
        assert runner.invoke(app, [command, "-h"]).output == runner.invoke(app, [command, "--help"]).output


def test_the_version_is_printed_by_the_module_as_by_the_script(tmp_path: Path) -> None:
    # The command is started anew here, and by its script in the tests of the wheel and the documentation.
    command = [*KIMI, "--version"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stdout) == (0, f"kimi-gateway {__version__}\n")


@pytest.mark.parametrize(
    "arguments", [["serve", "--prot", "1"], ["serve", "--port", "x"], ["emulate", "--pace", "-1"], ["srve"]]
)
def test_a_wrong_option_exits_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_what_there_is_not_is_refused_by_name(tmp_path: Path) -> None:
    ended = run("emulate", "--dialect", "morse", directory=tmp_path)
    assert ended.returncode == 2
    assert "does not speak morse" in ended.stderr
    worker = run_module(
        "kimi_gateway",
        "serve",
        "--as-worker",
        "{",
        directory=tmp_path,
        env={"VLLM_BASE_URL": "http://127.0.0.1:9/v1"},
    )
    assert worker.returncode == 2
    assert "--workers N" in worker.stderr


def test_the_emulator_serves_alone_until_a_signal(tmp_path: Path) -> None:
    command = [*KIMI, "emulate", "--port", "0", "--pace", "0", "--stream-ttl-headers", "on", "--seed", "3"]
    with program(command, directory=tmp_path, ready=BASE_URL) as emulator:
        url = emulator.wait_for_line(BASE_URL).group()
        assert emulator.wait_for_http(f"{url}/models") == 200
        assert emulator.wait_for_http(f"{url.removesuffix('/v1')}/emulator/invoice") == 200
        assert emulator.stop() == 0
