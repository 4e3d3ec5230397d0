"""What a docstring says about a function and about each of its parameters, in the three usual styles. Pure.

Google (`Args:` and indented `name: text`), NumPy (`Parameters` over dashes) and Sphinx (`:param name: text`).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import cleandoc
from typing import Final, TypeAlias

_SECTION: Final = re.compile(
    r"(args|arguments|parameters|params|keyword args|keyword arguments)\s*:", re.IGNORECASE
)
_GOOGLE: Final = re.compile(r"\*{0,2}(?P<name>\w+)\s*(\([^:]*\))?\s*:\s*(?P<text>.*)")
_NUMPY: Final = re.compile(r"(?P<names>\*{0,2}\w+(\s*,\s*\*{0,2}\w+)*)\s*(:.*)?")
_DASHES: Final = re.compile(r"-{3,}\s*")
_SPHINX: Final = re.compile(r":(?P<field>param|parameter|arg|argument|type)\s+(?P<words>[^:]+):\s*(?P<text>.*)")

_Names: TypeAlias = Callable[[str], tuple[list[str], str] | None]
"""The names that a line begins an entry for, with the text beside them; None where it begins none."""


@dataclass(frozen=True, slots=True)
class Doc:
    """The docstring without what it says about parameters, and that by parameter."""

    description: str
    parameters: Mapping[str, str]


def read_doc(docstring: str | None) -> Doc:
    """The two halves of a docstring; both empty where there is none."""
    lines = cleandoc(docstring or "").splitlines()
    said: list[str] = []
    found: dict[str, str] = {}
    at = 0
    while at < len(lines):
        taken, parameters = _parameters_at(lines, at)
        found |= parameters
        if not taken:
            said.append(lines[at])
        at += taken or 1
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(said)).strip()
    return Doc(text, {name: text for name, text in found.items() if text})


def _parameters_at(lines: list[str], at: int) -> tuple[int, dict[str, str]]:
    """How many lines from here on are about parameters, and what they say; 0 where they are not."""
    line = lines[at]
    if _SECTION.fullmatch(line):
        block = _block(lines, at + 1)
        return 1 + len(block), _entries(block, _google_names)
    if (
        line.strip() in ("Parameters", "Other Parameters")
        and at + 1 < len(lines)
        and _DASHES.fullmatch(lines[at + 1])
    ):
        end = _numpy_end(lines, at + 2)
        return end - at, _entries(lines[at + 2 : end], _numpy_names)
    if field := _SPHINX.fullmatch(line):
        more = _block(lines, at + 1, blank=False)
        text = " ".join([field["text"], *(part.strip() for part in more)]).strip()
        name = field["words"].split()[-1].lstrip("*")
        return 1 + len(more), {} if field["field"] == "type" else {name: text}
    return 0, {}


def _block(lines: list[str], at: int, *, blank: bool = True) -> list[str]:
    """The indented lines from here on, without blank ones at their end."""
    end = at
    while end < len(lines) and (lines[end][:1].isspace() or (blank and not lines[end])):
        end += 1
    while end > at and not lines[end - 1].strip():
        end -= 1
    return lines[at:end]


def _numpy_end(lines: list[str], at: int) -> int:
    """Where the next section begins: a line over dashes."""
    for end in range(at, len(lines) - 1):
        if lines[end].strip() and _DASHES.fullmatch(lines[end + 1]):
            return end
    return len(lines)


def _entries(block: list[str], names_of: _Names) -> dict[str, str]:
    """Parameter texts of a block: a name begins an entry at the block's own indent, deeper lines go on with it."""
    indent = min((_indent(line) for line in block if line.strip()), default=0)
    texts: dict[str, list[str]] = {}
    names: list[str] = []
    for line in block:
        if not line.strip():
            continue
        begun = names_of(line.strip()) if _indent(line) == indent else None
        if begun is not None:
            names, first = begun
            texts |= {name: [first] for name in names}
            continue
        for name in names:
            texts[name].append(line.strip())
    return {name: " ".join(parts).strip() for name, parts in texts.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _google_names(line: str) -> tuple[list[str], str] | None:
    found = _GOOGLE.fullmatch(line)
    return ([found["name"]], found["text"]) if found else None


def _numpy_names(line: str) -> tuple[list[str], str] | None:
    found = _NUMPY.fullmatch(line)
    return ([name.strip().lstrip("*") for name in found["names"].split(",")], "") if found else None
