"""Open mode: a gateway without keys serves its own machine, and nothing that a web page or proxy brings in.

A page in the operator's browser can reach 127.0.0.1 too. What gives it away is `Origin`, or the foreign `Host`
of a rebound name; what gives a proxy away is `Forwarded` or `X-Forwarded-For`.
"""

import ipaddress
from collections.abc import Iterable
from typing import Final

from kimi_gateway.errors import Forbidden

_HOSTS: Final = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})
_STRANGERS: Final = {
    b"origin": "Origin, so a web page sent it",
    b"forwarded": "Forwarded, so a proxy passed it on",
    b"x-forwarded-for": "X-Forwarded-For, so a proxy passed it on",
}
_REMEDY: Final = "set [[keys]] in the configuration and send one as Authorization: Bearer"


def is_loopback(host: str) -> bool:
    """Whether an address to listen on can be reached from this machine only. Names other than localhost are not
    resolved and count as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def refusal(headers: Iterable[tuple[bytes, bytes]]) -> Forbidden | None:
    """Why open mode does not serve a request with these headers (names in lower case), None where it does."""
    hosts: list[bytes] = []
    for name, value in headers:
        if name in _STRANGERS:
            return _forbidden(f"the request has the header {_STRANGERS[name]}")
        if name == b"host":
            hosts.append(value)
    if len(hosts) != 1 or _without_port(hosts[0]) not in _HOSTS:
        return _forbidden("the request's Host is not localhost, 127.0.0.1 or [::1]")
    return None


def _without_port(host: bytes) -> bytes:
    """The host of a Host header in lower case; a port that is no number stays, and so matches nothing."""
    name, colon, port = host.rpartition(b":")
    found = name if colon and port.isdigit() else host
    return found.strip().lower()


def _forbidden(reason: str) -> Forbidden:
    return Forbidden(
        f"this gateway has no keys and so serves only programs on its own machine, but {reason}; "
        f"call it at http://127.0.0.1 directly, or {_REMEDY}",
        code="open_mode",
    )
