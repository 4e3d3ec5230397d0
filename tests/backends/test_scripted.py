"""The scripted upstream and the process support, seen with a raw socket: what other tests stand on."""

import asyncio
import base64
import http.client
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from backends.json import as_object, decode
from support.exchange import ClientLeft, Exchange
from support.processes import clean_environment, free_port, program
from support.scripted import Answer, ScriptedUpstream, dead_port, unread

HI = b'{"model":"kimi-k3.1-pro","messages":[]}'


def request(body: bytes = HI, *, extra: str = "") -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Order: 1\r\n{extra}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@contextmanager
def client(up: ScriptedUpstream) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", up.port), timeout=5) as sock:
        yield sock


def read_to_end(sock: socket.socket) -> bytes:
    data = b""
    while part := sock.recv(65536):
        data += part
    return data


def post(up: ScriptedUpstream, body: bytes = HI) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", up.port, timeout=5)
    try:
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
    finally:
        connection.close()


def test_answers_come_in_order_and_then_say_that_none_is_left() -> None:
    with ScriptedUpstream([{"status": 429, "headers": {"Retry-After": "7"}, "json": {"error": {}}}]) as up:
        status, headers, body = post(up)
        assert (status, headers["retry-after"], headers["content-type"], body) == (
            429,
            "7",
            "application/json",
            b'{"error":{}}',
        )
        assert post(up)[0] == 599


def test_the_last_answer_repeats_where_asked_for() -> None:
    with ScriptedUpstream([{"status": 400, "text": "no"}, {"status": 200, "text": "yes"}], repeat_last=True) as up:
        assert [post(up)[0] for _ in range(4)] == [400, 200, 200, 200]


def test_a_request_is_recorded_as_it_came() -> None:
    with ScriptedUpstream([{"status": 200, "json": {}}]) as up, client(up) as sock:
        sock.sendall(request(extra="X-Twice: a\r\nx-twice: b\r\n"))
        sock.recv(65536)
        (received,) = up.wait_for_requests(1)
        assert (received.method, received.path) == ("POST", "/v1/chat/completions")
        assert [name for name, _ in received.raw_headers] == [
            "Host",
            "X-Order",
            "X-Twice",
            "x-twice",
            "Content-Length",
        ]
        assert received.headers["x-order"] == "1"
        assert received.body == HI
        assert received.json["model"] == "kimi-k3.1-pro"
        assert received.closed_by_client_at is None


def test_a_usage_answer_names_the_model_that_was_asked_for() -> None:
    with ScriptedUpstream([{"status": 200, "json_usage": {"prompt_tokens": 3}}]) as up:
        body = as_object(decode(post(up)[2]))
    assert body is not None
    assert body["model"] == "kimi-k3.1-pro"
    assert body["usage"] == {"prompt_tokens": 3}
    assert body["object"] == "chat.completion"


def test_framed_answers_keep_the_connection() -> None:
    stream = {"status": 200, "sse_text": "data: 1\n\n"}
    with ScriptedUpstream([{"status": 200, "json": {}}, stream, {"status": 200, "json": {}}]) as up:
        connection = http.client.HTTPConnection("127.0.0.1", up.port, timeout=5)
        for _ in range(3):
            connection.request("POST", "/v1/chat/completions", HI)
            connection.getresponse().read()
        connection.close()
        assert [received.connection for received in up.requests] == [0, 0, 0]


def test_separate_writes_arrive_as_separate_reads() -> None:
    parts = [b"data: a", b"\r\n\r", b"\ndata: b\n\n"]
    answer = {
        "status": 200,
        "framing": "until-close",
        "sse_b64_chunks": [base64.b64encode(p).decode() for p in parts],
    }
    with ScriptedUpstream([answer]) as up, client(up) as sock:
        sock.sendall(request())
        head = sock.recv(65536)
        reads = []
        while part := sock.recv(65536):
            reads.append(part)
    first = head.partition(b"\r\n\r\n")[2]  # may still be on its way when the head is read
    assert [part for part in (first, *reads) if part] == parts


