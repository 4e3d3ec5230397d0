"""The bound on a request's head: the same wherever the network cuts it."""

import asyncio
import json
import socket
from itertools import pairwise

import pytest
import uvicorn
from hypothesis import example, given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from kimi_gateway.server import HEAD_LIMIT_BYTES, BoundedProtocol, Receive, Scope, Send
from support.serving import answer, served

LIMIT = HEAD_LIMIT_BYTES


async def fine(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with a status alone, once the body is there."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def request(head_bytes: int, body: bytes = b"", *, padding: bytes = b"a") -> bytes:
    """A request whose head has exactly that size."""
    start = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\nX-Filler:" % len(body)
    return start + padding * (head_bytes - len(start) - 5) + b"z\r\n\r\n" + body


def statuses(data: bytes, cuts: list[int], count: int = 1) -> list[int]:
    """What a connection answers to these bytes, delivered in reads that end at the cuts."""

    async def main() -> list[int]:
        config = uvicorn.Config(fine, http=BoundedProtocol, ws="none", lifespan="off", log_config=None)
        protocol = BoundedProtocol(config, ServerState(), {})
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, ours)
        reader, writer = await asyncio.open_connection(sock=theirs)
        for start, end in pairwise([0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]):
            protocol.data_received(data[start:end])
        found = []
        for _ in range(count):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            found.append(int(head.split(b" ")[1]))
            if found[-1] == 431:
                assert json.loads(await reader.read())["error"]["code"] == "headers_too_large"
                break
        writer.close()
        transport.abort()
        await asyncio.sleep(0)
        return found

    return asyncio.run(main())


@given(st.integers(LIMIT - 2, LIMIT + 9000), st.lists(st.integers(1, LIMIT + 9000), max_size=4), st.booleans())
@example(LIMIT, [], True)
@example(LIMIT + 1, [], True)
@example(70 * 1024, [], True)
@example(70 * 1024, [70 * 1024 - 1], False)
def test_a_head_is_refused_by_its_size_and_not_by_its_packets(size: int, cuts: list[int], blank: bool) -> None:
    raw = request(size, b"b" * 3000, padding=b" " if blank else b"a")
    assert statuses(raw, cuts) == [204 if size <= LIMIT else 431]


@pytest.mark.parametrize("cut", range(40_000 - 4, 40_000 + 1))
def test_a_body_right_behind_a_head_is_not_counted_as_one(cut: int) -> None:
    assert statuses(request(40_000, b"b" * 200_000), [cut]) == [204]


def test_the_end_of_a_body_is_not_counted_as_the_head_behind_it() -> None:
    first, second = request(100, b"b" * 150_000), request(100)
    assert statuses(first + second, [200, len(first) + 50], count=2) == [204, 204]


@pytest.mark.parametrize("step", [1000, LIMIT, 3 * LIMIT])
def test_a_further_request_of_a_connection_is_bounded_as_well(step: int) -> None:
    """Sent once the first has its answer; behind one that has none yet there is no place for a refusal."""

    async def main() -> None:
        async with served(fine) as made:
            reader, writer = await made.connect()
            writer.write(request(100))
            assert (await answer(reader))[0] == 204
            raw = request(3 * LIMIT)
            for start in range(0, len(raw), step):
                writer.write(raw[start : start + step])
                await asyncio.sleep(0)
            assert (await answer(reader))[0] == 431
            writer.close()

    asyncio.run(main())
