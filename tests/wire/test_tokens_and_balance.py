"""Token counts and the balance, in Moonshot's shapes, over real sockets."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.lab import Lab, post
from support.processes import Gateway, gateway_process
from support.shared import shared_path

PATH = "/tokenizers/estimate-token-count"
HI: dict[str, Any] = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "Hello, world!"}]}


@pytest.fixture(scope="module")
def counting_gateway() -> Iterator[Gateway]:
    """A gateway with the vocabulary, and with keys."""
    vocabulary = shared_path("tokenizer/tiktoken.model")
    config = '[server]\ndrain_grace_s = 0\n[[keys]]\nname = "team"\nkey_env = "TEAM_KEY"\n'
    env = {"TEAM_KEY": "kg-test-key", "KIMI_TOKENIZER": str(vocabulary)}
    with gateway_process(config, env, arguments=["--emulator-if-empty"]) as gateway:
        yield gateway


def count(gateway: Gateway, request: Any, key: str = "kg-test-key") -> Any:
    heard = post(gateway.base_url, request, {"authorization": f"Bearer {key}"}, path=PATH)
    return heard.status, heard.json


def test_with_the_vocabulary_the_text_is_counted_exactly(counting_gateway: Gateway) -> None:
    status, body = count(counting_gateway, HI)
    longer = {**HI, "messages": [{"role": "user", "content": "Hello, world!" + " The quick brown fox" * 100}]}
    assert status == 200
    assert body["data"]["method"] == "vocabulary"
    assert body["data"]["low"] == 4  # the text alone: 19180, 11, 2695, 0
    assert body["data"]["total_tokens"] >= 4
    assert count(counting_gateway, longer)[1]["data"]["low"] == 404


def test_without_the_vocabulary_the_count_says_that_it_is_an_estimate(shared_lab: Lab) -> None:
    heard = post(shared_lab.gateway.base_url, HI, {}, path=PATH)
    data = heard.json["data"]
    assert (data["method"], data["exact"]) == ("estimate", False)
    assert data["low"] <= data["total_tokens"] <= data["high"]
    assert data["note"]


@pytest.mark.parametrize(
    ("request_body", "param"),
    [(b"{", None), (b"[]", None), ({"model": "m"}, "messages"), ({**HI, "messages": [7]}, "messages[0]")],
)
def test_what_is_no_chat_is_a_400(shared_lab: Lab, request_body: Any, param: str | None) -> None:
    heard = post(shared_lab.gateway.base_url, request_body, {}, path=PATH)
    assert (heard.status, heard.error["param"]) == (400, param)


def test_counts_need_a_key(counting_gateway: Gateway) -> None:
    status, body = count(counting_gateway, HI, key="wrong")
    assert (status, body["error"]["type"]) == (401, "authentication_error")


def balance(gateway: Gateway, headers: dict[str, str]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(gateway.root_url.removeprefix("http://"), timeout=10)
    try:
        connection.request("GET", "/v1/users/me/balance", headers=headers)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def test_a_key_without_a_budget_has_no_balance_rather_than_an_invented_one(counting_gateway: Gateway) -> None:
    status, body = balance(counting_gateway, {"authorization": "Bearer kg-test-key"})
    assert (status, body["code"], body["status"], body["scode"]) == (200, 0, True, "0x0")
    assert body["data"]["available_balance"] is None
    assert balance(counting_gateway, {})[0] == 401
