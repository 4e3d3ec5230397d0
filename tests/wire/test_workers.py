"""Several workers on one socket: one conversation over all of them, sums of their metrics, and every kind of end.

Every process is followed by its id: none is left when a gateway has ended, however it ended.
"""

import http.client
import json
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress

import psutil
import pytest

from backends.emulator.app import Emulator
from backends.emulator.config import EmulatorConfig
from backends.emulator.faults import FaultPlan, Rule
from support.asgi import serve
from support.lab import Heard, heard, ledger_url, post, wait_for_row
from support.pids import becomes_true, children, descendants, gone
from support.processes import Gateway, gateway_process
from support.talking import PRO, PlainClient, check_grown, thoughts_seen

WORKERS = 2
CONFIG = """
[server]
drain_grace_s = 0
drain_timeout_s = 20
[[targets]]
name = "moonshot"
dialect = "moonshot"
base_url = "{emulator}/v1"
api_key_env = "WORKERS_KEY"
"""
SLOWLY = Rule("slow", {"bytes": 3000, "gap_ms": 15.0}, contains="slowly")


@contextmanager
def supervised(emulator: str) -> Iterator[tuple[Gateway, list[psutil.Process]]]:
    """A gateway whose workers all serve, and all processes that it consists of. None of them outlives the test."""
    config, arguments = CONFIG.format(emulator=emulator), ["--workers", str(WORKERS)]
    with gateway_process(config, {"WORKERS_KEY": "sk-workers"}, arguments=arguments) as gateway:
        assert becomes_true(lambda: starts(gateway) == WORKERS)
        processes = descendants(gateway.pid)
        try:
            yield gateway, processes
        finally:
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    with serve(Emulator(EmulatorConfig(pace=0, faults=FaultPlan([SLOWLY])))) as address:
        yield address


@pytest.fixture(scope="module")
def whole(emulator: str) -> Iterator[tuple[Gateway, list[psutil.Process]]]:
    """A gateway for several tests; the last of them ends it."""
    with supervised(emulator) as made:
        yield made


def starts(gateway: Gateway) -> int:
    """How often a worker has said that it serves."""
    return len(re.findall(r'"message":"started"', gateway.output()))


def workers(gateway: Gateway) -> list[psutil.Process]:
    """The workers that run."""
    return [one for one in children(gateway.pid, "--as-worker") if not gone(one)]


@contextmanager
def only(worker: psutil.Process, among: Sequence[psutil.Process]) -> Iterator[None]:
    """Meanwhile the other workers are suspended, so that this one takes what comes."""
    others = [one for one in among if one != worker]
    for other in others:
        other.suspend()
    try:
        yield
    finally:
        for other in others:
            other.resume()


def count_of(exposition: str, series: str) -> float:
    """The sum of a metric's samples that begin so."""
    lines = [line for line in exposition.splitlines() if line.startswith(series)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_conversation_goes_from_worker_to_worker_and_any_of_them_shows_the_sum(
    emulator: str, whole: tuple[Gateway, list[psutil.Process]]
) -> None:
    gateway, _ = whole
    both = workers(gateway)
    assert len(both) == WORKERS
    client = PlainClient("two workers")
    lines: list[http.client.HTTPConnection] = []
    for turn in range(5):
        with only(both[turn % WORKERS], both):
            client.turn(gateway.base_url)
            if turn < WORKERS:
                lines.append(line_to(gateway))
    check_grown(client.said)
    assert thoughts_seen(emulator, client.topic) == client.thoughts[:4]
    for line in lines:  # each leads to a worker of its own
        line.request("GET", "/metrics")
        shown = line.getresponse().read().decode()
        assert count_of(shown, 'kimi_requests_total{key="open",kind="ok"') == 5
        assert count_of(shown, "kimi_thinking_conversations ") == 1
        line.close()


def line_to(gateway: Gateway) -> http.client.HTTPConnection:
    """A connection that is taken by a worker and stays open."""
    line = http.client.HTTPConnection(gateway.root_url.removeprefix("http://"), timeout=10)
    line.request("GET", "/health")
    assert line.getresponse().read()
    return line


def test_a_worker_that_is_killed_is_started_again_and_the_others_serve_meanwhile(
    emulator: str, whole: tuple[Gateway, list[psutil.Process]]
) -> None:
    gateway, processes = whole
    client = PlainClient("a worker's death")
    client.hold(gateway.base_url, turns=2)
    before = workers(gateway)
    before[0].kill()
    served = 0
    while starts(gateway) == WORKERS:
        assert post(gateway.base_url, question(f"meanwhile {served}"), {}).status == 200
        served += 1
    assert served > 2
    after = workers(gateway)
    processes += after
    assert len(after) == WORKERS
    assert before[1] in after
    with only(next(one for one in after if one not in before), after):
        client.turn(gateway.base_url)
    client.hold(gateway.base_url, turns=2)
    check_grown(client.said)
    assert thoughts_seen(emulator, client.topic) == client.thoughts[:4]
    assert re.search(r"worker [01] ended \(signal 9\); it is started again", gateway.output())


def question(text: str) -> dict[str, object]:
    return {"model": PRO, "stream": True, "messages": [{"role": "user", "content": text}]}


@contextmanager
def slow_streams(gateway: Gateway, count: int = 4) -> Iterator[list[Future[Heard]]]:
    """Streams that have begun and take a second or more, each with what its client hears in the end."""
    begun = threading.Barrier(count + 1)

    def listen(number: int) -> Heard:
        address = gateway.root_url.removeprefix("http://")
        body = json.dumps(question(f"Tell it slowly, {number}."))
        with closing(http.client.HTTPConnection(address, timeout=20)) as line:
            line.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            reply = line.getresponse()
            first = reply.read(1)
            begun.wait(10)
            return heard(reply.status, dict(reply.getheaders()), first + reply.read())

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(listen, number) for number in range(count)]
        begun.wait(10)
        yield futures


def check_whole(gateway: Gateway, answers: list[Future[Heard]]) -> None:
    """Every answer came to its own end, and is booked so."""
    for future in answers:
        answer = future.result()
        assert answer.done, answer.raw[-300:]
        assert wait_for_row(ledger_url(gateway), answer.headers["x-kimi-request-id"]).status == "ok"


def test_a_signal_lets_every_workers_answers_end_and_leaves_no_process(
    whole: tuple[Gateway, list[psutil.Process]],
) -> None:
    gateway, processes = whole
    with slow_streams(gateway) as answers:
        assert not any(future.done() for future in answers)
        gateway.program.signal(signal.SIGTERM)
        check_whole(gateway, answers)
    assert gateway.program.wait() == 0
    assert becomes_true(lambda: all(map(gone, processes)))


def test_workers_whose_supervisor_is_killed_end_their_answers_and_then_themselves(emulator: str) -> None:
    with ExitStack() as stack:
        gateway, processes = stack.enter_context(supervised(emulator))
        answers = stack.enter_context(slow_streams(gateway))
        assert not any(future.done() for future in answers)
        assert gateway.kill() == -9
        check_whole(gateway, answers)
        assert becomes_true(lambda: all(map(gone, processes)))
