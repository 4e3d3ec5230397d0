"""Clients that lose their thoughts: put back from what the gateway itself relayed, never anybody else's."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest

from backends.emulator.app import Emulator
from backends.emulator.config import EmulatorConfig
from support.asgi import serve
from support.cases import case
from support.lab import Heard, Lab, lab, post
from support.processes import Gateway, gateway_process
from support.traffic import WEATHER, message_of

OK = {"status": 200, "json_usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
CALL = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def answer(thought: str | None, content: str | None = "", calls: bool = True) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thought is not None:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [CALL]
    choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message}
    return {"status": 200, "json": {"id": "c", "choices": [choice], "usage": OK["json_usage"]}}


def turn_two(question: str = "go", **call: Any) -> list[Any]:
    """A history whose assistant turn lost its thought."""
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "tool_calls": [{**CALL, **call}]},
        {"role": "tool", "tool_call_id": call.get("id", "f:0"), "content": "1"},
    ]


def ask(made: Lab, messages: list[Any], *answers: Any, target: str = "moonshot", **options: Any) -> Heard:
    headers = options.pop("headers", None)
    request = {"model": "kimi-k3.1-pro", "messages": messages, **options}
    return made.ask(request, *answers, target=target, headers=headers)


def test_hist_01_a_thought_travels_byte_for_byte(shared_lab: Lab) -> None:
    request = case("hist-01")["given"]["client_request"]
    for target in ("moonshot", "vllm", "sglang", "openrouter"):
        heard = shared_lab.ask(request, OK, target=target)
        sent = shared_lab.sent(target)["messages"][1]
        assert "  I will call f.\n" in (sent.get("reasoning_content"), sent.get("reasoning"))
        assert heard.headers["x-kimi-thinking"] == "intact"


@pytest.mark.parametrize("stream", [True, False])
def test_hist_02_a_lost_thought_is_put_back(shared_lab: Lab, stream: bool) -> None:
    question = f"go {stream}"
    first = ask(shared_lab, [{"role": "user", "content": question}], answer("secret plan"), stream=stream)
    assert message_of(first)["reasoning_content"] == "secret plan"
    heard = ask(shared_lab, turn_two(question), OK)
    assert shared_lab.sent()["messages"][1]["reasoning_content"] == "secret plan"
    assert heard.headers["x-kimi-thinking"] == "repaired=1"
    assert heard.json["kimi"]["thinking"] == "repaired=1"
    assert shared_lab.row(heard)["thinking"] == "repaired=1"


def test_hist_02_what_the_store_does_not_have_is_missing_and_gets_the_placeholder(shared_lab: Lab) -> None:
    heard = ask(shared_lab, turn_two("never seen before"), OK)
    assert shared_lab.sent()["messages"][1]["reasoning_content"] == ""
    assert heard.headers["x-kimi-thinking"] == "missing=1"


def test_hist_02_an_edited_turn_gets_nothing_back(shared_lab: Lab) -> None:
    ask(shared_lab, [{"role": "user", "content": "edit me"}], answer("plan to edit"))
    edited = turn_two("edit me", function={"name": "f", "arguments": '{"other": 1}'})
    heard = ask(shared_lab, edited, OK)
    assert "plan to edit" not in json.dumps(shared_lab.sent())
    assert heard.headers["x-kimi-thinking"] == "missing=1"


def test_renumbered_ids_are_the_same_turn(shared_lab: Lab) -> None:
    ask(shared_lab, [{"role": "user", "content": "renumber"}], answer("plan with ids"))
    heard = ask(shared_lab, turn_two("renumber", id="f_0"), OK)
    assert shared_lab.sent()["messages"][1]["reasoning_content"] == "plan with ids"
    assert shared_lab.sent()["messages"][1]["tool_calls"][0]["id"] == "f_0"
    assert heard.headers["x-kimi-thinking"] == "repaired=1"


def test_hist_03_thoughts_of_turns_without_tools_stay(shared_lab: Lab) -> None:
    request = case("hist-03")["given"]["client_request"]
    heard = shared_lab.ask(request, OK)
    assert [message.get("reasoning_content") for message in shared_lab.sent()["messages"]] == [
        None, "r1", None, "r2", None,
    ]  # fmt: skip
    assert heard.headers["x-kimi-thinking"] == "intact"


def test_another_end_user_gets_nothing(shared_lab: Lab) -> None:
    ask(shared_lab, [{"role": "user", "content": "mine"}], answer("private plan"), user="alice")
    heard = ask(shared_lab, turn_two("mine"), OK, user="bob")
    assert "private plan" not in json.dumps(shared_lab.sent())
    assert heard.headers["x-kimi-thinking"] == "missing=1"
    assert ask(shared_lab, turn_two("mine"), OK, user="alice").headers["x-kimi-thinking"] == "repaired=1"


def test_the_thought_of_a_cut_stream_is_kept_under_what_was_delivered(shared_lab: Lab) -> None:
    pieces = [
        {"reasoning_content": "half a thought"},
        {"content": "Half an answer, but long enough to know again."},
    ]
    events = "".join(
        f"data: {json.dumps({'id': 'c', 'choices': [{'index': 0, 'delta': piece}]})}\n\n" for piece in pieces
    )
    question = [{"role": "user", "content": "cut me off"}]
    cut = ask(shared_lab, question, {"status": 200, "sse_text": events, "then": "close"}, stream=True)
    assert cut.error is not None
    visible = {"role": "assistant", "content": cut.joined("content")}
    heard = ask(shared_lab, [*question, visible, {"role": "user", "content": "go on"}], OK)
    assert shared_lab.sent()["messages"][1]["reasoning_content"] == "half a thought"
    assert heard.headers["x-kimi-thinking"] == "repaired=1"


def test_one_dialect_answers_and_another_gets_the_thought(shared_lab: Lab) -> None:
    ask(shared_lab, [{"role": "user", "content": "across"}], answer("plan across"), target="moonshot")
    heard = ask(shared_lab, turn_two("across"), OK, target="vllm")
    sent = shared_lab.sent("vllm")["messages"][1]
    assert (sent["reasoning_content"], sent["reasoning"]) == ("plan across", "plan across")
    assert heard.headers["x-kimi-thinking"] == "repaired=1"


def test_reasoning_details_that_the_client_dropped_come_back_whole(shared_lab: Lab) -> None:
    given = case("rsn-02")["given"]
    first = shared_lab.ask(given["client_request"], *given["upstream"], target="openrouter")
    message = message_of(first)
    details = message.pop("reasoning_details")
    for dropped in (message, {name: value for name, value in message.items() if name != "reasoning_content"}):
        again = {**given["client_request"], "messages": [*given["client_request"]["messages"], dropped]}
        shared_lab.ask(again, *given["upstream"], target="openrouter")
        assert shared_lab.sent("openrouter")["messages"][1]["reasoning_details"] == details


def test_repair_can_be_switched_off_for_all_and_for_a_key() -> None:
    keys = (
        '[[keys]]\nname = "plain"\nkey_env = "PLAIN"\npin = true\nthinking_repair = false\n'
        '[[keys]]\nname = "kept"\nkey_env = "KEPT"\npin = true\n'
    )
    with lab(keys, env={"PLAIN": "kg-plain", "KEPT": "kg-kept"}) as made:
        for key, expected in (("kg-plain", "missing=1"), ("kg-kept", "repaired=1")):
            headers = {"authorization": f"Bearer {key}"}
            ask(made, [{"role": "user", "content": "off"}], answer("plan off"), headers=headers)
            assert ask(made, turn_two("off"), OK, headers=headers).headers["x-kimi-thinking"] == expected
    with lab("[thinking]\nrepair = false\n") as made:
        ask(made, [{"role": "user", "content": "off"}], answer("plan off"))
        heard = ask(made, turn_two("off"), OK)
        assert heard.headers["x-kimi-thinking"] == "missing=1"
        assert "reasoning_content" not in made.sent()["messages"][1]


@pytest.fixture(scope="module")
def emulated() -> Iterator[tuple[Gateway, str]]:
    """A gateway before a strict emulator, and the emulator's address."""
    with ExitStack() as stack:
        address = stack.enter_context(serve(Emulator(EmulatorConfig(pace=0))))
        config = (
            f'[server]\ndrain_grace_s = 0\n[[targets]]\nname = "moonshot"\ndialect = "moonshot"\n'
            f'base_url = "{address}/v1"\napi_key_env = "KEY"\nmodels = {{ "kimi-k3.1-pro" = "kimi-k3.1-pro" }}\n'
        )
        yield stack.enter_context(gateway_process(config, {"KEY": "sk-thinking"})), address


