"""The head of a request as bytes: the call's own headers, and of ours only what the framing needs."""

import re
from collections.abc import Mapping
from typing import Final

METHODS: Final = frozenset(("DELETE", "GET", "OPTIONS", "PATCH", "POST", "PUT"))
"""HEAD and CONNECT are left out: their answers are framed differently."""
IDEMPOTENT: Final = frozenset(("DELETE", "GET", "OPTIONS", "PUT"))
_WITH_LENGTH: Final = frozenset(("PATCH", "POST", "PUT"))  # even of an empty body
_FRAMING: Final = frozenset(
    (
        "connection",
        "content-length",
        "expect",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_IDENTITY: Final = "\r\nAccept-Encoding: identity"
_PLAIN_STARTS: Final[dict[str, str]] = {}  # header name → how its line begins, for names without a meaning to us
_STARTS_KEPT: Final = 1024


def request_head(method: str, target: str, host: str, headers: Mapping[str, str], body_bytes: int) -> bytes:
    """The head, up to and with the empty line. `target` and `host` are good as they are; `host` is header lines,
    each with the line end before it, and gives way to a `Host` of the call.

    Raises `ValueError` for a method, name or value that cannot be sent.
    """
    if method not in METHODS:
        raise ValueError(method)
    values = "".join(headers.values())
    if not values.isprintable() and _CONTROL.search(values):  # isprintable alone: 0.5 µs less
        raise ValueError("a control character")
    try:
        # Names seen before that mean nothing to us: 0.8 µs for five, where thinking takes 4.7.
        own = "".join([_PLAIN_STARTS[name] + value for name, value in headers.items()])
    except KeyError:
        own, host, accept = _with_thought(headers, host)
    else:
        accept = _IDENTITY
    end = f"\r\nContent-Length: {body_bytes}\r\n\r\n" if body_bytes or method in _WITH_LENGTH else "\r\n\r\n"
    return f"{method} {target} HTTP/1.1{host}{own}{accept}{end}".encode()


def _with_thought(headers: Mapping[str, str], host: str) -> tuple[str, str, str]:
    """The call's own lines, and what is left of ours: `Host` and `Accept-Encoding`. Raises `ValueError`."""
    accept = _IDENTITY
    lines: list[str] = []
    for name, value in headers.items():
        lowered = name.lower()
        if lowered in _FRAMING:
            continue
        if not _TOKEN.fullmatch(name):
            raise ValueError(name)
        start = f"\r\n{name}: "
        lines.append(start + value)
        if lowered == "host":
            host = ""
        elif lowered == "accept-encoding":
            accept = ""
        elif len(_PLAIN_STARTS) < _STARTS_KEPT:
            _PLAIN_STARTS[name] = start
    return "".join(lines), host, accept
