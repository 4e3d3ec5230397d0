"""Five turns with the habits of recorded clients: whatever a client does to an answer before it sends it back, the
upstream finds every thought where it was, its cache stays warm, and a failover to another dialect changes neither.

Each habit is a function from an answer to what the client sends back, as recorded 2026-11-30
(facts/engines-and-clients.md, section 2, and the transcripts).
"""

import json
import re
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from backends.emulator.app import Emulator
from backends.emulator.config import EmulatorConfig
from support.asgi import serve
from support.lab import DIALECTS, Heard, post
from support.processes import Gateway, gateway_process
from support.replay import Message, compact, received
from support.traffic import WEATHER, message_of

TURNS = 5
PRO = "kimi-k3.1-pro"
RULES = "A rule that is worth caching. " * 80
REPORT = "Eighteen degrees, and the wind comes from the west over the river. " * 30  # more than a block of cache


@dataclass(frozen=True, slots=True)
class Habit:
    """`back` is what the client makes of an answer; `fields` is what it sends besides."""

    back: Callable[[Message], Message]
    fields: Mapping[str, Any]
    keeps_thoughts: bool = False


def plain(answer: Message) -> Message:
    """openai for Python, as most applications use it: the fields they know, copied."""
    return {name: answer[name] for name in ("role", "content", "tool_calls") if name in answer}


def kimi_code(answer: Message) -> Message:
    """Content only where there is some, arguments parsed and written again, ids without colons, thoughts kept."""
    back: Message = {"role": "assistant"}
    if answer.get("content"):
        back["content"] = answer["content"]
    if "tool_calls" in answer:
        back["tool_calls"] = [
            {
                "id": re.sub(r"[^a-zA-Z0-9_-]", "_", call["id"]),
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": compact(json.loads(call["function"]["arguments"])).decode(),
                },
            }
            for call in answer["tool_calls"]
        ]
    return {**back, "reasoning_content": answer["reasoning_content"]}


def langchain_openai(answer: Message) -> Message:
    """No thought; content null beside calls; arguments written by json.dumps, with its spaces."""
    back: Message = {"content": answer.get("content") or None, "role": "assistant"}
    if "tool_calls" in answer:
        back["tool_calls"] = [
            {
                "type": "function",
                "id": call["id"],
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.dumps(json.loads(call["function"]["arguments"]), ensure_ascii=False),
                },
            }
            for call in answer["tool_calls"]
        ]
    return back


def run_tools(answer: Message) -> Message:
    """openai for npm, `runTools` with a stream: no thought, content "" beside calls, arguments before the name."""
    back: Message = {"role": "assistant", "content": answer.get("content") or ""}
    if "tool_calls" in answer:
        back["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {name: call["function"][name] for name in ("arguments", "name")},
            }
            for call in answer["tool_calls"]
        ]
    return back


HABITS: Mapping[str, Habit] = {
    "openai-python": Habit(plain, {"reasoning_effort": "max", "stream": False}),
    "kimi-code": Habit(
        kimi_code,
        {
            "stream": True,
            "stream_options": {"include_usage": True},
            "prompt_cache_key": "session_1",
            "thinking": {"type": "enabled", "effort": "max", "keep": "all"},
            "max_completion_tokens": 1_047_342,
        },
        keeps_thoughts=True,
    ),
    "langchain-openai": Habit(langchain_openai, {"reasoning_effort": "max", "stream": True}),
    "openai-npm": Habit(run_tools, {"reasoning_effort": "max", "stream": True}),
}


