"""What unmodified clients really sent (`client-*.jsonl`, recorded 2026-11-30), to be sent again.

A request that the recording holds whole is sent as the bytes it was. Where it was cut (`body_bytes` tells), cut
texts stay cut and the tools whose names are all that is left are put back with an empty schema.
"""

import json
import re
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from support.shared import shared_path

CLIENTS: Final = (
    "aider",
    "kimi-cli-python",
    "kimi-code-npm",
    "kosong-kimi-sdk",
    "langchain-moonshot",
    "openai-npm",
    "openai-python",
    "pydantic-ai",
)
CHAT: Final = "/v1/chat/completions"
_OF_THE_CONNECTION: Final = frozenset({"host", "connection", "content-length"})
_CUT_TOOLS: Final = re.compile(r"^…\[\d+ tools in all: (.*)\]$")

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded request. `call` is the tool call that the recorder answered with, None for a text."""

    client: str
    seq: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any] = field(repr=False)
    body_bytes: int
    call: dict[str, str] | None

    @property
    def is_whole(self) -> bool:
        """Nothing of the body was cut."""
        return len(self.raw) == self.body_bytes

    @property
    def raw(self) -> bytes:
        """The body as JSON; the very bytes where it is whole: all these clients write it without white space."""
        return compact(self.body)

    @property
    def messages(self) -> list[Message]:
        """The conversation so far."""
        return list(self.body["messages"])


def compact(value: Any) -> bytes:
    """JSON as these clients write it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def recorded(client: str, path: str = CHAT) -> list[Recorded]:
    """The requests of one client to one path, in their order."""
    lines = shared_path(f"transcripts/client-{client}.jsonl").read_text("utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    found = []
    for entry, after in zip(entries, [*entries[1:], {}], strict=True):
        if entry.get("path") != path:
            continue
        headers = {name.lower(): value for name, value in entry["headers"].items()}
        kept = {name: value for name, value in headers.items() if name not in _OF_THE_CONNECTION}
        call = after.get("response", {}).get("tool")
        body = _with_tools(entry["body"] or {})
        found.append(
            Recorded(client, entry["seq"], entry["method"], path, kept, body, _bytes_of(entry, body), call)
        )
    return found


def _bytes_of(entry: Mapping[str, Any], body: Mapping[str, Any]) -> int:
    """How many bytes the client sent; none where our body has something that it did not send."""
    return int(entry["body_bytes"]) if body == entry["body"] else -1


def _with_tools(body: dict[str, Any]) -> dict[str, Any]:
    """The body with its cut tools put back by name."""
    tools: list[Any] = []
    for tool in body.get("tools", ()):
        cut = _CUT_TOOLS.match(tool) if isinstance(tool, str) else None
        if cut is None:
            tools.append(tool)
            continue
        known = {held["function"]["name"] for held in tools}
        names = [name for name in cut[1].split(", ") if name not in known]
        tools += [{"type": "function", "function": _nameless(name)} for name in names]
    return {**body, "tools": tools} if tools else body


def _nameless(name: str) -> dict[str, Any]:
    return {"name": name, "description": name, "parameters": {"type": "object", "properties": {}}}


@dataclass(slots=True)
class Play:
    """A client's recording held as conversations with us: the answers are ours, the habits are the client's.

    Where the recorder answered with a tool call, a directive in the last user message has the emulator make the
    same call. The first user message gets the number of its conversation, because several clients say the very
    same things, and `mark`. `drops_thoughts` makes any client one that gives no thought back.
    """

    requests: Sequence[Recorded]
    mark: str
    drops_thoughts: bool = False
    answers: dict[int, Message] = field(default_factory=dict)  # by the request's place

    def body(self, at: int) -> dict[str, Any]:
        """The request at a place, with what we really answered in its history."""
        request = self.requests[at]
        messages = [dict(message) for message in request.messages]
        answered = self.answered_turns(at)
        for index, place in answered.items():
            messages[index] = self._given_back(messages[index], place)
            if request.messages[index].get("tool_calls"):
                _point_at(messages, index)
        places = [*answered.values(), at]
        messages[_first_user(messages)]["content"] += f" (conversation {places[0]} of {self.mark})"
        for place in places:
            call = self.requests[place].call
            if call is not None:
                messages[_last_user(self.requests[place].messages)]["content"] += _directive(call)
        return {**request.body, "messages": messages}

    def answered_turns(self, at: int) -> dict[int, int]:
        """The assistant's turns of a request that were answers in this recording: index to the request's place."""
        messages = self.requests[at].messages
        found = {}
        for index, message in enumerate(messages):
            earlier = [place for place in range(at) if self.requests[place].messages == messages[:index]]
            if message["role"] == "assistant" and earlier:
                found[index] = earlier[-1]
        return found

    def thoughts(self, at: int) -> dict[int, str]:
        """What the upstream must see as thought, by index of the turn."""
        return {
            index: self.answers[place]["reasoning_content"] for index, place in self.answered_turns(at).items()
        }

    def given_back(self, at: int) -> int:
        """How many of these the client gives back itself."""
        turns = (self.requests[at].messages[index] for index in self.answered_turns(at))
        return 0 if self.drops_thoughts else sum("reasoning_content" in turn for turn in turns)

    def _given_back(self, turn: Message, place: int) -> Message:
        """The answer at a place as this client sends it back: members, their order and spelling are recorded."""
        answer, said = self.answers[place], self.requests[place].call
        made: Message = {}
        for name, value in turn.items():
            if name == "reasoning_content":
                if not self.drops_thoughts:
                    made[name] = answer[name]
            elif name == "content":
                made[name] = answer[name] if value else value
            elif name == "tool_calls":
                assert said is not None
                calls = zip(value, answer[name], strict=True)
                made[name] = [_call_given_back(habit, call, said) for habit, call in calls]
            else:
                made[name] = value
        return made


def _first_user(messages: Sequence[Message]) -> int:
    return next(index for index, message in enumerate(messages) if message["role"] == "user")


def _last_user(messages: Sequence[Message]) -> int:
    return max(index for index, message in enumerate(messages) if message["role"] == "user")


def _directive(call: Mapping[str, str]) -> str:
    wanted = {"name": call["name"], "arguments": json.loads(call["args"])}
    return f" [[emulator {json.dumps({'call': [wanted]})}]]"


def _call_given_back(habit: Message, call: Message, said: Mapping[str, str]) -> Message:
    """One call as the client sends it back, told from what it made of the recorder's."""
    arguments = call["function"]["arguments"]
    if habit["function"]["arguments"] != said["args"]:  # parsed and written again
        arguments = compact(json.loads(arguments)).decode()
    told = {"name": call["function"]["name"], "arguments": arguments}
    function = {name: told[name] for name in habit["function"]}
    return {**habit, "id": _id_given_back(habit["id"], call["id"], said["id"]), "function": function}


def _id_given_back(habit: str, id: str, said: str) -> str:
    """Kimi Code makes `Bash_0` of `Bash:0`; the others leave ids alone."""
    return id if habit == said else re.sub(r"[^a-zA-Z0-9_-]", "_", id)


def _point_at(messages: list[Message], index: int) -> None:
    """The results behind a turn name its calls."""
    ids = [call["id"] for call in messages[index]["tool_calls"]]
    for message, id in zip(messages[index + 1 :], ids, strict=False):
        message["tool_call_id"] = id


def received(address: str) -> list[Any]:
    """What an emulator received since the last look: entries with `body` and `usage`."""
    with urllib.request.urlopen(f"{address}/emulator/requests?clear=1", timeout=10) as reply:
        entries = json.load(reply)["requests"]
    return [entry for entry in entries if entry["path"] == CHAT]
