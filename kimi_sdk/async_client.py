"""`AsyncChat`: `Chat` for event loops."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from os import PathLike
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from typing_extensions import override

from kimi_sdk.batch import Batch, map_async
from kimi_sdk.conversation import MAX_ROUNDS, Conversation
from kimi_sdk.drive import drive_async
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
    from kimi_sdk._openai import AsyncConnections

T = TypeVar("T")
_CLOSING_S: Final = 0.5


class AsyncChat(Conversation):
    """`Chat` with `await`: the same arguments, the same methods, the same results.

        async with AsyncChat(system="You are brief.") as chat:
            reply = await chat.ask("How far is the Moon?")
            async for event in chat.stream("And the Sun?"):
                ...

    A chat is one conversation: calls from several tasks wait for one another. `fork` is for parallel ones. It may
    be used in one event loop after another.
    """

    @overload
    async def ask(
        self,
        question: Asked,
        *,
        output: type[T],
        stop: str | Sequence[str] = ...,
        max_completion_tokens: int | None = ...,
    ) -> Reply[T]: ...
    @overload
    async def ask(
        self,
        question: Asked,
        *,
        output: None = ...,
        prefix: str = ...,
        stop: str | Sequence[str] = ...,
        max_completion_tokens: int | None = ...,
    ) -> Reply[None]: ...
    async def ask(
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
        return await self._reply(
            self._plan(
                question, output=output, prefix=prefix, stop=stop, max_completion_tokens=max_completion_tokens
            )
        )

    @overload
    async def run(
        self,
        question: Asked,
        *,
        output: type[T],
        stop: str | Sequence[str] = ...,
        max_completion_tokens: int | None = ...,
        max_rounds: int = ...,
    ) -> Reply[T]: ...
    @overload
    async def run(
        self,
        question: Asked,
        *,
        output: None = ...,
        stop: str | Sequence[str] = ...,
        max_completion_tokens: int | None = ...,
        max_rounds: int = ...,
    ) -> Reply[None]: ...
    async def run(
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
        return await self._reply(
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
    ) -> AsyncGenerator[Event, None]:
        """The answer as it is made: events, `Done` at last. The tools of the chat are run in between, as `run`
        does; not with `run=False`.

        Leaving the loop, `aclose()`, or cancelling the task cancels the request at once; the conversation is then
        as before. An answer that breaks off raises `StreamCut`, which has what came.
        """
        plan = self._plan(
            question,
            prefix=prefix,
            stop=stop,
            max_completion_tokens=max_completion_tokens,
            rounds=max_rounds if run else 0,
        )
        return self._events(plan)

    async def resume(self) -> Reply:
        """The whole reply to the question whose answer broke off: what came is sent as its beginning (partial
        mode) and continued. Rounds of tools that were done are not done again; an answer of which no text had come
        is asked for anew. Raises `NothingToResume`."""
        return await self._reply(None)

    @overload
    async def map(
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
    async def map(
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
    async def map(
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
        return await map_async(
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

    async def close(self) -> None:
        """Closes the connections, or leaves them to forks that still use them. The conversation stays, and a later
        `ask` opens new ones."""
        await _close(self._shared.leave(self))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @override
    def _own_state(self) -> None:
        endpoint, timeout_s = self._endpoint, self._timeout_s
        if "_shared" not in self.__dict__:
            self._shared: Shared[AsyncConnections] = Shared(lambda: _connect(endpoint, timeout_s), self)
        self._turnstile = _Turnstile()

    async def _reply(self, plan: Plan | None) -> Reply[Any]:
        reply: Reply[Any] | None = None
        async for event in self._events(plan):
            if isinstance(event, Done):
                reply = event.reply
        assert reply is not None, "a call ends with its reply or raises"
        return reply

    async def _events(self, plan: Plan | None) -> AsyncGenerator[Event, None]:
        refuse_inside(self)
        async with self._turnstile:
            logic = self._begin(plan)
            events = drive_async(logic, self._shared.enter(self).line(), self._tools, self)
            try:
                async for event in events:
                    yield event
                    self._turnstile.hand_over()
            finally:
                await events.aclose()
                await _close(self._shared.exit())


class _Turnstile:
    """Lets one call at a time through. Whoever is inside already would wait for itself: that is refused. So is
    another event loop, to which no lock belongs, while a call of the first is under way.

    Inside is the task that went on with the call last, for a stream may be begun in one and heard in others.
    """

    def __init__(self) -> None:
        self._guard = Lock()
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner: asyncio.Task[object] | None = None
        self._waiting = 0

    def hand_over(self) -> None:
        """The call goes on in this task."""
        self._owner = asyncio.current_task()

    async def __aenter__(self) -> None:
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        with self._guard:
            self._come(loop)
        try:
            until_s = loop.time() + _CLOSING_S
            while self._owner is me and self._lock.locked():
                if loop.time() > until_s:
                    raise InvalidInput("a stream of this chat is still open; close it first, or ask a fork()")
                await asyncio.sleep(0)  # a loop that was left is closed by the event loop, a moment later
            await self._lock.acquire()
        except BaseException:
            self._go(loop)
            raise
        self._owner = me

    def _come(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            if self._waiting and self._loop is not None and self._loop.is_running():
                raise InvalidInput(
                    "a call of this chat is under way in another event loop; give each loop a fork() of its own"
                )
            self._loop, self._lock, self._owner, self._waiting = loop, asyncio.Lock(), None, 0
        self._waiting += 1

    def _go(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._guard:
            if self._loop is loop:  # else it was left open in a loop that has ended
                self._waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            self._owner = None
            self._lock.release()
        self._go(loop)


async def _close(connections: "AsyncConnections | None") -> None:
    if connections is not None:
        await connections.close()


def _connect(endpoint: Endpoint, timeout_s: float) -> "AsyncConnections":
    # Here, because loading openai takes most of a second and `import kimi_sdk` shall not.
    loaded("kimi_sdk._openai")
    from kimi_sdk._openai import AsyncConnections

    return AsyncConnections(endpoint, timeout_s=timeout_s)
