"""A usual request takes the short way, one with a header that asks for something the long one; the same comes."""

from collections.abc import Iterator
from typing import Any

import pytest

from support.lab import Heard, Lab, lab, post
from support.scripted import ScriptedUpstream

USAGE = {"prompt_tokens": 900, "completion_tokens": 40, "total_tokens": 940, "cached_tokens": 256}
OK = {"status": 200, "json_usage": USAGE}
CONFIG = """
[[targets]]
name = "lone"
dialect = "moonshot"
base_url = "BASE_URL"
api_key_env = "LAB_KEY"
models = { "kimi-lone" = "kimi-k3.1-pro" }
prices = { input = "2.00", cache_read = "0.20", output = "10.00" }
"""
OWN = ("request_id", "started_at", "total_ms", "ttft_ms", "attempt_log", "prefix")
"""What differs from request to request."""
LONG_WAY = [{"x-stainless-read-timeout": "600"}, {"x-kimi-deadline-ms": "600000"}, {"x-kimi-target": "lone"}]


@pytest.fixture(scope="module")
def lone() -> Iterator[Lab]:
    """A gateway with a model that one target alone serves."""
    with (
        ScriptedUpstream(models=["kimi-k3.1-pro"]) as upstream,
        lab(CONFIG.replace("BASE_URL", upstream.base_url)) as made,
    ):
        yield Lab(made.gateway, {"lone": upstream})


def ask(lone: Lab, fields: dict[str, Any], headers: dict[str, str]) -> tuple[Heard, Any, dict[str, Any]]:
    """The answer, the body that the upstream got, and the row without what is each request's own."""
    lone.upstreams["lone"].add(OK)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Größe?"}]
    heard = post(lone.gateway.base_url, {"model": "kimi-lone", "messages": messages, **fields}, headers)
    assert heard.status == 200, heard.raw
    row = {name: value for name, value in lone.row(heard).items() if name not in OWN}
    return heard, lone.sent("lone"), row


@pytest.mark.parametrize("headers", LONG_WAY, ids=lambda headers: next(iter(headers)))
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"reasoning_effort": "medium", "max_completion_tokens": 300},
        {"temperature": 0.3, "prompt_cache_options": {"ttl": "1h"}, "user": "u-1"},
        {"n": 1, "max_tokens": 5000, "response_format": {"type": "json_object"}},
    ],
    ids=["bare", "effort and limit", "sampling and lifetime", "older names"],
)
def test_both_ways_send_and_book_the_same(lone: Lab, fields: dict[str, Any], headers: dict[str, str]) -> None:
    short, sent, row = ask(lone, fields, {})
    for _ in range(2):  # the second time from what the first has left
        again, sent_again, row_again = ask(lone, fields, headers)
        assert sent_again == sent
        assert row_again == row
        names = [name for name in short.headers if name.startswith("x-kimi-") and "id" not in name]
        assert [again.headers[name] for name in names] == [short.headers[name] for name in names]


def test_what_a_reload_changes_holds_for_the_next_usual_request(lone: Lab) -> None:
    before = ask(lone, {"reasoning_effort": "max"}, {})[1]
    lone.heal()  # a reload
    assert ask(lone, {"reasoning_effort": "max"}, {})[1] == before
    refused = post(lone.gateway.base_url, {"model": "kimi-lone", "messages": [], "n": 0}, {})
    assert refused.status == 400
