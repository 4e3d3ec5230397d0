"""Which ledger a URL means: a name that holds no secret, and one that may be shown.

Two processes share a ledger when they mean the same database, not when their URLs are the same text: a
relative SQLite path depends on the working directory, and a password may be rotated.
"""

from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

_ID_CHARS = 16


def ledger_id(url: str) -> str:
    """16 hex characters that are the same for every spelling of one database.

    SQLite: the resolved path. Others: kind, host, port, database; the driver, user, password and options do
    not count. Raises nothing.
    """
    return sha256(_canonical(url).encode()).hexdigest()[:_ID_CHARS]


def redacted(url: str) -> str:
    """The URL as it may be shown: without password and without options (they can hold one)."""
    path = sqlite_path(url)
    if path is not None:
        return f"sqlite:///{path}"
    scheme, _, rest = url.partition("://")
    # The last @ of all ends user and password, also where a password holds characters that it must not.
    user, at, place = rest.rpartition("@")
    place = place.partition("?")[0].partition("#")[0]
    host, slash, database = place.partition("/")
    name, colon, port = host.rpartition(":")
    if colon and not port.isdecimal() and not host.endswith("]"):
        host = name  # what stands in the place of the port may be a password
    return f"{scheme}://{user.partition(':')[0]}{at}{host}{slash}{database}"


def sqlite_path(url: str) -> Path | None:
    """The resolved file of a SQLite URL, else None (other databases, and SQLite in memory)."""
    scheme, found, rest = url.partition("://")
    if not found or scheme.partition("+")[0] != "sqlite":
        return None
    name = rest.partition("?")[0].removeprefix("/")
    if name in ("", ":memory:"):
        return None
    return Path(name).expanduser().resolve()


def _canonical(url: str) -> str:
    path = sqlite_path(url)
    if path is not None:
        return f"sqlite:{path}"
    parts = urlsplit(url)
    kind = parts.scheme.partition("+")[0]
    host = parts.netloc.rpartition("@")[2].lower()
    if kind in ("postgres", "postgresql"):
        kind = "postgresql"
        host = host.removesuffix(":5432")
    return f"{kind}:{host}:{parts.path}"
