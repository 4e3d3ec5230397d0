"""Files named in a message by `@path`: pictures, videos and texts, as parts of the question."""

import re
from pathlib import Path
from typing import Final

from kimi_sdk.errors import InvalidInput
from kimi_sdk.parts import Part, Question, image, text_file, video
from kimi_sdk.parts_types import media_type_of

_NAMED: Final = re.compile(r'(?<!\S)@(?:"(?P<quoted>[^"\n]+)"|(?P<plain>[^\s"]+))')
_WRITTEN: Final = re.compile(r"(?<!\S)\\@")
_AFTER: Final = ".,;:!?)]}'"
_HEAD_BYTES: Final = 64


def question_of(text: str) -> Question:
    """The message with the files it names behind it, pictures and videos under their names.

    What follows an @ and looks like no path, such as a person's name, stays text; so does anything after an @ with
    a backslash before it, which is left out. Raises `InvalidInput` for a path that leads nowhere, and for a file
    that cannot be sent.
    """
    paths = [path for found in _NAMED.finditer(text) if (path := _path(found)) is not None]
    said = _WRITTEN.sub("@", text)
    parts: list[str | Part] = [said]
    for path in dict.fromkeys(paths):
        parts += _parts(path)
    return parts if len(parts) > 1 else said


def _path(found: re.Match[str]) -> Path | None:
    name = found["quoted"] or found["plain"]
    for candidate in (name, name.rstrip(_AFTER)):
        path = _file(candidate)
        if path is not None:
            return path
    if found["quoted"] or "/" in name or re.search(r"\w\.\w+$", name.rstrip(_AFTER)):
        raise InvalidInput(
            f'there is no file {name.rstrip(_AFTER)}; a path with spaces is written @"like this", and \\@ is '
            "an @ that names no file"
        )
    return None


def _file(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if name and path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a home that nobody has
        return None


def _parts(path: Path) -> list[str | Part]:
    try:
        with path.open("rb") as file:
            kind = media_type_of(file.read(_HEAD_BYTES)) or ""
    except OSError as err:
        raise InvalidInput(f"cannot read {path}: {err.strerror}") from err
    if kind.startswith("image/"):
        return [f"{path.name}:", image(path)]
    if kind.startswith("video/"):
        return [f"{path.name}:", video(path)]
    return [text_file(path)]
