"""Thoughts on a real server: shared by gateways and nobody else, bounded, gone in time, never half believed."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kimi_gateway.adapters.state.seal import Seal, seal_of
from kimi_gateway.adapters.state.thoughts import ValkeyConversations
from kimi_gateway.core.digest import TurnKeys
from kimi_gateway.core.secret import Secret
from kimi_gateway.core.thought_record import Owner, Thought
from kimi_gateway.core.thoughts import Bounds
from kimi_gateway.ports import StateUnavailable
from support.thoughts import ANNE, BOB, OTHER, keys, sized, thought
from support.valkey import SECRET, Server, Shared, fresh_prefix, link_to, running

WIDE = Bounds(1 << 30, 1 << 30, 100.0)
P, Q = b"p" * 32, b"q" * 32


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(Path(tmp_path_factory.mktemp("v"))) as server:
        yield server


@pytest.fixture
def shared(server: Server) -> Iterator[Shared]:
    shared = Shared(server, WIDE)
    yield shared
    shared.close()


def another(server: Server, shared: Shared, seal: Seal | None = None, bounds: Bounds = WIDE) -> Shared:
    """Another gateway with the same store."""
    return Shared(server, bounds, prefix=shared.prefix, seal=seal or shared.seal)


def finds(where: Shared, owner: Owner, wanted: TurnKeys, now_s: float = 0.0) -> Thought | None:
    (hit,) = where.find(owner, [wanted], now_s)
    return hit.thought if hit is not None else None


# --- whose ----------------------------------------------------------------------------------------------------


def test_two_gateways_see_each_others_thoughts_and_notes(server: Server, shared: Shared) -> None:
    other = another(server, shared)
    text = Thought(b'"Because."', b'[{"type":"reasoning.encrypted","data":"x"}]', True)
    shared.keep(ANNE, keys(1, "a"), text, 0)
    (hit,) = other.find(ANNE, [keys(1)], 1)
    assert hit is not None
    assert (hit.thought, hit.by) == (text, "chain")
    other.keep(ANNE, keys(2), thought("two"), 2, conversation=hit.conversation)
    shared.keep(ANNE, keys(3), thought("three"), 3, conversation=keys(1).chain)
    assert shared.statistics()["conversations"] == 1
    assert [finds(shared, ANNE, keys(2)), finds(other, ANNE, keys(3))] == [thought("two"), thought("three")]
    assert finds(other, ANNE, keys("dropped the oldest", "a")) == text
    shared.note(ANNE, [P, Q], b"note", 4)
    assert other.recall(ANNE, [], [Q], 5).note == b"note"
    assert other.forget_key("team-a") == 3
    assert finds(shared, ANNE, keys(1)) is None
    assert shared.recall(ANNE, [], [Q], 6).note is None
    other.close()


@pytest.mark.parametrize("seal", [seal_of(SECRET), seal_of(None)], ids=["sealed", "plain"])
def test_nobody_finds_anothers_thought_or_note(server: Server, seal: Seal) -> None:
    shared = Shared(server, WIDE, seal=seal)
    shared.keep(ANNE, keys(1, "a"), thought(), 0)
    shared.note(ANNE, [P], b"note", 0)
    (hit,) = shared.find(ANNE, [keys(1)], 0)
    assert hit is not None
    who = shared.kept._who(ANNE)
    hidden = [
        shared.kept._place(kind, who, digest)
        for kind in (b"chain", b"anchor")
        for digest in (keys(1, "a").chain, keys(1, "a").anchor)
        if digest
    ]
    crafted = [TurnKeys(digest, other) for digest in (*hidden, hit.conversation) for other in (None, *hidden)]
    others = [BOB, OTHER, Owner("team-a"), Owner("team-b", b"anne"), Owner("team-", b"aanne"), Owner("team-aanne")]
    for owner in others:
        assert shared.find(owner, [keys(1, "a"), *crafted], 0) == [None] * (1 + len(crafted))
        assert shared.recall(owner, [], [P, *hidden], 0).note is None
        shared.keep(owner, keys(2), thought("mine"), 0, conversation=hit.conversation)
    assert shared.statistics()["conversations"] == 1 + len(others)
    assert finds(shared, ANNE, keys(2)) is None
    shared.close()


def test_who_reads_the_store_finds_neither_texts_nor_names_nor_digests(server: Server, shared: Shared) -> None:
    shared.keep(ANNE, keys(1, "a"), thought("A secret thought."), 0)
    shared.keep(BOB, keys(1, "a"), thought("A secret thought."), 0)
    shared.note(ANNE, [P], b"a secret note", 0)
    dumped = b""
    for name in shared.names():
        kind, content = shared.raw.type(name), list[Any]()
        if kind == b"hash":
            content = [part for pair in shared.raw.hgetall(name).items() for part in pair]
        else:
            content = shared.raw.zrange(name, 0, -1) if kind == b"zset" else [shared.raw.get(name)]
        dumped += b"\n".join([name, *content])
    anchor = keys(1, "a").anchor
    assert anchor is not None
    for text in (b"secret", b"team-a", b"anne", keys(1).chain, anchor, P):
        assert text not in dumped
    who = [shared.kept._who(owner) for owner in (ANNE, BOB)]
    assert shared.kept._place(b"chain", who[0], P) != shared.kept._place(b"chain", who[1], P)


def test_an_anchor_leads_to_a_chain_whatever_its_bytes(shared: Shared) -> None:
    """They are ordered by their bytes, so the last of them is worth a look."""
    who = shared.kept._who(ANNE)
    last = max(range(2000), key=lambda number: shared.kept._place(b"chain", who, keys(number).chain))
    shared.keep(ANNE, keys(last, "a"), thought(), 0)
    assert finds(shared, ANNE, keys("new", "a")) == thought()


# --- damage ---------------------------------------------------------------------------------------------------


def record_of(shared: Shared, owner: Owner, wanted: TurnKeys) -> tuple[bytes, bytes]:
    """The names of the hash and the field that a thought lies in, which is alone in its conversation."""
    who = shared.kept._who(owner)
    chain = shared.kept._place(b"chain", who, wanted.chain)
    return shared.name("c:", who.id + chain), chain


@pytest.mark.parametrize("seal", [seal_of(SECRET), seal_of(None)], ids=["sealed", "plain"])
def test_a_poisoned_record_is_missing(server: Server, seal: Seal) -> None:
    shared = Shared(server, WIDE, seal=seal)
    shared.keep(ANNE, keys(1, "a"), thought("one"), 0)
    shared.keep(ANNE, keys(2, "b"), thought("two"), 0)
    shared.keep(BOB, keys(1, "a"), thought("bob's"), 0)
    name, field = record_of(shared, ANNE, keys(1))
    good = shared.raw.hget(name, field)
    assert good is not None
    flipped = [bytes([*good[:at], good[at] ^ 1, *good[at + 1 :]]) for at in range(0, len(good), 7)]
    anothers = [shared.raw.hget(*record_of(shared, *of)) for of in ((ANNE, keys(2)), (BOB, keys(1)))]
    other_seal = seal_of(Secret("another secret of a test")).seal(b"\x01", b"thought")
    bad = [*flipped, *anothers, other_seal, good[:-1], good[:20], b"\x09" + good[1:], good + b"x", b"x"]
    for number, data in enumerate(bad):
        assert data is not None
        shared.raw.hset(name, field, data)
        assert [finds(shared, ANNE, keys(1)), finds(shared, ANNE, keys(9, "a"))] == [None, None], data
        assert shared.statistics()["unreadable"] == 2 * number + 2
    shared.raw.hset(name, field, good)
    assert finds(shared, ANNE, keys(1)) == finds(shared, ANNE, keys(9, "a")) == thought("one")
    shared.close()


def test_a_thought_hung_on_another_anchor_is_missing(shared: Shared) -> None:
    """Who writes into the store makes no turn's thought another's, not even the same owner's."""
    shared.keep(ANNE, keys(1, "a"), thought(), 0)
    who = shared.kept._who(ANNE)
    chain = shared.kept._place(b"chain", who, keys(1).chain)
    old, new = (shared.kept._place(b"anchor", who, keys(1, name).anchor or b"") for name in ("a", "b"))
    index = shared.name("i:", who.id)
    home = shared.raw.hget(index, chain)
    assert home is not None
    assert home.endswith(old)
    shared.raw.hset(index, chain, home.replace(old, new))
    shared.raw.zadd(shared.name("a:", who.id), {new + chain: 0})
    assert finds(shared, ANNE, keys(9, "b")) is None
    assert shared.statistics()["unreadable"] == 1


