"""deploy/replicas/haproxy.cfg in front of two real gateways, where haproxy is installed (Debian: haproxy)."""

import http.client
import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from support.compose import ROOT
from support.lab import ledger_url, post, wait_for_row
from support.processes import Gateway, Program, free_port, gateway_process, program
from support.scripted import ScriptedUpstream

FILE = ROOT / "deploy" / "replicas" / "haproxy.cfg"
REQUEST = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "Say hello."}]}
_GRACE_S = 1.5
_GAP_S = 0.4


def chunk(text: str, finish: str = "null") -> str:
    """One event of a stream."""
    delta = json.dumps({"content": text} if text else {})
    return f'data: {{"id":"c","choices":[{{"index":0,"delta":{delta},"finish_reason":{finish}}}]}}\n\n'


ANSWER = {
    "status": 200,
    "timeline": [
        [0, chunk("one ")],
        [_GAP_S, chunk("two ")],
        [2 * _GAP_S, chunk("three") + chunk("", '"stop"') + "data: [DONE]\n\n"],
    ],
}
LONG = {"status": 200, "timeline": [[0.05 * number, chunk(f"{number} ")] for number in range(400)], "then": "hold"}


def haproxy() -> str:
    """The program. Skips the test, saying so, where there is none."""
    found = shutil.which("haproxy")
    if found is None:
        pytest.skip("haproxy is not installed here (Debian: apt-get install haproxy)")
    return found


@dataclass
class Pair:
    """Two gateways, what is behind them and what is in front of them."""

    gateways: tuple[Gateway, Gateway]
    upstream: ScriptedUpstream
    port: int
    health: int

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def ready(self) -> int:
        """What the balancer's own health check says."""
        connection = http.client.HTTPConnection("127.0.0.1", self.health, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status
        finally:
            connection.close()

    @contextmanager
    def stream(self) -> Iterator[http.client.HTTPResponse]:
        """An answer as it comes; the connection is closed at the end."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            body = json.dumps({**REQUEST, "stream": True})
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json", **KEY})
            yield connection.getresponse()
        finally:
            connection.close()


KEY = {"authorization": "Bearer test-caller"}


def config_of(pair_ports: list[int], port: int, health: int) -> str:
    """The shipped file with these ports in the place of Docker's names, checked more often."""
    text = FILE.read_text()
    changes = {
        "    maxconn 20000": "    maxconn 200",
        "bind :8000": f"bind 127.0.0.1:{port}",
        "bind 127.0.0.1:8404": f"bind 127.0.0.1:{health}",
        " inter 2s fall 2 rise 1 resolvers docker init-addr none": " inter 100ms fall 2 rise 1",
        '    server-template gateway- "${KIMI_REPLICAS}" gateway:8000': "\n".join(
            f"    server gateway-{one} 127.0.0.1:{one}" for one in pair_ports
        ),
    }
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two gateways on one upstream behind the balancer; the last test stops them."""
    command, home = haproxy(), tmp_path_factory.mktemp("balancer")
    with ExitStack() as stack:
        upstream = stack.enter_context(ScriptedUpstream())
        config = (
            f"[server]\ndrain_grace_s = {_GRACE_S}\n"
            f'[[keys]]\nname = "a"\nkey_env = "CALLER"\n[[targets]]\nname = "up"\ndialect = "moonshot"\n'
            f'base_url = "{upstream.base_url}"\napi_key_env = "UP"\n'
        )
        env = {"CALLER": "test-caller", "UP": "test-upstream"}
        gateways = (
            stack.enter_context(gateway_process(config, env)),
            stack.enter_context(gateway_process(config, env)),
        )
        port, health = free_port(), free_port()
        ports = [int(one.root_url.rpartition(":")[2]) for one in gateways]
        (home / "haproxy.cfg").write_text(config_of(ports, port, health))
        started: Program = stack.enter_context(
            program([command, "-db", "-f", str(home / "haproxy.cfg")], directory=home)
        )
        started.wait_for_http(f"http://127.0.0.1:{health}/health")
        found = Pair(gateways, upstream, port, health)
        until(lambda: found.ready() == 200)
        yield found


def until(true: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Waits until a function is true."""
    end_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_the_file_as_it_is_shipped_is_valid() -> None:
    done = subprocess.run(
        [haproxy(), "-c", "-f", str(FILE)],
        env={"KIMI_REPLICAS": "2", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not re.search(r"\[WARNING\]|\[ALERT\]", done.stdout + done.stderr)


def test_chunks_come_through_one_by_one(pair: Pair) -> None:
    pair.upstream.add(ANSWER)
    begun_s = time.monotonic()
    with pair.stream() as reply:
        assert reply.status == 200, reply.read()
        seen = [(time.monotonic() - begun_s, line) for line in reply if line.startswith(b"data: ")]
    at_s = {word: when for when, line in seen for word in (b"one", b"two", b"three") if word in line}
    assert seen[-1][1].strip() == b"data: [DONE]"
    assert at_s[b"two"] - at_s[b"one"] > _GAP_S / 2
    assert at_s[b"three"] - at_s[b"two"] > _GAP_S / 2


def test_who_leaves_is_gone_for_the_gateway_too(pair: Pair) -> None:
    pair.upstream.add(LONG)
    with pair.stream() as reply:
        assert reply.read(50)
        request_id, index = reply.headers["x-kimi-request-id"], _busy(pair)
    assert wait_for_row(ledger_url(pair.gateways[index]), request_id).status == "client_disconnected"


def test_a_gateway_that_is_told_to_stop_ends_its_stream_and_no_request_fails_meanwhile(pair: Pair) -> None:
    pair.upstream.add(
        {"status": 200, "timeline": [[0, chunk("one ")], [3, chunk("", '"stop"') + "data: [DONE]\n\n"]]}
    )
    with pair.stream() as reply:
        first = reply.readline()
        index = _busy(pair)
        pair.gateways[index].program.signal(signal.SIGTERM)
        for number in range(25):
            pair.upstream.add({"status": 200, "json": _whole(str(number))})
            assert post(pair.base_url, REQUEST, KEY).status == 200
            time.sleep(_GRACE_S / 12)
        rest = first + reply.read()
    assert rest.endswith(b"data: [DONE]\n\n")
    assert pair.gateways[index].program.wait() == 0
    assert pair.ready() == 200
    pair.gateways[1 - index].program.signal(signal.SIGTERM)
    until(lambda: pair.ready() != 200)


def _whole(text: str) -> dict[str, object]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "c",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _busy(pair: Pair) -> int:
    """Which gateway has an open answer."""
    for index, one in enumerate(pair.gateways):
        connection = http.client.HTTPConnection(one.root_url.removeprefix("http://"), timeout=5)
        try:
            connection.request("GET", "/ready")
            if json.loads(connection.getresponse().read())["open_answers"]:
                return index
        finally:
            connection.close()
    raise AssertionError("neither has an open answer")
