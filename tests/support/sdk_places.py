"""Servers for the SDK to talk to, and a chat that is driven the same way whether it is sync or async."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2

from backends.emulator.config import EmulatorConfig
from kimi_sdk import AsyncChat, Chat, Done, Event, KimiError, Reply
from support.emulators import emulators
from support.processes import gateway_process

PRO: Final = "kimi-k3.1-pro"
DIALECTS: Final = ("moonshot", "openrouter", "vllm", "sglang")
PLACES: Final = (*DIALECTS, "gateway")
BEHIND: Final = "behind"  # the emulator that the gateway stands in front of

_GATEWAY: Final = """
[server]
drain_grace_s = 0
[retry]
max_retries = 0
[timing]
usage_grace_s = 0.2
[[targets]]
name = "moonshot"
dialect = "moonshot"
base_url = "{url}/v1"
api_key_env = "LAB_KEY"
models = {{ "kimi-k3.1-pro" = "kimi-k3.1-pro", "kimi-k3.1-pro-highspeed" = "kimi-k3.1-pro-highspeed" }}
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A server: the chat's arguments for it, and the address of the emulator that answers in the end."""

    name: str
    arguments: Mapping[str, Any]
    emulator: str

    def misbehave(self, faults: str) -> None:
        """The emulator's fault file from now on; "" for none."""
        answer = httpx2.post(f"{self.emulator}/emulator/faults", content=faults, timeout=10)
        assert answer.status_code == 200, answer.text

    def reset(self) -> None:
        """Forgets what the emulator has seen, charged and was told."""
        self.misbehave("")
        httpx2.post(f"{self.emulator}/emulator/reset", timeout=10).raise_for_status()

    def seen(self) -> list[dict[str, Any]]:
        """The chat requests that came."""
        found = httpx2.get(f"{self.emulator}/emulator/requests", timeout=10).json()["requests"]
        return [one for one in found if one["path"].endswith("/chat/completions")]

    def invoice(self) -> dict[str, Any]:
        """What the emulator has charged."""
        held: dict[str, Any] = httpx2.get(f"{self.emulator}/emulator/invoice", timeout=10).json()
        return held


@contextmanager
def emulated_places() -> Iterator[dict[str, Place]]:
    """One emulator of each dialect, and one more for a gateway to stand before."""
    short: dict[str, Any] = {"pace": 0, "text_tokens": 20, "thought_tokens": {"low": 8, "high": 12, "max": 16}}
    configs = {name: EmulatorConfig(dialect=name, **short) for name in DIALECTS}
    configs[BEHIND] = EmulatorConfig(**short)
    with emulators(configs) as found:
        yield {
            name: Place(
                name,
                {"base_url": f"{url}/v1", "dialect": configs[name].dialect, "api_key": "sk-test"},
                url,
            )
            for name, url in found.items()
        }


@contextmanager
def gateway_before(emulated: Place) -> Iterator[Place]:
    """A gateway whose one target is an emulator."""
    with gateway_process(_GATEWAY.format(url=emulated.emulator), {"LAB_KEY": "sk-lab"}) as gateway:
        yield Place("gateway", {"base_url": gateway.base_url}, emulated.emulator)


@dataclass(slots=True)
class Heard:
    """What a stream gave out, and the error that ended it."""

    events: list[Event] = field(default_factory=list)
    error: KimiError | None = None

    def joined(self, kind: type[Any]) -> str:
        """The deltas of one kind."""
        return "".join(event.text for event in self.events if isinstance(event, kind))

    def of(self, kind: type[Any]) -> list[Any]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def reply(self) -> Reply:
        """The reply at the end. Raises where there is none."""
        last = self.events[-1]
        assert isinstance(last, Done), last
        return last.reply


class SyncTalk:
    """A `Chat`."""

    def __init__(self, chat: Chat | None = None, **arguments: Any) -> None:
        self.chat = chat or Chat(**arguments)

    def ask(self, question: Any, **wishes: Any) -> Reply[Any]:
        return self.chat.ask(question, **wishes)

    def run(self, question: Any, **wishes: Any) -> Reply[Any]:
        return self.chat.run(question, **wishes)

    def resume(self) -> Reply:
        return self.chat.resume()

    def map(self, prompts: Sequence[str], **wishes: Any) -> Any:
        return self.chat.map(prompts, **wishes)

    def stream(self, question: Any, *, leave_after: int = 0, **wishes: Any) -> Heard:
        """All events; `leave_after`: leaves the loop after so many."""
        heard = Heard()
        try:
            for event in self.chat.stream(question, **wishes):
                heard.events.append(event)
                if len(heard.events) == leave_after:
                    break
        except KimiError as err:
            heard.error = err
        return heard

    def close(self) -> None:
        self.chat.close()


class AsyncTalk:
    """An `AsyncChat` in an event loop of its own."""

    def __init__(self, chat: AsyncChat | None = None, **arguments: Any) -> None:
        self._runner = asyncio.Runner()
        self.chat = chat or AsyncChat(**arguments)

    def ask(self, question: Any, **wishes: Any) -> Reply[Any]:
        return self._runner.run(self.chat.ask(question, **wishes))

    def run(self, question: Any, **wishes: Any) -> Reply[Any]:
        return self._runner.run(self.chat.run(question, **wishes))

    def resume(self) -> Reply:
        return self._runner.run(self.chat.resume())

    def map(self, prompts: Sequence[str], **wishes: Any) -> Any:
        return self._runner.run(self.chat.map(prompts, **wishes))

    def stream(self, question: Any, *, leave_after: int = 0, **wishes: Any) -> Heard:
        """All events; `leave_after`: leaves the loop after so many."""
        heard = Heard()

        async def hear() -> None:
            try:
                async for event in self.chat.stream(question, **wishes):
                    heard.events.append(event)
                    if len(heard.events) == leave_after:
                        break
            except KimiError as err:
                heard.error = err
            if leave_after:
                await asyncio.sleep(0.1)  # a loop that was left is closed by the event loop

        self._runner.run(hear())
        return heard

    def close(self) -> None:
        self._runner.run(self.chat.close())
        self._runner.close()


Talk = SyncTalk | AsyncTalk
KINDS: Final[Sequence[type[Talk]]] = (SyncTalk, AsyncTalk)


@contextmanager
def talk(kind: type[Talk], **arguments: Any) -> Iterator[Talk]:
    """A chat of either kind, closed at the end."""
    made = kind(**arguments)
    try:
        yield made
    finally:
        made.close()
