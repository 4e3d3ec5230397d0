"""Recorded requests of unmodified clients, sent through the gateway to strict emulators: answered, and the same in
meaning. What each client sends and loses is recorded 2026-11-30 (support.replay).

Their requests to /v1/responses wait for that surface.
"""

import http.client
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from backends.emulator.app import Emulator
from backends.emulator.config import EmulatorConfig
from support.asgi import serve
from support.lab import Heard, post
from support.processes import Gateway, gateway_process
from support.replay import CLIENTS, Message, Play, Recorded, compact, received, recorded
from support.traffic import message_of

WHOLE = ("kosong-kimi-sdk", "langchain-moonshot", "openai-npm", "openai-python", "pydantic-ai")
"""Clients whose requests were recorded to the last byte; of the others long texts were cut."""
WINDOW_TOKENS = 1_048_576
PLACEHOLDER = {"reasoning_content": ""}
SAID = "The user asks something simple. I answer briefly."


@dataclass(frozen=True, slots=True)
class Meaning:
    """What must arrive of one request, and what the client is told.

    `fields` are those of the upstream request besides model, messages, tools and the stream that the gateway asks
    for; `added` are members of messages by index that the client did not send.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    adjusted: frozenset[str] = frozenset()
    thinking: str | None = None
    added: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    target: str = "moonshot"
    lowers_limit: bool = False


def kimi_code(session: str, thinking: str | None) -> Meaning:
    """Its only wish for effort is thinking.effort, its limit the whole window; zod writes $schema into tools."""
    return Meaning(
        {"prompt_cache_key": session, "reasoning_effort": "high"},
        frozenset({"max_completion_tokens", "tools[0].function.parameters", "tools[1].function.parameters"}),
        thinking,
        lowers_limit=True,
    )


def kimi_cli(thinking: str | None, added: Mapping[int, Mapping[str, str]]) -> Meaning:
    """It wants no thinking, which only an engine can do; vLLM reads a thought under both names."""
    fields = {
        "prompt_cache_key": "761b6ada-cb00-49da-be97-ff110e65c06a",
        "max_completion_tokens": 32000,
        "reasoning_effort": "none",
    }
    return Meaning(fields, thinking=thinking, added=added, target="vllm")


def kosong(thinking: str | None) -> Meaning:
    fields = {"prompt_cache_key": "sess-1", "max_completion_tokens": 2000}
    return Meaning(fields, frozenset({"small_output_limit"}), thinking)


_FIRST, _SECOND = "session_b67e6bd8-9069-4aa1-a96c-18015a2f5cc8", "session_c5aeece0-cf78-4bab-ac89-64e1bd88aba0"
_AUTO = {"tool_choice": "auto"}
TABLE: Mapping[str, Mapping[int, Meaning]] = {
    # Its own examples are assistant's turns without a thought.
    "aider": {
        1: Meaning({"reasoning_effort": "high"}, frozenset({"temperature"}), "missing=4"),
        2: Meaning({}, frozenset({"temperature"}), "missing=5"),
    },
    "kimi-cli-python": {1: kimi_cli(None, {}), 2: kimi_cli("intact", {2: {"reasoning": SAID}})},
    "kimi-code-npm": {
        1: kimi_code(_FIRST, None),
        2: kimi_code(_FIRST, "intact"),
        3: kimi_code(_FIRST, "intact"),
        4: kimi_code(_SECOND, None),
        5: kimi_code(_SECOND, "intact"),
    },
    "kosong-kimi-sdk": {seq: kosong(None if seq % 2 else "intact") for seq in range(1, 7)},
    "langchain-moonshot": {1: Meaning(), 2: Meaning(), 3: Meaning(), 4: Meaning(thinking="intact")},
    "openai-npm": {
        2: Meaning({"reasoning_effort": "max"}),
        3: Meaning({"prompt_cache_key": "s1"}, thinking="intact"),
        4: Meaning(_AUTO),
        # runTools with a stream sends no thought back, and this answer was not ours.
        5: Meaning(_AUTO, thinking="missing=1", added={1: PLACEHOLDER}),
    },
    "openai-python": {
        2: Meaning({"reasoning_effort": "max"}),
        3: Meaning(
            {"prompt_cache_key": "s1", "max_completion_tokens": 200}, frozenset({"small_output_limit"}), "intact"
        ),
        4: Meaning({**_AUTO, "parallel_tool_calls": True}),
        5: Meaning(thinking="intact"),
        7: Meaning(),
    },
    "pydantic-ai": {
        seq: Meaning(_AUTO, thinking=None if seq in (1, 4, 6, 9) else "intact") for seq in range(1, 10)
    },
}


@dataclass(slots=True)
class Stage:
    """A gateway before a strict emulator of Moonshot and one of vLLM, in this order."""

    gateway: Gateway
    addresses: Mapping[str, str]

    def send(self, body: bytes, headers: Mapping[str, str]) -> tuple[Heard, str, Any]:
        """What the client heard, which target received a request, and its body."""
        heard = post(self.gateway.base_url, body, headers)
        assert heard.status == 200, heard.raw
        found = [(name, entry) for name, address in self.addresses.items() for entry in received(address)]
        assert len(found) == 1
        return heard, found[0][0], found[0][1]["body"]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with ExitStack() as stack:
        addresses = {
            name: stack.enter_context(serve(Emulator(EmulatorConfig(pace=0, dialect=name))))
            for name in ("moonshot", "vllm")
        }
        config = "[server]\ndrain_grace_s = 0\n"
        for name, model in (("moonshot", "kimi-k3.1-pro"), ("vllm", "moonshotai/Kimi-K3.1-Pro")):
            config += (
                f'[[targets]]\nname = "{name}"\ndialect = "{name}"\nbase_url = "{addresses[name]}/v1"\n'
                f'api_key_env = "KEY"\nmodels = {{ "kimi-k3.1-pro" = "{model}" }}\n'
            )
        config += '[[routes]]\nmodel = "kimi-k3.1-pro"\npolicy = "order"\ntargets = ["moonshot", "vllm"]\n'
        gateway = stack.enter_context(gateway_process(config, {"KEY": "sk-replay"}))
        yield Stage(gateway, addresses)


# --- as recorded ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
def test_every_recorded_request_is_answered_and_means_what_it_meant(stage: Stage, client: str) -> None:
    requests = recorded(client)
    assert [request.seq for request in requests] == list(TABLE[client])
    for request in requests:
        assert request.is_whole == (client in WHOLE)
        meaning = TABLE[client][request.seq]
        heard, target, sent = stage.send(request.raw, request.headers)
        check_told(heard, request, meaning)
        assert target == meaning.target
        assert sent.pop("model") in ("kimi-k3.1-pro", "moonshotai/Kimi-K3.1-Pro")
        assert (sent.pop("stream"), sent.pop("stream_options")) == (True, {"include_usage": True})
        added = meaning.added
        expected = [{**message, **added.get(index, {})} for index, message in enumerate(request.messages)]
        assert sent.pop("messages") == expected
        assert sent.pop("tools", None) == without_marks(request.body.get("tools"))
        if meaning.lowers_limit:
            asked = request.body["max_completion_tokens"]
            assert 1_000_000 < sent.pop("max_completion_tokens") < asked <= WINDOW_TOKENS
        assert sent == meaning.fields


def check_told(heard: Heard, request: Recorded, meaning: Meaning) -> None:
    """The client hears a stream where it asked for one, and what was done to its request."""
    assert heard.done == bool(request.body.get("stream"))
    assert message_of(heard)["role"] == "assistant"
    assert set(filter(None, heard.headers.get("x-kimi-adjusted", "").split(","))) == meaning.adjusted
    assert heard.headers.get("x-kimi-thinking") == meaning.thinking
    assert heard.headers["x-kimi-effort"] == meaning.fields.get("reasoning_effort", "unset")


def without_marks(tools: Any) -> Any:
    """Tools without $schema, which is no part of Moonshot's flavour of schemas and says nothing about values."""
    if tools is None:
        return None
    return [{**tool, "function": {**tool["function"], "parameters": unmarked(tool)}} for tool in tools]


