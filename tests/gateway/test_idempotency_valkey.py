"""Kept answers on a real server: the book's rules, shared by gateways, sealed, and honest when it is away."""

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kimi_gateway.adapters.idempotency.memory import MemoryAnswers
from kimi_gateway.adapters.idempotency.valkey import ValkeyAnswers
from kimi_gateway.adapters.idempotency.waiting import Waiting
from kimi_gateway.adapters.state.link import Link
from kimi_gateway.adapters.state.seal import Seal, seal_of
from kimi_gateway.core.idempotency import Answer, Bounds, IdempotencyBook, Place
from kimi_gateway.core.secret import Secret
from kimi_gateway.ports import StateUnavailable
from support.valkey import SECRET, Server, fresh_prefix, link_to, running

WIDE = Bounds(retention_s=100.0, lease_s=10.0)
BODY, OTHER = b"b" * 32, b"o" * 32
ONE, TWO = b"1" * 16, b"2" * 16
T = TypeVar("T")


def place(number: int, key: str = "team-a") -> Place:
    return Place(key, b"%032d" % number)


def answer(size: int = 10) -> Answer:
    return Answer(200, ((b"content-type", b"application/json"),), b"x" * size)


HERE = place(0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(Path(tmp_path_factory.mktemp("v"))) as server:
        yield server


class Gateway:
    """One gateway's store, with a clock of the test's."""

    def __init__(self, link: Link, prefix: str, bounds: Bounds, seal: Seal) -> None:
        self.now_s = 1e6
        self.store = ValkeyAnswers(link, bounds, seal, lambda: self.now_s, prefix=prefix, look_longest_s=0.1)

    async def claim(self, where: Place, token: bytes = ONE, body: bytes = BODY) -> Any:
        return await self.store.claim(where, body, token)

    async def finish(self, where: Place, size: int, token: bytes = ONE) -> bool:
        return await self.store.finish(where, BODY, token, answer(size))


def with_gateways(
    server: Server, test: Callable[[Gateway, Gateway], Awaitable[T]], *, bounds: Bounds = WIDE, **how: Any
) -> T:
    """Runs the test with two gateways of one state."""
    prefix, seals = how.get("prefix") or fresh_prefix(), how.get("seals") or (seal_of(SECRET), seal_of(SECRET))

    async def main() -> T:
        links = [link_to(server.url, operation_timeout_s=5.0) for _ in range(2)]
        first, second = (Gateway(link, prefix, bounds, seal) for link, seal in zip(links, seals, strict=True))
        try:
            return await test(first, second)
        finally:
            for link in links:
                await link.close()

    return asyncio.run(main())


def test_what_one_gateway_runs_another_waits_for_and_finds(server: Server) -> None:
    async def test(first: Gateway, second: Gateway) -> None:
        assert await first.claim(HERE) == "taken"
        assert [await second.claim(HERE, TWO), await second.claim(HERE, TWO, OTHER)] == ["running", "other"]
        waiting = [asyncio.create_task(second.store.change(HERE)) for _ in range(3)]
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in waiting)
        large = Answer(200, ((b"x-kimi-target", b"moonshot"),), random.Random(1).randbytes(1_000_000))
        assert await first.store.finish(HERE, BODY, ONE, large)
        await asyncio.wait_for(asyncio.gather(*waiting), 2)
        assert await second.claim(HERE, TWO) == large
        assert await second.claim(HERE, TWO, OTHER) == "other"
        assert not await second.finish(HERE, 1, TWO)

    with_gateways(server, test)


def test_a_claim_whose_gateway_died_ends_with_its_lease(server: Server) -> None:
    async def test(first: Gateway, second: Gateway) -> None:
        await first.claim(HERE)
        first.now_s = second.now_s = 1e6 + 6
        assert await first.store.renew(HERE, BODY, ONE)
        first.now_s = second.now_s = 1e6 + 15
        assert await second.claim(HERE, TWO) == "running"
        first.now_s = second.now_s = 1e6 + 16
        await asyncio.wait_for(second.store.change(HERE), 2)
        assert await second.claim(HERE, TWO) == "taken"
        assert not await first.store.renew(HERE, BODY, ONE)
        assert not await first.finish(HERE, 1)
        await first.store.release(HERE, ONE)
        assert await second.finish(HERE, 2, TWO)
        assert await first.claim(HERE) == answer(2)

    with_gateways(server, test)


