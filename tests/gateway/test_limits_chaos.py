"""Gateways die and the shared state is lost, at random moments: a budget holds to the nano-dollar."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kimi_gateway.adapters.limits.limiter import LedgerLimiter, Periods
from kimi_gateway.adapters.limits.spend import LedgerSpend
from kimi_gateway.adapters.limits.valkey import ValkeyLimits
from kimi_gateway.core.limits import Claim, Limits, Use
from pricing.ledger.row import LedgerRow
from pricing.ledger.store import Store
from support.ledger_rows import START, ledger_url, open_row, settled_row
from support.valkey import Server, link_to, running

BUDGET = Limits(budget_nano=1_000_000)
PERIODS = Periods(lease_s=1.0, release_s=0.5, grace_s=0.3, tick_s=0.05, recount_s=0.2)
GATEWAYS = 4


class Fleet:
    """Gateways on one state and one ledger. `counted` is what each request has cost or may cost at most."""

    def __init__(self, url: str, server: Server, rng: random.Random) -> None:
        self.store = Store(url, create=True)
        self._url = url
        self._server = server
        self._rng = rng
        self._links: list[Any] = []
        self._alive = [self._new() for _ in range(GATEWAYS)]
        self._dead: set[LedgerLimiter] = set()
        self._journal: list[LedgerRow] = []
        self._opened: dict[str, LedgerLimiter] = {}
        self.counted: dict[str, int] = {}

    def _new(self) -> tuple[LedgerLimiter, asyncio.Task[None]]:
        link = link_to(self._server.url, operation_timeout_s=5.0, rest_s=0.05)
        self._links.append(link)
        state = ValkeyLimits(link, lease_s=PERIODS.lease_s, keep_s=PERIODS.keep_s)
        limiter = LedgerLimiter(state, LedgerSpend(self._url), PERIODS, wall=lambda: START, mono=time.monotonic)
        return limiter, asyncio.create_task(limiter.keep())

    @property
    def any(self) -> LedgerLimiter:
        return self._rng.choice(self._alive)[0]

    async def client(self, number: int) -> None:
        for turn in range(6):
            gateway = self.any
            claim = Claim(f"r{number}-{turn}", "team-a", START, self._rng.randrange(1, 20_000))
            if not (await gateway.admit(claim, BUDGET)).admitted or gateway in self._dead:
                await asyncio.sleep(0.02)
                continue
            self.counted[claim.id] = claim.nano
            assert sum(self.counted.values()) <= 1_000_000
            self._opened[claim.id] = gateway
            self._journal.append(self._row(claim.id))
            await asyncio.sleep(self._rng.random() * 0.2)
            if gateway in self._dead:
                continue
            cost = self.counted[claim.id] = self._rng.randrange(claim.nano + 1)
            del self._opened[claim.id]
            self._journal.append(settled_row(claim.id, cost_nano=cost))
            await gateway.settle(claim, BUDGET, Use(cost))

    def _row(self, name: str, **fields: Any) -> LedgerRow:
        return msgspec.structs.replace(open_row(name, **fields), reserved_nano=self.counted[name])

    async def drain(self) -> None:
        """Brings the journals into the ledger, a little late."""
        while True:
            await asyncio.sleep(0.1)
            rows, self._journal = self._journal, []
            await asyncio.to_thread(self.store.upsert, rows)

    async def disturb(self) -> None:
        """Kills a gateway or empties the server, now and then."""
        for turn in range(4):
            await asyncio.sleep(0.3)
            if turn % 2:
                raw: Any = self._server.client()
                raw.flushall()
                raw.close()
                continue
            at = self._rng.randrange(GATEWAYS)
            dead, keeping = self._alive[at]
            keeping.cancel()
            self._dead.add(dead)
            self._alive[at] = self._new()
            left = [name for name, gateway in self._opened.items() if gateway is dead]
            await asyncio.sleep(0.2)  # somebody finds what it left
            self._journal += [self._row(name, status="unsettled") for name in left]

    async def close(self) -> None:
        for limiter, keeping in self._alive:
            keeping.cancel()
            await limiter.close()
        for link in self._links:
            await link.close()
        self.store.close()


@pytest.mark.parametrize("seed", [1])
def test_neither_kills_nor_a_lost_state_let_a_budget_be_passed_or_keep_anything_reserved(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    async def main(server: Server) -> None:
        fleet = Fleet(ledger_url(tmp_path), server, random.Random(seed))
        await fleet.any.start(alone=True)
        draining = asyncio.create_task(fleet.drain())
        disturbing = asyncio.create_task(fleet.disturb())
        await asyncio.gather(*[fleet.client(number) for number in range(80)])
        await disturbing
        await asyncio.sleep(PERIODS.lease_s + PERIODS.release_s + 0.5)
        found = await fleet.any.standing("team-a", BUDGET)
        assert found.left_nano == 1_000_000 - sum(fleet.counted.values())
        assert found.spent_nano == sum(fleet.counted.values())  # nothing is reserved any more
        draining.cancel()
        await fleet.close()

    with running(Path(tmp_path_factory.mktemp("v"))) as server:
        asyncio.run(main(server))
