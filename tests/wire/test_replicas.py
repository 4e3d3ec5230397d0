"""Two gateways on one Valkey and one ledger: they agree on limits, budgets, outs, thoughts; one may be killed."""

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from decimal import Decimal
from http.client import HTTPException
from pathlib import Path
from typing import Any

import httpx2
import pytest

from backends.emulator.config import EmulatorConfig
from support.emulators import emulators
from support.fleet import (
    OK,
    PRO,
    ROLE,
    Crowd,
    Talk,
    bearer,
    chunk,
    hi,
    key,
    route,
    rows_of,
    secret,
    target,
    together,
)
from support.forked import Forked, Nursery, nursery
from support.lab import Heard, post
from support.pids import becomes_true
from support.scripted import ScriptedUpstream
from support.talking import PlainClient
from support.valkey import Server, running

LEASE_S = 1.2
KEYS = ("plain", "capped", "second")
RESET = {"then": "reset"}
QUOTA = {"status": 429, "json": {"error": {"type": "exceeded_current_quota_error", "message": "empty"}}}
NAMES = ("two", "broken", "empty", "held", "money")
CONFIG = f"""
[server]
drain_grace_s = 0
keepalive_interval_s = 0.1
[retry]
global_ratio = 1
breaker_failures = 3
breaker_open_s = 1.5
[timing]
lease_s = {LEASE_S}
adopt_s = 0.3
progress_s = 0.2
health_refresh_s = 0.1
"""


@dataclass
class Stage:
    """Two gateways, the first of which may be killed and started again, and their scripted upstreams."""

    home: Nursery
    server: Server
    directory: Path
    upstreams: dict[str, ScriptedUpstream]
    gateways: list[Forked]

    def ask(self, place: int, request: dict[str, Any], by: str = "plain") -> Heard:
        """A request to one of the gateways."""
        return post(self.gateways[place].base_url, request, bearer(by))

    @property
    def ledger(self) -> str:
        return f"sqlite:///{self.directory / 'kimi-ledger.db'}"


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="k")))  # short enough for a socket
        server = stack.enter_context(running(directory))
        addresses = stack.enter_context(emulators({"emulated": EmulatorConfig(pace=0)}))
        upstreams = {name: stack.enter_context(ScriptedUpstream()) for name in NAMES}
        limits: dict[str, dict[str, object]] = {"two": {"max_concurrency": 2}, "held": {"max_concurrency": 2}}
        text = [CONFIG, f'[state]\nurl = "{server.url}"\nreplicas = 2\n']
        text += [
            target(name, one.base_url, {"models": dict.fromkeys(NAMES, PRO), **limits.get(name, {})})
            for name, one in upstreams.items()
        ]
        text.append(target("emulated", f"{addresses['emulated']}/v1"))
        text += [route(name, [name]) for name in NAMES]
        text += [route(PRO, ["emulated"]), key("plain"), key("second"), key("capped", budget_usd="0.05")]
        env = {"FLEET_KEY": "sk-replicas", **{f"KEY_{name.upper()}": secret(name) for name in KEYS}}
        home = stack.enter_context(nursery(directory, "\n".join(text), env))
        yield Stage(home, server, directory, upstreams, [home.start(), home.start()])


def test_an_account_s_places_are_shared_and_all_who_wait_are_served(stage: Stage) -> None:
    crowd = Crowd(0.1)
    stage.upstreams["two"].add(*[crowd] * 10)
    heard = together(lambda number: stage.ask(number % 2, hi(f"{number}", "two")), range(10))
    assert {one.status for one in heard} == {200}
    assert crowd.most == 2


def test_keys_take_turns_whichever_gateway_they_ask(stage: Stage) -> None:
    crowd = Crowd(0.02, gate=threading.Event())
    stage.upstreams["two"].add(*[crowd] * 10)
    with ThreadPoolExecutor(10) as pool:
        asked = [pool.submit(stage.ask, number, hi("runs", "two")) for number in range(2)]
        assert becomes_true(lambda: crowd.now == 2)
        for place, by, text in [(0, "plain", "a1"), (0, "plain", "a2"), (0, "plain", "a3"), (1, "second", "b1")]:
            asked.append(pool.submit(stage.ask, place, hi(text, "two"), by))
            time.sleep(0.08)
        assert crowd.gate is not None
        crowd.gate.set()
        assert {one.result().status for one in asked} == {200}
    assert set(crowd.texts[2:4]) == {"a1", "b1"}


def test_a_budget_is_one_for_both(stage: Stage) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 400, "total_tokens": 1400, "cached_tokens": 0}
    crowd = Crowd(0.4, answer={"status": 200, "json_usage": usage})
    stage.upstreams["money"].add(*[crowd] * 6)
    request = hi("word " * 150, "money", max_completion_tokens=1500)
    heard = together(lambda number: stage.ask(number % 2, request, "capped"), range(6))
    assert Counter(one.status for one in heard) == {200: 2, 402: 4}
    budgets = [
        httpx2.get(f"{gateway.base_url}/users/me/balance", headers=bearer("capped")).json()["data"]["budget"]
        for gateway in stage.gateways
    ]
    assert [(Decimal(str(one["spent"])), one["reserved"]) for one in budgets] == [(Decimal("0.012"), 0)] * 2
    stage.upstreams["money"].forget()


