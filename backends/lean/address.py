"""Where a URL leads: host, request target, and the proxy on the way. Decided without IO."""

import base64
from collections.abc import Mapping

from yarl import URL

from backends.aiohttp_proxy import ProxyError, proxy_for
from backends.lean.dial import Proxy, Route


def route_to(text: str, proxies: Mapping[str, str]) -> tuple[Route, str, str]:
    """The route, the target of the request line, and the header lines that belong to the place (`Host`, and the
    password of a proxy that reads the request), each with the line end before it.

    Raises `ValueError` for what is no http(s) URL or holds a user, `ProxyError` for a proxy that cannot be used.
    """
    url = URL(text)
    host, port = url.host, url.port
    if url.scheme not in ("http", "https") or not host or port is None or url.user or url.password:
        raise ValueError(text)
    is_tls = url.scheme == "https"
    where = f"{url.host_subcomponent}:{port}"
    proxy = _proxy(url.scheme, host, port, proxies)
    host_line = f"\r\nHost: {url.host_port_subcomponent}"
    target = url.raw_path_qs
    if proxy is not None and is_tls and proxy.is_tls:
        raise ProxyError(
            "the environment names an https:// proxy for https addresses, which would need TLS inside TLS: name "
            f"it as http://, or list {host} in NO_PROXY"
        )
    if proxy is not None and not is_tls:
        target = str(url.with_fragment(None))
        host_line += proxy.authorization
    return Route(url.raw_host or host, port, is_tls, where, proxy), target, host_line


def origin_of(location: str) -> str:
    """Scheme and host of a redirect's goal; its path and query may hold secrets."""
    try:
        goal = URL(location)
    except ValueError:
        return "an address that is no URL"
    return f"{goal.scheme}://{goal.host}" if goal.host else "another path"


def _proxy(scheme: str, host: str, port: int, proxies: Mapping[str, str]) -> Proxy | None:
    text = proxy_for(scheme, host, port, proxies)
    if text is None:
        return None
    try:
        url = URL(text)
        proxy_port = url.port
    except ValueError:
        url, proxy_port = URL(), None
    if not url.raw_host or proxy_port is None:
        raise ProxyError(
            f"the environment names a proxy for {scheme} addresses that is no URL: expected http://host:port, or "
            f"list {host} in NO_PROXY"
        )
    authorization = ""
    if url.user or url.password:
        pair = f"{url.user or ''}:{url.password or ''}".encode()
        authorization = f"\r\nProxy-Authorization: Basic {base64.b64encode(pair).decode()}"
    return Proxy(url.raw_host, proxy_port, url.scheme == "https", authorization)