def test_with_another_secret_everything_is_missing_and_nothing_an_error(server: Server, shared: Shared) -> None:
    shared.keep(ANNE, keys(1, "a"), thought(), 0)
    shared.note(ANNE, [P], b"note", 0)
    for seal in (seal_of(Secret("another secret of a test")), seal_of(None)):
        other = another(server, shared, seal)
        assert finds(other, ANNE, keys(1, "a")) is None
        assert other.recall(ANNE, [], [P], 0).note is None
        assert other.keep(ANNE, keys(1, "a"), thought("again"), 0) == "kept"
        other.close()
    assert finds(shared, ANNE, keys(1)) == thought()


def test_what_the_server_has_lost_is_missing_and_its_traces_are_cleared(shared: Shared) -> None:
    """By eviction, or because its time to live was up before a script came by."""
    for number in range(5):
        shared.keep(ANNE, keys(number, "a"), thought(), 0)
        shared.keep(ANNE, keys((number, 2), "b"), thought(), 0, conversation=keys(number).chain)
    who = shared.kept._who(ANNE)
    for number in (0, 1):
        shared.raw.delete(record_of(shared, ANNE, keys(number))[0])
    assert [finds(shared, ANNE, keys(number), 1) for number in range(3)] == [None, None, thought()]
    assert shared.raw.hlen(shared.name("i:", who.id)) == 6
    assert shared.raw.zcard(shared.name("a:", who.id)) == 6
    assert (shared.thoughts, shared.statistics()["conversations"]) == (6, 3)
    assert shared.size_bytes == shared.key_bytes("team-a") == shared.owner_bytes(ANNE) > 0
    assert shared.keep(ANNE, keys(0), thought("new"), 2) == "kept"
    for kind in ("age", "size", "keys", "l:", "u:"):
        shared.raw.delete(shared.name(kind), shared.name(kind, who.id), shared.name(kind, who.key))
    assert shared.find(ANNE, [keys(number) for number in range(5)], 3) == [None] * 5
    assert shared.keep(ANNE, keys(0, "a"), thought("newer"), 4) == "kept"
    assert finds(shared, ANNE, keys(0), 5) == finds(shared, ANNE, keys("new", "a"), 5) == thought("newer")
    assert shared.raw.hlen(shared.name("i:", who.id)) == 1
    assert shared.size_bytes == shared.key_bytes("team-a")
    assert shared.forget_key("team-a") == 1
    assert (shared.size_bytes, shared.thoughts) == (0, 0)


