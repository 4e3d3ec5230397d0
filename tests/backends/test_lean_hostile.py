"""The lean client against servers that frame badly, never end, or say more than they were asked."""

import asyncio
import functools
import os
import ssl
import time
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.faults import FaultKind
from backends.lean.line import MAX_FIELD_BYTES, MAX_FIELDS, MAX_HEAD_BYTES
from backends.lean.upstream import LeanUpstream
from backends.ports import Call, Upstream
from support.calls import Run, both_loops
from support.hostile_http import Place, Speak, Told, Visit, answering, hostile, told

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody; the system's store takes long to load
OK = b"HTTP/1.1 200 OK\r\n"
TWO = OK + b"Content-Length: 2\r\n\r\nok"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


async def against(speak: Speak, use: Callable[[Upstream, Place], Coroutine[Any, Any, Any]]) -> Any:
    """What `use` makes of a client and a server that speaks so."""
    async with hostile(speak) as place:
        client = LeanUpstream(proxies={}, tls=NO_TLS)
        try:
            return await use(client, place)
        finally:
            await client.close()


async def once(client: Upstream, place: Place) -> Told:
    return await told(client, place.url)


async def twice(client: Upstream, place: Place) -> tuple[Told, Told]:
    return await told(client, place.url), await told(client, place.url)


# --- the same bytes, however they are cut --------------------------------------------------------------------

WHOLE = {
    "length": (OK + b"X-A: 1\r\nx-a: 2 \r\nContent-Length: 11\r\n\r\nhello world", b"hello world"),
    "chunks": (
        CHUNKED + b"5;name=v\r\nhello\r\n006  \r\n world\r\n0\r\nX-Sum: 1\r\nX-B: 2\r\n\r\n",
        b"hello world",
    ),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + TWO,
        b"ok",
    ),
    "nothing": (b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n", b""),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 20\r\n\r\n", b""),
    "old": (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", b"ok"),
}


@both_loops
@pytest.mark.parametrize("name", WHOLE)
def test_an_answer_cut_at_any_byte_is_the_same_answer(run: Run, name: str) -> None:
    answer, body = WHOLE[name]
    cuts = [
        (answer,),
        *((answer[:at], answer[at:]) for at in range(1, len(answer))),
        tuple(bytes([c]) for c in answer),
    ]

    async def use(client: Upstream, place: Place) -> list[Told]:
        return [await told(client, place.url) for _ in cuts]

    first, *others = run(against(answering(*cuts), use))
    assert (first.body, first.fault) == (body, None)
    assert first.headers.get("x-a") in (None, "1", "1, 2")
    assert "link" not in first.headers
    assert "x-sum" not in first.headers
    assert [other for other in others if other != first] == []


@both_loops
def test_all_these_answers_share_one_connection(run: Run) -> None:
    async def use(client: Upstream, place: Place) -> int:
        for _ in WHOLE:
            assert (await told(client, place.url)).fault is None
        return place.visits

    assert run(against(answering(*([answer] for answer, _ in WHOLE.values())), use)) == 1


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    framing=st.sampled_from(("chunked", "length", "close")),
    cuts=st.sets(st.integers(1, 400), max_size=12),
)
@settings(max_examples=60, deadline=None)
def test_any_body_in_any_framing_and_cuts_arrives(chunks: list[bytes], framing: str, cuts: set[int]) -> None:
    body = b"".join(chunks)
    match framing:
        case "chunked":
            wire = CHUNKED + b"".join(b"%X\r\n%b\r\n" % (len(part), part) for part in chunks) + b"0\r\n\r\n"
        case "length":
            wire = OK + b"Content-Length: %d\r\n\r\n" % len(body) + body
        case _:
            wire = OK + b"\r\n" + body
    ends = [0, *sorted(cut for cut in cuts if cut < len(wire)), len(wire)]
    pieces = [wire[a:b] for a, b in pairwise(ends)]
    got = asyncio.run(against(answering(pieces, keeps=framing != "close"), once))
    assert got.fault is None
    assert got.body == body


