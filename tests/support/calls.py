"""Calls through the real upstream client, on either event loop, for the tests of `backends.aiohttp_*`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import pytest
import uvloop

from backends.aiohttp_upstream import AiohttpUpstream
from backends.faults import Fault, FaultKind
from backends.ports import Call, Reply, Upstream, UpstreamFault
from support.exchange import Exchange
from support.scripted import Answer, Script, ScriptedUpstream

T = TypeVar("T")
SECRET = "sk-upstream-secret"
HEADERS = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
BODY = b'{"model":"kimi-k3.1-pro","stream":true,"messages":[]}'
OK: Answer = {"status": 200, "json": {"ok": True}}


class Run(Protocol):
    """Runs a coroutine in a new event loop."""

    def __call__(self, main: Coroutine[Any, Any, T], /) -> T: ...


def _runner(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> Run:
    def run(main: Coroutine[Any, Any, T], /) -> T:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(main)

    return run


in_asyncio = _runner(asyncio.new_event_loop)
both_loops = pytest.mark.parametrize(
    "run", [in_asyncio, _runner(uvloop.new_event_loop)], ids=["asyncio", "uvloop"]
)


@asynccontextmanager
async def upstream(**options: Any) -> AsyncIterator[Upstream]:
    """The client, closed at the end."""
    made = AiohttpUpstream(**options)
    try:
        yield made
    finally:
        await made.close()


def call(up: ScriptedUpstream, body: bytes = BODY, headers: Mapping[str, str] = HEADERS, **options: Any) -> Call:
    """A chat call to a scripted upstream."""
    return Call(f"{up.base_url}/chat/completions", headers, body, **options)


async def read_all(reply: Reply, wait_s: float = 5.0) -> bytes:
    """The whole body; a silence longer than `wait_s` fails the test."""
    parts: list[bytes] = []
    while data := await reply.read(wait_s):
        parts.append(data)
    assert data == b"", "the body went silent"
    reply.close()
    return b"".join(parts)


async def fault_of(opening: Coroutine[Any, Any, Reply]) -> Fault:
    """The fault of a call that must not be answered."""
    with pytest.raises(UpstreamFault) as raised:
        await opening
    return raised.value.fault


def tried(run: Run, url: str, *, connect_timeout_s: float = 5.0, **options: Any) -> tuple[bytes, Fault | None]:
    """The body bytes of one call and the fault it ended with; a silence or a told key is a fault of its own."""

    async def main() -> tuple[bytes, Fault | None]:
        got = b""
        async with upstream(**options) as client:
            try:
                reply = await client.open(Call(url, HEADERS, BODY, connect_timeout_s))
                while data := await reply.read(5):
                    got += data
            except UpstreamFault as err:
                told = (str(err), repr(err.fault), repr(err.__cause__), repr(err.__context__))
                return got, Fault(FaultKind.AUTH, "the key was told") if SECRET in "".join(told) else err.fault
            return got, None if data == b"" else Fault(FaultKind.TIMEOUT, "the body went silent")

    return run(main())


def raw(*writes: bytes, keep: bool = False, reset: bool = False) -> Script:
    """Sends exactly these writes, apart from each other; then closes, resets or keeps the connection."""

    async def script(exchange: Exchange) -> None:
        for data in writes:
            await exchange.write(data)
            if not keep:
                await exchange.pause(0.02)
        exchange.keep = keep
        if reset:
            exchange.reset()

    return script
