"""The upstream port on aiohttp: pooled connections, cancelled at once, never retried behind the caller's back.

What aiohttp can tell, and what this module makes of it (aiohttp 3.14):

* A request that broke before a connection stood was never seen upstream: `connect` or `tls`.
* A kept connection that the server had closed, or written to, before we sent a byte is found out by asking the
  socket (`aiohttp_session.Request`); the call then silently takes another connection: nothing was sent, so
  nothing can have been processed.
* A connection that breaks after the first byte went out is `reset`. Whether the server read the request before
  it closed cannot be known, so it is not repeated here. aiohttp itself repeats only idempotent methods, once.

Header names are lower case in replies; repeated headers are joined by a comma; cookies are dropped. An answer is
asked for in identity; gzip and deflate are decoded all the same (as a stream, in pieces bounded like the buffer),
any other coding is a fault, because the bytes would be read as garbage. A redirect is a fault: the key must not
travel to an address that no one configured.

Trust: the system's certificate store as OpenSSL finds it; SSL_CERT_FILE and SSL_CERT_DIR name another.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from backends.aiohttp_faults import open_fault, read_fault
from backends.aiohttp_proxy import ProxyError, environment_proxies, proxy_for
from backends.aiohttp_session import (
    KEEPALIVE_PLAIN_S,
    KEEPALIVE_TLS_S,
    MAX_IDLE_PER_HOST,
    Body,
    Response,
    StaleConnection,
    new_session,
)
from backends.faults import Fault, FaultKind
from backends.ports import Call, Reply, UpstreamFault

_FRAMING = frozenset(
    ("connection", "content-length", "expect", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")
)
_DECODED = frozenset(("gzip", "deflate"))
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_BODILESS = frozenset((204, 304))


@dataclass(frozen=True, slots=True)
class _Address:
    """What a URL comes to: parsed once, used for every call to it. `where` is `host:port`."""

    url: URL
    where: str
    session: aiohttp.ClientSession
    proxy: str | None


class _Alarm:
    """Wakes the waiting reader of a body at its deadline, with one timer for many reads.

    Nearly every read ends long before its deadline; a timer of its own, set and cancelled, would cost more than
    the read. aiohttp 3.14 offers no public way to end a wait without cancelling the task, hence `_waiter`.
    """

    __slots__ = ("_content", "_deadline_s", "_loop", "_rings_at_s", "_timer")

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at_s = self._deadline_s = 0.0

    def set(self, deadline_s: float) -> None:
        """Sees to it that a reader who still waits then (loop time) is woken."""
        self._deadline_s = deadline_s
        if self._timer is None or self._rings_at_s > deadline_s:
            self.stop()
            self._wind()

    def stop(self) -> None:
        """Never rings again unless set."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wind(self) -> None:
        self._rings_at_s = self._deadline_s
        self._timer = self._loop.call_at(self._rings_at_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        waiter = self._content._waiter
        if waiter is None or waiter.done():
            return  # nobody waits; the next to wait sets it anew
        if self._loop.time() < self._deadline_s:
            self._wind()
        else:
            waiter.set_result(None)


class AiohttpReply:
    """An answer whose head is in; see `backends.ports.Reply`."""

    __slots__ = (
        "_alarm",
        "_content",
        "_done",
        "_fault",
        "_loop",
        "_response",
        "_until_close",
        "_where",
        "headers",
        "status",
    )

    def __init__(self, response: Response, where: str, done: Callable[["AiohttpReply"], None]) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = _plain_headers(response)
        self._response = response
        self._content = response.content
        self._loop = asyncio.get_running_loop()
        self._alarm = _Alarm(response.content)
        self._where = where
        self._done = done
        self._fault: Fault | None = None  # why there is nothing more to read
        self._until_close = (
            "content-length" not in response.headers
            and "transfer-encoding" not in response.headers
            and response.status not in _BODILESS
        )

    async def read(self, wait_s: float) -> bytes | None:
        """The next body bytes, b"" at the clean end, None after `wait_s` seconds without any.

        Raises `UpstreamFault` (`reset`; `server` for a body that cannot be decoded) once the bytes that came
        before the break are handed out.
        """
        content, line = self._content, self._response.line
        deadline_s: float | None = None
        while True:
            if self._fault is not None or content.exception() is not None:
                return self._rest_before_break()
            data = content.read_nowait()
            if data:
                return data
            if content.at_eof():
                return self._end()
            if line is None or not line.connected:
                return self._rest_before_break()
            now_s = self._loop.time()
            if deadline_s is None:
                deadline_s = now_s + wait_s
            if now_s >= deadline_s:
                await asyncio.sleep(0)  # a caller who asks again and again must not hold up the loop
                return None
            self._alarm.set(deadline_s)
            with suppress(aiohttp.ClientError, OSError, HttpProcessingError):  # kept in `content` as well
                await content._wait("read")

    def close(self) -> None:
        """Ends the exchange at once; an unfinished body closes the connection."""
        if self._fault is None:
            self._fault = Fault(FaultKind.RESET, f"the answer of {self._where} was closed on our side")
        self._alarm.stop()
        self._done(self)
        self._response.drop()

    def _end(self) -> bytes:
        """The clean end. A body delimited by closing is clean only where the closing was no reset."""
        err = None if self._response.line is None else self._response.line.exception()
        if self._until_close and isinstance(err, aiohttp.ClientOSError):
            self._break(err)
        self._alarm.stop()
        self._done(self)
        return b""

    def _rest_before_break(self) -> bytes:
        """What came ahead of the break. Raises `UpstreamFault` where that was handed out."""
        if self._fault is not None:
            raise UpstreamFault(self._fault)
        # aiohttp's public reads raise a stored exception before they hand out what came ahead of it.
        return self._content._read_nowait(-1) or self._break(self._content.exception())

    def _break(self, err: BaseException | None) -> NoReturn:
        self._fault = read_fault(err, self._where)
        self.close()
        raise UpstreamFault(self._fault)


class AiohttpUpstream:
    """Opens calls; see `backends.ports.Upstream`. Create it inside a running loop and close it there.

    `max_connections` bounds open connections per scheme (0 = no limit; above it calls wait, within their connect
    timeout). `max_idle_per_host` and the two `keepalive…_s` bound what is kept: plain http is an engine, whose
    server closes early, https a service. `tls` and `proxies` replace what the environment says.
    """

    def __init__(
        self,
        *,
        max_connections: int = 0,
        max_idle_per_host: int = MAX_IDLE_PER_HOST,
        keepalive_s: float = KEEPALIVE_TLS_S,
        keepalive_plain_s: float = KEEPALIVE_PLAIN_S,
        tls: ssl.SSLContext | None = None,
        proxies: Mapping[str, str] | None = None,
    ) -> None:
        self._proxies = environment_proxies() if proxies is None else proxies
        context = tls or _default_tls()
        self._sessions = {
            scheme: new_session(
                max_connections=max_connections,
                max_idle_per_host=max_idle_per_host,
                keepalive_s=idle_s,
                tls=context,
            )
            for scheme, idle_s in (("https", keepalive_s), ("http", keepalive_plain_s))
        }
        self._addresses: dict[str, _Address] = {}
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}
        self._open: set[AiohttpReply] = set()
        self._closed = False

    def start(self, call: Call) -> None:
        """Always None: the library opens connections and finds kept ones in one and the same step."""

    async def open(self, call: Call) -> Reply:
        """Sends the request. Raises `UpstreamFault`: `connect`, `tls`, `reset`; `server` for an answer that is
        not usable HTTP or a redirect; `request` for a call that cannot be put on the wire."""
        address = self._address(call.url)
        response = await self._answer(call, address)
        reply = AiohttpReply(response, address.where, self._open.discard)
        fault = _unusable(response, address.where)
        if fault is not None:
            reply.close()
            raise UpstreamFault(fault)
        self._open.add(reply)
        return reply

    async def close(self) -> None:
        """Closes all connections; readers of open replies get `reset`."""
        self._closed = True
        for reply in list(self._open):
            reply.close()
        for session in self._sessions.values():
            await session.close()

    async def _answer(self, call: Call, address: _Address) -> Response:
        headers = {name: value for name, value in call.headers.items() if name.lower() not in _FRAMING}
        if not any(name.lower() == "accept-encoding" for name in headers):
            headers["Accept-Encoding"] = "identity"
        while True:
            try:
                response = await address.session.request(
                    call.method,
                    address.url,
                    headers=headers,
                    data=Body(call.body) if call.body else None,
                    allow_redirects=False,
                    timeout=self._timeout(call.connect_timeout_s),
                    proxy=address.proxy,
                )
            except StaleConnection:
                continue  # ends: each turn took one idle connection out of the pool
            except (aiohttp.ClientError, OSError, ValueError) as err:
                fault = open_fault(err, address.where, call.connect_timeout_s)
                break
            assert isinstance(response, Response)
            return response
        # Raised here, without the cause: aiohttp's exceptions carry the request's headers, and so the key.
        raise UpstreamFault(fault)

    def _address(self, url: str) -> _Address:
        if self._closed:
            raise UpstreamFault(Fault(FaultKind.CONNECT, "the upstream client is closed"))
        address = self._addresses.get(url)
        if address is None:
            if len(self._addresses) > 1000:  # targets come and go with reloads
                self._addresses.clear()
            address = self._addresses[url] = self._parse(url)
        return address

    def _parse(self, text: str) -> _Address:
        try:
            url = URL(text)
            host, port, session = url.host, url.port, self._sessions.get(url.scheme)
        except ValueError:
            host, port, session = None, None, None
        if host is None or port is None or session is None or url.user or url.password:
            message = "the upstream's address must be http(s)://host[:port]/path, without user or password"
            raise UpstreamFault(Fault(FaultKind.REQUEST, message))
        try:
            proxy = proxy_for(url.scheme, host, port, self._proxies)
        except ProxyError as err:
            raise UpstreamFault(Fault(FaultKind.CONNECT, str(err))) from err
        return _Address(url, f"{url.host_subcomponent}:{port}", session, proxy)

    def _timeout(self, connect_s: float) -> aiohttp.ClientTimeout:
        timeout = self._timeouts.get(connect_s)
        if timeout is None:
            if len(self._timeouts) > 1000:
                self._timeouts.clear()
            # `connect` covers waiting for the pool, DNS, TCP, proxy and TLS together.
            timeout = self._timeouts[connect_s] = aiohttp.ClientTimeout(connect=connect_s)
        return timeout


