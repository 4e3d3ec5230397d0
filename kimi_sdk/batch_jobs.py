"""What a batch asks: the prompts, how each is asked, and the names under which their answers are kept."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from backends.json import Json, JsonObject
from kimi_sdk.batch_file import key_of
from kimi_sdk.errors import InvalidInput
from kimi_sdk.parts import Question, content_of
from kimi_sdk.structured import output_of
from pricing.usage import TokenUsage


class AnyChat(Protocol):
    """What a batch needs of a chat, sync or async; `ask` and `run` give a reply or one to wait for."""

    @property
    def model(self) -> str: ...
    @property
    def effort(self) -> Any: ...
    @property
    def tier(self) -> Any: ...
    @property
    def tools(self) -> Any: ...
    @property
    def messages(self) -> list[JsonObject]: ...
    @property
    def max_completion_tokens(self) -> int | None: ...
    @property
    def usage(self) -> TokenUsage: ...
    @property
    def cost(self) -> Decimal: ...
    @property
    def estimated_cost(self) -> Decimal: ...
    @property
    def unpriced(self) -> int: ...
    def fork(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """How each prompt is asked."""

    output: Any
    stop: str | Sequence[str]
    max_completion_tokens: int | None
    max_rounds: int

    def of(self, fork: Any, job: "Job") -> Any:
        """The reply, or what to wait for."""
        options: dict[str, Any] = {
            "output": self.output,
            "stop": self.stop,
            "max_completion_tokens": self.max_completion_tokens,
        }
        if fork.tools:
            return fork.run(job.prompt, max_rounds=self.max_rounds, **options)
        return fork.ask(job.prompt, **options)

    def as_json(self) -> JsonObject:
        """What of it an answer depends on."""
        stop: Json = self.stop if isinstance(self.stop, str) else [*self.stop]
        form = None if self.output is None else output_of(self.output).response_format
        return {"output": form, "stop": stop, "limit": self.max_completion_tokens}


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt. `key` names it in a batch's file, "" where it has no line there."""

    index: int
    prompt: Question
    key: str


def jobs_of(chat: AnyChat, prompts: Iterable[Question], asked: Asked, *, with_keys: bool) -> Iterator[Job]:
    """The jobs in the order of the prompts. Raises `InvalidInput` for a single text."""
    if isinstance(prompts, str):
        raise InvalidInput("map takes a list of prompts; for a single one there is ask")
    key: Callable[[Question], str] = lambda prompt: ""  # noqa: E731  # the usual case needs none
    if with_keys:
        tier: Json = chat.tier
        effort: Json = chat.effort
        tools: list[Json] = [*chat.tools.definitions] if chat.tools else []
        around = key_of(chat.model, effort, tier, tools, [*chat.messages], asked.as_json())
        key = lambda prompt: _key(around, prompt)  # noqa: E731
    for index, prompt in enumerate(prompts):
        yield Job(index, prompt, key(prompt))


def _key(around: str, prompt: Question) -> str:
    try:
        return key_of(around, content_of(prompt))
    except InvalidInput:
        return ""  # has no line: asking for it gives the error


def limit_of(chat: AnyChat, own: int | None) -> int | None:
    """The output limit that counts, for an answer depends on it."""
    return chat.max_completion_tokens if own is None else own