# --- how long and how much ------------------------------------------------------------------------------------


def test_any_use_renews_and_what_is_not_used_is_gone(shared: Shared) -> None:
    shared.keep(ANNE, keys(1, "a"), thought("one"), 0)
    shared.keep(ANNE, keys(2), thought("two"), 10, conversation=keys(1).chain)
    shared.keep(ANNE, keys(3), thought("three"), 20)
    assert finds(shared, ANNE, keys(1), 109) == thought("one")
    assert finds(shared, ANNE, keys(3), 120) is None
    assert finds(shared, ANNE, keys("later", "a"), 208) == thought("one")
    assert shared.keep(ANNE, keys(2), thought("other"), 307) == "known"
    assert finds(shared, ANNE, keys(2), 406) == thought("two")
    assert finds(shared, ANNE, keys(2), 506) is None
    assert (shared.statistics()["bytes"], shared.counts.expired) == (0, 2)


def test_with_the_servers_clock_nothing_outlives_its_time_even_if_no_gateway_runs(server: Server) -> None:
    async def main() -> None:
        link = link_to(server.url)
        prefix = fresh_prefix()
        kept = ValkeyConversations(link, Bounds(retention_s=0.3), seal_of(SECRET), prefix=prefix)
        await kept.keep(ANNE, [(keys(1, "a"), thought())], places=[P], note=b"note")
        assert [hit is not None for hit in (await kept.recall(ANNE, [keys(1)], [])).found] == [True]
        with server.client() as raw:
            names = [name for name in raw.scan_iter(count=10_000) if name.startswith(prefix.encode())]
            assert len(names) == 12
            assert all(0 < raw.pttl(name) <= 330 for name in names)
            await asyncio.sleep(0.31)
            found = await kept.recall(ANNE, [keys(1, "a")], [P])
            assert (list(found.found), found.note) == ([None], None)
            await kept.keep(ANNE, [(keys(1, "a"), thought())], places=[P], note=b"note")
            await asyncio.sleep(0.35)
            assert not [name for name in raw.scan_iter(count=10_000) if name.startswith(prefix.encode())]
            assert list((await kept.recall(ANNE, [keys(1)], [])).found) == [None]
            assert (await kept.statistics())["bytes"] == 0
        await kept.close()
        await link.close()

    asyncio.run(main())


