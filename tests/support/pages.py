"""The repository's Markdown pages, taken apart: headings with their text, tables, inline code, fenced blocks."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VARIES = "…"
"""Stands in an output for what differs from one time to the next."""

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(?P<marks>#{1,6}) (?P<title>.+)$", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(#(?P<anchor>[^)]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: what stands behind its fence, its text, and the line of the page it begins on."""

    info: str
    text: str
    line: int

    @property
    def language(self) -> str:
        """The first word behind the fence, "" where there is none."""
        return next(iter(self.info.split()), "")

    @property
    def marks(self) -> tuple[str, ...]:
        """The further words behind the fence."""
        return tuple(self.info.split()[1:])


def page(name: str) -> str:
    """The text of a page of the repository's root."""
    return (ROOT / name).read_text("utf-8")


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    return [
        Block(found["info"].strip(), found["text"], text.count("\n", 0, found.start()) + 1)
        for found in _FENCE.finditer(text)
    ]


def without_blocks(text: str) -> str:
    """The page with its fenced blocks emptied, so that a # in code is no heading."""
    return _FENCE.sub(lambda found: f"```{found['info']}\n```", text)


def section(text: str, title: str) -> str:
    """What stands under a heading, up to the next one of its level or above; "" where there is no such heading."""
    prose = without_blocks(text)
    for found in _HEADING.finditer(prose):
        if found["title"] == title:
            end = re.compile(rf"^#{{1,{len(found['marks'])}}} ", re.MULTILINE).search(prose, found.end())
            return prose[found.end() : end.start() if end else len(prose)]
    return ""


def headings(text: str) -> list[str]:
    """The titles of all headings."""
    return [found["title"] for found in _HEADING.finditer(without_blocks(text))]


def code_words(text: str) -> set[str]:
    """Everything written as inline code."""
    return set(_CODE.findall(text))


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every table line but the ruling."""
    for line in text.splitlines():
        if line.startswith("|") and not re.fullmatch(r"[|\s:-]+", line):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def first_cells(text: str) -> set[str]:
    """Everything written as inline code in the first column of the tables."""
    return {word for cells in rows(text) for word in code_words(cells[0])}


def anchors(text: str) -> set[str]:
    """The anchors that a page's own links point to."""
    return {found["anchor"] for found in _LINK.finditer(text)}


def anchor_of(title: str) -> str:
    """The anchor of a heading, by the common rule: lower case, blanks to hyphens, other marks dropped."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def unprinted(expected: Sequence[str], printed: str) -> list[str]:
    """The expected lines that were not printed, or not in this order; the width of gaps in them is no matter."""
    lines = (" ".join(line.split()) for line in printed.splitlines())
    missing = []
    for wanted in expected:
        parts = " ".join(wanted.split()).split(VARIES)
        pattern = ".*".join(re.escape(part) for part in parts)
        if not any(re.search(pattern, line) for line in lines):
            missing.append(wanted)
    return missing
