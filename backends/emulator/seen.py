"""What the emulator received, for `GET /emulator/requests`: bounded in number and bytes, without any key."""

import base64
import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from backends.json import JsonError, decode

_SECRET = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"})
_REDACTED = "[redacted]"


@dataclass(slots=True)
class Seen:
    """One request and how it was answered; filled in as the answer goes on.

    `key_sha256` is the start of the digest of the key that came, empty where none came. `output_tokens` are those
    generated, `disconnected` says that the client left before the end, `fault` names what the answer was made to
    suffer.
    """

    number: int
    at_s: float
    method: str
    path: str
    http_version: str
    headers: dict[str, str]
    key_sha256: str
    body: bytes = b""
    status: int = 0
    id: str = ""
    effort: str = ""
    fault: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    output_tokens: int = 0
    disconnected: bool = False
    finished: bool = False

    def shown(self, *, raw: bool) -> dict[str, object]:
        """The entry as it is given out: the body as JSON, `raw` adds its very bytes in base64."""
        entry: dict[str, object] = {name: getattr(self, name) for name in self.__slots__ if name != "body"}
        entry["body_bytes"] = len(self.body)
        entry["body"] = _as_json(self.body)
        if raw:
            entry["raw_base64"] = base64.b64encode(self.body).decode()
        return entry


class SeenLog:
    """The last requests in order of arrival. Beyond either bound the oldest are dropped, and counted."""

    def __init__(self, *, max_requests: int, max_bytes: int) -> None:
        self._entries: deque[Seen] = deque()
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._bytes = 0
        self._number = 0
        self._dropped = 0

    def open(
        self,
        *,
        at_s: float,
        method: str,
        path: str,
        http_version: str,
        headers: Iterable[tuple[bytes, bytes]],
        key: str,
    ) -> Seen:
        """Adds a request whose body is still to come."""
        self._number += 1
        shown = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        digest = hashlib.sha256(key.encode()).hexdigest()[:16] if key else ""
        entry = Seen(
            number=self._number,
            at_s=at_s,
            method=method,
            path=path,
            http_version=http_version,
            headers={name: _REDACTED if name in _SECRET else value for name, value in shown.items()},
            key_sha256=digest,
        )
        self._entries.append(entry)
        self._trim()
        return entry

    def received(self, entry: Seen, body: bytes) -> None:
        """Adds the body."""
        entry.body = body
        self._bytes += len(body)
        self._trim()

    def shown(self, *, raw: bool) -> dict[str, object]:
        """`{"requests": […], "dropped": how many are no longer listed}`."""
        return {"requests": [entry.shown(raw=raw) for entry in self._entries], "dropped": self._dropped}

    def clear(self) -> None:
        """Forgets all requests; numbers go on."""
        self._entries.clear()
        self._bytes = 0
        self._dropped = 0

    def _trim(self) -> None:
        while len(self._entries) > self._max_requests or (
            self._bytes > self._max_bytes and len(self._entries) > 1
        ):
            self._bytes -= len(self._entries.popleft().body)
            self._dropped += 1


def _as_json(body: bytes) -> msgspec.Raw | None:
    """The body spliced in as it came, None where it is no JSON."""
    try:
        decode(body)
    except JsonError:
        return None
    return msgspec.Raw(body)
