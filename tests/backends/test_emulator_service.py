"""Everything of the emulator around chat: keys, models, estimate, balance, paths, and what it shows to tests."""

import base64
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from backends.emulator.app import EmulatorConfig
from support.emulated import PRO, emulator

BODY: dict[str, Any] = {"model": PRO, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    with emulator() as client:
        yield client


def seen(client: httpx2.Client, query: str = "") -> list[dict[str, Any]]:
    held: list[dict[str, Any]] = client.get(f"/emulator/requests{query}").json()["requests"]
    return held


# --- keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "type", "message"),
    [
        ({}, "incorrect_api_key_error", "Incorrect API key provided"),
        ({"authorization": "Basic good"}, "incorrect_api_key_error", "Incorrect API key provided"),
        ({"authorization": "Bearer bad"}, "invalid_authentication_error", "Invalid Authentication"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
def test_a_missing_or_wrong_key_is_a_401(path: str, headers: dict[str, str], type: str, message: str) -> None:
    with emulator(api_keys=("good",)) as client:
        method = "POST" if "chat" in path else "GET"
        response = client.request(method, path, headers=headers)
        assert response.status_code == 401
        assert response.json() == {"error": {"message": message, "type": type}}
        assert client.get("/emulator/invoice").json()["lines"] == []


def test_a_configured_key_is_let_in_and_any_key_where_none_is_configured(client: httpx2.Client) -> None:
    with emulator(api_keys=("good",)) as strict:
        assert strict.get("/v1/models", headers={"authorization": "Bearer good"}).status_code == 200
    assert client.get("/v1/models").status_code == 200
    assert client.get("/v1/models", headers={"authorization": "Bearer whatever"}).status_code == 200


# --- small endpoints ------------------------------------------------------------------------------------------


def test_models_have_the_documented_fields(client: httpx2.Client) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == [PRO, "kimi-k3.1-pro-highspeed"]
    assert client.get(f"/v1/models/{PRO}").json() == listed["data"][0]
    assert listed["data"][0] == {
        "id": PRO,
        "object": "model",
        "created": 1792800000,
        "owned_by": "moonshot",
        "context_length": 1048576,
        "supports_image_in": True,
        "supports_video_in": True,
        "supports_reasoning": True,
    }
    unknown = client.get("/v1/models/kimi-x")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "resource_not_found_error")


def test_the_estimate_is_what_a_chat_of_these_messages_is_billed(client: httpx2.Client) -> None:
    estimate = client.post("/v1/tokenizers/estimate-token-count", json=BODY).json()
    billed = client.post("/v1/chat/completions", json=BODY).json()["usage"]["prompt_tokens"]
    assert estimate == {"data": {"total_tokens": billed}}
    assert client.post("/v1/tokenizers/estimate-token-count", json={"model": PRO}).status_code == 400


def test_the_balance_falls_by_the_invoice(client: httpx2.Client) -> None:
    before = client.get("/v1/users/me/balance").json()
    assert before["code"] == 0
    assert before["status"] is True
    client.post("/v1/chat/completions", json=BODY)
    total = Decimal(client.get("/emulator/invoice").json()["total_usd"])
    after = json.loads(client.get("/v1/users/me/balance").content, parse_float=Decimal)
    assert total > 0
    assert after["data"]["available_balance"] == after["data"]["cash_balance"] == Decimal("1000.00") - total


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/chat/completions"), ("POST", "/v2"), ("GET", "/")])
def test_an_unknown_path_has_the_shape_of_its_own(client: httpx2.Client, method: str, path: str) -> None:
    response = client.request(method, path)
    assert response.status_code == 404
    body = response.json()
    assert (body["code"], body["error"], body["scode"], body["status"]) == (5, "url.not_found", "0x5", False)


def test_health_needs_no_key() -> None:
    with emulator(api_keys=("good",)) as client:
        assert client.get("/health").json() == {"status": "ok", "service": "kimi-emulator", "dialect": "moonshot"}


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_maximum_is_a_413(announced: bool) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x" * 80
        yield b"x" * 80

    with emulator(max_body_bytes=100) as client:
        response = client.post("/v1/chat/completions", content=b"x" * 160 if announced else chunks())
        assert response.status_code == 413
        assert response.json()["error"]["message"] == "Request exceeds the maximum size"


# --- what it shows --------------------------------------------------------------------------------------------


def test_requests_show_body_headers_and_answer_but_no_key(client: httpx2.Client) -> None:
    raw = (
        b'{"model": "kimi-k3.1-pro",  "messages": [{"role":"user","content":"hi"}], "temperature": 1.0, "x": 0.10}'
    )
    headers = {"authorization": "Bearer sk-secret", "x-api-key": "sk-other", "x-mark": "7"}
    answer = client.post("/v1/chat/completions", content=raw, headers=headers).json()
    listing = client.get("/emulator/requests?raw=1")
    [entry] = listing.json()["requests"]
    assert "sk-" not in listing.text
    assert entry["headers"]["authorization"] == entry["headers"]["x-api-key"] == "[redacted]"
    assert entry["headers"]["x-mark"] == "7"
    assert entry["key_sha256"] == "746b4ad1ca9129e1"
    assert entry["body"] == {
        "model": PRO,
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 1.0,
        "x": 0.1,
    }
    assert base64.b64decode(entry["raw_base64"]) == raw
    assert (entry["status"], entry["id"], entry["effort"]) == (200, answer["id"], "max")
    assert entry["output_tokens"] == answer["usage"]["completion_tokens"]
    assert (entry["finished"], entry["disconnected"]) == (True, False)


def test_refused_requests_are_shown_too_and_not_billed(client: httpx2.Client) -> None:
    client.post("/v1/chat/completions", content=b"{")
    client.post("/v1/chat/completions", json={**BODY, "model": "kimi-x"})
    client.post("/v1/chat/completions", json={**BODY, "temperature": 0})
    entries = seen(client)
    assert [entry["status"] for entry in entries] == [400, 404, 400]
    assert [entry["number"] for entry in entries] == [1, 2, 3]
    assert entries[0]["body"] is None
    assert client.get("/emulator/invoice").json() == {
        "total_usd": "0",
        "lines": [],
        "folded": {"lines": 0, "usd": "0"},
    }


def test_requests_can_be_cleared_and_are_bounded() -> None:
    with emulator(max_requests=3) as client:
        for _ in range(5):
            client.get("/v1/models")
        listing = client.get("/emulator/requests?clear=1").json()
        assert [entry["number"] for entry in listing["requests"]] == [3, 4, 5]
        assert listing["dropped"] == 2
        assert seen(client) == []


def test_requests_are_bounded_in_bytes_too() -> None:
    with emulator(max_requests_bytes=150) as client:
        for _ in range(4):
            client.post("/v1/chat/completions", json=BODY)
        assert 1 <= len(seen(client)) <= 2


def test_a_reset_forgets_everything(client: httpx2.Client) -> None:
    body = {"model": PRO, "messages": [{"role": "user", "content": "word " * 300}]}
    client.post("/v1/chat/completions", json=body)
    client.post("/emulator/clock", json={"advance_s": 5})
    client.post("/emulator/reset")
    assert seen(client) == []
    assert client.get("/emulator/invoice").json()["lines"] == []
    assert client.post("/v1/chat/completions", json=body).json()["usage"]["cached_tokens"] == 0


@pytest.mark.parametrize("body", [b"", b"{}", b'{"advance_s": -1}', b'{"advance_s": "1"}', b'{"advance_s": true}'])
def test_the_clock_refuses_what_is_no_step_forward(client: httpx2.Client, body: bytes) -> None:
    assert client.post("/emulator/clock", content=body).status_code == 400


def test_the_injected_clock_dates_the_answers() -> None:
    with emulator(clock=lambda: 1_800_000_000.0) as client:
        client.post("/emulator/clock", json={"advance_s": 7})
        assert client.get("/emulator/clock").json() == {"now_s": 1_800_000_007.0}
        assert client.post("/v1/chat/completions", json=BODY).json()["created"] == 1_800_000_007


def test_a_control_path_takes_its_own_method_only(client: httpx2.Client) -> None:
    assert client.post("/emulator/invoice").status_code == 405
    assert client.get("/emulator/reset").status_code == 405


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"dialect": "klingon"}, "speaks moonshot"),
        ({"pace": -1}, "pace must be zero or more"),
        ({"tokens_per_s": 0}, "tokens_per_s must be more than zero"),
        ({"thought_tokens": {"low": 1}}, "must have a length for high, max"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EmulatorConfig(**config)
