"""The upstream client over real sockets, on both event loops: bodies, endings, leaving, pooling, headers."""

import asyncio
import gc
import gzip
import random
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import pytest
import uvloop

from backends.aiohttp_upstream import AiohttpUpstream
from backends.faults import FaultKind
from backends.ports import Call, Reply, Upstream, UpstreamFault
from support.exchange import Exchange
from support.scripted import Answer, Script, ScriptedUpstream, unread

T = TypeVar("T")
HEADERS = {"Authorization": "Bearer sk-upstream", "Content-Type": "application/json"}
BODY = b'{"model":"kimi-k3.1-pro","stream":true,"messages":[]}'
OK: Answer = {"status": 200, "json": {"ok": True}}
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Run(Protocol):
    """Runs a coroutine in a new event loop."""

    def __call__(self, main: Coroutine[Any, Any, T]) -> T: ...


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def in_loop(main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(main)

    return in_loop


@asynccontextmanager
async def upstream(**options: Any) -> AsyncIterator[Upstream]:
    made = AiohttpUpstream(**options)
    try:
        yield made
    finally:
        await made.close()


def call(up: ScriptedUpstream, body: bytes = BODY, headers: dict[str, str] = HEADERS, **options: Any) -> Call:
    return Call(f"{up.base_url}/chat/completions", headers, body, **options)


async def read_all(reply: Reply, wait_s: float = 5.0) -> bytes:
    """The whole body; a silence longer than `wait_s` fails the test."""
    parts: list[bytes] = []
    while data := await reply.read(wait_s):
        parts.append(data)
    assert data == b"", "the body went silent"
    reply.close()
    return b"".join(parts)


async def fault_of(opening: Coroutine[Any, Any, Reply]) -> Any:
    with pytest.raises(UpstreamFault) as raised:
        await opening
    return raised.value.fault


def raw(*writes: bytes, keep: bool = False) -> Script:
    """Sends exactly these writes; closes after them where the connection is not to be kept."""

    async def script(exchange: Exchange) -> None:
        for data in writes:
            await exchange.write(data)
        exchange.keep = keep
        if not keep:
            await exchange.pause(0.02)

    return script


# --- requests -----------------------------------------------------------------------------------------------


def test_headers_are_those_of_the_call_plus_framing(run: Run) -> None:
    async def main(up: ScriptedUpstream) -> None:
        async with upstream() as client:
            await read_all(await client.open(call(up, headers={**HEADERS, "X-Session-ID": "ü 1"})))

    with ScriptedUpstream([OK]) as up:
        run(main(up))
    assert up.requests[0].raw_headers == [
        ("Host", f"127.0.0.1:{up.port}"),
        ("Authorization", "Bearer sk-upstream"),
        ("Content-Type", "application/json"),
        ("X-Session-ID", "ü 1".encode().decode("latin-1")),
        ("Accept-Encoding", "identity"),
        ("Content-Length", str(len(BODY))),
    ]
    assert up.requests[0].body == BODY


def test_framing_names_in_a_call_are_left_out(run: Run) -> None:
    async def main(up: ScriptedUpstream) -> None:
        headers = {
            "Content-Length": "5",
            "transfer-encoding": "chunked",
            "Connection": "close",
            "expect": "100-continue",
        }
        async with upstream() as client:
            await read_all(await client.open(call(up, headers=headers)))

    with ScriptedUpstream([OK]) as up:
        run(main(up))
    assert sorted(up.requests[0].headers) == ["accept-encoding", "content-length", "host"]
    assert up.requests[0].body == BODY


def test_a_get_without_body_has_no_length(run: Run) -> None:
    async def main(up: ScriptedUpstream) -> bytes:
        async with upstream() as client:
            return await read_all(await client.open(Call(f"{up.base_url}/models", {}, b"", method="GET")))

    with ScriptedUpstream(models=["m"]) as up:
        assert b'"m"' in run(main(up))
    assert sorted(up.probes[0].headers) == ["accept-encoding", "host"]


@pytest.mark.parametrize("name", ["X-Session-ID", "Bad Name\r\nX-Other"])
def test_a_header_that_would_inject_is_a_fault_and_never_sent(run: Run, name: str) -> None:
    async def main(up: ScriptedUpstream) -> Any:
        async with upstream() as client:
            return await fault_of(client.open(call(up, headers={name: "a\r\nX-Injected: 1"})))

    with ScriptedUpstream([OK]) as up:
        assert run(main(up)).kind is FaultKind.REQUEST
    assert up.requests == []


def test_a_large_body_arrives_whole_and_lets_other_tasks_run(run: Run) -> None:
    body = random.Random(1).randbytes(8 << 20)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main(up: ScriptedUpstream) -> None:
        async with upstream() as client:
            counter = asyncio.create_task(count())
            await read_all(await client.open(call(up, body)))
            counter.cancel()

    with ScriptedUpstream([OK]) as up:
        run(main(up))
    assert up.requests[0].body == body
    assert turns > 8


def test_an_answer_before_the_body_was_read_is_taken(run: Run) -> None:
    @unread
    async def refuse(exchange: Exchange) -> None:
        exchange.line.transport.pause_reading()
        await exchange.head(413, [("Content-Length", "3")])
        await exchange.write(b"big")
        await exchange.pause(0.3)

    async def main(up: ScriptedUpstream) -> tuple[int, bytes]:
        async with upstream() as client:
            reply = await client.open(call(up, bytes(32 << 20)))
            return reply.status, await read_all(reply)

    with ScriptedUpstream([refuse]) as up:
        assert run(main(up)) == (413, b"big")


# --- answers ------------------------------------------------------------------------------------------------


def test_reply_headers_are_lower_case_joined_and_without_cookies(run: Run) -> None:
    head = (
        b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nX-A: 1\r\nx-a: 2\r\nSet-Cookie: s=1\r\nContent-Length: 0\r\n\r\n"
    )

    async def main(up: ScriptedUpstream) -> None:
        async with upstream() as client:
            reply = await client.open(call(up))
            assert reply.status == 429
            assert reply.headers == {"retry-after": "7", "x-a": "1, 2", "content-length": "0"}
            assert await read_all(reply) == b""
            await read_all(await client.open(call(up)))

    with ScriptedUpstream([raw(head, keep=True), OK]) as up:
        run(main(up))
    assert "cookie" not in up.requests[1].headers


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_split_of_a_body_gives_the_same_bytes(run: Run, seed: int) -> None:
    chance = random.Random(seed)
    body = chance.randbytes(20_000)
    cuts = sorted(chance.sample(range(1, len(body)), 199))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]

    async def send(exchange: Exchange) -> None:
        wire = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        at = 0
        while at < len(wire):
            size = chance.randint(1, 300)
            await exchange.write(wire[at : at + size])
            at += size
            if chance.random() < 0.2:
                await asyncio.sleep(0)
        exchange.keep = True

    async def main(up: ScriptedUpstream) -> bytes:
        async with upstream() as client:
            return await read_all(await client.open(call(up)))

    with ScriptedUpstream([send]) as up:
        assert run(main(up)) == body


