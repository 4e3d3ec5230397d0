"""The upstream client over real sockets, on both event loops: what goes out and what comes back."""

import asyncio
import gzip
import random

import pytest

from backends.faults import Fault, FaultKind
from backends.ports import Call
from support.calls import BODY, HEADERS, OK, Run, both_loops, call, fault_of, raw, read_all, upstream
from support.exchange import Exchange
from support.scripted import ScriptedUpstream, unread

pytestmark = both_loops
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


# --- requests -----------------------------------------------------------------------------------------------


def test_headers_are_those_of_the_call_plus_framing(run: Run) -> None:
    async def main(up: ScriptedUpstream) -> None:
        async with upstream() as client:
            await read_all(await client.open(call(up, headers={**HEADERS, "X-Session-ID": "ü 1"})))

    with ScriptedUpstream([OK]) as up:
        run(main(up))
    assert up.requests[0].raw_headers == [
        ("Host", f"127.0.0.1:{up.port}"),
        ("Authorization", "Bearer sk-upstream-secret"),
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
    async def main(up: ScriptedUpstream) -> Fault:
        async with upstream() as client:
            return await fault_of(client.open(call(up, headers={name: "a\r\nX-Injected: 1"})))

    with ScriptedUpstream([OK]) as up:
        assert run(main(up)).kind is FaultKind.REQUEST
    assert up.requests == []


@pytest.mark.parametrize("size", [1, 65_536, 262_144, 262_145, 8 << 20])
def test_a_body_of_any_size_arrives_whole(run: Run, size: int) -> None:
    body = random.Random(size).randbytes(size)

    async def main(up: ScriptedUpstream) -> None:
        async with upstream() as client:
            await read_all(await client.open(call(up, body)))

    with ScriptedUpstream([OK]) as up:
        run(main(up))
    assert up.requests[0].body == body
    assert up.requests[0].headers["content-length"] == str(size)


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
