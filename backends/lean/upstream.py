"""The upstream port over `line`: pooled connections, cancelled at once, never retried behind the caller's back.

What is told, and when (the same as `backends.aiohttp_upstream`):

* A request that broke before a connection stood was never seen upstream: `connect` or `tls`.
* A kept connection that the server had closed, or written to, before we sent a byte is found out by asking the
  socket (`Line.is_quiet`); the call then silently takes another: nothing was sent, so nothing can have been
  processed.
* A connection that breaks after the first byte went out is `reset`. Whether the server read the request before it
  closed cannot be known, so a POST is not repeated here: it may have been billed, and the caller's budget of
  retries decides. An idempotent method is repeated once, on a new connection, where a kept one broke without a
  byte of an answer.

Header names are lower case in replies; repeated headers are joined by a comma; cookies are dropped. An answer is
asked for in identity; gzip and deflate are decoded all the same (`unpack`), any other coding is a fault, because
the bytes would be read as garbage. A redirect is a fault: the key must not travel to an address that no one
configured. An answer may come before the request is out: a 2xx is read while the rest of the body goes out, any
other ends the upload.

Trust: the system's certificate store as OpenSSL finds it; SSL_CERT_FILE and SSL_CERT_DIR name another.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from backends.aiohttp_proxy import ProxyError, environment_proxies
from backends.faults import Fault, FaultKind
from backends.lean.address import origin_of, route_to
from backends.lean.dial import Dialer, Route
from backends.lean.faults import TunnelRefused, connect_fault, unsendable_fault
from backends.lean.line import Line
from backends.lean.pool import KEEPALIVE_PLAIN_S, KEEPALIVE_TLS_S, MAX_AGE_S, MAX_IDLE_PER_HOST, Origin, Pool
from backends.lean.reply import Reply
from backends.lean.request import IDEMPOTENT, request_head
from backends.lean.started import Started
from backends.lean.unpack import CODINGS, MAX_UNPACKED_BYTES, UnpackedReply, Unpacker
from backends.ports import Call, UpstreamFault
from backends.ports import Reply as AnyReply

_REDIRECTS = frozenset((301, 302, 303, 307, 308))


@dataclass(frozen=True, slots=True)
class _Address:
    """What a URL comes to: parsed once, used for every call to it."""

    route: Route
    target: str  # of the request line
    host: str  # header lines: `Host`, and the proxy's password where it has one
    origin: Origin


class LeanUpstream:
    """Opens calls; see `backends.ports.Upstream`. Create it inside a running loop and close it there.

    `max_connections` bounds connections in use per scheme (0 = no limit; above it calls wait, within their connect
    timeout). `max_idle_per_host`, the two `keepalive…_s` and `max_age_s` bound what is kept: plain http is an
    engine, whose server closes early, https a service. `tls` and `proxies` replace what the environment says.
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
        max_age_s: float = MAX_AGE_S,
        max_unpacked_bytes: int = MAX_UNPACKED_BYTES,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._proxies = environment_proxies() if proxies is None else proxies
        self._dialer = Dialer(self._loop, tls or _default_tls())
        self._pools = {
            scheme: Pool(
                self._loop,
                keepalive_s=idle_s,
                max_idle_per_host=max_idle_per_host,
                max_busy=max_connections,
                max_age_s=max_age_s,
            )
            for scheme, idle_s in (("https", keepalive_s), ("http", keepalive_plain_s))
        }
        self._is_bounded = max_connections > 0
        self._max_unpacked_bytes = max_unpacked_bytes
        self._addresses: dict[str, _Address] = {}
        self._origins: dict[Route, Origin] = {}
        self._closed = False

    def start(self, call: Call) -> Started | None:
        """Sends the request over a kept connection; None where there is none."""
        address = self._addresses.get(call.url)
        if address is None or self._is_bounded or call.method in IDEMPOTENT:
            return None
        try:
            head = request_head(call.method, address.target, address.host, call.headers, len(call.body))
        except ValueError:
            return None
        line = address.origin.take()
        if line is None:
            return None
        line.send(head, call.body)
        return Started(line, self._loop, self._unusual)

    async def open(self, call: Call) -> AnyReply:
        """Sends the request. Raises `UpstreamFault`: `connect`, `tls`, `reset`; `server` for an answer that is
        not usable HTTP or a redirect; `request` for a call that cannot be put on the wire."""
        address = self._addresses.get(call.url) or self._address(call.url)
        try:
            head = request_head(call.method, address.target, address.host, call.headers, len(call.body))
        except ValueError:
            head = b""
        if not head:  # raised out here: a cause would hold the call's headers, and so the key
            raise UpstreamFault(unsendable_fault(address.route.where))
        line = None if self._is_bounded else address.origin.take()
        kept = line is not None
        if line is None:
            line, kept = await self._line(call, address, fresh=False)
        try:
            await line.begin(head, call.body)
        except BaseException:
            line.abort()
            raise
        if not line.status:
            line = await self._again(call, address, head, line, kept)
        if 200 <= line.status < 300 and "content-encoding" not in line.fields:
            return Reply(line, self._loop)
        return self._unusual(line)

    async def close(self) -> None:
        """Closes all connections; readers of open replies get `reset`."""
        self._closed = True
        self._addresses.clear()
        for pool in self._pools.values():
            pool.close()
        for _ in range(5):  # transports tell of their end in later turns of the loop
            if not any(pool.lines for pool in self._pools.values()):
                return
            await asyncio.sleep(0)

    async def _again(self, call: Call, address: _Address, head: bytes, broken: Line, kept: bool) -> Line:
        """A new line with an answer's head on it, where one that was kept broke without a byte and the method may
        be repeated. Raises `UpstreamFault` where it must not, and where it broke again."""
        if kept and not broken.heard and not self._closed and call.method in IDEMPOTENT:
            line, _ = await self._line(call, address, fresh=True)
            try:
                await line.begin(head, call.body)
            except BaseException:
                line.abort()
                raise
            if line.status:
                return line
            broken = line
        assert broken.broken is not None
        raise UpstreamFault(broken.broken)

    async def _line(self, call: Call, address: _Address, *, fresh: bool) -> tuple[Line, bool]:
        """A line to send on, and whether it served before. Raises `UpstreamFault`."""
        origin, route = address.origin, address.route
        has_slot = False
        try:
            async with asyncio.timeout(call.connect_timeout_s):
                if self._is_bounded:
                    await self._pool(route).slot()
                    has_slot = True
                line = None if fresh else origin.take()
                kept = line is not None
                if line is None:
                    line = await self._dialer.line(route, origin)
        except (OSError, UnicodeError, TunnelRefused) as err:
            fault = connect_fault(
                err,
                route.where,
                call.connect_timeout_s,
                is_tls=route.is_tls,
                is_proxied=route.proxy is not None,
            )
        else:
            line.slot, has_slot = has_slot, False
            if not self._closed:
                return line, kept
            line.abort()
            fault = _closed_client()
        finally:
            if has_slot:
                self._pool(route).free()
        raise UpstreamFault(fault)

    def _unusual(self, line: Line) -> AnyReply:
        """The reply of an error or of a compressed answer. Raises `UpstreamFault` for one that cannot be used."""
        fault = _unusable(line)
        if fault is not None:
            line.abort()
            raise UpstreamFault(fault)
        reply = Reply(line, self._loop)
        coding = reply.headers.get("content-encoding", "").lower()
        if coding not in CODINGS:
            return reply
        return UnpackedReply(reply, Unpacker(coding, self._max_unpacked_bytes), line.where)

    def _address(self, url: str) -> _Address:
        if self._closed:
            raise UpstreamFault(_closed_client())
        if len(self._addresses) > 1000:  # targets come and go with reloads
            self._addresses.clear()
        try:
            route, target, host = route_to(url, self._proxies)
        except ProxyError as err:
            raise UpstreamFault(Fault(FaultKind.CONNECT, str(err))) from err
        except ValueError:
            message = "the upstream's address must be http(s)://host[:port]/path, without user or password"
            raise UpstreamFault(Fault(FaultKind.REQUEST, message)) from None
        origin = self._origins.get(route)
        if origin is None:
            origin = self._origins[route] = Origin(self._pool(route))
        address = self._addresses[url] = _Address(route, target, host, origin)
        return address

    def _pool(self, route: Route) -> Pool:
        return self._pools["https" if route.is_tls else "http"]


def _unusable(line: Line) -> Fault | None:
    """The fault of an answer that must not be read as one."""
    status = line.status
    if status in _REDIRECTS:
        goal = origin_of(line.fields.get("location", ""))
        message = f"{line.where} redirects to {goal}, which is not followed; name the final address in base_url"
        return Fault(FaultKind.SERVER, message, status)
    coding = line.fields.get("content-encoding")
    if status < 200 or (coding is not None and coding.lower() not in ("", "identity", *CODINGS)):
        message = f"{line.where} answered in a protocol or coding that was not asked for"
        return Fault(FaultKind.SERVER, message, status)
    return None


def _closed_client() -> Fault:
    return Fault(FaultKind.CONNECT, "the upstream client is closed")


def _default_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
