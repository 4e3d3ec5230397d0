"""What a question may hold besides text: pictures, videos and files, checked before they are sent.

A picture that is refused stays in the history and would have every later turn refused too, so its first bytes
decide, not the name of its file. Types: what Moonshot's own provider sends there (AI SDK 3.0.60). Sizes: the
platform takes files of 100 MB, the gateway requests of 100 MiB, and base64 makes a third more of each byte.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from backends.dialect import Dialect
from backends.json import Json, JsonObject, as_list, as_object, as_str
from kimi_sdk.errors import InvalidInput
from kimi_sdk.parts_types import media_type_of

MEDIA_MAX_BYTES: Final = 74 * 1024 * 1024
"""As base64 it leaves 1.3 MiB of a 100 MiB request for the rest."""
TEXT_FILE_MAX_BYTES: Final = 4 * 1024 * 1024
"""More cannot fit into a window of 1,048,576 tokens."""

Kind = Literal["text", "image_url", "video_url"]
Source: TypeAlias = str | PathLike[str] | bytes
"""A path, the bytes themselves, or an address: `https://`, `data:`, `ms://` for a file of the platform."""

_URL: Final = re.compile(r"(https?|data|ms):", re.IGNORECASE)
_SHOWN: Final = 40


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a question: a text, or the address of a picture or video, mostly a data URL."""

    kind: Kind
    value: str = field(repr=False)
    shown: str = ""  # what it was made from, for repr and messages

    def as_json(self) -> JsonObject:
        """The part as it stands in a message."""
        if self.kind == "text":
            return {"type": "text", "text": self.value}
        return {"type": self.kind, self.kind: {"url": self.value}}


Question: TypeAlias = str | Part | Sequence[str | Part]
"""A turn of the user: a text, a part, or several of them in their order."""


def image(source: Source) -> Part:
    """A picture: JPEG, PNG, GIF, WebP, BMP or HEIC. Raises `InvalidInput` for anything else and above
    `MEDIA_MAX_BYTES`. A web address is passed on as it is; api.moonshot.ai does not fetch such."""
    return _media(source, "image_url")


def video(source: Source) -> Part:
    """A video: MP4, MPEG, QuickTime, AVI, FLV, WebM, WMV or 3GPP. Otherwise like `image`."""
    return _media(source, "video_url")


def text_file(path: str | PathLike[str]) -> Part:
    """A file of text in UTF-8 (or UTF-16 with its mark), under its name. Raises `InvalidInput` for one that is no
    text, is empty or larger than `TEXT_FILE_MAX_BYTES`."""
    where = _path(path, "text_file takes a path")
    data = _read(where, TEXT_FILE_MAX_BYTES)
    coding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(coding)
    except UnicodeDecodeError as err:
        raise InvalidInput(f"{where} is no text in UTF-8: {err.reason} at byte {err.start}") from err
    if "\0" in text:
        raise InvalidInput(
            f"{where} is no text: it holds NUL bytes; a picture goes through image(), a video video()"
        )
    if not text.strip():
        raise InvalidInput(f"{where} is empty")
    end = "" if text.endswith("\n") else "\n"
    name = where.name.replace('"', "'")
    return Part("text", f'<file name="{name}">\n{text}{end}</file>', str(where))


def content_of(question: Question) -> str | list[Json]:
    """The content of the user's turn: the text itself, or a list of parts in Moonshot's form.

    Raises `InvalidInput` for what no server takes: nothing, blank text, half a character, something else.
    """
    if isinstance(question, str):
        return _sendable(question)
    if isinstance(question, Part):
        return [_sendable_part(question)]
    given: object = question
    if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray):
        raise InvalidInput(f"a question is a text, a part or a list of them, not {type(given).__name__}")
    if not given:
        raise InvalidInput("the question must not be empty: an empty user turn is refused")
    return [_sendable_part(each) for each in given]


