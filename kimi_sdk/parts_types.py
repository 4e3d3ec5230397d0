"""The type of a picture or video by its first bytes. Pure."""

from typing import Final

_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"FLV\x01", "video/x-flv"),
    (b"\x00\x00\x01\xba", "video/mpeg"),  # program stream
    (b"\x00\x00\x01\xb3", "video/mpeg"),  # bare video stream
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "video/wmv"),  # ASF
)
_HEIC_BRANDS: Final = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})
_OTHER_BRANDS: Final = frozenset({b"avif", b"avis", b"M4A ", b"M4B "})
"""Files of the same container that Kimi does not take: AVIF pictures, and sound."""
_EBML: Final = b"\x1aE\xdf\xa3"
_EBML_HEAD_BYTES: Final = 64  # the type of the document stands in the first element
_BMP_HEADERS: Final = frozenset({12, 40, 52, 56, 64, 108, 124})  # sizes that the second header can have


def media_type_of(data: bytes) -> str | None:
    """Such as `image/png`; None for what Kimi does not take."""
    for signature, media_type in _SIGNATURES:
        if data.startswith(signature):
            return media_type
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"AVI ": "video/avi"}.get(data[8:12])
    if data[4:8] == b"ftyp":
        return _of_brand(data[8:12])
    if data[4:8] in (b"moov", b"wide", b"mdat") and data[:1] == b"\0":
        return "video/quicktime"  # written before files named their brand
    if data.startswith(_EBML):
        return "video/webm" if b"webm" in data[:_EBML_HEAD_BYTES] else None  # else Matroska
    if data[:2] == b"BM" and int.from_bytes(data[14:18], "little") in _BMP_HEADERS:
        return "image/bmp"
    return None


def _of_brand(brand: bytes) -> str | None:
    if brand in _HEIC_BRANDS:
        return "image/heic"
    if brand in _OTHER_BRANDS:
        return None
    if brand == b"qt  ":
        return "video/quicktime"
    return "video/3gpp" if brand[:2] == b"3g" else "video/mp4"
