"""New connections: names resolved once for all who ask, addresses of both families raced, proxies asked, TLS.

The socket is connected before it becomes a transport, so that a proxy's answer to CONNECT is read by hand, byte
for byte, and TLS begins on a socket that holds nothing else.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import aiohappyeyeballs

from backends.lean.faults import TunnelRefused
from backends.lean.line import Home, Line

AddrInfo: TypeAlias = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[Any, ...]]

RESOLVED_S: Final = 10.0
EYEBALLS_S: Final = 0.25  # RFC 8305, section 5: the delay before the next address is tried as well
MAX_TUNNEL_HEAD_BYTES: Final = 16 * 1024
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 60, 15, 4  # TCP keep-alive while a prefill is silent for minutes
_TUNNEL_HEAD: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy on the way. `authorization` is a header line with the line end before it, or empty."""

    host: str
    port: int
    is_tls: bool
    authorization: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """How one place is reached. `where` is `host:port`; `host` is without brackets."""

    host: str
    port: int
    is_tls: bool
    where: str
    proxy: Proxy | None = None


class Dialer:
    """Makes connections in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tls: ssl.SSLContext) -> None:
        self._loop = loop
        self._tls = tls
        self._names: dict[tuple[str, int], tuple[float, Sequence[AddrInfo]]] = {}
        self._asked: dict[tuple[str, int], asyncio.Task[Sequence[AddrInfo]]] = {}

    async def line(self, route: Route, home: Home) -> Line:
        """A connected line. Raises `OSError` (`ssl.SSLError`, `socket.gaierror`), `UnicodeError` for a name that
        is none, or `TunnelRefused`."""
        proxy = route.proxy
        sock = await self._socket(*((proxy.host, proxy.port) if proxy else (route.host, route.port)))
        try:
            tls_name = route.host if route.is_tls else None
            if proxy is not None and route.is_tls:
                await self._tunnel(sock, route.where, proxy)
            elif proxy is not None and proxy.is_tls:
                tls_name = proxy.host
            line = Line(home, route.where, self._loop)
            await self._loop.create_connection(
                lambda: line,
                sock=sock,
                ssl=None if tls_name is None else self._tls,
                server_hostname=None if tls_name is None else tls_name.rstrip("."),
            )
        except BaseException:
            sock.close()
            raise
        return line

    async def _socket(self, host: str, port: int) -> socket.socket:
        infos = await self._resolved(host, port)
        try:
            return await aiohappyeyeballs.start_connection(
                infos, happy_eyeballs_delay=EYEBALLS_S, loop=self._loop, socket_factory=_socket
            )
        except (OSError, RuntimeError) as err:
            self._names.pop((host, port), None)  # the name may lead elsewhere now
            if isinstance(err, RuntimeError):  # uvloop, for an address it cannot take
                raise OSError(str(err)) from err
            raise

    async def _resolved(self, host: str, port: int) -> Sequence[AddrInfo]:
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            pass  # a name; asking the system would hold up the loop
        place = host, port
        until_s, known = self._names.get(place, (0.0, ()))
        if self._loop.time() < until_s:
            return known
        task = self._asked.get(place)
        if task is None:
            task = self._asked[place] = self._loop.create_task(self._ask(place))
            task.add_done_callback(lambda done: self._answered(place, done))
        return await asyncio.shield(task)  # others may wait for it when this call is given up

    async def _ask(self, place: tuple[str, int]) -> Sequence[AddrInfo]:
        infos = await self._loop.getaddrinfo(*place, type=socket.SOCK_STREAM)
        if len(self._names) > 1000:
            self._names.clear()
        self._names[place] = self._loop.time() + RESOLVED_S, infos
        return infos

    def _answered(self, place: tuple[str, int], task: "asyncio.Task[Sequence[AddrInfo]]") -> None:
        del self._asked[place]
        if not task.cancelled():
            task.exception()  # seen, even where everybody who asked has left

    async def _tunnel(self, sock: socket.socket, where: str, proxy: Proxy) -> None:
        """Asks the proxy to connect. Raises `TunnelRefused`."""
        ask = f"CONNECT {where} HTTP/1.1\r\nHost: {where}{proxy.authorization}\r\n\r\n"
        await self._loop.sock_sendall(sock, ask.encode())
        head = b""
        while (end := head.find(b"\r\n\r\n")) < 0:
            data = await self._loop.sock_recv(sock, 4096)
            head += data
            if not data or len(head) > MAX_TUNNEL_HEAD_BYTES:
                raise TunnelRefused(0)
        found = _TUNNEL_HEAD.match(head)
        status = int(found[1]) if found else 0
        # Behind the head must be silence: TLS is ours to begin.
        if not 200 <= status < 300 or len(head) != end + 4:
            raise TunnelRefused(status if status >= 300 else 0)


def _socket(info: AddrInfo) -> socket.socket:
    """A socket that sends at once, and finds out by itself when a silent peer is gone."""
    sock = socket.socket(*info[:3])
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _PROBE_AFTER_S),
        ("TCP_KEEPINTVL", _PROBE_EVERY_S),
        ("TCP_KEEPCNT", _PROBES),
    ):
        if hasattr(socket, name):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock
