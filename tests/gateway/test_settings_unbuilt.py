"""Settings of features that are not built yet: each refused by name, each accepted with its default."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from kimi_gateway.settings import SettingsError, load
from kimi_gateway.settings.load import ENTRIES, SECTIONS
from kimi_gateway.settings.unbuilt import UNBUILT

VALUES: Mapping[str, str] = {
    "server.cors_origins": '["https://example.org"]',
}
BASES = {
    "targets": '[[targets]]\nname = "a"\ndialect = "vllm"\nbase_url = "http://127.0.0.1:1/v1"\n',
    "routes": '[[routes]]\nmodel = "kimi-k3.1-pro"\n',
    "keys": '[[keys]]\nname = "k"\nkey_env = "KEY"\n',
}
ENVIRON = {"KEY": "kg-a-secret-key"}


def text_with(dotted: str, value: str) -> str:
    """A configuration that is right but for one setting."""
    section, _, name = dotted.partition(".")
    line = f"{name} = {value}\n"
    if section not in ENTRIES:
        return f"[{section}]\n{line}"
    parts = [f"{base}{line}" if other == section else base for other, base in BASES.items()]
    return "".join(parts)


def toml(value: Any) -> str:
    """A default as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | dict):
        return "{}" if isinstance(value, dict) else "[]"
    return str(value) if isinstance(value, int | float) else f'"{"" if value is None else value}"'


def test_every_entry_of_the_table_is_tested() -> None:
    assert set(VALUES) == set(UNBUILT)


@pytest.mark.parametrize("dotted", sorted(UNBUILT))
def test_what_is_not_built_is_refused_by_name(tmp_path: Path, dotted: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text_with(dotted, VALUES[dotted]))
    with pytest.raises(SettingsError) as caught:
        load(path, ENVIRON)
    section, _, name = dotted.partition(".")
    assert len(caught.value.mistakes) == 1
    place, _, reason = caught.value.mistakes[0].partition(": ")
    assert place.startswith(section)
    assert place.endswith(f".{name}")
    assert "not built yet" in reason
    assert reason.endswith("; leave it out")


@pytest.mark.parametrize("dotted", sorted(UNBUILT))
def test_what_is_not_built_is_accepted_with_its_default(tmp_path: Path, dotted: str) -> None:
    section, _, name = dotted.partition(".")
    kind = {**SECTIONS, **ENTRIES}[section]
    item = next(item for item in fields(kind) if item.name == name)
    default = item.default if item.default is not MISSING else {}
    path = tmp_path / "c.toml"
    path.write_text(text_with(dotted, toml(default)))
    load(path, ENVIRON)
