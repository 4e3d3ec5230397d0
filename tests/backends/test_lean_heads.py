"""Heads of requests as the lean client writes them."""

import pytest

from backends.lean.request import request_head


def test_a_host_and_a_coding_of_the_call_replace_ours() -> None:
    headers = {"host": "other", "Accept-Encoding": "gzip", "X-A": "1", "TE": "trailers"}
    for _ in range(2):
        head = request_head("POST", "/v1", "\r\nHost: mine", headers, 0)
        assert head == (
            b"POST /v1 HTTP/1.1\r\nhost: other\r\nAccept-Encoding: gzip\r\nX-A: 1\r\nContent-Length: 0\r\n\r\n"
        )


@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "a\r\nX-B: 1"},
        {"X-A": "a\nb"},
        {"X-A": "a\0"},
        {"X-A": "\x7f"},
        {"X-A": "\ud800"},
        {"X A": "1"},
        {"X-A:": "1"},
        {"": "1"},
        {"X-A\r\nX-B": "1"},
        {"Näme": "1"},
    ],
)
def test_a_header_that_is_none_cannot_be_sent(headers: dict[str, str]) -> None:
    for _ in range(2):
        with pytest.raises(ValueError):
            request_head("POST", "/", "", headers, 0)


@pytest.mark.parametrize("value", ["", "tab\there", "é", "日本", "\u2028", "\xa0"])
def test_a_value_of_any_text_can_be_sent(value: str) -> None:
    head = request_head("GET", "/", "", {"X-A": value}, 0)
    assert head == f"GET / HTTP/1.1\r\nX-A: {value}\r\nAccept-Encoding: identity\r\n\r\n".encode()