@dataclass(slots=True)
class Stage:
    """A gateway before a strict emulator of every dialect. The route `over-X` tries Moonshot's first, then X's."""

    gateway: Gateway
    addresses: Mapping[str, str]

    def send(self, model: str, messages: list[Any], fields: Mapping[str, Any]) -> Heard:
        body = {"model": model, "messages": messages, **fields}
        heard = post(self.gateway.base_url, compact(body), {})
        assert heard.status == 200, heard.raw
        return heard

    def seen(self, target: str) -> Any:
        """The messages of the last request that a target answered."""
        return received(self.addresses[target])[-1]["body"]["messages"]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with ExitStack() as stack:
        addresses = {
            name: stack.enter_context(serve(Emulator(EmulatorConfig(pace=0, dialect=name, block_tokens=256))))
            for name in DIALECTS
        }
        others = [name for name in DIALECTS if name != "moonshot"]
        theirs = {"moonshot": PRO, "openrouter": "moonshotai/kimi-k3.1-pro"}
        config = "[server]\ndrain_grace_s = 0\n[timing]\nusage_grace_s = 0.5\n"
        for name, address in addresses.items():
            routes = [PRO, *(f"over-{other}" for other in others)] if name == "moonshot" else [f"over-{name}"]
            model = theirs.get(name, "moonshotai/Kimi-K3.1-Pro")
            models = ", ".join(f'"{route}" = "{model}"' for route in routes)
            config += (
                f'[[targets]]\nname = "{name}"\ndialect = "{name}"\nbase_url = "{address}/v1"\n'
                f'api_key_env = "KEY"\nmodels = {{ {models} }}\n'
            )
        for other in others:
            config += f'[[routes]]\nmodel = "over-{other}"\npolicy = "order"\ntargets = ["moonshot", "{other}"]\n'
        config += f'[[routes]]\nmodel = "{PRO}"\npolicy = "order"\ntargets = ["moonshot"]\n'
        gateway = stack.enter_context(gateway_process(config, {"KEY": "sk-habits"}))
        yield Stage(gateway, addresses)


def usage_of(heard: Heard) -> Any:
    """The usage, where Moonshot's own clients read it in a stream."""
    if not heard.events:
        return heard.json["usage"]
    return next(choice["usage"] for chunk in heard.chunks for choice in chunk["choices"] if "usage" in choice)


def opening(mark: str) -> list[Any]:
    return [
        {"role": "system", "content": f"You speak of the weather, {mark}. {RULES}"},
        {"role": "user", "content": f"Weather in Paris? ({mark})"},
    ]


def turn_fields(habit: Habit, turn: int) -> dict[str, Any]:
    choice = "required" if turn < TURNS - 1 else "auto"
    return {**habit.fields, "tools": [WEATHER], "tool_choice": choice}


def results(back: Message, turn: int) -> list[Message]:
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": f"Report {turn}. {REPORT}"}
        for call in back.get("tool_calls", ())
    ]


def told(habit: Habit, turn: int) -> str | None:
    """What the client is told in a turn that follows so many answers."""
    if not turn:
        return None
    return "intact" if habit.keeps_thoughts else f"repaired={turn}"


@pytest.mark.parametrize("client", HABITS)
def test_five_turns_at_max_keep_every_thought_and_a_growing_cache(stage: Stage, client: str) -> None:
    habit, messages = HABITS[client], opening(client)
    thoughts: list[str] = []
    cached: list[int] = []
    for turn in range(TURNS):
        heard = stage.send(PRO, messages, turn_fields(habit, turn))
        assert heard.headers["x-kimi-effort"] == "max"
        assert heard.headers.get("x-kimi-thinking") == told(habit, turn)
        seen = stage.seen("moonshot")
        assert [message["reasoning_content"] for message in seen if message["role"] == "assistant"] == thoughts
        answer = message_of(heard)
        thoughts.append(answer["reasoning_content"])
        cached.append(usage_of(heard)["cached_tokens"])
        back = habit.back(answer)
        messages += [back, *results(back, turn)]
    assert all(thoughts)
    assert len(set(thoughts)) == TURNS
    assert cached[0] == 0
    assert cached == sorted(set(cached))


# --- aider ----------------------------------------------------------------------------------------------------

