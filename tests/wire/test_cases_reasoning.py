"""The cases of kind reasoning, over real sockets."""

from typing import Any

from support.cases import case
from support.lab import Lab


def test_rsn_01_vllms_reasoning_reaches_the_client_as_reasoning_content(shared_lab: Lab) -> None:
    given = case("rsn-01")["given"]
    heard = shared_lab.ask(given["client_request"], *given["upstream"], target="vllm")
    assert (heard.joined("reasoning_content"), heard.joined("content")) == ("Add them.", "4")
    assert (heard.finish_reason(), heard.done) == ("stop", True)
    assert sum(1 for delta in heard.deltas() if delta.get("reasoning_content")) == 2
    row = shared_lab.row(heard)
    assert (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) == (9, None, 6)


def test_rsn_02_reasoning_details_survive_the_round_trip_and_the_thought_is_not_doubled(shared_lab: Lab) -> None:
    given = case("rsn-02")["given"]
    heard = shared_lab.ask(given["client_request"], *given["upstream"], target="openrouter")
    message = heard.json["choices"][0]["message"]
    assert heard.status == 200
    assert message["reasoning_content"] == "Need data."
    assert [call["id"] for call in message["tool_calls"]] == ["wx:0"]
    again = {**given["client_request"], "messages": [*given["client_request"]["messages"], message]}
    shared_lab.ask(again, *given["upstream"], target="openrouter")
    details = given["upstream"][0]["json"]["choices"][0]["message"]["reasoning_details"]
    assert shared_lab.sent("openrouter")["messages"][1]["reasoning_details"] == details


def test_rsn_03_an_empty_thought_is_a_thought(shared_lab: Lab) -> None:
    given = case("rsn-03")["given"]
    first = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "go"}]}
    heard = shared_lab.ask(first, {"status": 200, "json": given["turn_1_upstream"]})
    assert heard.json["choices"][0]["message"]["reasoning_content"] == ""
    shared_lab.ask(given["client_request"], {"status": 200, "json": given["turn_1_upstream"]})
    assert shared_lab.sent()["messages"][1] == {"role": "assistant", "content": "Done.", "reasoning_content": ""}


def test_rsn_04_an_answer_that_is_all_thought_is_billed_and_not_retried(shared_lab: Lab) -> None:
    given = case("rsn-04")["given"]
    before = len(shared_lab.upstreams["moonshot"].requests)
    heard = shared_lab.ask(given["client_request"], *given["upstream"])
    choice: Any = heard.json["choices"][0]
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("", "Let n be…")
    assert choice["finish_reason"] == "length"
    assert len(shared_lab.upstreams["moonshot"].requests) == before + 1
    row = shared_lab.row(heard)
    assert (row["prompt_tokens"], row["completion_tokens"], row["cost_usd"]) == (12, 300, "0.003024")
    assert row["outcome"] == "thinking_exhausted"


def test_rsn_05_a_thought_in_the_finishing_chunk_is_not_lost(shared_lab: Lab) -> None:
    given = case("rsn-05")["given"]
    heard = shared_lab.ask(given["client_request"], *given["upstream"], target="openrouter")
    assert (heard.joined("content"), heard.joined("reasoning_content")) == ("Paris.", "Capital of France.")
    assert heard.finish_reason() == "stop"
    assert heard.deltas()[0]["content"] == "Paris"
