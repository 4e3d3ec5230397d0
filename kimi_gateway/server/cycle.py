"""One request and its answer on a connection: uvicorn's, with a way beside ASGI's messages.

A message of ASGI is a dictionary, a coroutine, and a look at every header for each answer: 25 µs of CPU for a
streamed answer in three writes. The methods here end in `_now`, wait for nothing, and take what is good already:
who calls them asks `is_ready` before. Both ways may be mixed; the order of the calls is the order on the wire.
"""

from typing import Final

from typing_extensions import override
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

_LAST_PART: Final = b"0\r\n\r\n"


class Cycle(RequestResponseCycle):
    """See the module. A head is kept back until the first body bytes, with which it goes out in one piece."""

    _head = b""  # not sent yet

    def is_ready(self) -> bool:
        """Sending waits for nothing, and goes to somebody."""
        return not self.flow.write_paused and not self.disconnected

    def body_now(self) -> bytes | None:
        """The whole body, where it is here already; None where it must be received."""
        if self.more_body or self.waiting_for_100_continue or self.disconnected or self.response_complete:
            return None
        body = bytes(self.body)
        self.body = bytearray()
        self.flow.resume_reading()
        self.message_event.clear()
        return body

    def start_now(self, status: int, lines: bytes, *, length_bytes: int | None) -> None:
        """Status and header lines, each with its line end. `length_bytes` None: the body comes in parts."""
        assert not self.response_started, "one head for an answer"
        self.response_started, self.waiting_for_100_continue = True, False
        own = b"".join([b"%b: %b\r\n" % pair for pair in self.default_headers])
        if not self.keep_alive:
            own += b"connection: close\r\n"
        if length_bytes is None:
            own += b"transfer-encoding: chunked\r\n"
        else:
            own += b"content-length: %d\r\n" % length_bytes
        self.chunked_encoding = length_bytes is None
        self.expected_content_length = length_bytes or 0
        self._head = b"%b%b%b\r\n" % (STATUS_LINE[status], own, lines)

    def pass_now(self, data: bytes) -> bool:
        """Sends body bytes of an answer in parts; false, and nothing sent, where that has to wait, or where the
        head is still here. `is_ready` and `write_now` in one: 2 µs a chunk."""
        if self.flow.write_paused or self.disconnected or self._head or not self.chunked_encoding:
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def write_now(self, data: bytes) -> None:
        """Body bytes, after which more follow."""
        if not data:
            return
        if self.chunked_encoding:
            self._out(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            self.expected_content_length -= len(data)
            self._out(data)

    def finish_now(self, data: bytes) -> None:
        """The last body bytes. The answer is complete after it, and the connection takes the next request."""
        if not self.chunked_encoding:
            self.expected_content_length -= len(data)
            self._out(data)
        elif data:
            self._out(b"%x\r\n%b\r\n%b" % (len(data), data, _LAST_PART))
        else:
            self._out(_LAST_PART)
        assert self.chunked_encoding or not self.expected_content_length, "the length that was said"
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def flush_now(self) -> None:
        """Sends a head that was kept back."""
        self._out(b"")

    def _out(self, data: bytes) -> None:
        head, self._head = self._head, b""
        self.transport.write(head + data if head else data)

    @override
    async def send(self, message: ASGISendEvent) -> None:
        if self._head and not self.disconnected:
            self.flush_now()
        await super().send(message)
