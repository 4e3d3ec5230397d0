"""`kimi-pricing tokenizer`: what it prints and how it exits."""

import json
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result
from typing_extensions import override

from pricing.cli_tokenizer import tokenizer_app
from support.shared import shared_path


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line per request."""

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""


@pytest.fixture
def folder_url(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address under which its files are served."""
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def run(tmp_path: Path, *words: str, **variables: str) -> Result:
    environ: Mapping[str, str | None] = {
        "XDG_CACHE_HOME": str(tmp_path),
        "KIMI_TOKENIZER": None,
        "NO_PROXY": "127.0.0.1",
        **variables,
    }
    return CliRunner().invoke(tokenizer_app, list(words), env=environ)


def test_without_a_vocabulary_status_says_estimate_and_what_to_do(tmp_path: Path) -> None:
    result = run(tmp_path, "status")

    assert result.exit_code == 0
    assert "estimate" in result.stdout
    assert "run kimi-pricing tokenizer fetch" in result.stdout


def test_status_as_json_names_place_state_and_pin(tmp_path: Path) -> None:
    found = json.loads(run(tmp_path, "status", "--format", "json").stdout)

    assert found == {
        "state": "missing",
        "counting": "estimate",
        "path": str(tmp_path / "kimi-gateway" / "b6c497a7469b-tiktoken.model"),
        "source": "cache",
        "expected_size_bytes": 2795286,
        "expected_sha256": "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103",
        "problem": "not fetched yet; run kimi-pricing tokenizer fetch, or set KIMI_TOKENIZER",
    }


def test_a_wrong_vocabulary_is_exit_2(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"x")

    result = run(tmp_path, "status", "--format", "json", KIMI_TOKENIZER=str(wrong))

    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert (found["state"], found["counting"]) == ("wrong", "refused")
    assert "it has 1 bytes instead of 2,795,286" in found["problem"]


def test_fetch_fills_the_cache_and_counts_are_exact_from_then_on(
    tmp_path: Path, folder_url: tuple[Path, str]
) -> None:
    folder, url = folder_url
    (folder / "v").write_bytes(shared_path("tokenizer/tiktoken.model").read_bytes())

    first = run(tmp_path, "fetch", "--url", f"{url}/v", "--format", "json")
    again = run(tmp_path, "fetch", "--url", f"{url}/gone")

    assert (first.exit_code, json.loads(first.stdout)["downloaded"]) == (0, True)
    assert again.exit_code == 0
    assert "already there" in again.stdout
    assert "to use it" not in again.stdout
    assert json.loads(run(tmp_path, "status", "--format", "json").stdout)["counting"] == "exact"


def test_fetch_to_another_file_says_how_to_use_it(tmp_path: Path) -> None:
    shared = shared_path("tokenizer/tiktoken.model")

    result = run(tmp_path, "fetch", "--to", str(shared))

    assert f"set KIMI_TOKENIZER={shared} to use it" in result.stdout


def test_a_failed_download_is_exit_1_and_leaves_nothing(tmp_path: Path, folder_url: tuple[Path, str]) -> None:
    folder, url = folder_url
    (folder / "page").write_text("<html>Sign in</html>")

    result = run(tmp_path, "fetch", "--url", f"{url}/page")

    assert result.exit_code == 1
    assert "is not the vocabulary: it has 20 bytes" in result.stderr
    assert list((tmp_path / "kimi-gateway").iterdir()) == []


def test_without_a_place_for_a_cache_fetch_asks_for_one(tmp_path: Path) -> None:
    result = run(tmp_path, "fetch", XDG_CACHE_HOME="", HOME="")

    assert result.exit_code == 2
    assert "name a file with --to" in result.stderr


def test_csv_is_not_offered(tmp_path: Path) -> None:
    assert run(tmp_path, "status", "--format", "csv").exit_code == 2