def test_waiting_gives_none_and_loses_nothing(run: Run) -> None:
    answer = {"status": 200, "timeline": [[0, "data: 1\n\n"], [0.15, "data: 2\n\n"], [0.3, "data: 3\n\n"]]}

    async def main(up: ScriptedUpstream) -> list[bytes | None]:
        async with upstream() as client:
            reply = await client.open(call(up))
            got: list[bytes | None] = []
            while (data := await reply.read(0.02)) != b"":
                got.append(data)
            return got

    with ScriptedUpstream([answer]) as up:
        got = run(main(up))
    assert b"".join(part for part in got if part) == b"data: 1\n\ndata: 2\n\ndata: 3\n\n"
    assert 4 <= got.count(None) <= 20


def test_many_short_waits_racing_with_bytes_lose_nothing(run: Run) -> None:
    async def drip(exchange: Exchange) -> None:
        await exchange.head(200, [("Content-Length", "400")])
        for number in range(100):
            await exchange.write(b"%04d" % number)
            await asyncio.sleep(0.001)
        exchange.keep = True

    async def main(up: ScriptedUpstream) -> bytes:
        async with upstream() as client:
            reply = await client.open(call(up))
            got = b""
            while (data := await reply.read(0.001)) != b"":
                got += data or b""
            return got

    with ScriptedUpstream([drip]) as up:
        assert run(main(up)) == b"".join(b"%04d" % number for number in range(100))