@pytest.mark.parametrize("stream", [True, False])
def test_a_plain_client_that_drops_unknown_fields_holds_five_turns(
    emulated: tuple[Gateway, str], stream: bool
) -> None:
    gateway, address = emulated
    messages: list[Any] = [
        {"role": "system", "content": "Five turns. " + "A rule to be cached. " * 400},
        {"role": "user", "content": f"Weather in Paris? (stream {stream})"},
    ]
    cached: list[int] = []
    thoughts: list[str] = []
    with openai.OpenAI(base_url=gateway.base_url, api_key="any") as client:
        for turn in range(5):
            request = {
                "model": "kimi-k3.1-pro",
                "messages": messages,
                "tools": [WEATHER],
                "reasoning_effort": "max",
            }
            request["tool_choice"] = "required" if turn < 4 else "auto"
            heard = post(gateway.base_url, {**request, "stream": stream}, {})
            assert heard.status == 200
            expected = f"repaired={turn}" if turn else None
            assert heard.headers.get("x-kimi-thinking") == expected
            message = message_of(heard)
            thoughts.append(message.pop("reasoning_content"))
            usage = heard.json["usage"] if not stream else usage_of(heard)
            cached.append(usage["cached_tokens"])
            plain = {name: value for name, value in message.items() if name in ("role", "content", "tool_calls")}
            messages.append(plain)
            for call in plain.get("tool_calls") or []:
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"{turn} C"})
        assert client.models.list().data
    seen = last_request(address)["messages"]
    assert [message["reasoning_content"] for message in seen if message["role"] == "assistant"] == thoughts[:4]
    assert cached == sorted(cached)
    assert cached[-1] > cached[1] > 0


def usage_of(heard: Heard) -> Any:
    """The usage of a stream, where Moonshot's own clients read it."""
    return next(choice["usage"] for chunk in heard.chunks for choice in chunk["choices"] if "usage" in choice)


def last_request(address: str) -> Any:
    with urllib.request.urlopen(f"{address}/emulator/requests", timeout=10) as reply:
        return json.load(reply)["requests"][-1]["body"]
