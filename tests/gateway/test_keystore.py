"""The ledger's keys in a running gateway: found, ended and revoked without a restart, and without the database."""

import asyncio
import os
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from kimi_gateway.adapters.keystore import KeyStore
from kimi_gateway.core.callers import OPEN_CALLER, identify
from kimi_gateway.core.key_record import encode_policy
from kimi_gateway.core.keys import KeyPolicy, KeyRing, digest_of
from kimi_gateway.core.limits import Limits
from kimi_gateway.errors import Unauthenticated
from pricing.ledger.errors import LedgerDown
from pricing.ledger.store.keys import KeyTable
from support.ledger_rows import ledger_url

POLICY = KeyPolicy("team-a", pin=True, limits=Limits(budget_nano=5))
NOTHING = KeyRing(())


class World:
    """A ledger with keys, a clock, and a gateway's store of them."""

    def __init__(self, tmp_path: Path) -> None:
        self.url = ledger_url(tmp_path)
        self.directory = tmp_path / "journal"
        self.table = KeyTable(self.url, create=True)
        self.now_s = 1000.0
        self.changes = 0
        self.changed = asyncio.Event()
        self.is_down = False

    def add(self, name: str, secret: str, policy: KeyPolicy = POLICY) -> None:
        self.table.create(name, encode_policy(policy), digest_of(secret).hex(), at_s=self.now_s)

    def store(self, refresh_s: float = 60) -> KeyStore:
        return KeyStore(
            self.url,
            self.directory,
            refresh_s=refresh_s,
            wall=lambda: self.now_s,
            on_change=self._changed,
            open_source=self._open,
        )

    def _changed(self) -> None:
        self.changes += 1
        self.changed.set()

    def _open(self, url: str) -> KeyTable:
        if self.is_down:
            raise LedgerDown("the ledger does not answer: a test")
        world = self

        class Watched(KeyTable):
            @override
            def all(self) -> Any:
                if world.is_down:
                    raise LedgerDown("the ledger does not answer: a test")
                return super().all()

        return Watched(url)


def play(tmp_path: Path, scene: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    world = World(tmp_path)
    try:
        asyncio.run(scene(world))
    finally:
        world.table.close()


async def started(world: World) -> KeyStore:
    store = world.store()
    await store.start()
    return store


def test_keys_that_are_there_at_the_start_are_found_with_their_limits(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.add("team-a", "kg-one")
        store = await started(world)
        assert store.merged(NOTHING).find("kg-one") == POLICY
        assert store.merged(NOTHING).find("kg-two") is None
        assert store.policies == (POLICY,)
        await store.close()

    play(tmp_path, scene)


def test_the_first_key_ends_open_mode_and_no_revocation_brings_it_back(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        store = await started(world)
        local = [(b"host", b"localhost:8000")]
        assert identify(local, store.merged(NOTHING)) is OPEN_CALLER
        await store.refresh()
        assert (store.closes, world.changes) == (False, 0)
        world.add("team-a", "kg-one")
        await store.refresh()
        assert world.changes == 1
        with pytest.raises(Unauthenticated):
            identify(local, store.merged(NOTHING))
        world.table.revoke("team-a", at_s=world.now_s)
        await store.refresh()
        assert world.changes == 2
        ring = store.merged(NOTHING)
        assert (len(ring), ring.is_open) == (0, False)
        with pytest.raises(Unauthenticated):
            identify([(b"authorization", b"Bearer kg-one")], ring)
        await store.close()

    play(tmp_path, scene)


def test_a_key_made_or_revoked_while_it_runs_is_followed_within_its_period(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        store = world.store(refresh_s=0.02)
        await store.start()
        keeping = asyncio.create_task(store.keep_fresh())
        world.add("team-a", "kg-one")
        async with asyncio.timeout(5):
            await world.changed.wait()
            assert store.merged(NOTHING).find("kg-one") == POLICY
            world.changed.clear()
            world.table.revoke("team-a", at_s=world.now_s)
            await world.changed.wait()
            assert store.merged(NOTHING).find("kg-one") is None
        keeping.cancel()
        await store.close()

    play(tmp_path, scene)


def test_an_old_secret_ends_at_its_time_though_the_ledger_is_away(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.add("team-a", "kg-old")
        world.table.rotate("team-a", digest_of("kg-new").hex(), at_s=world.now_s, overlap_s=100)
        store = await started(world)
        world.is_down = True
        world.now_s += 99
        await store.refresh()
        assert [store.merged(NOTHING).find(one) for one in ("kg-old", "kg-new")] == [POLICY, POLICY]
        world.now_s += 1
        await store.refresh()
        assert [store.merged(NOTHING).find(one) for one in ("kg-old", "kg-new")] == [None, POLICY]
        assert world.changes == 1
        await store.close()

    play(tmp_path, scene)


def test_without_its_ledger_a_gateway_starts_with_the_keys_it_knew(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.add("team-a", "kg-one")
        await (await started(world)).close()
        (file,) = world.directory.iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert b"kg-one" not in file.read_bytes()
        world.is_down = True
        store = await started(world)
        assert store.merged(NOTHING).find("kg-one") == POLICY
        world.is_down = False
        world.table.revoke("team-a", at_s=world.now_s)
        await store.refresh()
        assert store.merged(NOTHING).find("kg-one") is None
        await store.close()

    play(tmp_path, scene)


@pytest.mark.parametrize("snapshot", [None, b"", b"{}", b'{"format":9,"ledger":"x","keys":[]}'])
def test_where_nobody_knows_the_keys_nobody_may_call(tmp_path: Path, snapshot: bytes | None) -> None:
    async def scene(world: World) -> None:
        world.is_down = True
        if snapshot is not None:
            world.directory.mkdir()
            store = world.store()
            store._file.write_bytes(snapshot)
        store = await started(world)
        assert not store.merged(NOTHING).is_open
        world.is_down = False
        await store.refresh()
        assert store.merged(NOTHING).is_open
        assert world.changes == 1
        await store.close()

    play(tmp_path, scene)


def test_a_ledger_that_vanishes_under_a_gateway_opens_nothing(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.add("team-a", "kg-one")
        store = await started(world)
        world.table.close()
        for file in list_ledger(tmp_path):
            os.unlink(file)
        await store.refresh()
        await store.refresh()
        assert not store.merged(NOTHING).is_open
        await store.close()

    play(tmp_path, scene)


def list_ledger(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("ledger.db*"))


def test_what_the_file_says_of_a_name_or_a_secret_is_what_counts(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.add("team-a", "kg-one")
        world.add("team-b", "kg-two")
        store = await started(world)
        mine, other = KeyPolicy("team-a"), KeyPolicy("ops")
        ring = store.merged(KeyRing([(digest_of("file"), mine), (digest_of("kg-two"), other)]))
        assert ring.find("file") is mine
        assert ring.find("kg-one") is None
        assert ring.find("kg-two") is other
        await store.close()

    play(tmp_path, scene)


def test_a_key_that_this_version_does_not_understand_hides_no_other(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.table.create("newer", '{"version":2}', "0" * 64, at_s=0)
        world.add("team-a", "kg-one")
        store = await started(world)
        assert store.policies == (POLICY,)
        await store.close()

    play(tmp_path, scene)