def _plain_headers(response: aiohttp.ClientResponse) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, raw in response.headers.items():
        key = name.lower()
        value = raw.encode("utf-8", "replace").decode()  # bytes that are no UTF-8 came as lone surrogates
        fields[key] = f"{fields[key]}, {value}" if key in fields else value
    fields.pop("set-cookie", None)
    if fields.get("content-encoding", "").lower() in _DECODED:
        del fields["content-encoding"]
        fields.pop("content-length", None)  # it counted the compressed bytes
    return fields


def _unusable(response: aiohttp.ClientResponse, where: str) -> Fault | None:
    """The fault of an answer that must not be read as one."""
    if response.status in _REDIRECTS:
        goal = _origin(response.headers.get("location", ""))
        message = f"{where} redirects to {goal}, which is not followed; name the final address in base_url"
        return Fault(FaultKind.SERVER, message, response.status)
    coding = response.headers.get("content-encoding", "").strip().lower()
    if response.status < 200 or (coding not in _DECODED and coding not in ("", "identity")):
        message = f"{where} answered in a protocol or coding that was not asked for"
        return Fault(FaultKind.SERVER, message, response.status)
    return None


def _origin(location: str) -> str:
    """Scheme and host of a redirect's goal; its path and query may hold secrets."""
    try:
        goal = URL(location)
    except ValueError:
        return "an address that is no URL"
    return f"{goal.scheme}://{goal.host}" if goal.host else "another path"


def _default_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