def test_a_timeline_is_kept_and_can_be_shortened() -> None:
    answer = {"status": 200, "framing": "until-close", "timeline": [[0, "a"], [20, "b"], [40, "c"]]}
    with ScriptedUpstream([answer], time_factor=0.005) as up, client(up) as sock:
        began = time.monotonic()
        sock.sendall(request())
        assert read_to_end(sock).endswith(b"abc")
        assert 0.2 <= time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("answer", "ending"),
    [
        ({"status": 200, "sse_text": "data: 1\n\n"}, b"9\r\ndata: 1\n\n\r\n0\r\n\r\n"),
        ({"status": 200, "sse_text": "data: 1\n\n", "then": "close"}, b"9\r\ndata: 1\n\n\r\n"),
        ({"status": 200, "sse_text": "data: 1\n\n", "framing": "until-close"}, b"\r\n\r\ndata: 1\n\n"),
        ({"status": 200, "text": "hello", "framing": "short"}, b"Content-Length: 15\r\n\r\nhello"),
    ],
)
def test_each_framing_ends_in_its_own_way(answer: dict[str, Any], ending: bytes) -> None:
    with ScriptedUpstream([answer]) as up, client(up) as sock:
        sock.sendall(request(extra="Connection: close\r\n"))
        sock.settimeout(0.5)
        data = b""
        try:
            while part := sock.recv(65536):
                data += part
        except TimeoutError:
            pass  # a complete chunked answer keeps the connection
    assert data.endswith(ending)


def test_a_reset_is_a_reset() -> None:
    with ScriptedUpstream([{"then": "reset"}]) as up, client(up) as sock:
        sock.sendall(request())
        with pytest.raises(ConnectionResetError):
            sock.recv(65536)


def test_a_held_stream_sees_its_client_leave() -> None:
    with ScriptedUpstream([{"status": 200, "sse_text": "data: 1\n\n", "then": "hold"}]) as up:
        with client(up) as sock:
            sock.sendall(request())
            assert sock.recv(65536)
            left_s = time.monotonic()
        received = up.wait_for_disconnect(2)
        assert received.closed_by_client_at is not None
        assert 0 <= received.closed_by_client_at - left_s < 1


def test_waiting_for_what_does_not_come_fails() -> None:
    with ScriptedUpstream() as up:
        with pytest.raises(AssertionError, match="1 requests did not come within"):
            up.wait_for_requests(1, 0.05)
        with pytest.raises(AssertionError, match="disconnect"):
            up.wait_for_disconnect(0.05)


def test_a_refused_attempt_is_refused_until_the_test_lets_it_in() -> None:
    answers: list[Answer] = [{"status": 200, "text": "a"}, {"connect": "refused"}, {"status": 200, "text": "b"}]
    with ScriptedUpstream(answers) as up:
        assert post(up)[2] == b"a"
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                post(up)
        up.let_in()
        assert post(up)[2] == b"b"
        assert len(up.requests) == 2


def test_a_refusal_can_end_by_itself() -> None:
    with ScriptedUpstream([{"connect": "refused"}, {"status": 200, "text": "b"}]) as up:
        with pytest.raises(ConnectionRefusedError):
            post(up)
        up.let_in_after(0.05)
        end_s = time.monotonic() + 5
        while True:
            try:
                assert post(up)[2] == b"b"
                break
            except ConnectionRefusedError:
                assert time.monotonic() < end_s
                time.sleep(0.01)


def test_an_answer_before_a_refusal_does_not_keep_its_connection() -> None:
    with ScriptedUpstream([{"status": 200, "text": "a"}, {"connect": "refused"}]) as up, client(up) as sock:
        sock.sendall(request())
        assert read_to_end(sock).endswith(b"a")


def test_a_dead_port_refuses() -> None:
    with dead_port() as port, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_models_are_listed_without_taking_an_answer() -> None:
    with ScriptedUpstream([{"status": 200, "text": "a"}], models=["m"]) as up:
        connection = http.client.HTTPConnection("127.0.0.1", up.port, timeout=5)
        connection.request("GET", "/v1/models")
        listed = as_object(decode(connection.getresponse().read()))
        connection.close()
        assert listed is not None
        assert listed["data"] == [{"id": "m", "object": "model", "owned_by": "scripted"}]
        assert post(up)[2] == b"a"
        assert [probe.path for probe in up.probes] == ["/v1/models"]


