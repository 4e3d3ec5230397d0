"""Many prompts asked at the same time: the answers in their order, with errors, totals and a file to resume from.

Each prompt goes to a fork of the chat, so all begin with the chat's history and none sees another. Behind it stand
`Chat.map` and `AsyncChat.map`.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from decimal import Decimal
from os import PathLike
from threading import Lock
from types import TracebackType
from typing import Any, Final, Generic, Self, overload

from typing_extensions import TypeVar, override

from backends.json import JsonObject, as_object, as_str
from kimi_sdk.batch_file import BatchFile
from kimi_sdk.batch_jobs import AnyChat, Asked, Job, jobs_of, limit_of
from kimi_sdk.batch_progress import Bar
from kimi_sdk.errors import AuthenticationFailed, InvalidInput, KimiError, PermissionRefused, QuotaExhausted
from kimi_sdk.parts import Question
from kimi_sdk.reply import Reply, usage_json, with_output
from kimi_sdk.structured import Misfit, output_of
from kimi_sdk.tools_result import said_by
from pricing.usage import TokenUsage

T_co = TypeVar("T_co", covariant=True, default=object)

_HOPELESS: Final = (AuthenticationFailed, PermissionRefused, QuotaExhausted)
"""What the next prompt would be answered with as well; nothing further is sent then."""
_NO_USAGE: Final = TokenUsage()
_log: Final = logging.getLogger("kimi_sdk.batch")


@dataclass(frozen=True, slots=True)
class BatchItem(Generic[T_co]):
    """What became of one prompt: a reply or an error, and what it used, repair and tool rounds included.

    `cost` is exact dollars, `unpriced` counts answers without a known one, `estimated` is for those that broke
    off. `resumed` where it was read from the file and cost nothing now.
    """

    index: int
    prompt: Question
    reply: Reply[T_co] | None
    error: KimiError | None
    usage: TokenUsage = _NO_USAGE
    cost: Decimal = Decimal(0)
    estimated: Decimal = Decimal(0)
    unpriced: int = 0
    resumed: bool = False


class Batch(Sequence[BatchItem[T_co]]):
    """The items in the order of the prompts, with their totals; what an earlier run paid for counts too."""

    def __init__(self, items: Iterable[BatchItem[T_co]]) -> None:
        self._items = tuple(items)

    @property
    def replies(self) -> list[Reply[T_co]]:
        """The replies in order. Raises the first error where there is one; `errors` tells them all."""
        found = []
        for item in self._items:
            if item.error is not None:
                raise item.error
            if item.reply is not None:
                found.append(item.reply)
        return found

    @property
    def errors(self) -> list[BatchItem[T_co]]:
        """The items that have no reply."""
        return [item for item in self._items if item.error is not None]

    @property
    def usage(self) -> TokenUsage:
        """Tokens of all items, by meter."""
        return sum((item.usage for item in self._items), TokenUsage())

    @property
    def cost(self) -> Decimal:
        """Exact dollars for the answers whose cost is known; `unpriced` counts the others."""
        return sum((item.cost for item in self._items), Decimal(0))

    @property
    def estimated(self) -> Decimal:
        """Dollars that answers without a bill have probably cost."""
        return sum((item.estimated for item in self._items), Decimal(0))

    @property
    def unpriced(self) -> int:
        """How many answers have no known cost. Unknown is not free."""
        return sum(item.unpriced for item in self._items)

    @override
    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> BatchItem[T_co]: ...
    @overload
    def __getitem__(self, index: slice) -> "Batch[T_co]": ...
    @override
    def __getitem__(self, index: int | slice) -> "BatchItem[T_co] | Batch[T_co]":
        return Batch(self._items[index]) if isinstance(index, slice) else self._items[index]

    @override
    def __repr__(self) -> str:
        return f"Batch({len(self)} items, {len(self.errors)} errors, cost={self.cost})"


def map_sync(
    chat: AnyChat,
    prompts: Iterable[Question],
    *,
    concurrency: int = 8,
    output: Any = None,
    stop: str | Sequence[str] = (),
    max_completion_tokens: int | None = None,
    max_rounds: int = 16,
    resume: str | PathLike[str] | None = None,
    progress: bool = True,
) -> Batch[Any]:
    """See `Chat.map`. Threads ask; Ctrl-C waits for the answers under way, so that they are kept. A second one
    does not wait: they are kept when they come, as long as the process lasts."""
    asked = Asked(output, stop, limit_of(chat, max_completion_tokens), max_rounds)
    threads = _checked(concurrency)
    with _Run(chat, prompts, asked, resume, progress) as run:

        def work(job: Job) -> None:
            with run.held():
                if run.goes_on(job):
                    fork = chat.fork()
                    try:
                        reply = asked.of(fork, job)
                    except Exception as err:  # what the application's own code raises costs this prompt, not all
                        run.failed(job, fork, _told(err))
                    else:
                        run.done(job, fork, reply)

        pool = ThreadPoolExecutor(threads, thread_name_prefix="kimi-map")
        try:
            for future in [pool.submit(work, job) for job in run.jobs]:
                future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return run.batch()


async def map_async(
    chat: AnyChat,
    prompts: Iterable[Question],
    *,
    concurrency: int = 8,
    output: Any = None,
    stop: str | Sequence[str] = (),
    max_completion_tokens: int | None = None,
    max_rounds: int = 16,
    resume: str | PathLike[str] | None = None,
    progress: bool = True,
) -> Batch[Any]:
    """See `AsyncChat.map`. Cancelling it cancels the answers under way."""
    asked = Asked(output, stop, limit_of(chat, max_completion_tokens), max_rounds)
    at_once = _checked(concurrency)
    with _Run(chat, prompts, asked, resume, progress) as run:
        waiting = iter(run.jobs)

        async def work() -> None:
            for job in waiting:  # shared: each worker takes the next one
                if not run.goes_on(job):
                    continue
                fork = chat.fork()
                try:
                    reply = await asked.of(fork, job)
                except Exception as err:  # as in map_sync
                    run.failed(job, fork, _told(err))
                else:
                    run.done(job, fork, reply)

        workers = [asyncio.create_task(work()) for _ in range(min(at_once, len(run.jobs)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()  # changes nothing for those that are done
            await asyncio.gather(*workers, return_exceptions=True)
        return run.batch()


class _Run:
    """One batch under way. What finishes an item may be called from any thread."""

    def __init__(
        self,
        chat: AnyChat,
        prompts: Iterable[Question],
        asked: Asked,
        resume: str | PathLike[str] | None,
        progress: bool,
    ) -> None:
        self._asked = asked
        self._lock = Lock()
        self._hopeless: KimiError | None = None
        self._is_over = False
        self._open = ExitStack()
        all_jobs = [*jobs_of(chat, prompts, asked, with_keys=resume is not None)]
        self._file = None if resume is None else self._open.enter_context(BatchFile(resume))
        self._items: list[BatchItem[Any] | None] = [self._resumed(job) for job in all_jobs]
        self.jobs = [job for job in all_jobs if self._items[job.index] is None]
        self._bar = self._open.enter_context(Bar(len(all_jobs), is_wanted=progress and bool(all_jobs)))
        for item in self._items:
            if item is not None:
                self._bar.step(item.cost, is_error=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._is_over = True
        self._open.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        """The file stays open meanwhile, whatever becomes of the batch."""
        if self._file is None:
            yield
            return
        with self._lock:
            file = None if self._is_over else self._file.hold()
        with nullcontext() if file is None else file:
            yield

    def goes_on(self, job: Job) -> bool:
        """Whether to ask this one; where it is hopeless it has its error already."""
        if self._is_over:
            return False
        if self._hopeless is None:
            return True
        self._keep(BatchItem(job.index, job.prompt, None, self._hopeless))
        return False

    def done(self, job: Job, fork: AnyChat, reply: Reply[Any]) -> None:
        """The prompt has its reply."""
        item = _item(job, fork, reply, None)
        record: JsonObject = {
            "index": job.index,
            "usage": usage_json(item.usage),
            "cost": str(item.cost),
            "unpriced": item.unpriced,
            "estimated": str(item.estimated),
            "reply": reply.to_json(),
        }
        # One that its output limit cut is no finished answer: it is asked again when the batch is resumed.
        if self._file is not None and reply.finish_reason != "length":
            self._file.append(job.key, record)
        self._keep(item)

    def failed(self, job: Job, fork: AnyChat, err: KimiError) -> None:
        """The prompt has an error; it is asked again when the batch is resumed."""
        if isinstance(err, _HOPELESS):
            self._hopeless = err
        self._keep(_item(job, fork, None, err))

    def batch(self) -> Batch[Any]:
        """All items."""
        return Batch([item for item in self._items if item is not None])

    def _keep(self, item: BatchItem[Any]) -> None:
        with self._lock:
            self._items[item.index] = item
            self._bar.step(item.cost, is_error=item.error is not None)

    def _resumed(self, job: Job) -> BatchItem[Any] | None:
        """The item as an earlier run left it, None where it did not finish it."""
        record = None if self._file is None else self._file.take(job.key)
        if record is None:
            return None
        try:
            reply = self._read(Reply.from_json(as_object(record["reply"]) or {}))
            if reply.finish_reason == "length":
                return None
            usage: dict[str, Any] = as_object(record["usage"]) or {}
            return BatchItem(
                job.index,
                job.prompt,
                reply,
                None,
                TokenUsage(**usage),
                Decimal(as_str(record["cost"]) or "0"),
                Decimal(as_str(record["estimated"]) or "0"),
                int(str(record["unpriced"])),
                resumed=True,
            )
        except (Misfit, KeyError, TypeError, ValueError, ArithmeticError):
            return None  # written by a version that kept something else, or of a type that has changed

    def _read(self, reply: Reply) -> Reply[Any]:
        return (
            reply
            if self._asked.output is None
            else with_output(reply, output_of(self._asked.output).read(reply.text))
        )


def _told(err: Exception) -> KimiError:
    """The error of an item. Code of the application runs within a call (`approve`, for one), and may raise any."""
    if isinstance(err, KimiError):
        return err
    _log.warning("a prompt was given up", exc_info=err)
    told = KimiError(f"{type(err).__name__} was raised while this prompt was asked (by approve?): {said_by(err)}")
    told.__cause__ = err
    return told


def _item(job: Job, fork: AnyChat, reply: Reply[Any] | None, err: KimiError | None) -> BatchItem[Any]:
    return BatchItem(job.index, job.prompt, reply, err, fork.usage, fork.cost, fork.estimated_cost, fork.unpriced)


def _checked(concurrency: object) -> int:
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise InvalidInput(f"concurrency must be a whole number of at least 1, not {concurrency!r}")
    return concurrency
