"""Addresses of state: the kinds there are, read once, and shown without their secrets."""

from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import ParseResult, parse_qs, unquote, urlparse

Kind = Literal["memory", "embedded", "server"]

_CLIENT_OPTIONS: Final = frozenset(
    {"db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"}
)
_KINDS: Final = "memory:// (one worker), embedded:// (a private Valkey, one host) or redis://host:port/db"


class StateUrlError(ValueError):
    """The address of the state cannot be used; the message says why, never with the address itself."""


@dataclass(frozen=True, slots=True)
class StateUrl:
    """An address. `text` may hold a password, `shown` does not; `secret` is that password, "" for none."""

    kind: Kind
    text: str
    shown: str
    secret: str = ""


def state_url(text: str) -> StateUrl:
    """The address in this text. Raises `StateUrlError`."""
    try:
        parts = urlparse(text)
        port = parts.port
    except ValueError:  # its words quote the address
        raise StateUrlError(f"the address of the state is malformed; expected {_KINDS}") from None
    if parts.scheme in ("memory", "embedded"):
        if text != f"{parts.scheme}://":
            raise StateUrlError(f"{parts.scheme}:// takes nothing behind it")
        return StateUrl("memory" if parts.scheme == "memory" else "embedded", text, text)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise StateUrlError(_unknown(parts.scheme))
    _check_options(parts)
    secret = unquote(parts.password or "")
    if parts.scheme == "unix":
        if not parts.path.startswith("/") or parts.hostname:
            raise StateUrlError("unix:// needs the absolute path of a socket, as in unix:///run/valkey.sock")
        return StateUrl("server", text, f"unix://{parts.path}", secret)
    database = parts.path.removeprefix("/")
    if database and not database.isdecimal():
        raise StateUrlError("behind the host stands the number of a database, as in redis://host:6379/0")
    host = parts.hostname or "localhost"
    shown = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port or 6379}/{database or 0}"
    return StateUrl("server", text, shown, secret)


def _unknown(scheme: str) -> str:
    if scheme in ("valkey", "valkeys"):
        other = "redis" if scheme == "valkey" else "rediss"
        return f"write {other}:// for {scheme}://: the protocol is the same"
    if not scheme:
        return f"the address of the state has no scheme; expected {_KINDS} (also rediss:// and unix://)"
    return f"there is no state of the kind {scheme[:20]!r}; expected {_KINDS} (also rediss:// and unix://)"


def _check_options(parts: ParseResult) -> None:
    """Refuses what would change how the client works: its timeouts, pool and decoding are the gateway's."""
    for name, values in parse_qs(parts.query, keep_blank_values=True).items():
        if name not in _CLIENT_OPTIONS:
            raise StateUrlError(f"the address of the state takes no {name[:30]!r}; known: {_listed()}")
        if name == "db" and not values[0].isdecimal():
            raise StateUrlError("db is the number of a database, as in ?db=0")


def _listed() -> str:
    return ", ".join(sorted(_CLIENT_OPTIONS))