def test_a_read_without_wait_gives_what_is_there(run: Run) -> None:
    async def main(up: ScriptedUpstream) -> None:
        async with upstream() as client:
            reply = await client.open(call(up))
            assert await reply.read(2) == b"data: 1\n\n"
            assert await reply.read(0) is None
            reply.close()

    with ScriptedUpstream([{"status": 200, "sse_text": "data: 1\n\n", "then": "hold"}]) as up:
        run(main(up))


def test_a_cancelled_read_loses_nothing(run: Run) -> None:
    async def main(up: ScriptedUpstream) -> bytes:
        async with upstream() as client:
            reply = await client.open(call(up))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await reply.read(30)
            return await read_all(reply)

    with ScriptedUpstream([{"status": 200, "timeline": [[0.1, "a"], [0.15, "b"]]}]) as up:
        assert run(main(up)) == b"ab"


def test_interim_answers_and_empty_bodies_are_understood(run: Run) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

    async def main(up: ScriptedUpstream) -> None:
        async with upstream() as client:
            assert await read_all(await client.open(call(up))) == b"ok"
            empty = await client.open(call(up))
            assert (empty.status, await read_all(empty)) == (204, b"")

    with ScriptedUpstream([raw(interim, keep=True), raw(b"HTTP/1.1 204 No Content\r\n\r\n")]) as up:
        run(main(up))


def test_a_gzip_answer_nobody_asked_for_is_decoded(run: Run) -> None:
    text = b"data: hello\n\n" * 1000
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Encoding: gzip\r\n\r\n"

    async def main(up: ScriptedUpstream) -> bytes:
        async with upstream() as client:
            reply = await client.open(call(up))
            assert "content-encoding" not in reply.headers
            return await read_all(reply)

    with ScriptedUpstream([raw(head + gzip.compress(text))]) as up:
        assert run(main(up)) == text


def test_a_small_body_that_unpacks_to_a_huge_one_comes_in_bounded_pieces(run: Run) -> None:
    size = 64 << 20
    packed = gzip.compress(bytes(size))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)

    async def main(up: ScriptedUpstream) -> tuple[int, int]:
        async with upstream() as client:
            reply = await client.open(call(up))
            total = largest = 0
            while data := await reply.read(5):
                total, largest = total + len(data), max(largest, len(data))
            return total, largest

    with ScriptedUpstream([raw(head + packed, keep=True)]) as up:
        total, largest = run(main(up))
    assert total == size
    assert largest <= 512 << 10


# --- leaving ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reads", [0, 1])
def test_closing_in_mid_body_is_seen_upstream_at_once(run: Run, reads: int) -> None:
    async def main(up: ScriptedUpstream) -> float:
        async with upstream() as client:
            reply = await client.open(call(up))
            for _ in range(reads):
                assert await reply.read(2)
            closed_s = time.monotonic()
            reply.close()
            reply.close()
            await asyncio.to_thread(up.wait_for_disconnect, 2)
            with pytest.raises(UpstreamFault, match="closed on our side"):
                await reply.read(1)
            return closed_s

    with ScriptedUpstream([{"status": 200, "sse_text": "data: 1\n\n", "then": "hold"}]) as up:
        closed_s = run(main(up))
        left_s = up.requests[0].closed_by_client_at
    assert left_s is not None
    assert left_s - closed_s < 1


def test_cancelling_an_unanswered_call_is_seen_upstream_at_once(run: Run) -> None:
    async def main(up: ScriptedUpstream) -> float:
        async with upstream() as client:
            opening = asyncio.create_task(client.open(call(up)))
            await asyncio.to_thread(up.wait_for_requests, 1)
            opening.cancel()
            cancelled_s = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await opening
            await asyncio.to_thread(up.wait_for_disconnect, 2)
            return cancelled_s

    with ScriptedUpstream([{"then": "hold"}]) as up:
        cancelled_s = run(main(up))
        left_s = up.requests[0].closed_by_client_at
    assert left_s is not None
    assert left_s - cancelled_s < 1