def refused_part(content: Json, dialect: Dialect) -> str:
    """Why a server of this dialect does not take a turn's content, "" where it does."""
    for part in as_list(content):
        held = as_object(part) or {}
        kind = as_str(held.get("type")) or ""
        url = as_str((as_object(held.get(kind)) or {}).get("url")) or ""
        scheme = url.partition(":")[0].lower()
        name = kind.removesuffix("_url")
        if scheme in ("http", "https") and not dialect.remote_images:
            return (
                f"the {name} {_short(url)} is a web address, which is not fetched there; give its bytes or a path"
            )
        if scheme == "ms" and not dialect.file_urls:
            return f"the {name} {_short(url)} is a file of api.moonshot.ai, which only that service reads"
    return ""


# --- texts ----------------------------------------------------------------------------------------------------


def sendable(text: object) -> str:
    """The text itself. Raises `InvalidInput` where it is none or cannot be written as UTF-8."""
    if not isinstance(text, str):
        raise InvalidInput(f"a turn must be a text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise InvalidInput(f"the text holds half a character at position {err.start}: {err.reason}") from err
    return text


def _sendable(text: str) -> str:
    if not sendable(text).strip():
        raise InvalidInput("the question must not be empty: an empty user turn is refused")
    return text


def _sendable_part(value: object) -> JsonObject:
    if isinstance(value, Part):
        if value.kind == "text":
            _sendable(value.value)
        return value.as_json()
    return {"type": "text", "text": _sendable(sendable(value))}


# --- pictures and videos --------------------------------------------------------------------------------------


def _media(source: Source, kind: Kind) -> Part:
    if isinstance(source, bytes | bytearray):
        return _of_bytes(bytes(source), kind, f"{len(source):,} bytes")
    if isinstance(source, str) and _URL.match(source):
        return _of_url(source, kind)
    name = kind.removesuffix("_url")
    path = _path(source, f"{name} takes a path, an address or the bytes themselves (of a stream: its read())")
    return _of_bytes(_read(path, MEDIA_MAX_BYTES), kind, str(path))


def _path(given: object, expected: str) -> Path:
    found: Any = fspath(given) if isinstance(given, str | PathLike) else None
    if not isinstance(found, str):
        raise InvalidInput(f"{expected}, not {type(given).__name__}")
    return Path(found)


def _of_url(url: str, kind: Kind) -> Part:
    scheme, _, rest = sendable(url).partition(":")
    if scheme.lower() != "data":
        if not rest.startswith("//") or not rest.strip("/") or re.search(r"\s", url):
            raise InvalidInput(f"{_short(url)} is no address")
        return Part(kind, url, _short(url))
    head, comma, data = rest.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise InvalidInput(f"{_short(url)} is no data URL with base64, such as data:image/png;base64,iVBORw0…")
    try:
        held = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as err:
        raise InvalidInput(f"{_short(url)} holds no valid base64: {err}") from err
    return _of_bytes(held, kind, _short(url))


def _of_bytes(data: bytes, kind: Kind, shown: str) -> Part:
    name = kind.removesuffix("_url")
    if not data:
        raise InvalidInput(f"the {name} {shown} is empty")
    if len(data) > MEDIA_MAX_BYTES:
        raise InvalidInput(_too_large(shown, len(data), MEDIA_MAX_BYTES))
    found = media_type_of(data)
    if found is None:
        raise InvalidInput(f"{shown} begins like no {name} that Kimi takes: {_TAKEN[kind]}")
    if not found.startswith(f"{name}/"):
        raise InvalidInput(f"{shown} is {found}, which is no {name}; use {found.partition('/')[0]}() for it")
    return Part(kind, f"data:{found};base64,{base64.b64encode(data).decode()}", shown)


_TAKEN: Final = {
    "image_url": "JPEG, PNG, GIF, WebP, BMP, HEIC",
    "video_url": "MP4, MPEG, QuickTime, AVI, FLV, WebM, WMV, 3GPP",
}


def _read(path: Path, limit_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)  # no more than needed, however large the file is
            size = path.stat().st_size if len(data) > limit_bytes else 0
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else err
        raise InvalidInput(f"cannot read {path}: {reason}") from err
    if len(data) > limit_bytes:
        raise InvalidInput(_too_large(str(path), size, limit_bytes))
    return data


def _too_large(shown: str, size: int, limit_bytes: int) -> str:
    return f"{shown} has {size:,} bytes; at most {limit_bytes:,} can be sent"


def _short(url: str) -> str:
    return url if len(url) <= _SHOWN else url[:_SHOWN] + "…"
