"""`Chat`: a conversation with Kimi that keeps its thinking and knows what it costs."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from os import PathLike
from threading import Lock, Thread, current_thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from typing_extensions import override

from kimi_sdk.batch import Batch, map_sync
from kimi_sdk.conversation import MAX_ROUNDS, Conversation
from kimi_sdk.drive import drive
from kimi_sdk.errors import InvalidInput
from kimi_sdk.events import Done, Event
from kimi_sdk.inside import refuse_inside
from kimi_sdk.loading import loaded
from kimi_sdk.parts import Question
from kimi_sdk.questions import Asked
from kimi_sdk.reply import Reply
from kimi_sdk.sharing import Shared
from kimi_sdk.talk import Plan
from kimi_sdk.wire import Endpoint

if TYPE_CHECKING:
    from kimi_sdk._openai import Connections

T = TypeVar("T")


class Chat(Conversation):
    """A conversation with one model at one endpoint: the gateway, api.moonshot.ai, OpenRouter, a vLLM or SGLang.

        chat = Chat(system="You are brief.", effort="high")
        reply = chat.ask("How far is the Moon?")
        print(reply.thinking, reply.text, reply.cost)
        chat.ask("And the Sun?")          # sent with the first turn and its thinking
        print(chat.usage, chat.cost)

    `base_url` and `api_key` default to KIMI_BASE_URL and KIMI_API_KEY; without a key none is sent. `dialect` says
    who answers there, where the host does not (a vLLM of one's own). `timeout_s` is the longest silence in
    seconds. `max_completion_tokens` limits thinking and answer together. `max_cost` (dollars) refuses a call that
    could exceed it; a `meter` does that for many chats. `prices` (USD per million tokens, by meter) are for
    servers that no rate card knows. `max_retries` is how often a failed request is sent again where that may help.

    A chat is one conversation: calls from several threads wait for one another. `fork` is for parallel ones. It
    holds connections until `close`; `with Chat(...) as chat:` closes it.
    """

    @overload
    def ask(
        self,
        question: Asked,
        *,
        output: type[T],
        stop: str | Sequence[str] = ...,
        max_completion_tokens: int | None = ...,
    ) -> Reply[T]: ...
    @overload
    def ask(
        self,
        question: Asked,
        *,
        output: None = ...,
        prefix: str = ...,
        stop: str | Sequence[str] = ...,
        max_completion_tokens: int | None = ...,
    ) -> Reply[None]: ...
    def ask(
        self,
        question: Asked,
        *,
        output: Any = None,
        prefix: str = "",
        stop: str | Sequence[str] = (),
        max_completion_tokens: int | None = None,
    ) -> Reply[Any]:
        """The model's reply to the next turn of the conversation, in one request; calls of tools are not run.

        Sends all turns so far, thinking included. With `output` the reply has an object of that type; an answer
        that does not fit is sent back for repair once. `prefix` is how the answer begins. Where it raises, the
        conversation is as before the call: any `KimiError`.
        """
        return self._reply(
            self._plan(
                question, output=output, prefix=prefix, stop=stop, max_completion_tokens=max_completion_tokens
            )
        )

    @overload
    def run(
        self,
        question: Asked,
        *,
        output: type[T],
        stop: str | Sequence[str] = ...,
        max_completion_tokens: int | None = ...,
        max_rounds: int = ...,
    ) -> Reply[T]: ...
    @overload
    def run(
        self,
        question: Asked,
        *,
        output: None = ...,
        stop: str | Sequence[str] = ...,
        max_completion_tokens: int | None = ...,
        max_rounds: int = ...,
    ) -> Reply[None]: ...
    def run(
        self,
        question: Asked,
        *,
        output: Any = None,
        stop: str | Sequence[str] = (),
        max_completion_tokens: int | None = None,
        max_rounds: int = MAX_ROUNDS,
    ) -> Reply[Any]:
        """The model's answer once it calls no more tools: its calls are run and their results sent back, for at
        most `max_rounds` rounds. The reply is that of the last round; `usage` and `cost` of the chat have all."""
        return self._reply(
            self._plan(
                question,
                output=output,
                stop=stop,
                max_completion_tokens=max_completion_tokens,
                rounds=max_rounds,
            )
        )

    def stream(
        self,
        question: Asked,
        *,
        prefix: str = "",
        stop: str | Sequence[str] = (),
        max_completion_tokens: int | None = None,
        max_rounds: int = MAX_ROUNDS,
        run: bool = True,
    ) -> Generator[Event, None, None]:
        """The answer as it is made: events, `Done` at last. The tools of the chat are run in between, as `run`
        does; not with `run=False`.

        Leaving the loop, or `close()`, cancels the request at once; the conversation is then as before. An answer
        that breaks off raises `StreamCut`, which has what came.
        """
        plan = self._plan(
            question,
            prefix=prefix,
            stop=stop,
            max_completion_tokens=max_completion_tokens,
            rounds=max_rounds if run else 0,
        )
        return self._events(plan)

    def resume(self) -> Reply:
        """The whole reply to the question whose answer broke off: what came is sent as its beginning (partial
        mode) and continued. Rounds of tools that were done are not done again; an answer of which no text had come
        is asked for anew. Raises `NothingToResume`."""
        return self._reply(None)

    @overload
    def map(
        self,
        prompts: Iterable[Question],
        *,
        output: type[T],
        concurrency: int = ...,
        stop: str | Sequence[str] = ...,
        max_completion_tokens: int | None = ...,
        max_rounds: int = ...,
        resume: str | PathLike[str] | None = ...,
        progress: bool = ...,
    ) -> Batch[T]: ...
    @overload
    def map(
        self,
        prompts: Iterable[Question],
        *,
        output: None = ...,
        concurrency: int = ...,
        stop: str | Sequence[str] = ...,
        max_completion_tokens: int | None = ...,
        max_rounds: int = ...,
        resume: str | PathLike[str] | None = ...,
        progress: bool = ...,
    ) -> Batch: ...
    def map(
        self,
        prompts: Iterable[Question],
        *,
        output: Any = None,
        concurrency: int = 8,
        stop: str | Sequence[str] = (),
        max_completion_tokens: int | None = None,
        max_rounds: int = MAX_ROUNDS,
        resume: str | PathLike[str] | None = None,
        progress: bool = True,
    ) -> Batch[Any]:
        """The answers to many prompts, in their order, `concurrency` at a time; each is asked of a fork, so all
        begin with this conversation and none enters it.

        An item has a reply or an error. With `resume` the answers are kept in that file, and what stands in it is
        not asked again. `progress` shows a bar where standard error is a terminal.
        """
        return map_sync(
            self,
            prompts,
            output=output,
            concurrency=concurrency,
            stop=stop,
            max_completion_tokens=max_completion_tokens,
            max_rounds=max_rounds,
            resume=resume,
            progress=progress,
        )

    def close(self) -> None:
        """Closes the connections, or leaves them to forks that still use them. The conversation stays, and a later
        `ask` opens new ones."""
        _close(self._shared.leave(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @override
    def _own_state(self) -> None:
        endpoint, timeout_s = self._endpoint, self._timeout_s
        if "_shared" not in self.__dict__:
            self._shared: Shared[Connections] = Shared(lambda: _connect(endpoint, timeout_s), self)
        self._turnstile = _Turnstile()

    def _reply(self, plan: Plan | None) -> Reply[Any]:
        reply: Reply[Any] | None = None
        for event in self._events(plan):
            if isinstance(event, Done):
                reply = event.reply
        assert reply is not None, "a call ends with its reply or raises"
        return reply

    def _events(self, plan: Plan | None) -> Generator[Event, None, None]:
        refuse_inside(self)
        with self._turnstile:
            logic = self._begin(plan)
            line = self._shared.enter(self).line()
            try:
                with closing(drive(logic, line, self._tools, self)) as events:
                    for event in events:
                        yield event
                        self._turnstile.hand_over()
            finally:
                _close(self._shared.exit())


class _Turnstile:
    """Lets one call at a time through. Whoever is inside already would wait for itself: that is refused.

    Inside is the thread that went on with the call last, for a stream may be begun in one and heard in others.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner: Thread | None = None

    def hand_over(self) -> None:
        """The call goes on in this thread."""
        self._owner = current_thread()

    def __enter__(self) -> None:
        me = current_thread()
        if self._owner is me and self._lock.locked():
            raise InvalidInput("a stream of this chat is still open; close it first, or ask a fork()")
        self._lock.acquire()
        self._owner = me

    def __exit__(self, *_: object) -> None:
        self._owner = None
        self._lock.release()


def _close(connections: "Connections | None") -> None:
    if connections is not None:
        connections.close()


def _connect(endpoint: Endpoint, timeout_s: float) -> "Connections":
    # Here, because loading openai takes most of a second and `import kimi_sdk` shall not.
    loaded("kimi_sdk._openai")
    from kimi_sdk._openai import Connections

    return Connections(endpoint, timeout_s=timeout_s)
