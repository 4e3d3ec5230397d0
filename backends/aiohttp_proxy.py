"""Which proxy of the environment a call goes through: the conventions of curl and Go, decided without IO.

aiohttp's own `trust_env` is not used: it asks a thread on every call, and it reads `~/.netrc`, whose passwords
would collide with, or replace, the key that the call carries.
"""

import ipaddress
import urllib.request
from collections.abc import Mapping

PROXY_SCHEMES = ("http", "https")


class ProxyError(ValueError):
    """The environment names a proxy that cannot be used; the message says which and what would do."""


def environment_proxies() -> Mapping[str, str]:
    """The process's proxy variables by lower-case scheme (`http`, `https`, `all`) and `no` for NO_PROXY.

    `http_proxy` wins over `HTTP_PROXY`; in a CGI process HTTP_PROXY is ignored (the standard library's rules).
    """
    return urllib.request.getproxies_environment()


def proxy_for(scheme: str, host: str, port: int, proxies: Mapping[str, str]) -> str | None:
    """The proxy's URL, credentials included, or None for a direct connection.

    Loopback is always direct, as in Go. NO_PROXY takes `*`, names with their subdomains, `host:port`, addresses
    and CIDR blocks. Raises `ProxyError` for a proxy that is not http:// or https:// (SOCKS).
    """
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or _is_loopback(host) or _is_excepted(host, port, proxies.get("no", "")):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    kind = proxy.partition("://")[0].lower()
    if kind not in PROXY_SCHEMES:
        raise ProxyError(
            f"the environment names a {kind} proxy for {scheme} addresses; only http:// and https:// proxies are "
            f"known: name one of these, or list {host} in NO_PROXY"
        )
    return proxy


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def _is_excepted(host: str, port: int, no_proxy: str) -> bool:
    entries = [entry.strip().lower() for entry in no_proxy.split(",")]
    address = _address(host)
    return any(_matches(host.lower().rstrip("."), port, address, entry) for entry in entries if entry)


def _matches(
    host: str, port: int, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, entry: str
) -> bool:
    if entry == "*":
        return True
    if address is not None:
        return _covers(entry, address, port)
    name, _, entry_port = entry.partition(":")
    name = name.removeprefix("*").lstrip(".")
    return entry_port in ("", str(port)) and bool(name) and (host == name or host.endswith(f".{name}"))


def _covers(entry: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> bool:
    """Whether an entry names this address: alone, as a block, or with a port."""
    entry = entry.removesuffix(f":{port}") if address.version == 4 or entry.startswith("[") else entry
    try:
        return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False