def test_bounds_hold_whatever_several_gateways_store_at_once(server: Server) -> None:
    bounds = Bounds(60_000, 30_000, 100.0)
    chance = random.Random(7)

    async def main() -> None:
        links = [link_to(server.url, operation_timeout_s=5) for _ in range(2)]
        prefix = fresh_prefix()
        stores = [
            ValkeyConversations(link, bounds, seal_of(SECRET), prefix=prefix, max_notes=10) for link in links
        ]

        async def one(number: int) -> None:
            owner = Owner(chance.choice("abc"), chance.choice([b"", b"1", b"2"]))
            texts = [(keys((number, part), number % 5), sized(chance.randrange(3000, 9000))) for part in (1, 2)]
            await chance.choice(stores).keep(
                owner, texts, conversation=texts[0][0].chain, places=[b"%032d" % number], note=b"note"
            )
            await chance.choice(stores).recall(owner, [turn for turn, _ in texts], [])
            sizes = await chance.choice(stores).statistics()
            assert 0 < sizes["bytes"] <= bounds.max_bytes
            assert sizes["notes"] <= 10

        await asyncio.gather(*[one(number) for number in range(150)])
        statistics = [await store.statistics() for store in stores]
        assert statistics[0]["bytes"] == statistics[1]["bytes"] > bounds.max_bytes // 2
        assert sum(each["evicted"] for each in statistics) > 50
        with server.client() as raw:
            held = raw.zrange(prefix.encode() + b"keys", 0, -1, withscores=True)
            records = [name for name in raw.scan_iter(count=10_000) if name.startswith(prefix.encode() + b"c:")]
            assert sum(raw.hlen(name) for name in records) == statistics[0]["thoughts"]
        assert sum(int(size) for _, size in held) == statistics[0]["bytes"]
        assert max(size for _, size in held) <= bounds.max_bytes_per_key
        for store, link in zip(stores, links, strict=True):
            await store.close()
            await link.close()

    asyncio.run(main())


def test_the_bytes_that_are_counted_cover_what_the_server_uses(tmp_path: Path) -> None:
    with running(tmp_path) as own:
        for owners, conversations, turns in ((1, 1, 200), (1, 200, 1), (200, 1, 1), (10, 4, 5)):
            shared = Shared(own, WIDE)
            shared.keep(OTHER, keys(0), thought(), 0)
            before = shared.raw.info("memory")["used_memory"]
            for number in range(owners * conversations * turns):
                owner = Owner(f"k{number // (conversations * turns)}", b"user")
                home = keys(number - number % turns).chain
                shared.keep(owner, keys(number, number), Thought(b"x" * 300), 0, conversation=home)
            used = shared.raw.info("memory")["used_memory"] - before
            assert 0.3 * shared.size_bytes < used < shared.size_bytes
            shared.close()