@pytest.mark.parametrize("seed", range(4))
def test_the_server_and_the_book_in_memory_say_the_same(server: Server, seed: int) -> None:
    draw = random.Random(seed)
    bounds = Bounds(30.0, 10.0, max_bytes=16_000, max_answer_bytes=5_000)

    async def test(first: Gateway, second: Gateway) -> None:
        book = IdempotencyBook(bounds)
        heard: list[Any] = []
        expected: list[Any] = []
        for _ in range(250):
            first.now_s = second.now_s = first.now_s + draw.choice([0.5, 1, 3])
            now_s, store = first.now_s, draw.choice([first, second]).store
            where, token = place(draw.randrange(8)), draw.choice([ONE, TWO])
            body, size = draw.choice([BODY, BODY, OTHER]), draw.randrange(7_000)
            match draw.choice(["claim", "claim", "renew", "finish", "finish", "release"]):
                case "claim":
                    expected.append(book.claim(where, body, token, now_s))
                    heard.append(await store.claim(where, body, token))
                case "renew":
                    expected.append(book.renew(where, body, token, now_s))
                    heard.append(await store.renew(where, body, token))
                case "finish":
                    expected.append(book.finish(where, body, token, answer(size), now_s))
                    heard.append(await store.finish(where, body, token, answer(size)))
                    assert book.size_bytes == await store.size_bytes() <= 16_000
                case _:
                    book.release(where, token)
                    await store.release(where, token)
        assert heard == expected
        assert {"taken", "running", "other", "not_kept"} <= {said for said in heard if isinstance(said, str)}
        assert any(isinstance(said, Answer) for said in heard)

    with_gateways(server, test, bounds=bounds)


def test_the_key_with_the_most_gives_its_oldest_answer(server: Server) -> None:
    async def test(first: Gateway, second: Gateway) -> None:
        sizes = [("quiet", 1_000), *[("busy", 9_000)] * 4]
        for number, (key, size) in enumerate(sizes):
            await first.claim(place(number, key))
            await first.finish(place(number, key), size)
            first.now_s += 1
        second.now_s = first.now_s
        found = [await second.claim(place(number, key), TWO) for number, (key, _) in enumerate(sizes)]
        assert found == [answer(1_000), "not_kept", answer(9_000), answer(9_000), answer(9_000)]
        assert await second.store.forget_key("busy") == 3
        assert await first.claim(place(2, "busy"), TWO) == "taken"
        assert await first.claim(place(0, "quiet"), TWO) == answer(1_000)

    with_gateways(server, test, bounds=Bounds(100.0, 10.0, max_bytes=40_000))


def test_nothing_of_it_stays_on_the_server_for_ever(server: Server) -> None:
    prefix = fresh_prefix()

    async def test(first: Gateway, second: Gateway) -> None:
        await first.claim(place(0))
        await first.finish(place(0), 10)
        await first.claim(place(1))
        await first.finish(place(1), WIDE.max_answer_bytes + 1)
        await first.claim(place(2))

    with_gateways(server, test, prefix=prefix)
    raw: Any = server.client()
    names = [name for name in raw.scan_iter() if name.startswith(prefix.encode())]
    assert len(names) == 9  # t z o k m s, two answers, one claim
    assert all(0 < raw.pttl(name) <= 160_000 for name in names)

    async def later(first: Gateway, second: Gateway) -> None:
        first.now_s += 100
        assert await first.claim(place(0)) == "taken"
        assert await first.store.size_bytes() == 0

    with_gateways(server, later, prefix=prefix)
    left = [name for name in raw.scan_iter() if name.startswith(prefix.encode()) and raw.type(name) != b"hash"]
    assert [raw.strlen(name) for name in left] == [64, 64]  # the two claims
    raw.close()


