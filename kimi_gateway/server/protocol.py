"""One connection: uvicorn's protocol with what it lacks.

* a bound on the size of a request's head, and on the time it may take
* an answer in our shape to what is no HTTP, wherever in a request that shows
* an end at once, for a client that takes nothing: `scope["extensions"]["kimi.abort"]()`
* a call when the client of an answer has left: `scope["extensions"]["kimi.on_gone"](call)`
* whether sending would wait for the client: `scope["extensions"]["kimi.is_slow"]()`
* a way beside ASGI's messages for the one endpoint that is called all day: `scope["extensions"]["kimi.line"]`,
  a `kimi_gateway.server.cycle.Cycle`
"""

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from typing_extensions import override
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from kimi_gateway.errors import InvalidRequest
from kimi_gateway.server.cycle import Cycle
from kimi_gateway.server.gate import LINGER_S

HEAD_LIMIT_BYTES: Final = 64 * 1024
HEAD_TIMEOUT_S: Final = 30.0
_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_HOT_URL: Final = b"/v1/chat/completions"
_HOT_PATH: Final = _HOT_URL.decode()


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A head that is larger than `HEAD_LIMIT_BYTES` is a 431, wherever its packets are cut."""

    head_timeout_s = HEAD_TIMEOUT_S
    _head_is_open = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _in_body = False
    _message_ended = False  # in the part of the data that is being parsed
    _refused = False
    _tell_gone: Callable[[], object] | None = None
    _answering: RequestResponseCycle | None = None
    """The request whose answer is due now; `cycle` is the one that came in last."""

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_is_late)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._disconnect()
        super().connection_lost(exc)

    @override
    def on_message_begin(self) -> None:
        self._head_is_open = True
        super().on_message_begin()

    def _on_gone(self, tell: Callable[[], object] | None) -> None:
        """Whom to tell, once, when the client of the answer under way has left; None: nobody any more."""
        if tell is not None and self._answering is not None and self._answering.disconnected:
            self.loop.call_soon(tell)  # it had left before anybody asked
            return
        self._tell_gone = tell

    def _is_slow(self) -> bool:
        """The client has not taken what was sent, so that sending more waits."""
        return self.flow.write_paused

    @override
    def on_headers_complete(self) -> None:
        self._head_is_open = False
        self._head_bytes = 0
        self._stop_head_timer()
        self._describe()
        cycle = Cycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=self.scope["http_version"] != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        extensions: Any = {  # uvicorn's type of extensions knows dictionaries only
            "kimi.abort": self.abort,
            "kimi.is_slow": self._is_slow,
            "kimi.on_gone": self._on_gone,
            "kimi.line": cycle,
        }
        self.scope["extensions"] = extensions
        before = self._last_cycle()
        self.cycle = cycle
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))
        self._in_body = True

    def _last_cycle(self) -> RequestResponseCycle | None:
        """The request that came in last; None until the first one, whatever uvicorn's annotation says."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle

    def _describe(self) -> None:
        """Writes method and address into the scope; uvicorn's own takes 6 us for it, this one for the one address
        that is called all day."""
        scope, parser = self.scope, self.parser
        scope["method"] = parser.get_method().decode("ascii")
        version = parser.get_http_version()
        if version != "1.1":
            scope["http_version"] = version
        if self.url == _HOT_URL:
            scope["path"], scope["raw_path"], scope["query_string"] = _HOT_PATH, _HOT_URL, b""
            return
        raw_path, query = _parts(self.url)
        path = raw_path.decode("latin-1")
        scope["path"] = self.root_path + (unquote(path) if "%" in path else path)
        scope["raw_path"] = self.root_path.encode("ascii") + raw_path
        scope["query_string"] = query

    @override
    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    @override
    def on_message_complete(self) -> None:
        self._in_body = False
        self._message_ended = True
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.more_body = False
        cycle.message_event.set()

    @override
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    @override
    def data_received(self, data: bytes) -> None:
        while data and not self._refused and not self.transport.is_closing():
            if self._in_body:
                self._parse(data)
                return
            room = HEAD_LIMIT_BYTES - self._head_bytes
            if room == 0:
                self._refuse(
                    431, "headers_too_large", f"the request's head is larger than {HEAD_LIMIT_BYTES} bytes"
                )
                return
            part, data = (data, b"") if len(data) <= room else (data[:room], data[room:])
            self._parse(without_upgrade(part), len(part))

    def _parse(self, part: bytes, head_bytes: int = 0) -> None:
        """Parses some data, of which at most `head_bytes` belong to a head that does not end in it.

        A head behind the end of another message is counted from the next part on.
        """
        self._message_ended = False
        super().data_received(part)
        if not self._head_is_open or self._refused:
            return
        if not self._message_ended:
            self._head_bytes += head_bytes
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_is_late)

    @override
    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "invalid_http", f"{msg.rstrip('.')}; send HTTP/1.1")

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answers what is no request, and closes; an answer under way is only cut off.

        What the client still sends is read for a moment: closing on it would reset the connection, and the client
        would not see the answer.
        """
        if self.transport.is_closing():
            return
        if not self._may_answer():
            self.transport.close()
            return
        self._refused = True
        self._disconnect()
        body = InvalidRequest(message, code=code).body()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)

    def _may_answer(self) -> bool:
        """Whether the request that is wrong is the one whose answer is due, and nothing of it has left yet."""
        cycle = self._last_cycle()
        if cycle is None:
            return True
        if self._in_body:
            return cycle is self._answering and not cycle.response_started
        return cycle.response_complete

    def abort(self) -> None:
        """Ends the connection at once: closing it would wait until the client has taken what is written.

        The application may return then as after any disconnection; nothing is logged.
        """
        self._disconnect()
        self.transport.abort()

    def _disconnect(self) -> None:
        """Tells the application that waits for this client, or writes to it, that nobody is there any more."""
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            tell, self._tell_gone = self._tell_gone, None
            if tell is not None:
                tell()

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _parts(url: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request line's address, which may be whole, as proxies are asked."""
    if url.startswith(b"/"):  # even //: to urlsplit that is a host
        path, _, query = url.partition(b"#")[0].partition(b"?")
        return path, query
    try:
        whole = urlsplit(url)
    except ValueError:
        return url, b""
    return whole.path, whole.query


def without_upgrade(data: bytes) -> bytes:
    """The start of a request with its `Upgrade` header under a name that nothing acts on.

    The parser (httptools 0.9) drops the body of a request that offers an upgrade, and the JDK's HTTP client offers
    h2c with every first POST. A server may ignore the offer; one split over two packets goes unnoticed.
    """
    end = data.find(b"\r\n\r\n")
    head = data if end < 0 else data[:end]
    if not _UPGRADE.search(head):
        return data
    return _UPGRADE.sub(b"\r\nx-upgrade:", head) + data[len(head) :]
