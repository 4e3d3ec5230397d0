"""Bad input: the error table of the README, never a 500, never a ledger row."""

import http.client
from typing import Any

import pytest

from support.lab import Lab, post

HI = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "hi"}]}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("request_body", "headers", "status", "param"),
    [
        (b'{"model": ', {}, 400, None),
        (b"\xff\xfe", {}, 400, None),
        (b"[]", {}, 400, None),
        (b"", {}, 400, None),
        ({"messages": HI["messages"]}, {}, 400, "model"),
        ({**HI, "messages": []}, {}, 400, "messages"),
        ({**HI, "messages": [7]}, {}, 400, "messages[0]"),
        ({**HI, "stream": "yes"}, {}, 400, "stream"),
        ({**HI, "n": 2}, {}, 400, "n"),
        ({**HI, "thinking": {"type": "disabled"}}, {}, 400, "thinking"),
        ({**HI, "reasoning_effort": "off"}, {}, 400, "reasoning_effort"),
        ({**HI, "model": "gpt-7"}, {}, 404, "model"),
        (HI, {"content-type": "text/plain"}, 415, None),
        (HI, {"content-encoding": "gzip"}, 415, None),
        (HI, {"origin": "https://evil.example"}, 403, None),
        (HI, {"host": "evil.example"}, 403, None),
        (HI, {"x-forwarded-for": "10.0.0.1"}, 403, None),
        (HI, {"x-kimi-tags": "no value"}, 400, "x-kimi-tags"),
        (HI, {"x-kimi-target": "nobody"}, 400, "x-kimi-target"),
    ],
)
def test_bad_input_names_the_field_and_the_remedy(
    shared_lab: Lab, request_body: Any, headers: dict[str, str], status: int, param: str | None
) -> None:
    pinned = {"x-kimi-target": "moonshot", **headers}
    heard = post(shared_lab.gateway.base_url, request_body, pinned)
    assert heard.status == status
    error = heard.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert error["message"]
    assert heard.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("PUT", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/nothing", 404),
        ("POST", "/chat/completions", 404),
        ("GET", "/v1/models/gpt-7", 404),
    ],
)
def test_a_wrong_method_or_path_is_said_in_the_same_shape(
    shared_lab: Lab, method: str, path: str, status: int
) -> None:
    root = shared_lab.gateway.root_url.removeprefix("http://")
    connection = http.client.HTTPConnection(root, timeout=10)
    try:
        connection.request(method, path, b"{}" if method != "GET" else None, JSON)
        reply = connection.getresponse()
        body = reply.read()
        assert reply.status == status, body
        assert b'"error"' in body
        assert b'"message"' in body
        assert (status != 405) or reply.getheader("allow")
    finally:
        connection.close()