def test_a_history_of_many_large_thoughts_comes_back_in_one_reply_and_does_not_hold_up_the_loop(
    server: Server,
) -> None:
    """As the loop's own processor time between two of its turns: waiting for a busy machine does not count."""

    async def main() -> None:
        link = link_to(server.url, operation_timeout_s=10)
        kept = ValkeyConversations(link, Bounds(), seal_of(SECRET), prefix=fresh_prefix())
        large = Thought(b'"' + b"x" * 500_000 + b'"')
        turns = [(keys(number, number), large if number < 10 else thought("x" * 500)) for number in range(450)]
        stalls_s: list[float] = []

        async def watch() -> None:
            while True:
                started_s = time.thread_time()
                await asyncio.sleep(0)
                stalls_s.append(time.thread_time() - started_s)

        await kept.keep(ANNE, turns[:5], conversation=turns[0][0].chain)
        await kept.keep(ANNE, turns[5:], conversation=turns[0][0].chain)
        with server.client() as raw:
            before = raw.info("commandstats")["cmdstat_eval"]["calls"]
            watching = asyncio.create_task(watch())
            found = (await kept.recall(ANNE, [turn for turn, _ in turns], [])).found
            watching.cancel()
            assert raw.info("commandstats")["cmdstat_eval"]["calls"] <= before + 1
        assert [hit and hit.thought for hit in found] == [text for _, text in turns]
        assert len(stalls_s) > 20
        assert max(stalls_s) < 0.03
        await kept.close()
        await link.close()

    asyncio.run(main())


def test_a_recall_has_a_bound_and_the_newest_come_first(server: Server) -> None:
    shared = Shared(server, WIDE, recall_bytes_max=10_000)
    for number in range(5):
        shared.keep(ANNE, keys(number), Thought(b"x" * 3000), 0, conversation=keys(0).chain)
    found = shared.find(ANNE, [keys(number) for number in range(5)], 0)
    assert [hit is not None for hit in found] == [False, False, True, True, True]
    assert shared.statistics()["not_found"] == 2
    shared.close()


# --- outages --------------------------------------------------------------------------------------------------


def test_an_outage_is_an_error_of_its_own_and_ends_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(tmp_path)
        server.start()
        link = link_to(server.url, rest_s=0.05)
        kept = ValkeyConversations(link, Bounds(), seal_of(SECRET))
        await kept.keep(ANNE, [(keys(1), thought())])
        server.stop()
        started_s = time.monotonic()
        for call in (
            lambda: kept.recall(ANNE, [keys(1)], [P]),
            lambda: kept.keep(ANNE, [(keys(1), thought())], places=[P], note=b"note"),
            lambda: kept.forget_key("team-a"),
            lambda: kept.statistics(),
        ):
            with pytest.raises(StateUnavailable, match="is out of reach"):
                await call()
        assert time.monotonic() - started_s < 0.3
        server.start()
        await asyncio.sleep(0.06)
        assert list((await kept.recall(ANNE, [keys(1)], [])).found) == [None]
        await kept.keep(ANNE, [(keys(1), thought())])
        assert (await kept.recall(ANNE, [keys(1)], [])).found[0] is not None
        await kept.close()
        await link.close()
        server.stop()

    asyncio.run(main())


def test_a_full_server_still_gives_back_what_it_has(server: Server, shared: Shared) -> None:
    shared.keep(ANNE, keys(1), thought(), 0)
    shared.raw.config_set("maxmemory", 1)
    try:
        assert finds(shared, ANNE, keys(1), 1) == thought()
        with pytest.raises(StateUnavailable, match="is full"):
            shared.keep(ANNE, keys(2), thought(), 2)
    finally:
        shared.raw.config_set("maxmemory", 0)
    assert shared.keep(ANNE, keys(2), thought(), 3) == "kept"