# --- what is no answer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
        b"Content-Length: 2, 2\r\n\r\nok",
        b"Content-Length: +2\r\n\r\nok",
        b"Content-Length: 0x2\r\n\r\nok",
        b"Content-Length: 2 2\r\n\r\nok",
        b"Content-Length:\r\n\r\nok",
        b"Content-Length: 18446744073709551618\r\n\r\nok",
        b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: identity\r\n\r\nok",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        b"X-A: 1\r\n folded\r\nContent-Length: 2\r\n\r\nok",
        b"X-A: 1\nContent-Length: 2\r\n\r\nok",
        b"X-A: 1\rContent-Length: 2\r\n\r\nok",
        b"X-A: a\0b\r\nContent-Length: 2\r\n\r\nok",
        b"X A: 1\r\nContent-Length: 2\r\n\r\nok",
        b": 1\r\nContent-Length: 2\r\n\r\nok",
        b"no colon\r\nContent-Length: 2\r\n\r\nok",
        b"X: " + b"a" * (MAX_FIELD_BYTES + 1) + b"\r\nContent-Length: 2\r\n\r\nok",
        b"X: 1\r\n" * MAX_FIELDS + b"Content-Length: 2\r\n\r\nok",
    ],
)
def test_a_head_with_two_meanings_has_none(run_uvloop: Run, head: bytes) -> None:
    got, again = run_uvloop(against(answering([OK + head]), twice))
    for one in (got, again):
        assert (one.status, one.body) == (0, b"")
        assert one.fault is not None
        assert one.fault.kind is FaultKind.SERVER


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/0.9 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 099 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nwords of x",
        b"http/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"\x16\x03\x01\x00\x05hello",
        b"<html>",
    ],
)
def test_what_is_not_http_1_is_a_server_fault(run_uvloop: Run, answer: bytes) -> None:
    got = run_uvloop(against(answering([answer]), once))
    assert got.fault is not None
    assert (got.fault.kind, got.body) == (FaultKind.SERVER, b"")


@pytest.mark.parametrize(
    "rest",
    [b"-5\r\nhello\r\n", b"0x5\r\nhello\r\n", b"\r\nhello\r\n", b"ffffffffffffffffff\r\nhello", b"5\nhello\r\n"],
)
def test_a_bad_chunk_breaks_the_answer(run_uvloop: Run, rest: bytes) -> None:
    got = run_uvloop(against(answering([CHUNKED + b"2\r\nok\r\n" + rest]), once))
    assert (got.status, got.body) == (200, b"ok")
    assert got.fault is not None
    assert got.fault.kind is FaultKind.RESET


# --- what never ends -----------------------------------------------------------------------------------------


@both_loops
@pytest.mark.parametrize(
    ("start", "piece", "kind"),
    [
        (OK + b"X: ", b"a" * 1000, FaultKind.SERVER),
        (OK, b"X-Same: 1\r\n" * 100, FaultKind.SERVER),
        (b"HTTP/1.1 200 ", b"reason " * 100, FaultKind.SERVER),
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 40, FaultKind.SERVER),
        (b"", b"\r\n" * 500, FaultKind.SERVER),
        (CHUNKED + b"2\r\nok\r\n0\r\nX: ", b"a" * 1000, FaultKind.RESET),
        (CHUNKED + b"2\r\nok\r\n0\r\n", b"X: 1\r\n" * 100, FaultKind.RESET),
        (CHUNKED + b"2\r\nok\r\n2;", b"a" * 1000, FaultKind.RESET),
    ],
    ids=["field", "fields", "reason", "interim", "empty lines", "trailer", "trailers", "chunk extension"],
)
def test_what_never_ends_is_left_after_a_bounded_number_of_bytes(
    run: Run, start: bytes, piece: bytes, kind: FaultKind
) -> None:
    async def use(client: Upstream, place: Place) -> tuple[Told, int]:
        return await told(client, place.url), await took

    took: asyncio.Future[int]

    async def speak(visit: Visit) -> None:
        await visit.request()
        await visit.send(start)
        took.set_result(await visit.flood(piece, 8 << 20))

    async def main() -> tuple[Told, int]:
        nonlocal took
        took = asyncio.get_running_loop().create_future()
        heard: tuple[Told, int] = await against(speak, use)
        return heard

    got, took_bytes = run(main())
    assert got.fault is not None
    assert got.fault.kind is kind
    assert took_bytes < MAX_HEAD_BYTES + (512 << 10)  # and what fitted into a read and the turn that ended it


