"""SIGTERM under open streams: not ready at once, every stream ends honestly, every request has its settled row."""

import http.client
import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pricing.ledger.store import Store
from support.lab import Heard, Lab, lab, ledger_url, post

ASK: dict[str, Any] = {
    "model": "kimi-k3.1-pro",
    "stream": True,
    "messages": [{"role": "user", "content": "Tell a long story."}],
}


def event(text: str, finish: str | None = None) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return f"data: {json.dumps({'id': 'c-1', 'model': 'kimi-k3.1-pro', 'choices': [choice]})}\n\n"


def story(seconds: float) -> dict[str, Any]:
    """An answer that goes on for that long and ends by itself."""
    steps = [[0.2 * step, event("word ")] for step in range(int(seconds / 0.2))]
    return {"status": 200, "timeline": [*steps, [seconds, event("end", "stop") + "data: [DONE]\n\n"]]}


def ready(made: Lab, connection: http.client.HTTPConnection) -> int:
    connection.request("GET", "/ready")
    reply = connection.getresponse()
    reply.read()
    return reply.status


def drain(streams: int) -> None:
    """Half the streams end within the drain's time, half would not."""
    server = "drain_grace_s = 1\ndrain_timeout_s = 4"
    with lab(server=server) as made, ThreadPoolExecutor(streams) as pool:
        upstream = made.upstreams["vllm"]
        upstream.add(*[story(3 if number % 2 else 60) for number in range(streams)])
        headers = {"x-kimi-target": "vllm"}
        heard = [pool.submit(post, made.gateway.base_url, ASK, headers) for _ in range(streams)]
        upstream.wait_for_requests(streams, 30)
        connection = http.client.HTTPConnection(made.gateway.root_url.removeprefix("http://"), timeout=10)
        assert ready(made, connection) == 200
        made.gateway.program.signal(signal.SIGTERM)
        signalled = time.monotonic()
        while ready(made, connection) != 503:
            assert time.monotonic() - signalled < 1
            time.sleep(0.02)
        connection.close()
        answers = [future.result(30) for future in heard]
        assert made.gateway.program.wait(30) == 0
        check(made, answers, streams)


def check(made: Lab, answers: list[Heard], streams: int) -> None:
    """Each stream is whole or says that it is not; the ledger has one settled row for each."""
    whole = [answer for answer in answers if answer.done]
    cut = [answer for answer in answers if not answer.done]
    assert len(whole) == len(cut) == streams // 2
    assert all(answer.finish_reason() == "stop" and answer.error is None for answer in whole)
    assert {(answer.error["code"], answer.error["status"]) for answer in cut} == {("shutting_down", 503)}
    store = Store(ledger_url(made.gateway))
    try:
        rows = [store.get(answer.headers["x-kimi-request-id"]) for answer in answers]
    finally:
        store.close()
    assert sorted(row.status for row in rows if row is not None) == ["ok"] * (streams // 2) + ["shutting_down"] * (
        streams // 2
    )


def test_twenty_open_streams_end_honestly_at_a_stop() -> None:
    drain(20)


@pytest.mark.chaos
def test_two_hundred_open_streams_end_honestly_at_a_stop() -> None:
    drain(200)


def test_requests_are_taken_during_the_grace_and_a_second_signal_ends_at_once() -> None:
    with lab(server="drain_grace_s = 20\ndrain_timeout_s = 60") as made:
        made.upstreams["vllm"].add(story(60))
        late: list[BaseException] = []

        def listen() -> None:
            try:
                post(made.gateway.base_url, ASK, {"x-kimi-target": "vllm"})
            except (OSError, http.client.HTTPException) as err:
                late.append(err)

        thread = threading.Thread(target=listen)
        thread.start()
        made.upstreams["vllm"].wait_for_requests(1)
        made.gateway.program.signal(signal.SIGTERM)
        answer = {"status": 200, "json_usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
        assert made.ask({**ASK, "stream": False}, answer).status == 200
        made.gateway.program.signal(signal.SIGTERM)
        made.gateway.program.wait(5)
        thread.join(10)
        assert late or not thread.is_alive()
