"""Connections that the application or a stop ends at once, whatever the client has taken."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import pytest
import uvloop

from kimi_gateway.server import AsgiApp, Listener, Receive, Scope, Send, bind
from support.serving import Served, answer, served

GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
NewLoop = Callable[[], asyncio.AbstractEventLoop]


async def start(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def write(send: Send, data: bytes = b"a" * 100_000) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def endless(scope: Scope, receive: Receive, send: Send) -> None:
    """Writes until the client has taken nothing for a moment, then ends the connection as a relay does."""
    await start(send)
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(0.1):
                await write(send)
    scope["extensions"]["kimi.abort"]()


class NeverReads:
    """A client that sends a request and takes nothing of the answer."""

    def __init__(self, port: int, raw: bytes = GET) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect(("127.0.0.1", port))
        self._socket.sendall(raw)

    def close(self) -> None:
        self._socket.close()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelname == "ERROR"]


def with_client(new_loop: NewLoop, app: AsgiApp, test: Callable[[Served], object], raw: bytes = GET) -> None:
    """Has the app serve a client that never reads, to its end."""

    async def main() -> None:
        async with served(app) as made:
            client = NeverReads(made.port, raw)
            try:
                await asyncio.sleep(0.05)
                test(made)
                assert await made.listener.wait_idle(5)
            finally:
                client.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


@LOOPS
def test_an_application_can_end_a_connection_that_takes_nothing(
    new_loop: NewLoop, caplog: pytest.LogCaptureFixture
) -> None:
    with_client(new_loop, endless, lambda made: None)
    assert errors(caplog) == []  # a stalled client is ordinary


@LOOPS
def test_a_request_behind_another_on_its_connection_ends_with_it(
    new_loop: NewLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """uvicorn tells only the last request of a connection that it is gone."""
    with_client(new_loop, endless, lambda made: None, raw=GET + GET)
    assert errors(caplog) == []


@LOOPS
def test_an_application_that_waits_hears_that_its_connection_is_gone(new_loop: NewLoop) -> None:
    heard = []

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        asyncio.get_running_loop().call_later(0.05, scope["extensions"]["kimi.abort"])
        heard.append((await receive())["type"])

    with_client(new_loop, waits, lambda made: None)
    assert heard == ["http.disconnect"]


@LOOPS
def test_a_stop_can_cut_those_that_take_nothing(new_loop: NewLoop, caplog: pytest.LogCaptureFixture) -> None:
    async def writes(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        for _ in range(1000):
            await write(send)

    cut = []
    with_client(new_loop, writes, lambda made: cut.append(made.listener.abort()))
    assert cut == [1]
    assert errors(caplog) == []


def test_the_extensions_stand_side_by_side() -> None:
    found: list[set[str]] = []

    async def looks(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(set(scope["extensions"]))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def main() -> None:
        for gives_holds in (False, True):
            listener = Listener(looks, bind("127.0.0.1", 0), gives_holds=gives_holds)
            await listener.start()
            reader, writer = await asyncio.open_connection(*listener.address)
            writer.write(GET)
            await answer(reader)
            writer.close()
            await listener.close()

    asyncio.run(main())
    ours = {"kimi.abort", "kimi.is_slow", "kimi.line", "kimi.on_gone"}
    assert found == [ours, {*ours, "kimi.connection"}]


@pytest.mark.parametrize("asks_late", [False, True])
def test_whoever_asks_is_called_once_when_the_client_has_left(asks_late: bool) -> None:
    """Also where it had left before anybody asked; not after the answer is complete."""
    told: list[str] = []
    left = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        def tell() -> None:
            told.append(scope["path"])
            left.set()

        if asks_late:
            while (await receive())["type"] != "http.disconnect":
                pass
        scope["extensions"]["kimi.on_gone"](tell)
        async with asyncio.timeout(5):
            await left.wait()

    async def main() -> None:
        listener = Listener(waits, bind("127.0.0.1", 0))
        await listener.start()
        _, writer = await asyncio.open_connection(*listener.address)
        writer.write(GET)
        await asyncio.sleep(0.05)
        writer.close()
        async with asyncio.timeout(5):
            await left.wait()
        await listener.close()

    asyncio.run(main())
    assert len(told) == 1
