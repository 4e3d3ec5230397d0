"""What hostile or broken upstreams and clients once broke: an honest answer and one settled row each."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.lab import Lab, lab, ledger_url, post, wait_for_row

HI: dict[str, Any] = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "hi"}]}
HUGE = "1e9999999999999999999"


def whole(
    usage: str = '{"prompt_tokens":5,"completion_tokens":1}', model: str = "kimi-k3.1-pro", **extra: Any
) -> Any:
    """A streamed answer with this usage, spelt as it is."""
    choice = '[{"index":0,"delta":{"content":"ok"},"finish_reason":"stop"}]'
    text = f'data: {{"id":"c","model":{json.dumps(model)},"choices":{choice},"usage":{usage}}}\n\ndata: [DONE]\n\n'
    return {"status": 200, "sse_text": text, **extra}


@pytest.mark.parametrize("field", ["temperature", "top_p", "n", "max_tokens", "tool_choice", "thinking"])
def test_a_number_out_of_range_in_a_request_is_a_400(shared_lab: Lab, field: str) -> None:
    body = json.dumps({**HI, field: "NUMBER"}).replace('"NUMBER"', HUGE).encode()
    heard = shared_lab.ask(body)
    assert (heard.status, heard.error["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("usage", [f'{{"prompt_tokens":{HUGE}}}', f'{{"foo":{HUGE}}}'])
def test_a_number_out_of_range_in_an_answer_is_a_bad_gateway(shared_lab: Lab, usage: str, stream: bool) -> None:
    heard = shared_lab.ask({**HI, "stream": stream}, *[whole(usage)] * 3, target="vllm")
    assert (heard.status, heard.error["type"]) == (502, "upstream_error")
    assert shared_lab.row(heard)["status"] == "error"
    shared_lab.upstreams["vllm"].forget()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("cost", ["1e20", "1e400", "-1", '"free"', "1000001", str(10**30)])
def test_a_cost_that_is_no_amount_is_an_anomaly_and_the_answer_goes_through(
    shared_lab: Lab, cost: str, stream: bool
) -> None:
    usage = f'{{"prompt_tokens":5,"completion_tokens":1,"cost":{cost}}}'
    answer = whole(usage, model="moonshotai/kimi-k3.1-pro")
    heard = shared_lab.ask({**HI, "stream": stream}, answer, target="openrouter")
    assert heard.error is None
    row = shared_lab.row(heard)
    assert (row["status"], row["cost_usd"]) == ("ok", "0.00002")
    assert "cost_invalid" in row["anomaly"]


def test_counts_beyond_any_window_are_not_billed(shared_lab: Lab) -> None:
    usage = f'{{"prompt_tokens":{2**53},"completion_tokens":{2**53}}}'
    heard = shared_lab.ask({**HI, "stream": True}, whole(usage))
    row = shared_lab.row(heard)
    assert row["estimated"] is True
    assert float(row["cost_usd"]) < 1


@pytest.mark.parametrize("value", ["a\xff\xfeb", "日本", "a" * 5000])
def test_an_upstreams_request_id_of_any_bytes_is_booked(shared_lab: Lab, value: str) -> None:
    raw = value.encode("latin-1", "ignore").decode("latin-1")
    heard = shared_lab.ask({**HI, "stream": True}, whole(headers={"x-request-id": raw}))
    assert heard.done
    assert shared_lab.row(heard)["status"] == "ok"


@pytest.mark.parametrize("model", ["a\nb", "evil\r\nSet-Cookie: x=1", "a\0b", "模型", "m" * 100_000])
@pytest.mark.parametrize("stream", [True, False])
def test_an_upstreams_model_of_any_characters_breaks_no_header(shared_lab: Lab, model: str, stream: bool) -> None:
    heard = shared_lab.ask({**HI, "stream": stream}, whole(model=model))
    assert heard.status == 200
    assert "set-cookie" not in heard.headers
    assert len(heard.headers["x-kimi-model"]) <= 4096
    row = shared_lab.row(heard)
    assert (row["status"], row["cost_source"], "other_model" in row["anomaly"]) == ("ok", "unpriced", True)


@pytest.mark.parametrize("stream", [True, False])
def test_a_json_answer_without_finish_reason_is_incomplete(shared_lab: Lab, stream: bool) -> None:
    choice = {"index": 0, "finish_reason": None, "message": {"role": "assistant", "content": "half"}}
    heard = shared_lab.ask({**HI, "stream": stream}, {"status": 200, "json": {"choices": [choice]}})
    assert heard.error["type"] == "upstream_error"
    assert shared_lab.row(heard)["status"] == "incomplete"


@pytest.mark.parametrize("stream", [True, False])
def test_a_json_answer_of_20_mb_is_passed_on(shared_lab: Lab, stream: bool) -> None:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x" * 20_000_000}}
    usage = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
    heard = shared_lab.ask(
        {**HI, "stream": stream}, {"status": 200, "json": {"choices": [choice], "usage": usage}}
    )
    text = heard.joined("content") if stream else heard.json["choices"][0]["message"]["content"]
    assert len(text) == 20_000_000


def test_a_key_that_an_upstream_repeats_reaches_nobody(shared_lab: Lab) -> None:
    error = {"error": {"message": "refused for sk-lab-upstream, sorry", "type": "invalid_request_error"}}
    heard = shared_lab.ask(HI, {"status": 400, "json": error})
    assert heard.status == 400
    assert b"lab-upstream" not in heard.raw
    assert "lab-upstream" not in json.dumps(shared_lab.row(heard))
    assert "lab-upstream" not in shared_lab.gateway.output()


@pytest.mark.parametrize("stream", [True, False])
def test_an_absurdly_short_patience_does_not_set_the_pace(shared_lab: Lab, stream: bool) -> None:
    late = [[1.2, 'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n']]
    headers = {"x-stainless-read-timeout": "1e-300"}
    heard = shared_lab.ask({**HI, "stream": stream}, {"status": 200, "timeline": late}, headers=headers)
    assert len(heard.raw) < 3000


@pytest.fixture(scope="module")
def strict_lab() -> Iterator[Lab]:
    with lab(server="client_stall_timeout_s = 1\ndrain_grace_s = 0\ndrain_timeout_s = 1") as made:
        yield made


def test_a_client_that_never_reads_a_folded_answer_is_dropped(strict_lab: Lab) -> None:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x" * 20_000_000}}
    strict_lab.upstreams["moonshot"].add({"status": 200, "json": {"choices": [choice]}})
    host, port = strict_lab.gateway.root_url.removeprefix("http://").split(":")
    body = json.dumps(HI).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        client.sendall(f"{head}x-kimi-target: moonshot\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        client.settimeout(10)
        received = client.recv(4096)
        request_id = received.decode().split("x-kimi-request-id: ")[1].split("\r\n")[0]
        row = wait_for_row(ledger_url(strict_lab.gateway), request_id)
        assert row.status == "client_stalled"
        deadline = time.monotonic() + 5
        size = 0
        try:
            while part := client.recv(1 << 20):
                size += len(part)
                assert time.monotonic() < deadline
        except ConnectionResetError:
            pass
        assert size < 20_000_000


def test_a_body_on_its_way_in_hears_of_the_shutdown(strict_lab: Lab) -> None:
    host, port = strict_lab.gateway.root_url.removeprefix("http://").split(":")
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with lab(server="client_stall_timeout_s = 30\ndrain_grace_s = 0\ndrain_timeout_s = 1") as made:
        host, port = made.gateway.root_url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(f'{head}Content-Length: 1000\r\n\r\n{{"model":'.encode())
            time.sleep(0.3)
            began = time.monotonic()
            made.gateway.program.signal(15)
            received = b""
            while part := client.recv(65536):
                received += part
        assert made.gateway.program.wait(10) == 0
        assert time.monotonic() - began < 5
    assert received.startswith(b"HTTP/1.1 503")
    assert b"shutting_down" in received


def test_a_plain_request_is_still_served_after_all_that(shared_lab: Lab) -> None:
    answer = {"status": 200, "json_usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
    shared_lab.upstreams["moonshot"].add(answer)
    assert post(shared_lab.gateway.base_url, HI, {"x-kimi-target": "moonshot"}).status == 200
