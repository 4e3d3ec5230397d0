"""Compressed answers nobody asked for: undone however they are split, bounded, refused where they are cut."""

import asyncio
import gzip
import ssl
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.faults import FaultKind
from backends.lean.unpack import PIECE_BYTES, Unpacker, UnpackError
from backends.lean.upstream import LeanUpstream
from support.hostile_http import Told, answering, hostile, told

TEXT = b"data: hello\n\n" * 50


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKED = {
    "gzip": ("gzip", gzip.compress(TEXT, mtime=0)),
    "two members": ("gzip", gzip.compress(TEXT[:100], mtime=0) + gzip.compress(TEXT[100:], mtime=0)),
    "zlib": ("deflate", zlib.compress(TEXT)),
    "raw deflate": ("deflate", raw_deflate(TEXT)),
}


def unpacked(coding: str, pieces: list[bytes], **options: int) -> bytes:
    """What comes out, each piece within its bound. Raises `UnpackError`."""
    unpacker = Unpacker(coding, **options)
    got = b""
    for piece in pieces:
        unpacker.push(piece)
        while part := unpacker.pull():
            assert len(part) <= PIECE_BYTES
            got += part
    unpacker.finish()
    return got


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_body_cut_at_any_byte_is_undone(name: str) -> None:
    coding, packed = PACKED[name]
    for at in range(len(packed) + 1):
        assert unpacked(coding, [packed[:at], packed[at:]]) == TEXT


@given(st.binary(max_size=2000), st.sampled_from(("gzip", "deflate")), st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_any_body_is_undone(body: bytes, coding: str, size: int) -> None:
    packed = gzip.compress(body, mtime=0) if coding == "gzip" else zlib.compress(body)
    assert unpacked(coding, [packed[at : at + size] for at in range(0, len(packed), size)]) == body


@given(st.binary(max_size=300), st.sampled_from(("gzip", "deflate")))
@settings(max_examples=60, deadline=None)
def test_any_other_bytes_are_refused_or_undone_and_nothing_else(junk: bytes, coding: str) -> None:
    try:
        unpacked(coding, [junk])
    except UnpackError:
        return


@pytest.mark.parametrize("name", ["gzip", "zlib", "raw deflate"])
def test_a_packed_body_that_is_cut_is_an_error(name: str) -> None:
    coding, packed = PACKED[name]
    for at in range(1, len(packed)):
        with pytest.raises(UnpackError):
            unpacked(coding, [packed[:at]])


def test_a_bomb_is_stopped_at_the_bound() -> None:
    bomb = gzip.compress(bytes(8 << 20))
    assert len(unpacked("gzip", [bomb], limit_bytes=8 << 20)) == 8 << 20
    with pytest.raises(UnpackError):
        unpacked("gzip", [bomb], limit_bytes=(8 << 20) - 1)


def answered(head: bytes, body: bytes, **options: int) -> tuple[Told, int]:
    """One call whose answer has this head and body, and how many connections a second call made it."""

    async def main() -> tuple[Told, int]:
        wire = b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
        async with hostile(answering([wire], [wire])) as place:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            client = LeanUpstream(proxies={}, tls=tls, **options)
            got = await told(client, place.url)
            await told(client, place.url)
            await client.close()
            return got, place.visits

    return asyncio.run(main())


@pytest.mark.parametrize("coding", [b"gzip", b"x-gzip", b"GZIP ", b"deflate"])
def test_a_packed_answer_is_read_as_if_it_were_not_and_its_connection_kept(coding: bytes) -> None:
    packed = zlib.compress(TEXT) if coding == b"deflate" else gzip.compress(TEXT, mtime=0)
    got, visits = answered(b"Content-Encoding: " + coding + b"\r\nX-A: 1\r\n", packed)
    assert got == Told(200, {"x-a": "1"}, TEXT, None)
    assert visits == 1


def test_an_empty_body_needs_no_packing() -> None:
    got, _ = answered(b"Content-Encoding: gzip\r\n", b"")
    assert (got.body, got.fault) == (b"", None)


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"gzip, gzip", b"gzip, identity"])
def test_any_other_coding_is_a_fault(coding: bytes) -> None:
    got, _ = answered(b"Content-Encoding: " + coding + b"\r\n", gzip.compress(TEXT, mtime=0))
    assert got.fault is not None
    assert (got.fault.kind, got.body) == (FaultKind.SERVER, b"")


@pytest.mark.parametrize(
    "body", [gzip.compress(TEXT, mtime=0)[:-9], b"no gzip", gzip.compress(TEXT, mtime=0) + b"more"]
)
def test_a_body_that_is_not_what_it_claims_is_a_fault_after_what_could_be_read(body: bytes) -> None:
    got, _ = answered(b"Content-Encoding: gzip\r\n", body)
    assert got.fault is not None
    assert got.fault.kind is FaultKind.SERVER
    assert TEXT.startswith(got.body)


def test_a_bomb_is_a_fault() -> None:
    got, _ = answered(b"Content-Encoding: gzip\r\n", gzip.compress(bytes(4 << 20)), max_unpacked_bytes=1 << 20)
    assert got.fault is not None
    assert got.fault.kind is FaultKind.SERVER
    assert len(got.body) <= 1 << 20