def test_cancelling_an_upload_nobody_reads_drops_it(run: Run) -> None:
    left: list[float] = []

    @unread
    async def deaf(exchange: Exchange) -> None:
        exchange.line.transport.pause_reading()
        await asyncio.sleep(0.3)
        exchange.line.transport.resume_reading()  # what was in flight comes, then the end
        await exchange.line.client_leaves()
        left.append(time.monotonic())

    async def main(up: ScriptedUpstream) -> None:
        async with upstream() as client:
            opening = asyncio.create_task(client.open(call(up, bytes(64 << 20))))
            await asyncio.to_thread(up.wait_for_requests, 1)
            await asyncio.sleep(0.1)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            await asyncio.to_thread(up.wait_for_disconnect, 2)

    with ScriptedUpstream([deaf]) as up:
        run(main(up))
        assert len(up.requests[0].body) == 0


def test_a_waiting_read_ends_when_its_reply_is_closed(run: Run) -> None:
    async def main(up: ScriptedUpstream) -> None:
        async with upstream() as client:
            reply = await client.open(call(up))
            waiting = asyncio.create_task(reply.read(30))
            await asyncio.sleep(0.02)
            reply.close()
            with pytest.raises(UpstreamFault, match="closed on our side"):
                await asyncio.wait_for(waiting, 1)

    with ScriptedUpstream([{"status": 200, "then": "hold", "framing": "chunked"}]) as up:
        run(main(up))


def test_closing_the_client_ends_what_is_open(run: Run) -> None:
    async def main(up: ScriptedUpstream) -> None:
        client = AiohttpUpstream()
        reply = await client.open(call(up))
        waiting = asyncio.create_task(reply.read(30))
        await asyncio.sleep(0.02)
        await client.close()
        await client.close()
        with pytest.raises(UpstreamFault):
            await asyncio.wait_for(waiting, 1)
        assert (await fault_of(client.open(call(up)))).kind is FaultKind.CONNECT
        await asyncio.to_thread(up.wait_for_disconnect, 2)

    with ScriptedUpstream([{"status": 200, "then": "hold", "framing": "chunked"}]) as up:
        run(main(up))


def test_a_reader_that_stops_makes_the_upstream_wait(run: Run) -> None:
    sent = 0
    total = 48 << 20

    async def flood(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.head(200, [("Content-Length", str(total))])
        while sent < total:
            await exchange.write(bytes(65536))
            sent += 65536

    async def main(up: ScriptedUpstream) -> None:
        async with upstream() as client:
            reply = await client.open(call(up))
            first = await reply.read(2)
            assert first
            await asyncio.sleep(0.3)
            stalled = sent
            await asyncio.sleep(0.1)
            assert sent == stalled < total // 2  # the rest waits in kernel buffers and upstream, not here
            waiting = await reply.read(0)
            assert waiting is not None
            assert len(waiting) <= 384 << 10
            got = len(first) + len(waiting)
            while data := await reply.read(5):
                got += len(data)
            assert got == total

    with ScriptedUpstream([flood]) as up:
        run(main(up))


# --- pooling ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer", [OK, {"status": 200, "sse_text": "data: [DONE]\n\n"}], ids=["length", "chunked"]
)
def test_a_finished_answer_gives_its_connection_back(run: Run, answer: Answer) -> None:
    async def main(up: ScriptedUpstream) -> None:
        async with upstream() as client:
            for _ in range(3):
                await read_all(await client.open(call(up)))

    with ScriptedUpstream([answer], repeat_last=True) as up:
        run(main(up))
    assert [received.connection for received in up.requests] == [0, 0, 0]


def test_an_idle_connection_is_not_used_past_its_time(run: Run) -> None:
    async def main(up: ScriptedUpstream) -> None:
        async with upstream(keepalive_plain_s=0.05) as client:
            await read_all(await client.open(call(up)))
            await asyncio.sleep(0.1)
            await read_all(await client.open(call(up)))

    with ScriptedUpstream([OK], repeat_last=True) as up:
        run(main(up))
    assert [received.connection for received in up.requests] == [0, 1]


