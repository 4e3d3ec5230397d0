"""How answers come and go: pace, least duration, clients that leave, faults."""

import json
import socket
import time
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from backends.emulator.app import Emulator, EmulatorConfig
from backends.emulator.exchange import Exchange
from backends.emulator.player import Script, Step
from support.asgi import serve
from support.emulated import FAST, PRO, emulator


def body(**fields: Any) -> dict[str, Any]:
    return {"model": PRO, "messages": [{"role": "user", "content": "hi"}], **fields}


def until_finished(client: httpx2.Client) -> dict[str, Any]:
    """The last request's entry, as soon as its answer has ended."""
    deadline_s = time.monotonic() + 5
    while True:
        entry: dict[str, Any] = client.get("/emulator/requests").json()["requests"][-1]
        if entry["finished"]:
            return entry
        assert time.monotonic() < deadline_s, "the emulator did not notice that its client left"
        time.sleep(0.02)


def took_s(client: httpx2.Client, **fields: Any) -> float:
    begun_s = time.monotonic()
    assert client.post("/v1/chat/completions", json=body(**fields)).status_code == 200
    return time.monotonic() - begun_s


def test_highspeed_is_faster_and_both_keep_their_pace() -> None:
    sized = [{"role": "user", "content": '[[emulator {"thought_tokens": 10, "text_tokens": 50}]]'}]
    with emulator(pace=1, tokens_per_s=100, first_token_s=0) as client:
        standard_s = took_s(client, messages=sized, stream=True)
        fast_s = took_s(client, messages=sized, stream=True, model=FAST)
        folded_s = took_s(client, messages=sized)
    assert 0.6 <= standard_s < 5
    assert 0.24 <= fast_s < standard_s
    assert 0.6 <= folded_s < 5


def test_a_cached_prompt_starts_sooner() -> None:
    long = [{"role": "user", "content": "word " * 2000}]
    with emulator(pace=1, tokens_per_s=1e6, first_token_s=0, prefill_tokens_per_s=5000) as client:
        first_s, second_s = took_s(client, messages=long), took_s(client, messages=long)
    assert first_s >= 0.5 > second_s


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_can_be_given_a_least_duration_at_any_pace(stream: bool) -> None:
    with emulator(pace=0, min_duration_s=0.5) as client:
        assert 0.45 <= took_s(client, stream=stream) < 5


def test_a_stretched_stream_keeps_coming() -> None:
    with emulator(pace=0, min_duration_s=0.6) as client:
        arrivals: list[float] = []
        with client.stream("POST", "/v1/chat/completions", json=body(stream=True)) as response:
            for _ in response.iter_raw():
                arrivals.append(time.monotonic())
    assert len(arrivals) > 10
    assert arrivals[-1] - arrivals[0] > 0.3


# --- clients that leave ---------------------------------------------------------------------------------------


def test_a_client_that_leaves_a_stream_is_noticed_and_billed_for_what_was_generated() -> None:
    with emulator(pace=1, tokens_per_s=100, first_token_s=0) as client:
        wish = '[[emulator {"thought_tokens": 10, "text_tokens": 100000}]]'
        asked = body(stream=True, messages=[{"role": "user", "content": wish}])
        with client.stream("POST", "/v1/chat/completions", json=asked) as response:
            lines = response.iter_lines()
            first = json.loads(next(lines).removeprefix("data: "))
            for _ in range(8):
                next(lines)
        entry = until_finished(client)
        [line] = client.get("/emulator/invoice").json()["lines"]
    assert entry["disconnected"] is True
    assert 0 < entry["output_tokens"] < 1000
    assert line["id"] == first["id"] == entry["id"]
    assert (line["output"], line["disconnected"]) == (entry["output_tokens"], True)
    assert line["input"] == line["prompt_tokens"] > 0


def test_a_client_that_leaves_an_unstreamed_answer_is_billed_by_the_time_it_ran() -> None:
    with emulator(pace=1, tokens_per_s=100, first_token_s=0) as client:
        wish = '[[emulator {"thought_tokens": 10, "text_tokens": 100000}]]'
        with pytest.raises(httpx2.ReadTimeout):
            client.post(
                "/v1/chat/completions", json=body(messages=[{"role": "user", "content": wish}]), timeout=0.3
            )
        entry = until_finished(client)
    assert entry["disconnected"] is True
    assert 10 <= entry["output_tokens"] < 1000


def test_a_client_that_leaves_while_sending_leaves_no_bill() -> None:
    with serve(Emulator(EmulatorConfig(pace=0))) as url, httpx2.Client(base_url=url) as client:
        address = urlsplit(url)
        with socket.create_connection((address.hostname or "", address.port or 0)) as half:
            half.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert client.get("/emulator/invoice").json()["lines"] == []
        assert client.post("/v1/chat/completions", json=body()).status_code == 200


# --- faults ---------------------------------------------------------------------------------------------------


def cut_short(exchange: Exchange, script: Script) -> Script:
    """The second request's answer breaks off after its first write, half billed."""
    if exchange.number != 2:
        return script
    step = script.steps[0]
    return replace(script, steps=(replace(step, data=step.data[:300], tokens=3),), ending="cut")


def test_a_fault_hook_can_cut_an_answer_and_only_what_was_generated_is_billed() -> None:
    with emulator(pace=0, faults=cut_short) as client:
        assert client.post("/v1/chat/completions", json=body(stream=True)).text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx2.RemoteProtocolError):
            client.post("/v1/chat/completions", json=body(stream=True))
        lines = client.get("/emulator/invoice").json()["lines"]
        assert [line["output"] for line in lines][1:] == [3]
        assert client.post("/v1/chat/completions", json=body()).status_code == 200


def overloaded(exchange: Exchange, script: Script) -> Script:
    """Every request is refused."""
    page = b'{"error":{"type":"engine_overloaded_error","message":"engine busy"}}'
    return Script(status=429, headers=((b"content-type", b"application/json"),), steps=(Step(page),))


def test_a_fault_hook_can_replace_the_answer_and_then_nothing_is_billed() -> None:
    with emulator(pace=0, faults=overloaded) as client:
        response = client.post("/v1/chat/completions", json=body())
        entry = until_finished(client)
        assert client.get("/emulator/invoice").json()["lines"] == []
    assert response.status_code == 429
    assert response.json()["error"]["type"] == "engine_overloaded_error"
    assert (entry["status"], entry["output_tokens"]) == (429, 0)


def first_overloaded(exchange: Exchange, script: Script) -> Script:
    """Only the first request is refused."""
    return overloaded(exchange, script) if exchange.number == 1 else script


def test_a_refused_request_writes_nothing_to_the_cache() -> None:
    long = body(messages=[{"role": "user", "content": "word " * 300}])
    with emulator(pace=0, faults=first_overloaded) as client:
        answers = [client.post("/v1/chat/completions", json=long) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [429, 200, 200]
    assert [answer.json()["usage"]["cached_tokens"] for answer in answers[1:]] == [0, 256]


def silent(exchange: Exchange, script: Script) -> Script:
    """The stream stops after its first write and the connection stays open."""
    return replace(script, steps=script.steps[:1], ending="silent")


def test_a_fault_hook_can_fall_silent_until_the_client_leaves() -> None:
    with emulator(pace=0, faults=silent) as client:
        with (
            pytest.raises(httpx2.ReadTimeout),
            client.stream("POST", "/v1/chat/completions", json=body(stream=True), timeout=0.2) as response,
        ):
            for _ in response.iter_raw():
                pass
        assert until_finished(client)["status"] == 200
