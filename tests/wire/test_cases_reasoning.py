"""The cases of kind reasoning, over real sockets; what each says holds for every dialect that has its like."""

import json
from typing import Any, Final

import pytest

from support.cases import case
from support.lab import DIALECTS, Heard, Lab

ANSWERS_IN: Final = {"moonshot": "reasoning_content", "openrouter": "reasoning", "vllm": "reasoning"}
SENT_AS: Final = {"openrouter": ["reasoning"], "vllm": ["reasoning_content", "reasoning"]}
NAMES: Final = ("reasoning_content", "reasoning")
SERVED_AS: Final = {"moonshot": "kimi-k3.1-pro", "openrouter": "moonshotai/kimi-k3.1-pro"}


def answers_in(dialect: str) -> str:
    """The field in which this kind of upstream tells its thought."""
    return ANSWERS_IN.get(dialect, "reasoning_content")


def thoughts_sent(message: dict[str, Any]) -> dict[str, Any]:
    return {name: message[name] for name in NAMES if name in message}


def sent_as(dialect: str, thought: Any) -> dict[str, Any]:
    """How a history's thought reaches it."""
    return dict.fromkeys(SENT_AS.get(dialect, ["reasoning_content"]), thought)


def retold(sse_text: str, dialect: str) -> str:
    """The case's stream as another kind of upstream would send it."""
    return sse_text.replace('"reasoning":', f'"{answers_in(dialect)}":')


def message_of(heard: Heard) -> dict[str, Any]:
    assert heard.status == 200
    message: dict[str, Any] = heard.json["choices"][0]["message"]
    return message