def test_a_script_may_answer_before_it_read_the_body() -> None:
    @unread
    async def early(exchange: Exchange) -> None:
        await exchange.head(413, [("Content-Length", "0")])
        assert await exchange.body() == HI

    with ScriptedUpstream([early]) as up, client(up) as sock:
        sock.sendall(request()[: -len(HI)])
        assert sock.recv(65536).startswith(b"HTTP/1.1 413")
        sock.sendall(HI)
        assert read_to_end(sock) == b""


def test_the_exception_of_a_script_is_raised_at_the_end() -> None:
    async def broken(exchange: Exchange) -> None:
        raise LookupError("this script is wrong")

    up = ScriptedUpstream([broken])
    up.__enter__()
    with client(up) as sock:
        sock.sendall(request())
        assert read_to_end(sock) == b""
    with pytest.raises(LookupError, match="this script is wrong"):
        up.__exit__(None, None, None)


def test_writing_waits_for_a_client_that_does_not_read() -> None:
    written = 0

    async def flood(exchange: Exchange) -> None:
        nonlocal written
        while written < 64 << 20:
            await exchange.write(bytes(65536))
            written += 65536

    with ScriptedUpstream([flood]) as up, client(up) as sock:
        sock.sendall(request())
        up.wait_for_requests(1)
        time.sleep(0.2)
        assert written < 32 << 20


def test_nothing_is_left_behind() -> None:
    before = threading.active_count()
    with ScriptedUpstream([{"status": 200, "sse_text": "data: 1\n\n", "then": "hold"}]) as up, client(up) as sock:
        sock.sendall(request())
        assert sock.recv(65536)
    assert threading.active_count() == before


def test_leaving_ends_a_pause() -> None:
    ended: list[bool] = []

    async def slow(exchange: Exchange) -> None:
        try:
            await exchange.pause(30)
        except (ClientLeft, asyncio.CancelledError) as err:
            ended.append(isinstance(err, ClientLeft))
            raise

    with ScriptedUpstream([slow]) as up:
        with client(up) as sock:
            sock.sendall(request())
            up.wait_for_requests(1)
        up.wait_for_disconnect(1)
    assert ended == [True]


SERVER = """
import http.server, sys
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler)
print("ready on", server.server_port)
server.serve_forever()
"""


def test_a_program_is_waited_for_and_stopped() -> None:
    with program([sys.executable, "-c", SERVER, "0"], ready=re.compile(r"ready on (\d+)")) as started:
        port = started.wait_for_line(re.compile(r"ready on (\d+)")).group(1)
        assert started.wait_for_http(f"http://127.0.0.1:{port}/") == 200
        assert started.stop() == -15
        assert "ready on" in started.stdout()
        assert "GET / " in started.stderr()


def test_a_program_that_ends_early_shows_its_output() -> None:
    with (
        program([sys.executable, "-c", "raise SystemExit('no such thing')"]) as started,
        pytest.raises(AssertionError, match=r"ended with 1 before(?s:.*)no such thing"),
    ):
        started.wait_for_line(re.compile("ready"), 10)


def test_a_program_that_will_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    stubborn = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print('child', child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with program([sys.executable, "-c", stubborn], directory=tmp_path) as started:
        child = int(started.wait_for_line(re.compile(r"child (\d+)\n")).group(1))
        with pytest.raises(AssertionError, match="still running"):
            started.stop(0.2)
        assert started.kill() == -9
    end_s = time.monotonic() + 5
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_programs_do_not_inherit_what_the_product_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONSHOT_API_KEY", "sk-of-a-developer")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example")
    env = clean_environment({"KIMI_LEDGER_URL": "sqlite:///x.db"})
    assert "MOONSHOT_API_KEY" not in env
    assert "HTTPS_PROXY" not in env
    assert env["KIMI_LEDGER_URL"] == "sqlite:///x.db"


def test_free_ports_can_be_bound() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", free_port()))
