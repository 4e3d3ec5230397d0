"""Targets that are killed, stalled, slowed down and cut off, one at a time, under streams that never stop.

No answer that was cut ends cleanly, no request fails before content while another target is well, and whoever has
recovered is used again.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest

from support.doors import Door, Mode, doors
from support.exchange import ClientLeft, Exchange
from support.fleet import DONE, PRO, ROLE, USAGE, Crowd, chunk, fleet, hi, route, said, target
from support.lab import Heard, post
from support.pids import becomes_true
from support.processes import Gateway, gateway_process
from support.scripted import Answer, ScriptedUpstream

CROWD = 40
NAMES = ("a", "b", "c", "d")
MODES: tuple[Mode, ...] = ("killed", "stalled", "slow", "partitioned")
WORDS = [f"word{number} " for number in range(8)]
CONFIG = """
[server]
drain_grace_s = 0
keepalive_interval_s = 0.3
[retry]
breaker_failures = 3
breaker_open_s = 0.3
"""


async def talk(exchange: Exchange) -> None:
    """Answers with a few words, one at a time."""
    try:
        await exchange.head(200, [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")])
        await exchange.chunk(ROLE.encode())
        await exchange.pause(0.1)
        for word in WORDS:
            await exchange.chunk(chunk({"content": word}).encode())
            await exchange.pause(0.04)
        await exchange.chunk((chunk({}, "stop", usage=USAGE) + DONE).encode())
        await exchange.end_chunks()
        exchange.keep = True
    except ClientLeft:
        return


@dataclass
class Run:
    """Streams that are asked for again and again, and what became of them."""

    gateway: Gateway
    doors: dict[str, Door]
    upstreams: dict[str, ScriptedUpstream]
    stopping: threading.Event = field(default_factory=threading.Event)
    heard: list[Heard] = field(default_factory=list)

    def client(self, number: int) -> None:
        """One client."""
        at = 0
        while not self.stopping.is_set():
            at += 1
            request = hi(f"client {number}, question {at}", "m", stream=True)
            self.heard.append(post(self.gateway.base_url, request, {"x-kimi-meta": "1"}))

    def suffer(self, name: str, mode: Mode, seconds: float) -> None:
        """One target has this for so long; then it must be used again."""
        self.doors[name].set(mode)
        time.sleep(seconds)
        self.doors[name].set("open")
        before, until_s = len(self.upstreams[name].requests), time.monotonic() + 8
        while len(self.upstreams[name].requests) < before + 3:
            assert time.monotonic() < until_s, f"{name} was {mode} and is not used again"
            time.sleep(0.02)
        time.sleep(seconds / 4)


@contextmanager
def running(policy: str, patience_s: float) -> Iterator[Run]:
    """The gateway, before four targets that talk, each behind its door."""
    with ExitStack() as stack:
        upstreams = {name: stack.enter_context(ScriptedUpstream([talk], repeat_last=True)) for name in NAMES}
        made = stack.enter_context(doors({name: one.port for name, one in upstreams.items()}))
        settings = {
            "models": {"m": "kimi-k3.1-pro"},
            "connect_timeout_s": patience_s,
            "first_byte_timeout_s": patience_s,
            "idle_timeout_s": patience_s,
        }
        config = [CONFIG, *[target(name, door.base_url, settings) for name, door in made.items()]]
        config.append(route("m", NAMES, policy=policy))
        gateway = stack.enter_context(gateway_process("\n".join(config), {"FLEET_KEY": "sk-chaos"}))
        yield Run(gateway, made, upstreams)


def chaos(policy: str, clients: int, scenes: Sequence[tuple[str, Mode]], seconds: float) -> None:
    """Plays these scenes one after the other and judges every answer."""
    with running(policy, seconds * 0.6) as run:
        with ThreadPoolExecutor(clients) as pool:
            asking = [pool.submit(run.client, number) for number in range(clients)]
            try:
                time.sleep(seconds / 2)
                for name, mode in scenes:
                    run.suffer(name, mode, seconds)
            finally:
                run.stopping.set()
            for one in asking:
                one.result()
        judge(run.heard)


def judge(heard: Sequence[Heard]) -> None:
    """Whole answers are whole, failed ones say so and had begun."""
    ends: Counter[str] = Counter()
    for one in heard:
        text = one.joined("content") if one.events else ""
        if one.done:
            assert (text, one.finish_reason(), one.error) == ("".join(WORDS), "stop", None)
            ends["whole"] += 1
        else:
            assert one.error is not None, one.raw
            assert one.finish_reason() is None
            ends["cut" if text else f"failed before content: {one.error['message']}"] += 1
    assert set(ends) <= {"whole", "cut"}, ends
    assert ends["whole"] > len(heard) / 2
    assert ends["cut"]


def test_all_of_a_crowd_whose_target_dies_before_content_are_served_by_the_next() -> None:
    """As many as there are: a budget for further attempts keeps nobody from a target that is well."""
    gate, held = threading.Event(), Crowd()

    async def dies(exchange: Exchange) -> None:
        held.now += 1
        while not gate.is_set():
            await exchange.pause(0.01)
        exchange.reset()

    scripts: dict[str, Answer] = {"first": dies, "second": {"status": 200, "sse_text": said("served")}}
    with fleet({"first": {}, "second": {}}, route(PRO, ["first", "second"]), scripts=scripts) as made:
        with ThreadPoolExecutor(CROWD) as pool:
            asked = [pool.submit(made.ask, hi(f"{number}", stream=True)) for number in range(CROWD)]
            assert becomes_true(lambda: held.now == CROWD)
            gate.set()
            heard = [one.result() for one in asked]
        assert [(one.joined("content"), one.done) for one in heard] == [("served", True)] * CROWD
        assert {len(row.attempts) for row in made.rows(*heard)} == {2}


def test_twenty_streams_while_each_target_suffers_something() -> None:
    chaos("least-busy", 20, list(zip(NAMES, MODES, strict=True)), seconds=0.7)


@pytest.mark.chaos
@pytest.mark.parametrize("policy", ["least-busy", "cost"])
def test_two_hundred_streams_while_every_target_suffers_everything(policy: str) -> None:
    chaos(policy, 200, [(name, mode) for name in NAMES for mode in MODES], seconds=4)