def unmarked(tool: Any) -> dict[str, Any]:
    return {name: value for name, value in tool["function"]["parameters"].items() if name != "$schema"}


@pytest.mark.parametrize("client", ["openai-npm", "openai-python"])
def test_the_recorded_look_at_the_models_is_answered(stage: Stage, client: str) -> None:
    (request,) = recorded(client, "/v1/models")
    connection = http.client.HTTPConnection(stage.gateway.root_url.removeprefix("http://"), timeout=10)
    try:
        connection.request(request.method, request.path, headers=dict(request.headers))
        reply = connection.getresponse()
        assert (reply.status, b"kimi-k3.1-pro" in reply.read()) == (200, True)
    finally:
        connection.close()


# --- as conversations with us ---------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [client for client in CLIENTS if client != "aider"])
@pytest.mark.parametrize("drops", [False, True], ids=["as_recorded", "dropping_thoughts"])
def test_the_thoughts_of_our_own_answers_are_in_place_in_the_next_turn(
    stage: Stage, client: str, drops: bool
) -> None:
    play = Play(recorded(client), f"{client} {drops}", drops_thoughts=drops)
    later_turns = 0
    for at, request in enumerate(play.requests):
        heard, _, sent = stage.send(compact(play.body(at)), request.headers)
        play.answers[at] = message_of(heard)
        thoughts = play.thoughts(at)
        later_turns += len(thoughts)
        lost = len(thoughts) - play.given_back(at)
        if client == "kimi-cli-python" and lost:  # without thinking there was no thought to keep
            assert heard.headers["x-kimi-thinking"] == f"missing={lost}"
            continue
        told = (f"repaired={lost}" if lost else "intact") if thoughts else None
        assert heard.headers.get("x-kimi-thinking") == told
        for index, thought in thoughts.items():
            assert sent["messages"][index]["reasoning_content"] == thought
            assert thought or client == "kimi-cli-python"
    assert later_turns > 0


