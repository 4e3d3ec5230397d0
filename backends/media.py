"""Pictures and videos in a request: what a target takes, judged by declared type and first bytes.

A picture that a target refuses stays in the history, so every later request of the session would be refused as
well; it is named by message and part before anything is sent. Base64 is looked at only as far as its first bytes.
"""

import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from backends.dialect import Dialect
from backends.json import JsonObject, as_list, as_object, as_str, decode
from backends.messages import MessageHead

_KINDS: Final = ("image_url", "video_url")
_HEAD_CHARACTERS: Final = 64  # of base64: 48 bytes, enough for every signature below


@dataclass(frozen=True, slots=True)
class MediaFault:
    """A part that a target cannot take; `path` is such as `messages[0].content[1]`."""

    path: str
    problem: str


def media_fault(heads: Sequence[MessageHead], dialect: Dialect) -> MediaFault | None:
    """The first part that this dialect refuses, None where all are taken."""
    for path, kind, url in _media(heads):
        problem = _problem(kind.removesuffix("_url"), url, dialect)
        if problem:
            return MediaFault(path, f"{path} {problem}")
    return None


def _media(heads: Sequence[MessageHead]) -> Iterator[tuple[str, str, str]]:
    """Path, kind and URL of each picture and video."""
    for index, head in enumerate(heads):
        content = head.content
        if not isinstance(content, msgspec.Raw) or bytes(memoryview(content)[:1]) != b"[":
            continue
        text = bytes(content)
        if b'_url"' not in text:
            continue
        for position, part in enumerate(as_list(decode(text))):
            found = as_object(part) or {}
            for kind in _KINDS:
                url = _url(found, kind)
                if url is not None:
                    yield f"messages[{index}].content[{position}]", kind, url


def _url(part: JsonObject, kind: str) -> str | None:
    """The URL of a part, given as an object or as a bare string."""
    target = part.get(kind)
    return as_str(target) or as_str((as_object(target) or {}).get("url"))


def _problem(kind: str, url: str, dialect: Dialect) -> str:
    """What is wrong with one URL, "" where nothing is."""
    scheme = url.partition(":")[0].lower()
    if scheme in ("http", "https"):
        if dialect.remote_images:
            return ""
        return "is a public address, which is not fetched here; send a base64 data URL instead"
    if scheme == "ms":
        return "" if dialect.file_urls else "names an uploaded file (ms://), which only its own account can read"
    if scheme != "data" or not dialect.media_types:
        return ""
    return _data_problem(kind, url, dialect)


def _data_problem(kind: str, url: str, dialect: Dialect) -> str:
    declared, _, data = url.removeprefix("data:").partition(",")
    media_type, _, coding = declared.lower().partition(";")
    taken = [name for name in sorted(dialect.media_types) if name.startswith(f"{kind}/")]
    if media_type not in dialect.media_types or not media_type.startswith(f"{kind}/"):
        return f"is {media_type or 'of no type'}, which is not taken here; send one of {', '.join(taken)}"
    if not coding.endswith("base64"):
        return "is a data URL without base64; encode the data as base64"
    try:
        start = base64.b64decode(data[:_HEAD_CHARACTERS], validate=True)
    except (binascii.Error, ValueError):
        return "holds no valid base64; encode the whole file without line breaks"
    found = _sniffed(start)
    if found and found != media_type and found not in _SAME.get(media_type, ()):
        return f"is declared as {media_type} but its first bytes are {found}; declare what it is"
    return "" if start else "is empty"


_SAME: Final = {
    "video/quicktime": ("video/mp4",),
    "video/mov": ("video/mp4",),
    "video/3gpp": ("video/mp4",),
    "image/heif": ("image/heic",),
    "image/jpg": ("image/jpeg",),
}
"""Declared types whose files begin like those of another."""

_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"FLV\x01", "video/x-flv"),
)
_BRANDS: Final = {
    b"avif": "image/avif",
    b"avis": "image/avif",
    b"heic": "image/heic",
    b"heix": "image/heic",
    b"mif1": "image/heic",
    b"msf1": "image/heic",
}


def _sniffed(start: bytes) -> str:
    """The type that the first bytes show, "" where they show none that is known here."""
    for signature, media_type in _SIGNATURES:
        if start.startswith(signature):
            return media_type
    if start[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"AVI ": "video/avi"}.get(start[8:12], "")
    if start[4:8] == b"ftyp":
        return _BRANDS.get(start[8:12], "video/mp4")
    return ""
