"""The HTTP server over real sockets: limits, refusals, ends."""

import asyncio
import json
import resource
import socket
from collections.abc import Awaitable, Callable

import pytest

from kimi_gateway.lifecycle import Lifecycle
from kimi_gateway.server import (
    HEAD_LIMIT_BYTES,
    AsgiApp,
    Gate,
    ListenError,
    Message,
    Receive,
    Scope,
    Send,
    bind,
    raise_descriptor_limit,
    without_upgrade,
)
from support.serving import Served, answer, served


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with method, path and the body's length."""
    size = 0
    while True:
        message: Message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    body = json.dumps([scope["method"], scope["path"], size]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def run(test: Callable[[Served], Awaitable[None]], app: AsgiApp = echo, *, head_timeout_s: float = 30) -> None:
    """Runs a test against a listening app."""

    async def main() -> None:
        async with served(app, head_timeout_s=head_timeout_s) as made:
            await test(made)

    asyncio.run(main())


GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"


def test_a_request_is_answered_without_a_server_header_and_with_a_date() -> None:
    async def test(made: Served) -> None:
        status, headers, body = await made.ask(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc")
        assert (status, json.loads(body)) == (200, ["POST", "/x", 3])
        assert "server" not in headers
        assert headers["date"].endswith("GMT")

    run(test)


def test_a_connection_serves_one_request_after_another() -> None:
    async def test(made: Served) -> None:
        reader, writer = await made.connect()
        for _ in range(3):
            writer.write(GET)
            assert (await answer(reader))[0] == 200
        writer.close()

    run(test)


def test_what_is_no_http_is_a_400_in_our_shape() -> None:
    async def test(made: Served) -> None:
        status, headers, body = await made.ask(b"NONSENSE\r\n\r\n")
        assert (status, headers["connection"]) == (400, "close")
        error = json.loads(body)["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_http")

    run(test)


@pytest.mark.parametrize("head", [b"GET /x HTTP/1.1\r\nX: " + b"a" * 400_000, b"GET /" + b"a" * 400_000])
def test_an_endless_head_is_refused(head: bytes) -> None:
    async def test(made: Served) -> None:
        reader, writer = await made.connect()
        for start in range(0, len(head), HEAD_LIMIT_BYTES // 2):
            writer.write(head[start : start + HEAD_LIMIT_BYTES // 2])
            await asyncio.sleep(0)
        status, _, body = await answer(reader)
        assert (status, json.loads(body)["error"]["code"]) == (431, "headers_too_large")
        writer.close()

    run(test)


def test_a_head_of_the_usual_size_in_small_pieces_is_fine() -> None:
    async def test(made: Served) -> None:
        reader, writer = await made.connect()
        for byte in GET:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await answer(reader))[0] == 200
        writer.close()

    run(test)


@pytest.mark.parametrize("begun", [b"", b"GET /x HT", b"GET /x HTTP/1.1\r\nHost: h\r\n\r\nGET /x HT"])
def test_a_head_that_does_not_come_is_not_waited_for(begun: bytes) -> None:
    async def test(made: Served) -> None:
        reader, writer = await made.connect()
        writer.write(begun)
        if begun.count(b"GET") == 2:
            assert (await answer(reader))[0] == 200
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()

    run(test, head_timeout_s=0.1)


def test_a_large_body_is_no_large_head() -> None:
    async def test(made: Served) -> None:
        size = 3_000_000
        raw = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size + b"a" * size
        status, _, body = await made.ask(raw)
        assert (status, json.loads(body)[2]) == (200, size)

    run(test)


def test_a_body_is_kept_where_the_client_offers_an_upgrade() -> None:
    async def test(made: Served) -> None:
        raw = (
            b"POST /x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            b"HTTP2-Settings: AAMAAABk\r\nContent-Length: 15\r\n\r\n\r\nUpgrade: h2c\r\n"
        )
        status, _, body = await made.ask(raw)
        assert (status, json.loads(body)[2]) == (200, 15)

    run(test)


def test_only_the_head_loses_its_offer() -> None:
    body = b"\r\n\r\n\r\nUpgrade: x"
    assert (
        without_upgrade(b"POST / HTTP/1.1\r\nUPGRADE: h2c" + body) == b"POST / HTTP/1.1\r\nx-upgrade: h2c" + body
    )
    assert without_upgrade(b"POST / HTTP/1.1\r\nA: b" + body) == b"POST / HTTP/1.1\r\nA: b" + body


def test_garbage_while_an_answer_is_under_way_only_cuts_it_off() -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await asyncio.sleep(30)

    async def test(made: Served) -> None:
        reader, writer = await made.connect()
        writer.write(GET)
        head = await reader.readuntil(b"part\r\n")
        writer.write(b"NONSENSE\r\n\r\n")
        rest = await asyncio.wait_for(reader.read(), 5)
        assert b"HTTP/1.1 200" in head
        assert b"HTTP/1.1 400" not in rest
        assert not rest.endswith(b"0\r\n\r\n")
        writer.close()

    run(test, slow)


CHUNKED = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        CHUNKED + b"ZZ\r\n",
        CHUNKED + b"3\r\nabc\r\n-1\r\n",
        CHUNKED.replace(b"chunked", b"xchunked") + b"3\r\nabc\r\n0\r\n\r\n",
        CHUNKED.replace(b"chunked", b"chunked, gzip"),
    ],
)
@pytest.mark.parametrize("in_two_packets", [False, True])
def test_a_body_that_is_no_http_is_a_400_and_not_silence(
    raw: bytes, in_two_packets: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def test(made: Served) -> None:
        reader, writer = await made.connect()
        head = raw.index(b"\r\n\r\n") + 4
        writer.write(raw[:head] if in_two_packets else raw)
        if in_two_packets:
            await asyncio.sleep(0.05)
            writer.write(raw[head:])
        status, headers, body = await answer(reader)
        assert (status, headers["connection"]) == (400, "close")
        assert json.loads(body)["error"]["code"] == "invalid_http"
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        assert await made.listener.wait_idle(5)  # the application was told as well

    run(test, reads)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_body_that_turns_bad_after_its_answer_gets_no_second_one() -> None:
    async def refuses(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def test(made: Served) -> None:
        reader, writer = await made.connect()
        writer.write(CHUNKED)
        assert (await answer(reader))[0] == 413
        writer.write(b"ZZ\r\n")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()

    run(test, refuses)


def gate(lifecycle: Lifecycle, max_connections: int) -> Gate:
    return Gate(echo, lifecycle, max_connections=max_connections)


def test_a_connection_too_many_is_told_so_and_health_still_answers() -> None:
    async def test(made: Served) -> None:
        held = [await made.connect() for _ in range(2)]
        for reader, writer in held:
            writer.write(GET)
            assert (await answer(reader))[0] == 200
        status, headers, body = await made.ask(GET)
        assert status == 503
        assert (headers["connection"], headers["retry-after"], headers["x-should-retry"]) == ("close", "1", "true")
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        assert (await made.ask(GET.replace(b"/x", b"/health")))[0] == 200
        held[0][1].close()
        await asyncio.sleep(0.05)
        assert (await made.ask(GET))[0] == 200
        held[1][1].close()

    run(test, gate(Lifecycle(), 2))


def test_a_refused_upload_still_gets_its_answer() -> None:
    async def test(made: Served) -> None:
        raw = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2000000\r\n\r\n" + b"a" * 2_000_000
        status, _, body = await made.ask(raw)
        assert (status, json.loads(body)["error"]["code"]) == (503, "too_many_connections")

    run(test, gate(Lifecycle(), 0))


def test_after_the_listener_closed_a_late_request_is_refused() -> None:
    lifecycle = Lifecycle()

    async def test(made: Served) -> None:
        lifecycle.stop_accepting()
        status, headers, body = await made.ask(GET)
        assert (status, headers["connection"]) == (503, "close")
        assert json.loads(body)["error"]["code"] == "shutting_down"

    run(test, gate(lifecycle, 9))


def test_closing_the_listener_lets_open_answers_end_and_closes_idle_connections() -> None:
    release = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            await release.wait()
        await echo(scope, receive, send)

    async def test(made: Served) -> None:
        idle, busy = await made.connect(), await made.connect()
        idle[1].write(GET)
        await answer(idle[0])
        busy[1].write(GET.replace(b"/x", b"/slow"))
        await asyncio.sleep(0.05)
        made.listener.stop_accepting()
        assert await asyncio.wait_for(idle[0].read(), 5) == b""
        with pytest.raises(ConnectionRefusedError):
            await made.connect()
        assert not await made.listener.wait_idle(0.05)
        release.set()
        assert (await answer(busy[0]))[0] == 200
        assert await made.listener.wait_idle(5)
        assert await busy[0].read() == b""
        for _, writer in (idle, busy):
            writer.close()

    run(test, waits)


def test_close_ends_what_is_left() -> None:
    ended = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def test(made: Served) -> None:
        reader, writer = await made.connect()
        writer.write(GET)
        await asyncio.sleep(0.05)
        await made.listener.close()
        assert ended.is_set()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()

    run(test, endless)


def test_a_taken_port_is_said_with_the_remedy() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ListenError, match=rf"port {port} on 127.0.0.1 is taken .* --port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_foreign_address_is_said_with_the_remedy(host: str) -> None:
    with pytest.raises(ListenError, match="is not an address of this machine"):
        bind(host, 0)


def test_a_name_means_ipv4() -> None:
    with bind("localhost", 0) as sock:
        assert sock.family is socket.AF_INET


def test_the_descriptor_limit_is_raised_and_a_shortage_named() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert raise_descriptor_limit(10) == ""
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before[1]
        warning = raise_descriptor_limit(before[1])
        assert f"server.max_connections = {before[1]} can need {2 * before[1] + 64}" in warning
        assert f"lower max_connections to {(before[1] - 64) // 2}" in warning
        assert (raise_descriptor_limit(before[1], chosen=False) == "") == (before[1] >= 2064)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