_REMINDER = "\n\nTo suggest changes to a file you MUST return the entire content of the updated file."
_TAG = "thinking-content-7bbeb8e1441453ad999a0bbba8a46d4b"


def aider(answer: Message) -> Message:
    """The thought, in a tag of its own, and the text, as one text."""
    text = f"\n<{_TAG}>\n\n{answer['reasoning_content']}\n\n</{_TAG}>\n\n{answer['content']}\n\n"
    return {"role": "assistant", "content": text}


def test_aider_keeps_its_thoughts_in_its_texts_where_nothing_can_be_put_back(stage: Stage) -> None:
    """Every turn is edited, so each is `missing`; what the upstream reads are aider's texts, byte for byte."""
    kept: list[Any] = [{"role": "system", "content": f"Act as an expert software developer. {RULES}"}]
    cached: list[int] = []
    for turn in range(TURNS):
        question = f"Question {turn}: {REPORT}"
        asked = [*kept, {"role": "user", "content": question + _REMINDER}]
        heard = stage.send(PRO, asked, {"temperature": 0, "reasoning_effort": "max", "stream": turn % 2 == 0})
        assert heard.headers["x-kimi-adjusted"] == "temperature"
        assert heard.headers.get("x-kimi-thinking") == (f"missing={turn}" if turn else None)
        assert stage.seen("moonshot") == asked
        answer = message_of(heard)
        assert answer["reasoning_content"]
        cached.append(usage_of(heard)["cached_tokens"])
        kept += [{"role": "user", "content": f"{question}  \n"}, aider(answer)]
    assert cached == sorted(set(cached))


# --- through a failover ---------------------------------------------------------------------------------------


def spelled(dialect: str, thought: str) -> dict[str, str]:
    """A thought in a history, by the members that a target of this dialect reads."""
    names = {"vllm": ("reasoning_content", "reasoning"), "openrouter": ("reasoning",)}
    return dict.fromkeys(names.get(dialect, ("reasoning_content",)), thought)


def break_down(address: str, kind: str, mark: str) -> None:
    """From now on every request of one conversation fails there."""
    rule = f'[[faults]]\nkind = "{kind}"\ncontains = "{mark}"\n'
    request = urllib.request.Request(f"{address}/emulator/faults", rule.encode(), method="POST")
    with urllib.request.urlopen(request, timeout=10) as reply:
        assert reply.status == 200


@pytest.mark.parametrize(
    ("client", "dialect", "fault"),
    [
        ("openai-python", "openrouter", "http_error"),
        ("langchain-openai", "vllm", "reset"),
        ("openai-npm", "sglang", "reset"),
        ("kimi-code", "vllm", "http_error"),
    ],
)
def test_a_failover_in_the_third_turn_takes_every_thought_along(
    stage: Stage, client: str, dialect: str, fault: str
) -> None:
    habit, mark = HABITS[client], f"{client} over {dialect}"
    messages = opening(mark)
    thoughts: list[str] = []
    cached: list[int] = []
    for turn in range(TURNS):
        if turn == 2:
            break_down(stage.addresses["moonshot"], fault, mark)
        target = "moonshot" if turn < 2 else dialect
        heard = stage.send(f"over-{dialect}", messages, turn_fields(habit, turn))
        assert heard.headers["x-kimi-target"] == target
        assert heard.headers.get("x-kimi-thinking") == told(habit, turn)
        seen = [message for message in stage.seen(target) if message["role"] == "assistant"]
        names = set(spelled("vllm", ""))
        held = [{name: value for name, value in message.items() if name in names} for message in seen]
        assert held == [spelled(target, thought) for thought in thoughts]
        answer = message_of(heard)
        thoughts.append(answer["reasoning_content"])
        cached.append(usage_of(heard).get("cached_tokens") or 0)
        back = habit.back(answer)
        messages += [back, *results(back, turn)]
    assert all(thoughts)
    assert cached[2] < cached[1]  # the second target had never seen it
    assert cached[2] < cached[3] < cached[4]