def test_no_more_than_the_limit_are_kept_idle(run: Run) -> None:
    async def main(up: ScriptedUpstream) -> None:
        async with upstream(max_idle_per_host=2) as client:
            for _ in range(2):
                replies = [await client.open(call(up)) for _ in range(5)]
                for reply in replies:
                    await read_all(reply)
                await asyncio.sleep(0.05)

    async def slow(exchange: Exchange) -> None:
        await exchange.head(200, [("Content-Length", "2")])
        await exchange.pause(0.1)
        await exchange.write(b"ok")
        exchange.keep = True

    with ScriptedUpstream([slow], repeat_last=True) as up:
        run(main(up))
    assert up.connections == 5 + 3


def test_open_connections_can_be_bounded(run: Run) -> None:
    async def main(up: ScriptedUpstream) -> Any:
        async with upstream(max_connections=1) as client:
            held = await client.open(call(up))
            fault = await fault_of(client.open(call(up, connect_timeout_s=0.1)))
            held.close()
            await read_all(await client.open(call(up)))
            return fault

    with ScriptedUpstream([{"status": 200, "sse_text": "x", "then": "hold"}, OK]) as up:
        fault = run(main(up))
    assert (fault.kind, fault.message) == (FaultKind.CONNECT, f"no connection to 127.0.0.1:{up.port} within 0.1 s")


@pytest.mark.parametrize("last_words", [b"", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"])
def test_a_kept_connection_that_the_server_ended_is_not_used(run: Run, last_words: bytes) -> None:
    async def leave(exchange: Exchange) -> None:
        await exchange.head(200, [("Content-Length", "2")])
        await exchange.write(b"ok")
        await exchange.pause(0.05)
        if last_words:
            await exchange.write(last_words)

    async def main(up: ScriptedUpstream) -> None:
        async with upstream() as client:
            assert await read_all(await client.open(call(up))) == b"ok"
            await asyncio.sleep(0.1)
            assert await read_all(await client.open(call(up))) == b'{"ok":true}'

    with ScriptedUpstream([leave, OK]) as up:
        run(main(up))
    assert [received.connection for received in up.requests] == [0, 1]


def test_an_end_the_loop_has_not_seen_yet_is_found_before_sending(run: Run) -> None:
    async def leave(exchange: Exchange) -> None:
        await exchange.head(200, [("Content-Length", "2")])
        await exchange.write(b"ok")
        await exchange.pause(0.05)

    async def main(up: ScriptedUpstream) -> None:
        async with upstream() as client:
            await read_all(await client.open(call(up)))
            time.sleep(0.2)  # noqa: ASYNC251  # the loop must not see the server's end before the next call
            await read_all(await client.open(call(up)))

    with ScriptedUpstream([leave, OK]) as up:
        run(main(up))
    assert len(up.requests) == 2


def test_a_connection_that_breaks_after_sending_is_never_tried_again(run: Run) -> None:
    async def main(up: ScriptedUpstream) -> Any:
        async with upstream() as client:
            await read_all(await client.open(call(up)))
            return await fault_of(client.open(call(up)))

    with ScriptedUpstream([OK, {"then": "close"}, OK]) as up:
        fault = run(main(up))
    assert fault.kind is FaultKind.RESET
    assert [received.connection for received in up.requests] == [0, 0]


def test_nothing_is_left_unclosed(run: Run) -> None:
    async def main(up: ScriptedUpstream) -> None:
        async with upstream() as client:
            await read_all(await client.open(call(up)))
            (await client.open(call(up))).close()
            with pytest.raises(UpstreamFault):
                await read_all(await client.open(call(up)))
            await fault_of(client.open(call(up)))
        gc.collect()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    hold = {"status": 200, "sse_text": "x", "then": "hold"}
    cut = {"status": 200, "sse_text": "x", "then": "close"}
    with ScriptedUpstream([OK, hold, cut, {"then": "reset"}]) as up:
        run(main(up))
    gc.collect()
