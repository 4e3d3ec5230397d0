"""Engines are asked for their load over real sockets: emulated ones that are busy, scripted ones that are ill."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from io import StringIO

import httpx2
import pytest

from backends.aiohttp_upstream import AiohttpUpstream
from backends.catalog import DIALECTS
from backends.faults import Fault, FaultKind
from kimi_gateway.adapters.load import EngineLoads
from kimi_gateway.core.routing.facts import Load
from kimi_gateway.core.secret import Secret
from kimi_gateway.logs import LineWriter, Log
from kimi_gateway.settings import Target
from support.checked import Deployment, behind
from support.emulated import emulator
from support.exchange import Exchange
from support.processes import free_port, program
from support.scripted import Answer, Given, play
from support.shared import shared_path

KEY = "sk-load-7c6b5a493827"
METRICS: Given = {
    "status": 200,
    "text": "vllm:num_requests_running 2\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\n",
}
WELL: Given = {"status": 200, "text": ""}


class Keeper:
    """Notes what it is told of the health of targets."""

    def __init__(self) -> None:
        self.said: list[tuple[str, FaultKind | None]] = []

    def found_gone(self, target: str, fault: Fault) -> None:
        self.said.append((target, fault.kind))

    def found_there(self, target: str) -> None:
        self.said.append((target, None))


class Stage:
    """Loads over a real client, on a clock that a test moves."""

    def __init__(self, *targets: Target, refresh_s: float = 2.0, timeout_s: float = 0.5) -> None:
        self.targets: Sequence[Target] = targets
        self.keeper = Keeper()
        self.now_s = 0.0
        self.stream = StringIO()
        self._periods = (refresh_s, timeout_s)

    def play(self, script: Callable[[EngineLoads], Awaitable[None]]) -> str:
        """Runs the script; what was logged."""
        log = Log(LineWriter(self.stream, format="text"), wall=lambda: 0.0)

        async def main() -> None:
            upstream = AiohttpUpstream()
            refresh_s, timeout_s = self._periods
            loads = EngineLoads(
                upstream,
                lambda: self.targets,
                log,
                mono=lambda: self.now_s,
                keeper=self.keeper,
                refresh_s=refresh_s,
                timeout_s=timeout_s,
            )
            try:
                await script(loads)
            finally:
                await upstream.close()

        asyncio.run(main())
        log.close()
        return self.stream.getvalue()


def target(base_url: str, name: str = "t", dialect: str = "vllm", key: str = KEY) -> Target:
    return Target(name, dialect, base_url, Secret(key) if key else None, models={"k": "k"})


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_an_emulated_engine_says_what_it_runs_and_stops_saying_so_at_the_end(dialect: str) -> None:
    with emulator(dialect=dialect, pace=1.0, tokens_per_s=2.0, api_keys=(KEY,), max_cache_blocks=4) as client:
        stage = Stage(target(f"{str(client.base_url).rstrip('/')}/v1", dialect=dialect))
        body = {"model": "k", "messages": [{"role": "user", "content": "x" * 9000}], "stream": True}
        model = client.get("/v1/models", headers={"authorization": f"Bearer {KEY}"}).json()["data"][0]["id"]

        async def script(loads: EngineLoads) -> None:
            await loads.look()
            first = loads.load("t")
            assert first is not None
            assert (first.running, first.waiting) == (0, 0)
            async with (
                httpx2.AsyncClient(base_url=client.base_url, headers={"authorization": f"Bearer {KEY}"}) as user,
                user.stream("POST", "/v1/chat/completions", json={**body, "model": model}) as answer,
            ):
                assert answer.status_code == 200
                await loads.look()
                busy = loads.load("t")
                assert busy is not None
                assert (busy.running, busy.waiting) == (1, 0)
                assert busy.cache_used is not None
                assert busy.cache_used > 0
            for _ in range(100):
                await loads.look()
                if (loads.load("t") or busy).running == 0:
                    break
                await asyncio.sleep(0.02)
            assert (loads.load("t") or busy).running == 0, "a client that left runs no more"

        stage.play(script)
    assert {kind for _, kind in stage.keeper.said} == {None}


def test_a_refused_request_is_not_one_that_runs() -> None:
    with emulator(dialect="vllm") as client:
        refused = client.post("/v1/chat/completions", json={"model": "k", "messages": []})
        assert refused.status_code >= 400
        assert "vllm:num_requests_running{" in client.get("/metrics").text
        assert " 0.0\n" in client.get("/metrics").text
        assert client.get("/load").json() == {"server_load": 0}
    with emulator(dialect="moonshot") as client:
        assert client.get("/metrics").status_code == 404


def test_each_path_that_an_engine_may_say_it_on_is_tried_and_the_one_that_does_is_kept() -> None:
    rank = {"dp_rank": 0, "num_running_reqs": 4, "num_waiting_reqs": 2, "token_usage": 0.5}
    older = [{"dp_rank": 0, "num_reqs": 6, "num_waiting_reqs": 2}]
    paths: list[tuple[str, Answer]] = [
        ("/v1/loads?include=core", behind(KEY, {"status": 200, "json": {"loads": [rank]}})),
        ("/metrics", {"status": 200, "text": "sglang:num_running_reqs 4\nsglang:num_queue_reqs 2\n"}),
        ("/get_load", behind(KEY, {"status": 200, "json": older})),
    ]
    report = DIALECTS["sglang"].load
    assert report is not None
    assert [path for path, _ in paths] == list(report.paths)
    for at, (path, answer) in enumerate(paths):
        with Deployment(paths={path: answer}) as up:
            stage = Stage(target(up.base_url, dialect="sglang"))

            async def script(loads: EngineLoads) -> None:
                await loads.look()
                await loads.look()
                found = loads.load("t")
                assert found is not None
                assert (found.running, found.waiting) == (4, 2)

            stage.play(script)
            asked = [probe.path for probe in up.probes]
            assert asked == [*report.paths[: at + 1], path], (
                "and its health is not asked for: that costs it something"
            )


def test_an_engine_that_says_nothing_of_its_load_is_there_all_the_same() -> None:
    with Deployment(paths={"/health": WELL}) as up:
        stage = Stage(target(up.base_url, dialect="llamacpp"))

        async def script(loads: EngineLoads) -> None:
            for _ in range(15):
                await loads.look()
            assert loads.load("t") is None
            assert loads.silent("t") == ""

        assert stage.play(script) == ""
        asked = [probe.path for probe in up.probes]
        assert asked.count("/metrics") == 1, "asked again only now and then"
        assert asked.count("/health") == 15
    assert stage.keeper.said == [("t", None)] * 15


def test_an_engine_that_is_told_to_stop_goes_silent_is_noticed_and_the_log_says_so_once() -> None:
    with ExitStack() as stack:
        up = stack.enter_context(Deployment(paths={"/metrics": METRICS, "/health": WELL}))
        stage = Stage(target(up.base_url))

        async def script(loads: EngineLoads) -> None:
            await loads.look()
            assert loads.load("t") == Load(2, 1, 0.0, 0.5)
            await asyncio.to_thread(stack.close)
            await loads.look()
            assert loads.load("t") is None, "who is gone runs nothing"
            assert loads.silent("t") == "", "one refused connection may be an engine that starts again"
            stage.now_s = 7
            await loads.look()
            assert loads.silent("t").startswith("no answer for 7 s: ")
            await loads.look()

        logged = stage.play(script)
    assert stage.keeper.said == [("t", None), ("t", FaultKind.CONNECT), ("t", FaultKind.CONNECT)]
    assert logged.count("target t is silent") == 1


def test_an_engine_that_answers_again_is_said_to() -> None:
    ill: list[Given] = [{"status": 503, "text": ""}]

    async def health(exchange: Exchange) -> None:
        await play(ill[0], exchange)

    with Deployment(paths={"/metrics": METRICS, "/health": health}) as up:
        stage = Stage(target(up.base_url))

        async def script(loads: EngineLoads) -> None:
            await loads.look()
            assert loads.load("t") is None
            await loads.look()
            assert "/health answers 503" in loads.silent("t")
            ill[0] = WELL
            await loads.look()
            assert loads.silent("t") == ""
            assert loads.load("t") == Load(2, 1, 0.0, 0.5)

        logged = stage.play(script)
    assert stage.keeper.said == [("t", FaultKind.SERVER), ("t", None)]
    assert "target t is silent" in logged
    assert "target t answers again" in logged


async def never(exchange: Exchange) -> None:
    await exchange.hold()


def test_a_slow_engine_holds_up_no_other_and_what_it_said_grows_old() -> None:
    with (
        Deployment(paths={"/metrics": METRICS, "/health": WELL}) as quick,
        Deployment(paths={"/metrics": never}) as slow,
    ):
        stage = Stage(
            target(quick.base_url, "quick"), target(slow.base_url, "slow"), timeout_s=0.3, refresh_s=0.05
        )

        async def script(loads: EngineLoads) -> None:
            keeping = asyncio.create_task(loads.keep())
            await asyncio.sleep(0.28)
            assert loads.load("quick") is not None
            assert sum(probe.path == "/metrics" for probe in quick.probes) >= 4
            assert len(slow.probes) == 1
            keeping.cancel()
            stage.now_s = 0.15
            assert loads.load("quick") is not None
            stage.now_s = 0.16
            assert loads.load("quick") is None, "three refreshes old"

        stage.play(script)
    assert {name for name, _ in stage.keeper.said} == {"quick"}


def test_one_that_is_only_slow_is_silent_and_not_gone() -> None:
    with Deployment(paths={"/metrics": never}) as slow:
        stage = Stage(target(slow.base_url), timeout_s=0.05)

        async def script(loads: EngineLoads) -> None:
            for _ in range(2):
                await loads.look()
            assert loads.silent("t") == ""
            await loads.look()
            assert loads.silent("t").endswith("/metrics did not answer within 0.05 s")

        logged = stage.play(script)
    assert stage.keeper.said == []
    assert KEY not in logged


def test_only_engines_are_asked_and_each_with_its_own_key_alone() -> None:
    answers: dict[str, Answer] = {"/metrics": METRICS, "/health": WELL}
    with Deployment(paths=answers) as one, Deployment(paths=answers) as two, Deployment(paths=answers) as service:
        stage = Stage(
            target(one.base_url, "one"),
            target(two.base_url, "two", key=""),
            target(service.base_url, "service", "moonshot"),
        )

        async def script(loads: EngineLoads) -> None:
            await loads.look()
            assert loads.load("one") == Load(2, 1, 0.0, 0.5)
            assert loads.load("two") == loads.load("one")
            assert loads.load("service") is None
            assert loads.load("nobody") is None
            stage.targets = stage.targets[:1]
            await loads.look()
            assert loads.load("two") is None

        stage.play(script)
        assert {probe.headers.get("authorization") for probe in one.probes} == {f"Bearer {KEY}"}
        assert {probe.headers.get("authorization") for probe in two.probes} == {None}
        assert service.probes == []


def test_bodies_are_bounded_and_redirects_are_not_followed() -> None:
    endless: Given = {"status": 200, "text": "vllm:num_requests_running 1\n" + "#" * 9_000_000}
    elsewhere: Given = {"status": 307, "headers": {"location": "http://127.0.0.1:1/"}, "text": ""}
    for answer in (endless, elsewhere):
        with Deployment(paths={"/metrics": answer, "/health": WELL}) as up:
            stage = Stage(target(up.base_url), timeout_s=5)

            async def script(loads: EngineLoads) -> None:
                await loads.look()
                assert loads.load("t") is None

            stage.play(script)
            assert stage.keeper.said == [("t", None)]


def test_a_real_engine_says_what_it_runs_and_is_missed_when_it_is_killed() -> None:
    model, server = shared_path("engines/kimi-tiny-q8.gguf"), shared_path("engines/serve_llamacpp.py")
    port = free_port()
    env = {"GGUF": str(model), "CTX": "32768", "PATH": os.environ["PATH"]}
    stage = Stage(target(f"http://127.0.0.1:{port}/v1", dialect="llamacpp"))
    with ExitStack() as stack:
        started = stack.enter_context(program([sys.executable, str(server), str(port), KEY], env=env))
        started.wait_for_http(f"http://127.0.0.1:{port}/health")

        async def script(loads: EngineLoads) -> None:
            for _ in range(100):  # while it reads its model it says 503: nobody serves there yet
                await loads.look()
                if loads.load("t") is not None:
                    break
                await asyncio.sleep(0.1)
            assert loads.load("t") == Load(0, 0, 0.0, None)
            stage.keeper.said.clear()
            body = {"model": "k", "messages": [{"role": "user", "content": "Tell a long story."}], "stream": True}
            async with (
                httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as user,
                user.stream("POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as answer,
            ):
                assert answer.status_code == 200
                await loads.look()
                assert loads.load("t") in (Load(1, 0, 0.0, None), Load(0, 0, 0.0, None))
            await asyncio.to_thread(stack.close)
            await loads.look()
            await loads.look()
            assert loads.load("t") is None
            assert loads.silent("t")

        stage.play(script)
    assert [kind for _, kind in stage.keeper.said] == [None, FaultKind.CONNECT]
