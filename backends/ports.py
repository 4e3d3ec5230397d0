"""The port to an upstream: what the relay asks for and what it gets back. Adapters do the IO.

`Upstream.open` sends one POST and returns when the answer's status line and headers are in; `Reply.read` hands
out body bytes as they come. Whatever goes wrong in either is raised as one `UpstreamFault`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from backends.faults import Fault


class UpstreamFault(Exception):
    """An upstream failed; `fault` says how, in one vocabulary for every client library and dialect."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Call:
    """One request to an upstream. `headers` are complete: the adapter adds only what the framing needs."""

    url: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    connect_timeout_s: float = 5.0
    method: str = "POST"


class Reply(Protocol):
    """An answer whose headers are in. `status` is the HTTP status, `headers` have lower-case names."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self, wait_s: float) -> bytes | None:
        """The next body bytes; `b""` at the clean end; None if nothing came within `wait_s` seconds.

        After None the call may simply be repeated: no byte is lost. Raises `UpstreamFault` for a connection
        that broke before the body was complete. Reads no faster than it is called: backpressure.
        """
        ...

    def close(self) -> None:
        """Ends the exchange at once; safe to call again. A body not read to its end closes the connection,
        so that the upstream sees the client leave; a finished one returns it to the pool."""
        ...


class Started(Protocol):
    """A call whose request is on its way."""

    async def reply(self, wait_s: float) -> Reply | None:
        """The answer once its head is in; None after `wait_s` seconds without one, and it may be asked again.

        Raises `UpstreamFault` as `Upstream.open` does.
        """
        ...

    def close(self) -> None:
        """Ends a call whose reply nobody has; safe to call again."""
        ...


class Upstream(Protocol):
    """Opens calls. One instance per process; connections are kept alive and reused."""

    def start(self, call: Call) -> Started | None:
        """Sends the request at once over a connection that is there; None, and nothing sent, where `open` has to
        make one. What `open` refuses is left to it."""
        return None

    async def open(self, call: Call) -> Reply:
        """Sends the request. Has no time limit but the connect timeout: the caller owns the others.

        Raises `UpstreamFault`: `connect`, `tls`, `reset`; `server` for a redirect (a key must not travel) and for
        what is no usable HTTP; `request` for an address or header that cannot be sent. Cancelling it closes the
        connection.
        """
        ...

    async def close(self) -> None:
        """Closes all connections."""
        ...
