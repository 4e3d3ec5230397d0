"""Pictures, videos and files in a question: what is taken, what is refused before it is sent."""

import base64
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.dialects import moonshot
from backends.json import Json, as_list, as_object
from backends.media import media_fault
from backends.messages import read_heads
from kimi_sdk import parts
from kimi_sdk.errors import InvalidInput
from kimi_sdk.parts import Part, content_of, image, refused_part, text_file, video
from kimi_sdk.parts_types import media_type_of

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
BMP = b"BM" + b"\x46\0\0\0" + b"\0" * 4 + b"\x36\0\0\0" + b"\x28\0\0\0"
SAMPLES = {
    "image/png": PNG,
    "image/jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF",
    "image/gif": b"GIF89a\x01\x00",
    "image/webp": b"RIFF\x24\0\0\0WEBPVP8 ",
    "image/bmp": BMP,
    "image/heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1",
    "video/mp4": b"\0\0\0\x20ftypisom\0\0\x02\0isomiso2",
    "video/quicktime": b"\0\0\0\x14ftypqt  \0\0\0\0qt  ",
    "video/3gpp": b"\0\0\0\x18ftyp3gp5\0\0\0\0",
    "video/avi": b"RIFF\x24\0\0\0AVI LIST",
    "video/x-flv": b"FLV\x01\x05",
    "video/mpeg": b"\0\0\x01\xba\x44",
    "video/webm": b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\xf7\x81\x01B\xf2\x81\x04B\xf3\x81\x08B\x82\x84webm",
    "video/wmv": b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa",
}


def url_of(part: Part) -> str:
    held = as_object(part.as_json()[part.kind]) or {}
    return str(held["url"])


def made(kind: str, source: Any) -> Part:
    return image(source) if kind.startswith("image/") else video(source)


@pytest.mark.parametrize("media_type", SAMPLES)
def test_the_first_bytes_decide_the_type_whatever_the_file_is_called(tmp_path: Path, media_type: str) -> None:
    data = SAMPLES[media_type]
    path = tmp_path / "misnamed.txt"
    path.write_bytes(data)
    url = f"data:{media_type};base64,{base64.b64encode(data).decode()}"

    for source in (data, path, str(path), url, url.replace(media_type, "application/octet-stream")):
        part = made(media_type, source)
        assert url_of(part) == url
        assert part.kind == f"{media_type.partition('/')[0]}_url"


@pytest.mark.parametrize("media_type", SAMPLES)
def test_moonshot_takes_what_is_made(media_type: str) -> None:
    content = content_of(["What is this?", made(media_type, SAMPLES[media_type])])
    heads = read_heads(_raw([{"role": "user", "content": content}]))

    assert media_fault(heads, moonshot.DIALECT) is None
    assert refused_part(content, moonshot.DIALECT) == ""


def _raw(value: Any) -> Any:
    return msgspec.Raw(msgspec.json.encode(value))


@settings(max_examples=60)
@given(st.one_of(st.binary(max_size=40), st.sampled_from([*SAMPLES.values()]).flatmap(
    lambda data: st.integers(0, len(data)).map(lambda size: data[:size]))))  # fmt: skip