@both_loops
def test_a_head_that_comes_byte_by_byte_is_waited_for_and_can_be_left(run: Run) -> None:
    async def slow(visit: Visit) -> None:
        await visit.request()
        for byte in OK:
            await visit.send(bytes([byte]))
            await asyncio.sleep(0.02)
        await visit.left()

    async def use(client: Upstream, place: Place) -> float:
        began_s = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.open(Call(place.url, {}, b"{}"))
        return time.monotonic() - began_s

    assert run(against(slow, use)) < 1


# --- more than was asked for ---------------------------------------------------------------------------------

STOLEN = OK + b"Content-Length: 6\r\n\r\nstolen"


@both_loops
@pytest.mark.parametrize(
    "first",
    [
        [TWO + STOLEN],
        [TWO + STOLEN[:1]],
        [TWO + b"x"],
        [TWO, STOLEN],
        [TWO, b"\r\n"],
        [OK + b"Content-Length: 0\r\n\r\n" + STOLEN],
        [CHUNKED + b"2\r\nok\r\n0\r\n\r\n" + STOLEN],
        [CHUNKED + b"2\r\nok\r\n0\r\n\r", b"\n" + STOLEN],
        [b"HTTP/1.1 204 No Content\r\nContent-Length: 6\r\n\r\nstolen"],
        [b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nstolen\r\n0\r\n\r\n"],
        [b"HTTP/1.1 304 Not Modified\r\nContent-Length: 6\r\n\r\n", b"stolen"],
        [OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nok" + STOLEN],
        [OK + b"Connection: keep-alive, close\r\nContent-Length: 2\r\n\r\nok"],
        [b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"],
    ],
)
def test_words_behind_an_answer_never_answer_the_next_call(run: Run, first: list[bytes]) -> None:
    def speak(visit: Visit) -> Coroutine[Any, Any, None]:
        return visiting(visit, first if visit.number == 0 else [OK + b"Content-Length: 4\r\n\r\nmine"])

    async def visiting(visit: Visit, pieces: list[bytes]) -> None:
        while True:
            await visit.request()
            await visit.send(*pieces)

    async def use(client: Upstream, place: Place) -> tuple[Told, Told, int]:
        one = await told(client, place.url)
        await asyncio.sleep(0.01)
        return one, await told(client, place.url), place.visits

    one, other, visits = run(against(speak, use))
    assert one.fault is None
    assert one.body in (b"ok", b"")
    assert other.body == b"mine"
    assert visits == 2


@both_loops
def test_words_that_the_loop_has_not_seen_are_found_before_the_next_call_is_sent(run: Run) -> None:
    requests: list[int] = []

    async def speak(visit: Visit) -> None:
        while await visit.request():
            requests.append(visit.number)
            if visit.number == 0:
                # Written past the loop, after the client has read and in the very turn in which it calls again.
                later.append(functools.partial(os.write, visit.writer.get_extra_info("socket").fileno(), STOLEN))
                await visit.send(TWO)
            else:
                await visit.send(OK + b"Content-Length: 4\r\n\r\nmine")

    later: list[Callable[[], int]] = []

    async def use(client: Upstream, place: Place) -> Told:
        assert (await told(client, place.url)).body == b"ok"
        later[0]()
        return await told(client, place.url)

    assert run(against(speak, use)).body == b"mine"
    assert requests == [0, 1]


@both_loops
def test_a_length_that_is_too_large_breaks_and_one_that_is_too_small_cuts(run: Run) -> None:
    large = run(against(answering([OK + b"Content-Length: 9\r\n\r\nok"], keeps=False), once))
    small = run(against(answering([OK + b"Content-Length: 1\r\n\r\nok"]), once))
    assert (large.body, large.fault and large.fault.kind) == (b"ok", FaultKind.RESET)
    assert (small.body, small.fault) == (b"o", None)


@pytest.fixture
def run_uvloop() -> Run:
    """In the gateway's loop; where framing is the parser's business the loop makes no difference."""
    mark: Any = both_loops
    run: Run = mark.mark.args[1][1]
    return run
