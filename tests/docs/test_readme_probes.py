"""What `kimi-gateway check --probe` prints for each kind of upstream is what the README shows of it.

The README's own configuration is probed, with the emulator of its dialect at the address of the service.
"""

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from backends.emulator.app import Emulator, EmulatorConfig
from backends.emulator.profiles import PROFILES
from kimi_gateway.checks.command import run_check
from kimi_gateway.checks.findings import Output
from support.asgi import serve
from support.pages import blocks, page, unprinted

SECRETS = {"MOONSHOT_API_KEY": "sk-docs-upstream", "OPENROUTER_API_KEY": "sk-docs-upstream"}


def shown_probes(text: str) -> dict[str, tuple[str, str]]:
    """By dialect: the configuration, and the output that stands right behind it."""
    found = blocks(text)
    return {
        tomllib.loads(block.text)["targets"][0]["dialect"]: (block.text, following.text)
        for block, following in pairwise(found)
        if following.info == "text probe"
    }


PROBES = shown_probes(page("README.md"))


def at_address(config: str, base_url: str) -> str:
    """The configuration with another address, and a port of the system's choice for the gateway itself."""
    without = re.sub(r"^base_url = .*\n", "", config, flags=re.MULTILINE)
    return re.sub(r"^(dialect = .*)$", rf'\1\nbase_url = "{base_url}"', without, flags=re.MULTILINE) + (
        "\n[server]\nport = 0\n"
    )


def test_every_dialect_of_the_emulator_is_shown() -> None:
    assert set(PROBES) == set(PROFILES)


@pytest.mark.parametrize("dialect", sorted(PROBES))
def test_a_probe_prints_what_the_readme_shows(
    dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, expected = PROBES[dialect]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")  # the page shows tables as a terminal does that has room for them
    with serve(Emulator(EmulatorConfig(dialect=dialect, pace=0))) as root_url:
        path = tmp_path / "kimi-gateway.toml"
        path.write_text(at_address(config, f"{root_url}/v1"), "utf-8")
        exit_code = run_check(path, SECRETS, probe=True, output=Output.TABLE)
    printed = capsys.readouterr().out
    assert exit_code == 0, printed
    assert unprinted(expected.splitlines(), printed) == [], printed
