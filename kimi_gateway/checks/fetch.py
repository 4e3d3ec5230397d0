"""One bounded call to a target, heard to its end."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from backends.faults import Fault, FaultKind
from backends.ports import Call, Reply, Upstream, UpstreamFault
from kimi_gateway import __version__
from kimi_gateway.settings import Target

MAX_BODY_BYTES: Final = 8 << 20
_USER_AGENT: Final = f"kimi-gateway/{__version__} check"


@dataclass(frozen=True, slots=True)
class Tools:
    """What looking at targets takes. `wall` is Unix seconds, `mono` monotonic ones; a call ends at its limit."""

    upstream: Upstream
    wall: Callable[[], float]
    mono: Callable[[], float]
    list_timeout_s: float = 10.0
    probe_timeout_s: float = 120.0  # an engine's first answer may have to wait for compilers


@dataclass(frozen=True, slots=True)
class Heard:
    """A whole answer. `at_s` is halfway between sending and its head, in Unix seconds; `took_ms` is to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    at_s: float
    took_ms: int


def call_of(
    target: Target,
    path: str,
    *,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    with_key: bool = True,
) -> Call:
    """A call to a target's API, POST where it has a body."""
    own = {"accept": "text/event-stream, application/json", "user-agent": _USER_AGENT, **(headers or {})}
    if body:
        own["content-type"] = "application/json"
    if with_key and target.api_key is not None:
        own["authorization"] = f"Bearer {target.api_key.reveal()}"
    return Call(
        url=f"{target.base_url}{path}",
        headers=own,
        body=body,
        connect_timeout_s=target.connect_timeout_s,
        method="POST" if body else "GET",
    )


async def hear(tools: Tools, call: Call) -> Heard:
    """The answer to a call. Raises `UpstreamFault`, also where it takes longer than `list_timeout_s` in all."""
    limit_s = tools.list_timeout_s
    sent_s, began_s = tools.wall(), tools.mono()
    try:
        async with asyncio.timeout(limit_s):
            reply = await tools.upstream.open(call)
            at_s = (sent_s + tools.wall()) / 2
            try:
                body = await read_all(reply, limit_s)
            finally:
                reply.close()
    except TimeoutError:
        raise UpstreamFault(silent_for(limit_s)) from None
    return Heard(reply.status, reply.headers, body, at_s, round((tools.mono() - began_s) * 1000))


def silent_for(limit_s: float) -> Fault:
    """The fault of a target that did not answer in time."""
    return Fault(FaultKind.TIMEOUT, f"it gave no whole answer within {limit_s:g} s")


async def read_all(reply: Reply, wait_s: float) -> bytes:
    """The rest of a body. Raises `UpstreamFault` for one that breaks, is too long, or pauses for `wait_s`."""
    parts: list[bytes] = []
    size_bytes = 0
    while data := await reply.read(wait_s):
        parts.append(data)
        size_bytes += len(data)
        if size_bytes > MAX_BODY_BYTES:
            raise UpstreamFault(Fault(FaultKind.SERVER, f"its answer is longer than {MAX_BODY_BYTES} bytes"))
    if data is None:
        raise UpstreamFault(silent_for(wait_s))
    return b"".join(parts)
