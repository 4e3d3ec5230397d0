"""The lean client's connections: which one takes a call, what a broken one means, bodies that go out slowly."""

import asyncio
import ssl
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from backends.faults import FaultKind
from backends.lean.upstream import LeanUpstream
from backends.ports import Call, Upstream, UpstreamFault
from support.calls import Run, both_loops, fault_of
from support.hostile_http import Place, Speak, Told, Visit, answering, hostile, told

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
OK = b"HTTP/1.1 200 OK\r\n"
TWO = OK + b"Content-Length: 2\r\n\r\nok"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def pair(speak: Speak, **options: Any) -> AsyncIterator[tuple[Upstream, Place]]:
    """A client and a server that speaks so."""
    async with hostile(speak) as place:
        client = LeanUpstream(proxies={}, tls=NO_TLS, **options)
        try:
            yield client, place
        finally:
            await client.close()


# --- kept connections that break -----------------------------------------------------------------------------


async def close_at_the_second(visit: Visit) -> None:
    """Serves one call on the first connection and closes at the next; serves on the later ones."""
    await visit.request()
    await visit.send(TWO)
    await visit.request()
    if visit.number:
        await visit.send(TWO)
        await visit.left()


@both_loops
@pytest.mark.parametrize(
    ("method", "is_repeated"), [("GET", True), ("PUT", True), ("POST", False), ("PATCH", False)]
)
def test_only_what_may_be_done_twice_is_repeated_when_a_kept_connection_breaks(
    run: Run, method: str, is_repeated: bool
) -> None:
    async def main() -> tuple[Told, int]:
        async with pair(close_at_the_second) as (client, place):
            await told(client, place.url, method=method)
            return await told(client, place.url, method=method), place.visits

    got, visits = run(main())
    assert visits == (2 if is_repeated else 1)
    assert got.body == (b"ok" if is_repeated else b"")
    assert is_repeated or (got.fault is not None and got.fault.kind is FaultKind.RESET)


@both_loops
@pytest.mark.parametrize("half", [b"H", b"\r\n", OK])
def test_a_get_that_got_any_byte_is_not_repeated(run: Run, half: bytes) -> None:
    async def speak(visit: Visit) -> None:
        await visit.request()
        await visit.send(TWO)
        await visit.request()
        await visit.send(half)

    async def main() -> tuple[Told, int]:
        async with pair(speak) as (client, place):
            await told(client, place.url, method="GET")
            return await told(client, place.url, method="GET"), place.visits

    got, visits = run(main())
    assert visits == 1
    assert got.fault is not None
    assert got.fault.kind is FaultKind.RESET


def test_a_get_is_repeated_once_and_never_on_a_new_connection_that_broke() -> None:
    async def speak(visit: Visit) -> None:
        await visit.request()
        if visit.number == 0:
            await visit.send(TWO)
            await visit.request()

    async def main() -> tuple[Told, int]:
        async with pair(speak) as (client, place):
            await told(client, place.url, method="GET")
            return await told(client, place.url, method="GET"), place.visits

    got, visits = asyncio.run(main())
    assert visits == 2
    assert got.fault is not None
    assert got.fault.kind is FaultKind.RESET


# --- what is kept --------------------------------------------------------------------------------------------


def test_a_connection_is_not_kept_beyond_its_age() -> None:
    async def main() -> int:
        async with pair(answering(*[[TWO]] * 3), max_age_s=0.05) as (client, place):
            await told(client, place.url)
            await asyncio.sleep(0.06)
            await told(client, place.url)  # still on the first, which is closed after it
            await told(client, place.url)
            return place.visits

    assert asyncio.run(main()) == 2


@both_loops
def test_an_idle_connection_is_closed_when_its_time_is_over(run: Run) -> None:
    left_s: list[float] = []

    async def speak(visit: Visit) -> None:
        await visit.request()
        await visit.send(TWO)
        await visit.left()
        left_s.append(time.monotonic())

    async def main() -> float:
        async with pair(speak, keepalive_plain_s=0.05) as (client, place):
            await told(client, place.url)
            began_s = time.monotonic()
            await asyncio.sleep(0.3)
            return began_s

    began_s = run(main())
    assert 0.03 < left_s[0] - began_s < 0.25


def test_one_who_gives_up_waiting_for_a_place_takes_none_with_him() -> None:
    async def speak(visit: Visit) -> None:
        await visit.request()
        await visit.send(TWO if visit.number else CHUNKED)
        await visit.left()

    async def main() -> None:
        async with pair(speak, max_connections=1) as (client, place):
            call = Call(place.url, {}, b"{}")
            held = await client.open(call)
            waiting = [asyncio.create_task(client.open(call)) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            held.close()
            waiting[1].cancel()  # its turn has come, and it does not know yet
            last = await asyncio.wait_for(waiting[2], 1)
            assert await last.read(1) == b"ok"
            with pytest.raises(asyncio.CancelledError):
                await waiting[1]
            assert place.visits == 2

    asyncio.run(main())


def test_the_freshest_connection_is_used_first() -> None:
    used: list[int] = []

    async def speak(visit: Visit) -> None:
        while await visit.request():
            used.append(visit.number)
            await visit.send(TWO)

    async def main() -> None:
        async with pair(speak) as (client, place):
            call = Call(place.url, {}, b"{}")
            both = await asyncio.gather(client.open(call), client.open(call))
            for reply in both:
                await reply.read(1)
            last = used[-1]
            await told(client, place.url)
            assert used[-1] == last

    asyncio.run(main())


# --- reading -------------------------------------------------------------------------------------------------


def test_a_second_reader_is_told_that_there_is_one() -> None:
    async def main() -> None:
        async with pair(answering([CHUNKED])) as (client, place):
            reply = await client.open(Call(place.url, {}, b"{}"))
            first = asyncio.create_task(reply.read(5))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another read"):
                await reply.read(5)
            reply.close()
            with pytest.raises(UpstreamFault):
                await first

    asyncio.run(main())


@both_loops
def test_a_wait_ends_when_it_should_whatever_waits_came_before(run: Run) -> None:
    async def speak(visit: Visit) -> None:
        for _ in range(2):
            await visit.request()
            await visit.send(CHUNKED + b"1\r\na\r\n")
            await asyncio.sleep(0.1)
            await visit.send(b"0\r\n\r\n")
        await visit.left()

    async def main() -> None:
        async with pair(speak) as (client, place):
            for is_left_first in (True, False):
                reply = await client.open(Call(place.url, {}, b"{}"))
                assert await reply.read(5) == b"a"
                if is_left_first:
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.005):
                            await reply.read(30)
                began_s = time.monotonic()
                assert await reply.read(0.01) is None
                assert time.monotonic() - began_s < 0.09
                assert await reply.read(30) == b""
            assert place.visits == 1

    run(main())


