"""Where `kimi-pricing` finds ledger, journal and cards: flag before variable before file before default.

It reads the few keys it needs of the gateway's configuration by itself, because pricing knows no gateway. The
variables are read by the command line's own definition (`pricing.cli`).
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_CONFIG: Final = Path("kimi-gateway.toml")
DEFAULT_LEDGER: Final = "sqlite:///kimi-ledger.db"
DEFAULT_JOURNAL: Final = ".kimi-journal"


class ConfigError(Exception):
    """The configuration cannot be used; the message names file, key and remedy."""


@dataclass(frozen=True, slots=True)
class Given:
    """What flags and variables say; None where they say nothing."""

    config: Path | None = None
    ledger: str | None = None
    journal: Path | None = None

    def over(self, other: "Given") -> "Given":
        """These, and where they say nothing the others."""
        return Given(self.config or other.config, self.ledger or other.ledger, self.journal or other.journal)


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are. Relative paths count from the working directory, as they do for the gateway."""

    ledger_url: str
    journal_dir: Path
    cards_dir: Path | None


def find_places(given: Given) -> Places:
    """The places to use. Raises `ConfigError` for a file that is absent or wrong."""
    table, name = _read(given.config)
    ledger = given.ledger or _text(table, "ledger", "url", name) or DEFAULT_LEDGER
    journal = given.journal or Path(_text(table, "ledger", "journal_dir", name) or DEFAULT_JOURNAL)
    cards = _text(table, "pricing", "cards_dir", name)
    return Places(ledger, journal, Path(cards) if cards else None)


def _read(path: Path | None) -> tuple[Mapping[str, object], str]:
    file = DEFAULT_CONFIG if path is None else path
    try:
        return tomllib.loads(file.read_text("utf-8-sig")), str(file)
    except FileNotFoundError as err:
        if path is None:
            return {}, str(file)
        raise ConfigError(f"there is no configuration at {file}; give the right path with --config") from err
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"the configuration {file} cannot be read: {err}") from err
    except tomllib.TOMLDecodeError as err:
        raise ConfigError(f"the configuration {file} is not TOML: {err}") from err


def _text(table: Mapping[str, object], section: str, key: str, name: str) -> str:
    inner = table.get(section, {})
    if not isinstance(inner, dict):
        raise ConfigError(f"{name}: {section} must be a table, [{section}]")
    value = inner.get(key, "")
    if not isinstance(value, str):
        raise ConfigError(f"{name}: [{section}] {key} must be a text in quotes, not {value!r}")
    return value
