"""What the gateway reads of vLLM's load, and that an engine stops when its client has left."""

import asyncio
import io
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from backends.faults import Fault
from kimi_gateway.adapters.load import EngineLoads
from kimi_gateway.core.routing.facts import Load
from kimi_gateway.logs import LineWriter, Log
from kimi_gateway.settings import load
from support.behind_vllm import gateway_of, long_stream, sent, target_text
from support.calls import upstream
from support.lab import ledger_url, wait_for_row
from support.processes import Gateway
from support.vllm_engine import KEY, RUNS_AT_MOST, VllmEngine, vllm_engine

STOPS_WITHIN_S = 3.0
_LOOK_S = 0.2


@pytest.fixture(scope="module")
def gateway(engine: VllmEngine) -> Iterator[Gateway]:
    """A gateway whose one target is the engine."""
    with gateway_of(engine) as started:
        yield started


class Kept:
    """Notes what the health of targets is told."""

    def __init__(self) -> None:
        self.gone: list[Fault] = []
        self.there = 0

    def found_gone(self, target: str, fault: Fault) -> None:
        self.gone.append(fault)

    def found_there(self, target: str) -> None:
        self.there += 1


@asynccontextmanager
async def loads_of(engine: VllmEngine, home: Path, kept: Kept | None = None) -> AsyncIterator[EngineLoads]:
    """The gateway's own reader of loads, with the engine as its target."""
    (home / "gateway.toml").write_text(target_text(engine))
    targets = load(home / "gateway.toml", {"ENGINE_KEY": KEY}).targets
    writer = LineWriter(io.StringIO(), format="text")
    async with upstream() as client:
        log = Log(writer, wall=time.time)
        yield EngineLoads(
            client, lambda: targets, log, mono=time.monotonic, keeper=kept, refresh_s=_LOOK_S, timeout_s=5.0
        )


async def seen(loads: EngineLoads, running: int, waiting: int, limit_s: float) -> Load:
    """The load once it is so. Raises `AssertionError` with the last one where it does not get so."""
    end_s = time.monotonic() + limit_s
    while True:
        await loads.look()
        found = loads.load("vllm")
        if found is not None and (found.running, found.waiting) == (running, waiting):
            return found
        assert time.monotonic() < end_s, f"{found}, expected {running} running and {waiting} waiting"
        await asyncio.sleep(_LOOK_S)


def test_running_and_waiting_are_what_was_sent_and_none_when_all_have_left(
    engine: VllmEngine, gateway: Gateway, tmp_path: Path
) -> None:
    async def main() -> None:
        async with loads_of(engine, tmp_path) as loads:
            idle = await seen(loads, 0, 0, 10)
            with sent(gateway, RUNS_AT_MOST + 2):
                busy = await seen(loads, RUNS_AT_MOST, 2, 30)
                assert idle.cache_used is not None
                assert busy.cache_used is not None
                assert idle.cache_used < busy.cache_used <= 1
                assert busy.at_s > idle.at_s
            await seen(loads, 0, 0, STOPS_WITHIN_S)

    asyncio.run(main())


def test_a_client_that_leaves_stops_the_engine(engine: VllmEngine, gateway: Gateway) -> None:
    engine.wait_until_running(0, 10)
    with long_stream(gateway) as stream:
        assert engine.running() == 1
        stream.leave()
        took_s = engine.wait_until_running(0, STOPS_WITHIN_S)
        print(f"\n  the engine stopped {took_s:.2f} s after its client had left")
        row = wait_for_row(ledger_url(gateway), stream.request_id)
    assert (row.status, row.estimated) == ("client_disconnected", True)


def test_an_engine_that_is_killed_is_noticed_by_its_load(tmp_path: Path) -> None:
    async def main() -> None:
        kept = Kept()
        with vllm_engine() as engine:
            async with loads_of(engine, tmp_path, kept) as loads:
                await seen(loads, 0, 0, 10)
                assert kept.there > 0
                engine.program.kill()
                for _ in range(3):
                    await loads.look()
                assert loads.load("vllm") is None
                assert kept.gone
                assert "no answer" in loads.silent("vllm")

    asyncio.run(main())