def test_what_is_named_a_type_is_one_that_moonshot_takes(data: bytes) -> None:
    found = media_type_of(data)

    assert found is None or found in moonshot.DIALECT.media_types


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (b"", "the image 0 bytes is empty"),
        (b"%PDF-1.7", "8 bytes begins like no image that Kimi takes: JPEG, PNG, GIF"),
        (b"<svg xmlns=", "begins like no image"),
        (b"\0\0\0\x18ftypavif", "begins like no image"),
        (b"BMW is a car, not a picture", "begins like no image"),
        (SAMPLES["video/mp4"], r"24 bytes is video/mp4, which is no image; use video\(\) for it"),
        ("data:image/png;base64,????", "holds no valid base64"),
        ("data:image/png,abc", "no data URL with base64"),
        ("data:image/png;base64,", "is empty"),
        ("https://", "is no address"),
        ("https://a b/c.png", "is no address"),
        ("no/such/file.png", "cannot read no/such/file.png: No such file or directory"),
        ("nul\0byte", "cannot read nul"),
        (".", "cannot read .: Is a directory"),
        (
            None,
            r"image takes a path, an address or the bytes themselves \(of a stream: its read\(\)\), not NoneType",
        ),
        (BytesIO(b"\x89PNG"), "not BytesIO"),
        (memoryview(b"\x89PNG"), "not memoryview"),
        (5, "not int"),
    ],
)
def test_what_is_no_picture_is_refused_and_named(source: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        image(source)


def test_matroska_and_sound_are_no_video() -> None:
    for data in (b"\x1aE\xdf\xa3\x9fB\x82\x88matroska", b"\0\0\0\x20ftypM4A \0\0\0\0", b"ID3\x04"):
        with pytest.raises(InvalidInput, match="begins like no video that Kimi takes: MP4"):
            video(data)


def test_addresses_and_ids_pass_as_they_are_and_are_refused_where_nobody_reads_them() -> None:
    web, file = image("https://example.org/cat.png"), video("ms://file-17")
    plain = type(moonshot.DIALECT)(name="plain")

    assert (url_of(web), url_of(file)) == ("https://example.org/cat.png", "ms://file-17")
    assert "image https://example.org/cat.png is a web address" in refused_part(
        content_of(["What?", web]), moonshot.DIALECT
    )
    assert refused_part(content_of(web), plain) == ""
    assert refused_part(content_of(file), moonshot.DIALECT) == ""
    assert "only that service reads" in refused_part(content_of(file), plain)
    assert refused_part("https://example.org", moonshot.DIALECT) == ""


def test_a_file_too_large_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    for name, limit, make in (
        ("a.png", parts.MEDIA_MAX_BYTES, image),
        ("a.txt", parts.TEXT_FILE_MAX_BYTES, text_file),
    ):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(limit * 100)  # no disk is used for it
        with pytest.raises(InvalidInput, match=f"{name} has {limit * 100:,} bytes; at most {limit:,} can be sent"):
            make(path)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"one\ntwo\n", "one\ntwo\n"),
        ("ünïcode 思考".encode(), "ünïcode 思考\n"),
        ("\ufeffmarked".encode(), "marked\n"),
        ("wide ü".encode("utf-16"), "wide ü\n"),
    ],
)
def test_a_text_file_stands_under_its_name(tmp_path: Path, data: bytes, text: str) -> None:
    path = tmp_path / "notes.md"
    path.write_bytes(data)

    assert text_file(path).as_json() == {"type": "text", "text": f'<file name="notes.md">\n{text}</file>'}
    assert text_file(str(path)).shown == str(path)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"caf\xe9", "is no text in UTF-8: .* at byte 3"),
        (b"a\0b", r"holds NUL bytes; a picture goes through image\(\)"),
        (b" \n", "is empty"),
        (PNG, "is no text"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(data)

    with pytest.raises(InvalidInput, match=reason):
        text_file(path)


@pytest.mark.parametrize("source", [b"", b"notes.md", None, 5, StringIO("text")])
def test_what_is_no_path_of_a_text_file_is_refused(source: Any) -> None:
    with pytest.raises(InvalidInput, match=f"text_file takes a path, not {type(source).__name__}"):
        text_file(source)


def test_a_question_is_a_text_a_part_or_a_list_of_them() -> None:
    picture = image(PNG)

    assert content_of("hi ") == "hi "
    assert content_of(picture) == [picture.as_json()]
    assert content_of(("What?", picture)) == [{"type": "text", "text": "What?"}, picture.as_json()]


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("", "must not be empty"),
        (" \n", "must not be empty"),
        ([], "must not be empty"),
        (["What?", ""], "must not be empty"),
        (Part("text", " "), "must not be empty"),
        ("half \ud83d", "half a character at position 5"),
        (["half \ud83d"], "half a character"),
        (None, "a text, a part or a list of them, not NoneType"),
        (3, "not int"),
        (b"bytes", "not bytes"),
        ({"a": 1}, "not dict"),
        ([3], "a turn must be a text, not int"),
        ([{"type": "text", "text": "x"}], "not dict"),
    ],
)
def test_what_is_no_question_is_refused(question: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        content_of(question)


def test_a_part_shows_what_it_was_made_from_and_not_its_bytes() -> None:
    assert repr(image(PNG)) == "Part(kind='image_url', shown='28 bytes')"
    assert len(repr(image("data:image/png;base64," + base64.b64encode(PNG * 100).decode()))) < 100
    content: Json = content_of(image(PNG))
    assert len(as_list(content)) == 1
