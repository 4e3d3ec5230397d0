"""Compressed answers nobody asked for: undone as a stream, in bounded pieces, and only up to a bound in all."""

import zlib
from collections.abc import Mapping
from typing import Final

from backends.faults import Fault
from backends.lean.faults import packed_fault
from backends.lean.reply import Reply
from backends.ports import UpstreamFault

PIECE_BYTES: Final = 256 * 1024
MAX_UNPACKED_BYTES: Final = 256 * 1024 * 1024  # more than any answer that the relay reads whole
CODINGS: Final = frozenset(("gzip", "x-gzip", "deflate"))
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_ZLIB_METHOD = 8  # low half of a zlib stream's first byte; a raw deflate stream, as some send, has another


class UnpackError(Exception):
    """The bytes are not what the coding says, end too early, or unpack to too many."""


class Unpacker:
    """One compressed body: `push` what came, `pull` until it gives nothing, `finish` at the end."""

    def __init__(self, coding: str, limit_bytes: int = MAX_UNPACKED_BYTES) -> None:
        self._is_gzip = coding != "deflate"
        self._left_bytes = limit_bytes
        self._packed = b""
        self._stream: zlib._Decompress | None = None

    def push(self, data: bytes) -> None:
        """Takes the next compressed bytes."""
        self._packed = self._packed + data if self._packed else data

    def pull(self) -> bytes:
        """At most `PIECE_BYTES` unpacked bytes; nothing where more input is needed. Raises `UnpackError`."""
        while True:
            stream = self._stream
            if stream is None:
                if not self._packed:
                    return b""
                stream = self._stream = self._begun()
            try:
                piece = stream.decompress(self._packed, PIECE_BYTES)
            except zlib.error as err:
                raise UnpackError(str(err)) from err
            self._packed = stream.unconsumed_tail
            if stream.eof:
                self._packed = stream.unused_data
                self._stream = None  # a further member may follow
            self._left_bytes -= len(piece)
            if self._left_bytes < 0:
                raise UnpackError("too many bytes")
            if piece or not (stream.eof and self._packed):
                return piece

    def finish(self) -> None:
        """Raises `UnpackError` for a stream that was cut."""
        if self._stream is not None or self._packed:
            raise UnpackError("cut")

    def _begun(self) -> "zlib._Decompress":
        if self._is_gzip:
            return zlib.decompressobj(_GZIP)
        return zlib.decompressobj(_ZLIB if self._packed[0] & 0x0F == _ZLIB_METHOD else _RAW)


class UnpackedReply:
    """A reply whose body is unpacked as it is read; see `backends.ports.Reply`."""

    __slots__ = ("_fault", "_reply", "_unpacker", "_where", "headers", "status")

    def __init__(self, reply: Reply, unpacker: Unpacker, where: str) -> None:
        self._reply = reply
        self._unpacker = unpacker
        self._where = where
        self._fault: Fault | None = None
        self.status: int = reply.status
        # Its length counted the compressed bytes.
        gone = ("content-encoding", "content-length")
        self.headers: Mapping[str, str] = {name: text for name, text in reply.headers.items() if name not in gone}

    async def read(self, wait_s: float) -> bytes | None:
        """The next body bytes; a wait ends with the first compressed bytes, whatever they come to.

        Raises `UpstreamFault`: `reset`; `server` for a body that cannot be decoded.
        """
        if self._fault is not None:
            raise UpstreamFault(self._fault)
        while True:
            try:
                piece = self._unpacker.pull()
            except UnpackError:
                break
            if piece:
                return piece
            packed = await self._reply.read(wait_s)
            if packed:
                self._unpacker.push(packed)
                continue
            if packed is None:
                return None
            try:
                self._unpacker.finish()
            except UnpackError:
                break
            return b""
        self.close()
        self._fault = packed_fault(self._where)
        raise UpstreamFault(self._fault)

    def close(self) -> None:
        """Ends the exchange at once; an unfinished body closes the connection."""
        self._reply.close()
        self._unpacker = Unpacker("gzip")  # what was pushed and not pulled is dropped
