"""Ends that are not clean: a client that leaves, a reader that stalls, an upstream that never starts."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.lab import Lab, lab, ledger_url, wait_for_row
from support.scripted import dead_port

ASK: dict[str, Any] = {
    "model": "kimi-k3.1-pro",
    "stream": True,
    "messages": [{"role": "user", "content": "long story, 400 words of prompt"}],
}


def chunk(text: str) -> str:
    data = {"id": "c-1", "model": "kimi-k3.1-pro", "choices": [{"index": 0, "delta": {"content": text}}]}
    return f"data: {json.dumps(data)}\n\n"


@pytest.fixture(scope="module")
def quick_lab() -> Iterator[Lab]:
    with lab(
        server="drain_grace_s = 0\nclient_stall_timeout_s = 1\nkeepalive_interval_s = 0.2", idle_timeout_s=2
    ) as made:
        yield made


def open_stream(made: Lab, target: str) -> tuple[socket.socket, str]:
    """A raw client with the head of its answer read; the request id."""
    host, port = made.gateway.root_url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)), timeout=10)
    body = json.dumps(ASK).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"x-kimi-target: {target}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    client.sendall(head.encode() + body)
    received = b""
    while b"upon" not in received:
        received += client.recv(65536)
    line = next(line for line in received.decode().split("\r\n") if line.startswith("x-kimi-request-id"))
    return client, line.split(": ")[1]


def test_a_client_that_leaves_cancels_the_upstream_and_is_billed_an_estimate(quick_lab: Lab) -> None:
    upstream = quick_lab.upstreams["vllm"]
    upstream.add({"status": 200, "timeline": [[0, chunk("Once ")], [0.1, chunk("upon ")], [30, chunk("a time")]]})
    client, request_id = open_stream(quick_lab, "vllm")
    left_at = time.monotonic()
    client.close()
    received = upstream.wait_for_disconnect(3)
    assert received.closed_by_client_at is not None
    assert received.closed_by_client_at - left_at < 1
    row = wait_for_row(ledger_url(quick_lab.gateway), request_id)
    assert (row.status, row.estimated) == ("client_disconnected", True)
    assert row.prompt_tokens
    assert row.completion_tokens
    assert row.cost_nano
    assert row.estimate_bound_nano is not None
    assert row.attempts[0].maybe_billed


def test_a_reader_that_takes_nothing_is_dropped(quick_lab: Lab) -> None:
    upstream = quick_lab.upstreams["sglang"]
    flood = [[0, chunk("Once ")], [0.05, chunk("upon ")], *[[0.1, chunk("x" * 900_000)] for _ in range(40)]]
    upstream.add({"status": 200, "timeline": flood})
    client, request_id = open_stream(quick_lab, "sglang")
    try:
        row = wait_for_row(ledger_url(quick_lab.gateway), request_id)
        assert (row.status, row.estimated) == ("client_stalled", True)
        upstream.wait_for_disconnect(3)
    finally:
        client.close()


def test_an_upstream_that_never_starts_gets_keep_alives_and_an_error_event(quick_lab: Lab) -> None:
    first = ": waiting\n\n"
    heard = quick_lab.ask(ASK, {"status": 200, "timeline": [[0, first], [30, first]]}, target="vllm")
    assert heard.status == 200
    assert heard.comments >= 3
    assert (heard.error["type"], heard.error["status"], heard.done) == ("upstream_timeout", 504, False)
    row = quick_lab.row(heard)
    assert (row["status"], row["stream"]) == ("error", True)


def test_a_refused_connection_is_a_502_with_a_row_that_owes_nothing() -> None:
    with dead_port() as port, lab(extra=_target("dead", port)) as made:
        made.upstreams["moonshot"].add()
        heard = made.ask({**ASK, "stream": False}, target="moonshot", headers={"x-kimi-target": "dead"})
        assert (heard.status, heard.error["type"], heard.error["code"]) == (502, "upstream_error", "bad_gateway")
        assert str(port) not in heard.error["message"]
        row = made.row(heard)
        assert (row["status"], row["cost_usd"], row["prompt_tokens"]) == ("error", "0", None)
        assert row["attempt_log"][0]["fault"] == "connect"
        assert str(port) in row["attempt_log"][0]["message"]


def _target(name: str, port: int) -> str:
    return (
        f'[[targets]]\nname = "{name}"\ndialect = "vllm"\nbase_url = "http://127.0.0.1:{port}/v1"\n'
        'models = { "kimi-k3.1-pro" = "m" }\n'
    )


def test_a_slow_unstreamed_answer_outlives_the_idle_limit(quick_lab: Lab) -> None:
    """Unstreamed requests are streamed upstream, so the idle limit sees the chunks."""
    finish = chunk("end").replace('"delta"', '"finish_reason": "stop", "delta"')
    timeline = [*[[step, chunk(f"{step} ")] for step in range(1, 11)], [10.1, finish + "data: [DONE]\n\n"]]
    heard = quick_lab.ask({**ASK, "stream": False}, {"status": 200, "timeline": timeline}, target="vllm")
    assert heard.json["choices"][0]["message"]["content"] == "1 2 3 4 5 6 7 8 9 10 end"
    assert heard.headers["x-kimi-attempts"] == "1"


def test_a_body_that_stops_arriving_is_a_408(quick_lab: Lab) -> None:
    host, port = quick_lab.gateway.root_url.removeprefix("http://").split(":")
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(f'{head}Content-Length: 1000\r\n\r\n{{"model":'.encode())
        received = b""
        while part := client.recv(65536):
            received += part
    assert received.startswith(b"HTTP/1.1 408")
    assert b"body_timeout" in received