@both_loops
def test_an_answer_may_take_longer_than_a_read_of_the_call_before_would_have_waited(run: Run) -> None:
    async def speak(visit: Visit) -> None:
        await visit.request()
        await visit.send(CHUNKED, b"2\r\nok\r\n0\r\n\r\n")
        await visit.request()
        await asyncio.sleep(0.05)
        await visit.send(TWO)

    async def main() -> None:
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
        async with pair(speak) as (client, place):
            reply = await client.open(Call(place.url, {}, b"{}"))
            assert await reply.read(0.02) == b"ok"
            assert (await told(client, place.url)).body == b"ok"
            assert place.visits == 1
        assert errors == []

    run(main())


@both_loops
def test_an_answer_may_be_left_unread_when_the_next_call_is_made(run: Run) -> None:
    async def main() -> int:
        async with pair(answering([TWO], [TWO])) as (client, place):
            unread = await client.open(Call(place.url, {}, b"{}"))
            other = await told(client, place.url)
            assert (other.body, await unread.read(1), await unread.read(1)) == (b"ok", b"ok", b"")
            return place.visits

    assert run(main()) == 1


# --- uploads -------------------------------------------------------------------------------------------------

LARGE = bytes(range(256)) * (16 << 10)  # 4 MiB: more than the kernel takes


@both_loops
def test_an_answer_that_begins_before_the_body_is_out_does_not_stop_it(run: Run) -> None:
    received: list[bytes] = []

    async def speak(visit: Visit) -> None:
        head = await visit.head()
        await visit.send(CHUNKED + b"5\r\nearly\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        received.append(await visit.reader.readexactly(length))
        await visit.send(b"4\r\nlate\r\n0\r\n\r\n")
        await visit.request()
        await visit.send(TWO)

    async def main() -> tuple[Told, Told, int]:
        async with pair(speak) as (client, place):
            return await told(client, place.url, LARGE), await told(client, place.url), place.visits

    first, second, visits = run(main())
    assert (first.body, first.fault) == (b"earlylate", None)
    assert received == [LARGE]
    assert (second.body, visits) == (b"ok", 1)


@both_loops
@pytest.mark.parametrize("closes", [True, False])
def test_a_refusal_ends_the_upload_and_is_read_whole(run: Run, closes: bool) -> None:
    rest: list[int] = []
    gone = asyncio.Event()

    async def speak(visit: Visit) -> None:
        if visit.number:
            await visit.request()
            await visit.send(TWO)
            return
        await visit.head()
        await visit.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\n", b"big")
        if not closes:
            rest.append(len(await visit.left()))
        gone.set()

    async def main() -> tuple[Told, Told]:
        async with pair(speak) as (client, place):
            both = await told(client, place.url, LARGE * 4), await told(client, place.url)
            await gone.wait()
            return both

    first, second = run(main())
    assert (first.status, first.body, first.fault) == (413, b"big", None)
    assert second.body == b"ok"
    assert closes or rest[0] < len(LARGE) * 4


@both_loops
def test_an_answer_to_half_an_upload_makes_the_connection_useless(run: Run) -> None:
    async def speak(visit: Visit) -> None:
        await visit.head()
        await visit.send(TWO)
        if visit.number == 0:
            await asyncio.sleep(0.02)
        await visit.left()

    async def main() -> tuple[Told, Told, int]:
        async with pair(speak) as (client, place):
            return await told(client, place.url, LARGE * 4), await told(client, place.url), place.visits

    first, second, visits = run(main())
    assert (first.body, second.body, visits) == (b"ok", b"ok", 2)


@both_loops
def test_a_large_body_is_never_copied(run: Run) -> None:
    body = bytes(48 << 20)

    async def speak(visit: Visit) -> None:
        await visit.head()
        left = len(body)
        while left:
            left -= len(await visit.reader.read(1 << 20))
            await asyncio.sleep(0)
        await visit.send(TWO)

    async def main() -> int:
        async with pair(speak) as (client, place):
            tracemalloc.start()
            try:
                assert (await told(client, place.url, body)).body == b"ok"
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    assert run(main()) < 12 << 20


@pytest.mark.parametrize("method", ["HEAD", "CONNECT", "get", "G\r\nX: 1"])
def test_a_method_whose_answers_are_framed_otherwise_is_refused(method: str) -> None:
    async def main() -> None:
        async with pair(answering([TWO])) as (client, place):
            fault = await fault_of(client.open(Call(place.url, {}, b"", method=method)))
            assert fault.kind is FaultKind.REQUEST
            assert place.visits == 0

    asyncio.run(main())
