"""Clients that do not wait long: a folded answer starts early with white space, in one attempt and one row."""

import json
from typing import Any

import openai
import pytest

from support.lab import Lab, ledger_url, wait_for_row

PATIENCE_S = 5.0


def chunk(text: str, finish: str | None = None) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return f"data: {json.dumps({'id': 'c-1', 'model': 'kimi-k3.1-pro', 'choices': [choice]})}\n\n"


SLOW = {"status": 200, "timeline": [[7.0, chunk("late")], [10.0, chunk("r", "stop") + "data: [DONE]\n\n"]]}


def ask(lab: Lab, target: str) -> Any:
    with openai.OpenAI(base_url=lab.gateway.base_url, api_key="any", timeout=PATIENCE_S) as client:
        return client.chat.completions.with_raw_response.create(
            model="kimi-k3.1-pro",
            messages=[{"role": "user", "content": "hi"}],
            extra_headers={"x-kimi-target": target},
        )


def test_a_slow_answer_reaches_an_impatient_client_in_one_attempt(shared_lab: Lab) -> None:
    upstream = shared_lab.upstreams["sglang"]
    upstream.add(SLOW)
    before = len(upstream.requests)
    raw = ask(shared_lab, "sglang")
    assert raw.parse().choices[0].message.content == "later"
    assert raw.text.startswith(" ")
    assert len(upstream.requests) == before + 1
    row = wait_for_row(ledger_url(shared_lab.gateway), raw.headers["x-kimi-request-id"])
    assert (row.status, len(row.attempts)) == ("ok", 1)
    assert "x-kimi-cost-usd" not in raw.headers


def test_an_error_after_the_early_start_is_an_error_body(shared_lab: Lab) -> None:
    shared_lab.upstreams["sglang"].add({"status": 200, "timeline": [[5.5, chunk("half")]], "then": "close"})
    raw = ask(shared_lab, "sglang")
    body = json.loads(raw.text)
    assert raw.status_code == 200
    assert (body["error"]["type"], body["error"]["status"]) == ("upstream_error", 502)


@pytest.mark.parametrize("announced", ["nonsense", "-1", "nan", "inf", ""])
def test_a_patience_that_is_no_number_is_none(shared_lab: Lab, announced: str) -> None:
    answer = {"status": 200, "json_usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
    request = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "hi"}]}
    heard = shared_lab.ask(request, answer, headers={"x-stainless-read-timeout": announced})
    assert heard.status == 200