def next_turn(given: Any, message: dict[str, Any]) -> dict[str, Any]:
    """The request that a client makes after the call in `message`, which it sends back unchanged."""
    (call,) = message["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "Rain."}
    request = given["client_request"]
    return {**request, "messages": [*request["messages"], message, result]}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_rsn_01_the_thought_reaches_the_client_as_reasoning_content(shared_lab: Lab, dialect: str) -> None:
    given = case("rsn-01")["given"]
    (upstream,) = given["upstream"]
    answer = {**upstream, "sse_text": retold(upstream["sse_text"], dialect)}
    heard = shared_lab.ask(given["client_request"], answer, target=dialect)
    assert (heard.joined("reasoning_content"), heard.joined("content")) == ("Add them.", "4")
    assert (heard.finish_reason(), heard.done) == ("stop", True)
    assert [delta["reasoning_content"] for delta in heard.deltas() if delta.get("reasoning_content")] == [
        "Add ",
        "them.",
    ]
    assert not any("reasoning" in delta for delta in heard.deltas())
    row = shared_lab.row(heard)
    # Moonshot leaves the count out where nothing was cached; elsewhere nobody has counted.
    cached = 0 if dialect == "moonshot" else None
    assert (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) == (9, cached, 6)


def test_rsn_02_reasoning_details_survive_the_round_trip_and_the_thought_is_not_doubled(shared_lab: Lab) -> None:
    given = case("rsn-02")["given"]
    message = message_of(shared_lab.ask(given["client_request"], *given["upstream"], target="openrouter"))
    details = given["upstream"][0]["json"]["choices"][0]["message"]["reasoning_details"]
    assert message["reasoning_content"] == "Need data."
    assert message["reasoning_details"] == details
    assert [call["id"] for call in message["tool_calls"]] == ["wx:0"]
    assert shared_lab.ask(next_turn(given, message), *given["upstream"], target="openrouter").status == 200
    sent = shared_lab.sent("openrouter")["messages"][1]
    assert sent["reasoning_details"] == details
    assert thoughts_sent(sent) == {"reasoning": "Need data."}


def test_rsn_02_streamed_pieces_of_details_are_put_together_and_come_back_whole(shared_lab: Lab) -> None:
    given = case("rsn-02")["given"]
    answer = given["upstream"][0]["json"]
    item = {"type": "reasoning.text", "format": "unknown", "index": 0}
    sealed = {"type": "reasoning.encrypted", "format": "unknown", "index": 1, "id": "r-1", "data": "AAAA"}
    deltas: list[Any] = [
        {"reasoning": "Need ", "reasoning_details": [{**item, "text": "Need "}]},
        {"reasoning": "data.", "reasoning_details": [{**item, "text": "data."}]},
        {"reasoning_details": [{**item, "signature": "sig=="}]},
        {"reasoning_details": [sealed]},
        {"tool_calls": [{"index": 0, **answer["choices"][0]["message"]["tool_calls"][0]}]},
    ]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    lines = [f"data: {json.dumps({'id': 'gen-1', 'choices': [choice]})}\n\n" for choice in choices]
    stream = {"status": 200, "sse_text": "".join([*lines, "data: [DONE]\n\n"])}
    message = message_of(shared_lab.ask(given["client_request"], stream, target="openrouter"))
    whole = [{**item, "text": "Need data.", "signature": "sig=="}, sealed]
    assert (message["reasoning_content"], message["reasoning_details"]) == ("Need data.", whole)
    assert shared_lab.ask(next_turn(given, message), *given["upstream"], target="openrouter").status == 200
    assert shared_lab.sent("openrouter")["messages"][1]["reasoning_details"] == whole


@pytest.mark.parametrize("dialect", DIALECTS)
def test_rsn_03_an_empty_thought_is_a_thought(shared_lab: Lab, dialect: str) -> None:
    given = case("rsn-03")["given"]
    choice = given["turn_1_upstream"]["choices"][0]
    said = {name: value for name, value in choice["message"].items() if name != "reasoning_content"}
    said[answers_in(dialect)] = ""
    answer = {"status": 200, "json": {"choices": [{**choice, "message": said}]}}
    first = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "go"}]}
    message = message_of(shared_lab.ask(first, answer, target=dialect))
    assert message["reasoning_content"] == ""
    shared_lab.ask(given["client_request"], answer, target=dialect)
    sent = shared_lab.sent(dialect)["messages"][1]
    assert sent == {"role": "assistant", "content": "Done.", **sent_as(dialect, "")}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_rsn_04_an_answer_that_is_all_thought_is_billed_and_not_retried(shared_lab: Lab, dialect: str) -> None:
    given = case("rsn-04")["given"]
    answer = json.loads(
        retold(json.dumps(given["upstream"][0]).replace("reasoning_content", "reasoning"), dialect)
    )
    answer["json"]["model"] = SERVED_AS.get(dialect, "moonshotai/Kimi-K3.1-Pro")
    before = len(shared_lab.upstreams[dialect].requests)
    heard = shared_lab.ask(given["client_request"], answer, target=dialect)
    choice: Any = heard.json["choices"][0]
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("", "Let n be…")
    assert choice["finish_reason"] == "length"
    assert len(shared_lab.upstreams[dialect].requests) == before + 1
    row = shared_lab.row(heard)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (12, 300)
    assert row["cost_usd"] == "0.003024"
    assert row["outcome"] == "thinking_exhausted"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_rsn_05_a_thought_in_the_finishing_chunk_is_not_lost(shared_lab: Lab, dialect: str) -> None:
    given = case("rsn-05")["given"]
    (upstream,) = given["upstream"]
    answer = {**upstream, "sse_text": retold(upstream["sse_text"], dialect)}
    heard = shared_lab.ask(given["client_request"], answer, target=dialect)
    assert (heard.joined("content"), heard.joined("reasoning_content")) == ("Paris.", "Capital of France.")
    assert (heard.finish_reason(), heard.done) == ("stop", True)
    first, last = [delta for delta in heard.deltas() if delta.get("content")]
    assert (first["content"], last["content"], last["reasoning_content"]) == ("Paris", ".", "Capital of France.")
