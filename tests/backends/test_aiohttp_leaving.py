"""Leaving an upstream, on both event loops: seen there at once, and which connections are used again."""

import asyncio
import gc
import time

import psutil
import pytest

from backends.aiohttp_upstream import AiohttpUpstream
from backends.faults import Fault, FaultKind
from backends.ports import UpstreamFault
from support.calls import OK, Run, both_loops, call, fault_of, read_all, upstream
from support.exchange import Exchange
from support.scripted import Answer, ScriptedUpstream, unread

pytestmark = both_loops


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


def test_cancelling_an_upload_nobody_reads_frees_the_connection_at_once(run: Run) -> None:
    @unread
    async def deaf(exchange: Exchange) -> None:
        exchange.line.transport.pause_reading()
        await asyncio.sleep(30)

    def connections(port: int) -> int:
        mine = psutil.Process().net_connections("tcp")
        return sum(getattr(each.raddr, "port", None) == port for each in mine)

    async def main(up: ScriptedUpstream) -> None:
        async with upstream() as client:
            opening = asyncio.create_task(client.open(call(up, bytes(64 << 20))))
            await asyncio.to_thread(up.wait_for_requests, 1)
            await asyncio.sleep(0.1)
            assert connections(up.port) == 1
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            await asyncio.sleep(0.05)
            assert connections(up.port) == 0

    with ScriptedUpstream([deaf]) as up:
        run(main(up))


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

    async def five_together(exchange: Exchange) -> None:
        await exchange.head(200, [("Content-Length", "2")])
        all_here = 5 if len(up.requests) <= 5 else 10
        while len(up.requests) < all_here:
            await exchange.pause(0.005)
        await exchange.write(b"ok")
        exchange.keep = True

    with ScriptedUpstream([five_together], repeat_last=True) as up:
        run(main(up))
    assert up.connections == 5 + 3


def test_open_connections_can_be_bounded(run: Run) -> None:
    async def main(up: ScriptedUpstream) -> Fault:
        async with upstream(max_connections=1) as client:
            held = await client.open(call(up))
            fault = await fault_of(client.open(call(up, connect_timeout_s=0.1)))
            held.close()
            await read_all(await client.open(call(up)))
            return fault

    with ScriptedUpstream([{"status": 200, "sse_text": "x", "then": "hold"}, OK]) as up:
        fault = run(main(up))
    assert (fault.kind, fault.message) == (FaultKind.CONNECT, f"no connection to 127.0.0.1:{up.port} within 0.1 s")


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("last_words", [b"", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"])
def test_a_kept_connection_that_the_server_ended_is_not_used(run: Run, last_words: bytes, closes: bool) -> None:
    async def leave(exchange: Exchange) -> None:
        await exchange.head(200, [("Content-Length", "2")])
        await exchange.write(b"ok")
        await exchange.pause(0.05)
        await exchange.write(last_words)
        exchange.keep = not closes

    async def main(up: ScriptedUpstream) -> None:
        async with upstream() as client:
            assert await read_all(await client.open(call(up))) == b"ok"
            await asyncio.sleep(0.1)
            assert await read_all(await client.open(call(up))) == b'{"ok":true}'

    with ScriptedUpstream([leave, OK]) as up:
        run(main(up))
    kept = not closes and not last_words
    assert [received.connection for received in up.requests] == [0, 0 if kept else 1]


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
    async def main(up: ScriptedUpstream) -> Fault:
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
