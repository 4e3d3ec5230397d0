"""A serving gateway in a process of its own: what it says, and what each signal does."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.processes import clean_environment, free_port, gateway_process
from support.scripted import ScriptedUpstream

KIMI = [sys.executable, "-m", "kimi_gateway"]
SERVER = "[server]\ndrain_grace_s = 0.3\ndrain_timeout_s = 1\n"
SETTLED = re.compile(r'"event":"request"')


def target(upstream: ScriptedUpstream, name: str = "engine") -> str:
    return (
        f'[[targets]]\nname = "{name}"\ndialect = "vllm"\nbase_url = "{upstream.base_url}"\n'
        'models = { "kimi-k3.1-pro" = "moonshotai/Kimi-K3.1-Pro" }\n'
    )


def get(url: str, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request("GET", f"/{path}", headers=dict(headers or {}))
        reply = connection.getresponse()
        raw = reply.read()
        return reply.status, json.loads(raw) if raw[:1] == b"{" else raw
    finally:
        connection.close()


def test_the_start_says_where_what_and_who(tmp_path: Path) -> None:
    # This one starts as for everybody, not forked.
    with (
        ScriptedUpstream() as upstream,
        gateway_process(target(upstream), directory=tmp_path, anew=True) as gateway,
    ):
        said = gateway.program.stdout()
        lines = said.splitlines()
        assert lines[1].split() == ["base", "URL", gateway.base_url]
        assert f"engine (vllm) {upstream.base_url}" in said
        assert "kimi-k3.1-pro, moonshotai/kimi-k3.1-pro, moonshotai/Kimi-K3.1-Pro -> engine" in said
        assert f"sqlite:///{tmp_path / 'kimi-ledger.db'}" in said
        assert "open mode" in said
        assert str(tmp_path / "kimi-gateway.toml") in said
        assert "note      engine: no rate card prices" in said
        assert 'set prices = { input = …, output = … } in targets["engine"]' in said
        assert get(f"{gateway.root_url}/ready")[0] == 200


def test_with_no_target_the_emulator_answers_and_the_start_says_so(tmp_path: Path) -> None:
    with gateway_process(SERVER, directory=tmp_path, arguments=["--emulator-if-empty"]) as gateway:
        assert "built-in emulator" in gateway.program.stdout()
        assert [one["name"] for one in get(f"{gateway.root_url}/ready")[1]["targets"]] == ["emulator"]
        status, body = chat(gateway.base_url, reasoning_effort="low")  # which the emulator has done soonest
        assert (status, body["kimi"]["target"]) == (200, "emulator")
        assert body["choices"][0]["message"]["reasoning_content"]
        gateway.program.wait_for_line(SETTLED)
        assert gateway.stop() == 0


@contextmanager
def asked(
    base_url: str, *, stream: bool = False, content: str = "hi", **more: Any
) -> Iterator[http.client.HTTPResponse]:
    """The answer to one chat request, to be read."""
    connection = http.client.HTTPConnection(base_url.removeprefix("http://").removesuffix("/v1"), timeout=30)
    body = {"model": "kimi-k3.1-pro", "stream": stream, "messages": [{"role": "user", "content": content}], **more}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        with connection.getresponse() as reply:
            yield reply
    finally:
        connection.close()


def chat(base_url: str, *, content: str = "hi", **more: Any) -> tuple[int, Any]:
    """Status and body of one chat request."""
    with asked(base_url, content=content, **more) as reply:
        return reply.status, json.loads(reply.read())


ANSWER = {"status": 200, "json_usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}


def test_the_log_holds_a_line_per_request_and_neither_prompt_nor_secret(tmp_path: Path) -> None:
    env = {"ENGINE_KEY": "planted-engine-key", "KIMI_ADMIN_KEY": "planted-admin-key"}
    with ScriptedUpstream([ANSWER, {"status": 401, "json": {"error": "planted-engine-key"}}]) as upstream:
        config = SERVER + target(upstream) + 'api_key_env = "ENGINE_KEY"\n'
        with gateway_process(config, env, directory=tmp_path) as gateway:
            assert chat(gateway.base_url, content="planted prompt")[0] == 200
            assert chat(gateway.base_url, content="planted prompt")[0] == 502
            assert gateway.stop() == 0
            said = gateway.output()
    lines = [json.loads(line) for line in gateway.program.stderr().splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert [line["status"] for line in requests] == ["ok", "error"]
    assert "planted" not in said


def test_a_signal_makes_it_not_ready_then_ends_it_with_0(tmp_path: Path) -> None:
    server = "[server]\ndrain_grace_s = 1\ndrain_timeout_s = 5\n"
    with ScriptedUpstream([ANSWER]) as upstream, gateway_process(server + target(upstream)) as gateway:
        gateway.program.signal(signal.SIGTERM)
        deadline = time.monotonic() + 1
        while get(f"{gateway.root_url}/ready")[0] != 503:
            assert time.monotonic() < deadline
        assert chat(gateway.base_url)[0] == 200
        assert gateway.program.wait() == 0


def test_an_interrupt_from_the_keyboard_drains_as_well(tmp_path: Path) -> None:
    with ScriptedUpstream() as upstream, gateway_process(SERVER + target(upstream)) as gateway:
        gateway.program.signal(signal.SIGINT)
        assert gateway.program.wait() == 0


def hold_a_stream(gateway_url: str, upstream: ScriptedUpstream) -> tuple[threading.Thread, list[bytes]]:
    """A streaming client whose upstream has begun and says no more; what it hears comes into the list."""
    first = 'data: {"id":"c","choices":[{"index":0,"delta":{"content":"part"},"finish_reason":null}]}\n\n'
    upstream.add({"status": 200, "timeline": [[0, first], [60, ""]]})
    heard: list[bytes] = []

    def listen() -> None:
        try:
            with asked(gateway_url, stream=True) as reply:
                while data := reply.read1(65536):
                    heard.append(data)
        except (OSError, http.client.HTTPException):
            heard.append(b"<cut>")

    thread = threading.Thread(target=listen)
    thread.start()
    deadline = time.monotonic() + 10
    while not any(b"part" in data for data in heard):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return thread, heard


def test_at_the_drains_end_an_open_stream_hears_why_and_is_booked(tmp_path: Path) -> None:
    with ScriptedUpstream() as upstream, gateway_process(SERVER + target(upstream)) as gateway:
        thread, heard = hold_a_stream(gateway.base_url, upstream)
        assert gateway.stop() == 0
        thread.join(10)
        assert b'"code":"shutting_down"' in heard[-1]
        assert b"[DONE]" not in b"".join(heard)
        assert '"status":"shutting_down"' in gateway.program.stderr()


def test_a_client_that_takes_nothing_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    """Its answer is larger than every buffer on the way; it is booked, and the connection is cut."""
    event = {"id": "c", "choices": [{"index": 0, "delta": {"content": "a" * 100_000}, "finish_reason": None}]}
    upstream_answer = {"status": 200, "timeline": [[0, f"data: {json.dumps(event)}\n\n" * 200], [60, ""]]}
    body = json.dumps({"model": "kimi-k3.1-pro", "stream": True, "messages": [{"role": "user", "content": "hi"}]})
    server = "[server]\ndrain_grace_s = 0\ndrain_timeout_s = 0.5\n"
    with ScriptedUpstream([upstream_answer]) as upstream, gateway_process(server + target(upstream)) as gateway:
        host, _, port = gateway.root_url.removeprefix("http://").partition(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            client.sendall(
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            client.recv(100)  # the answer has begun, and that is all it takes
            time.sleep(0.5)
            began = time.monotonic()
            assert gateway.stop() == 0
            assert time.monotonic() - began < 0.5 + 3
        lines = [json.loads(line) for line in gateway.program.stderr().splitlines()]
    assert [line["status"] for line in lines if line["event"] == "request"] == ["shutting_down"]
    assert [line for line in lines if line["level"] == "error"] == []
    assert lines[-1]["clean"]


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    server = "[server]\ndrain_grace_s = 30\ndrain_timeout_s = 60\n"
    with ScriptedUpstream() as upstream, gateway_process(server + target(upstream)) as gateway:
        thread, _ = hold_a_stream(gateway.base_url, upstream)
        gateway.program.signal(signal.SIGTERM)
        gateway.program.wait_for_line(re.compile("stopping: not ready"))
        began = time.monotonic()
        gateway.program.signal(signal.SIGTERM)
        assert gateway.program.wait() == 128 + signal.SIGTERM
        assert time.monotonic() - began < 5
        thread.join(10)
        assert "second signal: ending at once with 1 open answers" in gateway.program.stderr()


def test_a_hangup_reloads_targets_routes_and_keys_without_a_pause(tmp_path: Path) -> None:
    keyed = '[[keys]]\nname = "team-a"\nkey_env = "TEAM_A"\n'
    with (
        ScriptedUpstream() as first,
        ScriptedUpstream() as second,
        gateway_process(SERVER + target(first), {"TEAM_A": "kg-team-a-secret"}, directory=tmp_path) as gateway,
    ):
        names = [one["name"] for one in get(f"{gateway.root_url}/ready")[1]["targets"]]
        config = tmp_path / "kimi-gateway.toml"
        config.write_text(SERVER + target(second, "second") + keyed)
        gateway.program.signal(signal.SIGHUP)
        gateway.program.wait_for_line(re.compile('"message":"reloaded"'))
        assert names == ["engine"]
        assert [one["name"] for one in get(f"{gateway.root_url}/ready")[1]["targets"]] == ["second"]
        assert get(f"{gateway.base_url}/models")[0] == 401
        bearer = {"authorization": "Bearer kg-team-a-secret"}
        assert get(f"{gateway.base_url}/models", bearer)[0] == 200
        assert gateway.stop() == 0


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("[server\n", "not TOML"),
        ("[servr]\n", "servr: is not a section"),
        (SERVER, "no target is configured"),
    ],
)
def test_an_invalid_file_at_a_hangup_changes_nothing_and_says_why(tmp_path: Path, broken: str, words: str) -> None:
    with (
        ScriptedUpstream([ANSWER]) as upstream,
        gateway_process(SERVER + target(upstream), directory=tmp_path) as gateway,
    ):
        (tmp_path / "kimi-gateway.toml").write_text(broken)
        gateway.program.signal(signal.SIGHUP)
        gateway.program.wait_for_line(re.compile("reload refused, the settings in force stay.*" + words))
        assert chat(gateway.base_url)[0] == 200


def test_what_is_bound_waits_for_the_next_start(tmp_path: Path) -> None:
    with ScriptedUpstream() as upstream, gateway_process(SERVER + target(upstream), directory=tmp_path) as gateway:
        text = SERVER + "max_connections = 7\n" + target(upstream) + '[ledger]\nurl = "sqlite:///other.db"\n'
        (tmp_path / "kimi-gateway.toml").write_text(text)
        gateway.program.signal(signal.SIGHUP)
        waits = gateway.program.wait_for_line(re.compile('takes effect at the next start only: ([^"]*)'))
        assert waits.group(1) == "server.max_connections, ledger"
        assert not (tmp_path / "other.db").exists()


def test_metrics_move_to_the_admin_listener(tmp_path: Path) -> None:
    port = free_port()
    admin = f'[admin]\nlisten = "127.0.0.1:{port}"\n'
    with ScriptedUpstream() as upstream, gateway_process(admin + target(upstream)) as gateway:
        assert get(f"{gateway.root_url}/metrics")[0] == 404
        status, text = get(f"http://127.0.0.1:{port}/metrics")
        assert status == 200
        assert b"kimi_event_loop_lag_seconds" in text
        assert f"http://127.0.0.1:{port}/metrics" in gateway.program.stdout()


def test_an_engine_without_stated_models_answers_with_the_only_one_it_lists(tmp_path: Path) -> None:
    with (
        ScriptedUpstream([ANSWER], models=["my-kimi"]) as upstream,
        gateway_process(SERVER, {"VLLM_BASE_URL": upstream.base_url}) as gateway,
    ):
        assert chat(gateway.base_url)[0] == 200
        assert upstream.requests[0].json["model"] == "my-kimi"


def test_output_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "kimi-gateway.toml").write_text(SERVER)
    port = free_port()
    command: Sequence[str] = [*KIMI, "serve", "--port", str(port), "--emulator-if-empty"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            process.stderr.close()
            deadline = time.monotonic() + 40
            while not answers(port):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert chat(f"http://127.0.0.1:{port}/v1", reasoning_effort="low")[0] == 200
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()


def answers(port: int) -> bool:
    try:
        return get(f"http://127.0.0.1:{port}/health")[0] == 200
    except OSError:
        return False