def test_who_reads_the_store_finds_neither_texts_nor_keys_nor_anything_to_compare_bodies_with(
    server: Server,
) -> None:
    prefix = fresh_prefix()
    secret = Answer(200, ((b"x-kimi-request-id", b"kr_TELLTALE"),), b"the answer's words " * 30)

    async def test(first: Gateway, second: Gateway) -> None:
        await first.claim(HERE)
        await first.store.finish(HERE, BODY, ONE, secret)
        await first.claim(place(1))
        assert await second.claim(HERE) == "taken"  # under another secret everything is elsewhere

    other = seal_of(Secret("another secret of a test"))
    with_gateways(server, test, prefix=prefix, seals=(seal_of(SECRET), other))
    raw: Any = server.client()
    seen = b""
    for name in raw.scan_iter():
        if name.startswith(prefix.encode()):
            seen += name + raw.dump(name)
    raw.close()
    assert len(seen) > 600
    for telltale in (b"words", b"TELLTALE", b"team-a", BODY[:16], HERE.id[:16]):
        assert telltale not in seen


def test_a_damaged_answer_is_not_kept_and_nobody_gets_it(server: Server) -> None:
    prefix = fresh_prefix()

    async def test(first: Gateway, second: Gateway) -> None:
        await first.claim(HERE)
        await first.finish(HERE, 100)
        raw: Any = server.client()
        (name,) = [name for name in raw.scan_iter() if name.startswith(prefix.encode() + b"a:")]
        raw.setrange(name, 90, b"!!!!")
        raw.close()
        assert await second.claim(HERE, TWO) == "not_kept"

    with_gateways(server, test, prefix=prefix)


def test_without_the_server_every_call_says_so_quickly_and_waiters_are_woken(tmp_path: Path) -> None:
    with running(tmp_path) as server:

        async def test(first: Gateway, second: Gateway) -> None:
            await first.claim(HERE)
            waiting = asyncio.create_task(second.store.change(HERE))
            await asyncio.sleep(0.05)
            server.stop()
            began = time.monotonic()
            await asyncio.wait_for(waiting, 2)
            calls = [
                first.claim(HERE),
                first.store.renew(HERE, BODY, ONE),
                first.finish(HERE, 1),
                first.store.release(HERE, ONE),
                first.store.forget_key("team-a"),
            ]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(result) for result in results] == [StateUnavailable] * 5
            assert time.monotonic() - began < 1.5

        with_gateways(server, test)


def test_many_that_wait_for_one_key_look_once_and_less_and_less_often() -> None:
    looks: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def look(where: Place) -> bool:
            looks.append(loop.time())
            return len(looks) < 5

        waiting = Waiting(look, first_s=0.02, longest_s=0.05)
        patient = [asyncio.create_task(waiting.change(HERE)) for _ in range(50)]
        hasty = asyncio.create_task(waiting.change(HERE))
        await asyncio.sleep(0.01)
        hasty.cancel()
        await asyncio.wait_for(asyncio.gather(*patient), 2)
        assert hasty.cancelled()

    asyncio.run(main())
    assert len(looks) == 5
    pauses = [later - earlier for earlier, later in itertools.pairwise(looks)]
    assert pauses[0] >= 0.028
    assert pauses[-1] >= 0.048


def test_in_one_process_the_end_wakes_everybody_without_looking() -> None:
    async def main() -> None:
        store = MemoryAnswers(WIDE, lambda: 0.0)
        await store.claim(HERE, BODY, ONE)
        waiting = [asyncio.create_task(store.change(HERE)) for _ in range(20)]
        await asyncio.sleep(0)
        await store.finish(HERE, BODY, ONE, answer())
        await asyncio.wait_for(asyncio.gather(*waiting), 1)
        assert await store.claim(HERE, BODY, TWO) == answer()
        assert await store.forget_key("team-a") == 1
        await store.claim(place(1), BODY, ONE)
        later = asyncio.create_task(store.change(place(1)))
        await asyncio.sleep(0)
        await store.release(place(1), ONE)
        await asyncio.wait_for(later, 1)
        assert await store.claim(place(1), OTHER, TWO) == "taken"

    asyncio.run(main())