def test_tool_ids_arrive_as_the_client_spells_them(stage: Stage) -> None:
    play = Play(recorded("kimi-code-npm")[:2], "ids", drops_thoughts=True)
    for at, request in enumerate(play.requests):
        heard, _, sent = stage.send(compact(play.body(at)), request.headers)
        play.answers[at] = message_of(heard)
    assert play.answers[0]["tool_calls"][0]["id"] == "Bash:0"
    assert [message["tool_calls"][0]["id"] for message in sent["messages"] if "tool_calls" in message] == [
        "Bash_0"
    ]
    assert [message["tool_call_id"] for message in sent["messages"] if message["role"] == "tool"] == ["Bash_0"]


def test_aider_writes_the_thought_into_the_text_so_it_stays_there_and_is_missing_where_it_belongs(
    stage: Stage,
) -> None:
    """It also moves the reminder out of the question: neither the turn nor what precedes it is what it was, so
    nothing may be put back (design, section 7). The upstream gets its words as it wrote them."""
    first, second = recorded("aider")
    heard, _, _ = stage.send(first.raw, first.headers)
    answer = message_of(heard)
    messages = [with_answer(message, answer) for message in second.messages]
    assert messages != second.messages
    heard, _, sent = stage.send(compact({**second.body, "messages": messages}), second.headers)
    turns = [message for message in messages if message["role"] == "assistant"]
    assert heard.headers["x-kimi-thinking"] == f"missing={len(turns)}"
    assert sent["messages"] == messages
    assert any(answer["reasoning_content"] in turn["content"] for turn in turns)


def with_answer(message: Message, answer: Message) -> Message:
    """The turn in which aider keeps the recorder's answer, with ours instead."""
    if SAID not in message["content"]:
        return message
    text = message["content"].replace(SAID, answer["reasoning_content"])
    return {**message, "content": text.replace("Kimi says hello.", answer["content"])}
