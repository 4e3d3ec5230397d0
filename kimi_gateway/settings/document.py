"""The configuration file as a document, and what can still be read of one that is not TOML.

A slip in one table hides nothing of the others: each is read by itself, so that all mistakes come at once.
"""

import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from kimi_gateway.settings.mistakes import SettingsError


@dataclass(frozen=True, slots=True)
class Document:
    """The tables of a file. `broken` says where it is not TOML; `raw` then has only the tables without a slip."""

    raw: dict[str, Any] = field(default_factory=dict)
    broken: tuple[str, ...] = ()


def read_document(path: Path, names: Collection[str]) -> Document:
    """The document of a file, fractions as exact `Decimal`; `names` are those of the tables that there are.

    Raises `SettingsError` for a file that cannot be read or is no text.
    """
    try:
        text = path.read_text("utf-8-sig")
    except OSError as err:
        reason = err.strerror or type(err).__name__
        raise SettingsError([f"the file {path} cannot be read ({reason}); name another with --config"]) from err
    except UnicodeDecodeError as err:
        raise SettingsError(
            [f"the file is not UTF-8 text (byte {err.start}); save it as UTF-8"], str(path)
        ) from err
    try:
        return Document(_parsed(text))
    except tomllib.TOMLDecodeError as err:
        return _salvaged(text, names, str(err))


def _parsed(text: str) -> dict[str, Any]:
    return tomllib.loads(text, parse_float=Decimal)


def _salvaged(text: str, names: Collection[str], first: str) -> Document:
    """The tables that can be read by themselves, and a line for each that cannot; `first` is what is wrong with
    the whole."""
    head = re.compile(rf"\s*\[\[?\s*(?:{'|'.join(map(re.escape, names))})\s*(?:\]|#|$)")
    lines = text.splitlines()
    begins = [number for number, line in enumerate(lines) if head.match(line)]
    raw: dict[str, Any] = {}
    broken: list[str] = []
    for begin, end in zip([0, *begins], [*begins, len(lines)], strict=True):
        try:
            _merge(raw, _parsed("\n" * begin + "\n".join(lines[begin:end]) + "\n"))
        except tomllib.TOMLDecodeError as err:
            broken.append(_explained(str(err)))
    return Document(raw, tuple(broken) or (_explained(first),))


def _merge(raw: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        known = raw.setdefault(name, value)
        if known is value:
            continue
        if isinstance(known, list) and isinstance(value, list):
            known += value
        elif isinstance(known, dict) and isinstance(value, dict):
            known |= value


def _explained(problem: str) -> str:
    """The parser's words, with the remedy of the commonest slip."""
    return problem + ("; write text in quotes" if problem.startswith("Invalid value") else "")