def test_what_one_learns_of_a_target_the_other_knows(stage: Stage) -> None:
    stage.upstreams["broken"].add(*[RESET] * 3)
    stage.upstreams["empty"].add(QUOTA)
    assert [stage.ask(0, hi(model="broken")).status for _ in range(3)] == [502] * 3
    assert stage.ask(0, hi(model="empty")).status == 402
    since_s = time.monotonic()
    before = {name: len(one.requests) for name, one in stage.upstreams.items()}
    time.sleep(0.5)
    told = [stage.ask(1, hi(model=name)) for name in ("broken", "empty")]
    assert [(one.status, one.error["code"]) for one in told] == [
        (503, "no_target"),
        (402, "exceeded_current_quota_error"),
    ]
    assert {name: len(one.requests) for name, one in stage.upstreams.items()} == before
    time.sleep(max(0.0, since_s + 1.6 - time.monotonic()))
    stage.upstreams["broken"].add(OK, OK)
    assert stage.ask(1, hi(model="broken")).status == 200
    assert becomes_true(lambda: stage.ask(0, hi(model="broken")).status == 200, 1)


def test_a_conversation_that_alternates_keeps_its_thoughts(stage: Stage) -> None:
    client = PlainClient("two replicas", key=secret("plain"))
    said = client.hold(*[one.base_url for one in stage.gateways], turns=3)
    assert [one.thinking for one in said] == [None, "repaired=1", "repaired=2"]
    assert said[2].cached_tokens > said[1].cached_tokens > 0


def heard_to_the_end(talk: Talk) -> bytes:
    """What a client heard, however its connection ended."""
    with suppress(OSError, HTTPException):
        return talk.rest().raw
    return b""


def test_a_gateway_that_is_killed_loses_its_open_streams_and_nothing_else(stage: Stage) -> None:
    """Two streams hold the places of an account, one more waits at the dead, one at the living."""
    begin = {"status": 200, "timeline": [[0, ROLE + chunk({"content": "begun "})], [60, ""]]}
    finished = stage.ask(0, hi("before", PRO))
    crowd = Crowd()
    stage.upstreams["held"].add(begin, begin, crowd, crowd, crowd)
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        url = stage.gateways[0].base_url
        open_ones = [
            stack.enter_context(Talk(url, hi(f"{n}", "held", stream=True), bearer("plain"))) for n in range(2)
        ]
        for talk in open_ones:
            talk.until(b"begun")
        queued = stack.enter_context(Talk(url, hi("queued at the dead", "held", stream=True), bearer("plain")))
        queued.until(b":")
        living = pool.submit(stage.ask, 1, hi("waits", "held"))
        ids = [talk.headers["x-kimi-request-id"] for talk in (*open_ones, queued)]
        time.sleep(0.2)
        assert crowd.texts == []
        began_s = time.monotonic()
        assert stage.home.kill(stage.gateways[0]) == -9
        assert [b"[DONE]" in heard_to_the_end(talk) for talk in open_ones] == [False, False]
        waited = living.result()
        assert (waited.status, crowd.texts) == (200, ["waits"])
        assert time.monotonic() - began_s < LEASE_S + 3
    rows = rows_of(
        stage.ledger, [finished.headers["x-kimi-request-id"], *ids, waited.headers["x-kimi-request-id"]]
    )
    assert time.monotonic() - began_s < 20
    assert [row.status for row in rows] == ["ok", "unsettled", "unsettled", "unsettled", "ok"]
    assert [len(row.attempts) for row in rows[-1:]] == [1]
    assert rows[-1].wait_ms >= 300
    # Its places are free, and the queue knows nothing of who waited there.
    again = together(lambda number: stage.ask(1, hi(f"after {number}", "held")), range(2))
    assert {one.status for one in again} == {200}
    assert sorted(crowd.texts) == ["after 0", "after 1", "waits"]
    stage.gateways[0] = stage.home.start()
    assert stage.ask(0, hi("alive", PRO)).status == 200


def test_while_the_state_is_away_nobody_fails_and_each_gateway_keeps_to_its_share(stage: Stage) -> None:
    """Two that wait when it goes get their places here; of two places each of two gateways then gives one."""
    crowd = Crowd(0.05, gate=threading.Event())
    stage.upstreams["two"].forget()
    stage.upstreams["two"].add(*[crowd] * 12)
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(stage.ask, number % 2, hi(f"{number}", "two")) for number in range(4)]
        assert becomes_true(lambda: crowd.now == 2)
        time.sleep(0.1)
        stage.server.stop()
        asked += [pool.submit(stage.ask, number % 2, hi(f"{number}", "two")) for number in range(4, 8)]
        time.sleep(0.3)
        assert crowd.gate is not None
        crowd.gate.set()
        assert {one.result().status for one in asked} == {200}
        assert crowd.most <= 4
        crowd.most = 0
        late = [pool.submit(stage.ask, number % 2, hi(f"late {number}", "two")) for number in range(4)]
        assert {one.result().status for one in late} == {200}
        assert crowd.most <= 2
    stage.server.start()
