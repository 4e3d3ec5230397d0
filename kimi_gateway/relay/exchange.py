"""One answer, from the open record to the settled one. The straight line of the whole product:

    book open → open the upstream → read → decode events → shape or fold → client; usage → cost → book settled

An attempt that fails before the head was sent is an HTTP error, after it an error event. A client that leaves
cancels the upstream at once. Whatever happens, the row is settled exactly once.
"""

import asyncio
from typing import Protocol

from backends.faults import Fault, FaultKind, fault_from_response
from backends.fold import as_chunks
from backends.json import JsonError
from backends.ports import Reply, UpstreamFault
from backends.reader import Chunk, ChunkReader, Done, Failed, Item, read_complete
from kimi_gateway.core.retry import Standing, needs_budget, next_step
from kimi_gateway.core.shaping import event
from kimi_gateway.errors import GatewayError, ShuttingDown
from kimi_gateway.relay.account import Account
from kimi_gateway.relay.client import Client, ClientStalled
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.faults import error_for, without_secret
from kimi_gateway.relay.pace import Limits, Pace, keepalives
from kimi_gateway.relay.request import Option, Prepared
from kimi_gateway.relay.sinks import FoldSink, Sink
from pricing.ledger.row import Status

_ERROR_BODY_BYTES = 256 * 1024
_WHOLE_BODY_BYTES = 256 * 1024 * 1024
_TAIL_WAIT_S = 0.05
_QUICK_BYTES = 256 * 1024  # an end that the kernel takes at once, as good as always


class _AnswerSink(Sink, Protocol):
    def answers_as(self, model: str) -> None: ...


class Exchange:
    """Runs one prepared request against its targets, the first option first."""

    def __init__(
        self,
        ctx: Context,
        prepared: Prepared,
        option: Option,
        account: Account,
        client: Client,
        sink: _AnswerSink,
    ) -> None:
        self._ctx = ctx
        self._prepared = prepared
        self._option = option
        self._account = account
        self._client = client
        self._sink = sink
        self._reply: Reply | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped: Status | None = None
        self._committed = False  # content was forwarded: no further attempt may follow
        self._repeats = 0
        self._settings = ctx.settings
        self._retries_left = ctx.settings.retry.max_retries
        self._pace = Pace.begin(self._limits(option), ctx.mono())

    def _limits(self, option: Option) -> Limits:
        server, timing = self._settings.server, self._settings.timing
        period_s, first_s = keepalives(
            streams=self._prepared.stream,
            interval_s=server.keepalive_interval_s if server.keepalive != "off" else None,
            read_timeout_s=self._prepared.read_timeout_s,
        )
        return Limits(
            first_byte_s=option.target.first_byte_timeout_s,
            idle_s=option.target.idle_timeout_s,
            keepalive_s=period_s,
            first_keepalive_s=first_s,
            grace_s=timing.usage_grace_s,
            progress_s=timing.progress_s,
        )

    def interrupt(self) -> None:
        """Ends the answer with `shutting_down`."""
        self._stop("shutting_down")

    async def run(self) -> None:
        """Serves the request to its end and settles its row. Raises only what cancelled it from outside."""
        self._task = asyncio.current_task()
        watcher = asyncio.create_task(self._client.gone())
        watcher.add_done_callback(self._on_client_gone)
        self._ctx.lifecycle.track(self)
        try:
            await self._to_an_end()
        finally:
            self._ctx.lifecycle.untrack(self)
            watcher.cancel()
            if self._reply is not None:
                self._reply.close()
            self._account.settle("error")

    def _on_client_gone(self, watcher: "asyncio.Task[None]") -> None:
        if not watcher.cancelled():
            self._stop("client_disconnected")

    def _stop(self, status: Status) -> None:
        if self._stopped is None and self._task is not None and not self._account.is_settled:
            self._stopped = status
            self._task.cancel()

    async def _to_an_end(self) -> None:
        try:
            await self._attempts()
        except UpstreamFault as failure:
            await self._fail(error_for(failure.fault))
        except ClientStalled:
            self._remember(partial=True)
            self._account.settle("client_stalled")
        except asyncio.CancelledError:
            if self._stopped is None or self._task is None:
                raise
            self._task.uncancel()
            await self._end_stopped(self._stopped)

    async def _end_stopped(self, status: Status) -> None:
        if self._reply is not None:
            self._reply.close()
        if status == "shutting_down":
            await self._fail(ShuttingDown(), status=status)
        else:
            self._remember(partial=True)
            self._account.settle(status)

    def _remember(self, *, partial: bool) -> None:
        """Keeps the thoughts of the answer as far as it was delivered, before the client hears its end."""
        recall = self._prepared.recall
        if recall is not None and self._committed:
            self._ctx.thinking.keep(recall, self._sink.messages(), partial=partial)

    async def _fail(self, error: GatewayError, *, status: Status | None = None) -> None:
        """Settles, then tells the client; a client that no longer listens changes nothing any more."""
        self._remember(partial=True)
        self._account.settle(status or self._account.ended_by_fault(), error=error)
        if self._reply is not None:
            self._reply.close()
        try:
            await self._sink.fail(error)
        except ClientStalled:
            return

    async def _attempts(self) -> None:
        """Attempts until one succeeds. Raises the `UpstreamFault` that nothing may follow."""
        self._ctx.retries.request()
        while True:
            try:
                await self._attempt()
                return
            except UpstreamFault as failure:
                fault = without_secret(failure.fault, self._option.target.api_key)
                self._account.failed(fault)
                self._ctx.metrics.fault(self._option.target.name, fault.kind)
                if not await self._follows(fault):
                    raise UpstreamFault(fault) from None

    async def _follows(self, fault: Fault) -> bool:
        """Prepares the attempt that follows a fault, after its pause; false where none may."""
        if self._committed:
            return False
        standing = Standing(
            retries_left=self._retries_left,
            repeats=self._repeats,
            others=self._may_take(self._prepared.options.peek(), fault),
            max_wait_s=self._settings.retry.max_wait_s,
            draw=self._ctx.random_bits(53) / 2**53,
        )
        decision = next_step(fault, standing)
        if decision.step == "stop":
            return False
        if needs_budget(fault, decision) and not self._ctx.retries.take():
            self._account.note("retry_budget_spent")
            return False
        if self._reply is not None:
            self._reply.close()
            self._reply = None
        await self._pause(decision.wait_s)
        self._begin_again(self._option if decision.step == "again" else self._prepared.options.take())
        return True

    def _may_take(self, other: Option | None, fault: Fault) -> bool:
        """Whether another target may do better: a prompt that is too long needs a larger window."""
        larger = other is not None and other.target.window > self._option.target.window
        return larger if fault.kind is FaultKind.CONTEXT else other is not None

    def _begin_again(self, option: Option | None) -> None:
        assert option is not None, "the decision looked at it"
        self._repeats = self._repeats + 1 if option is self._option else 0
        self._retries_left -= 1
        self._option = option
        self._account.again(option)
        self._sink.restart()
        self._sink.answers_as(self._prepared.model)
        last_sent = self._pace.last_sent
        self._pace = Pace.begin(self._limits(option), self._ctx.mono())
        self._pace.last_sent = last_sent

    async def _pause(self, seconds: float) -> None:
        """Waits, with keep-alives to a streaming client."""
        end = self._ctx.mono() + seconds
        while (left := end - self._ctx.mono()) > 0:
            await asyncio.sleep(min(left, self._pace.keepalive_in(self._ctx.mono())))
            await self._keep_alive(self._ctx.mono())

    async def _keep_alive(self, now: float) -> None:
        if self._pace.keepalive_due(now):
            await self._sink.keepalive()
            self._pace.last_sent = self._ctx.mono()

    async def _attempt(self) -> None:
        reply = self._reply = await self._opened()
        self._account.tally.head(reply.status, reply.headers)
        if reply.status >= 300 or not _is_event_stream(reply):
            await self._whole(reply)
        else:
            await self._stream(reply)
        self._remember(partial=False)
        data = self._closing()
        if len(data) <= _QUICK_BYTES:
            self._account.settle("ok")
            await self._sink.end(data)
        else:
            await self._sink.end(data)  # a client may stall over it, and then its row says so
            self._account.settle("ok")
        await self._let_go(reply)

    def _closing(self) -> bytes:
        try:
            return self._sink.closing(*self._account.close_measured())
        except JsonError as err:
            raise UpstreamFault(Fault(FaultKind.SERVER, f"the answer cannot be passed on: {err}")) from err

    async def _opened(self) -> Reply:
        """The upstream's head, with keep-alives to the client while it takes its time."""
        opening = asyncio.create_task(self._ctx.upstream.open(self._option.call))
        try:
            while not opening.done():
                await asyncio.wait({opening}, timeout=self._pace.wait_s(self._ctx.mono()))
                if not opening.done():
                    await self._tick(self._ctx.mono())
            return opening.result()
        except BaseException:
            _abandon(opening)
            raise

    async def _tick(self, now: float) -> None:
        """What is due while the upstream is silent."""
        pace = self._pace
        if pace.is_silent(now):
            seconds = pace.limits.first_byte_s if pace.last_byte is None else pace.limits.idle_s
            raise UpstreamFault(Fault(FaultKind.TIMEOUT, f"the upstream sent nothing for {seconds:g} s"))
        if pace.progress_due(now):
            pace.last_progress = now
            self._account.progress()
        await self._keep_alive(now)

    async def _next(self, reply: Reply) -> bytes | None:
        """The next body bytes, `b""` at the end, None when something was due instead."""
        data = await reply.read(self._pace.wait_s(self._ctx.mono()))
        now = self._ctx.mono()
        if data:
            if self._pace.last_byte is None:
                self._account.first_byte(now)
            self._pace.last_byte = now
        if data != b"":
            await self._tick(now)
        return data

    async def _stream(self, reply: Reply) -> None:
        """Relays events until the clean end. Raises `UpstreamFault` for every other one."""
        reader = ChunkReader(self._option.dialect, named_tool=self._prepared.named_tool)
        while True:
            try:
                data = await self._next(reply)
            except UpstreamFault:
                if self._sink.complete:
                    return  # every finish reason is here; only the end mark was lost
                raise
            if self._pace.grace_over(self._ctx.mono()):
                return
            if data is None:
                continue
            items = reader.feed(data) if data else reader.finish()
            if await self._take(items) or not data:
                break
        if not self._sink.complete:
            raise UpstreamFault(_incomplete())

    async def _take(self, items: list[Item]) -> bool:
        """Handles decoded items; true at the upstream's end mark."""
        for item in items:
            if isinstance(item, Chunk):
                try:
                    await self._chunk(item)
                except JsonError as err:
                    raise UpstreamFault(Fault(FaultKind.SERVER, f"an event cannot be passed on: {err}")) from err
            elif isinstance(item, Failed):
                raise UpstreamFault(item.fault)
            elif isinstance(item, Done):
                return True
        return False

    async def _chunk(self, chunk: Chunk) -> None:
        tally = self._account.tally
        if tally.model is None and chunk.model is not None:
            self._sink.answers_as(self._account.answered_by(chunk.model))
        tally.add(chunk)
        now = self._ctx.mono()
        if chunk.commits:
            self._account.content(now)
            if not self._committed:
                self._committed = True
                self._prepared.release()
                self._option.release()
        if await self._sink.add(chunk):
            self._pace.last_sent = now
        if self._pace.finished is None and self._sink.complete:
            self._pace.finished = now

    async def _whole(self, reply: Reply) -> None:
        """An answer that is no event stream: an error, or a complete JSON body."""
        limit = _ERROR_BODY_BYTES if reply.status >= 300 else _WHOLE_BODY_BYTES
        body = await self._read_all(reply, limit)
        if reply.status >= 300:
            raise UpstreamFault(fault_from_response(reply.status, reply.headers, body, self._ctx.wall()))
        found = read_complete(body, self._option.dialect, named_tool=self._prepared.named_tool)
        if isinstance(found, Fault):
            raise UpstreamFault(found)
        answer, usage = found
        self._account.tally.whole(answer, usage)
        model = answer.get("model")
        if isinstance(model, str):
            self._sink.answers_as(self._account.answered_by(model))
        reader = ChunkReader(self._option.dialect, max_event_bytes=2 * _WHOLE_BODY_BYTES)
        for data in as_chunks(answer):
            await self._take(reader.feed(event(data)))
        if not self._sink.complete:
            raise UpstreamFault(_incomplete())
        if isinstance(self._sink, FoldSink):
            self._sink.take_whole(answer)

    async def _read_all(self, reply: Reply, limit_bytes: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            data = await self._next(reply)
            if data is None:
                continue
            if not data or size >= limit_bytes:
                return b"".join(parts)
            parts.append(data)
            size += len(data)

    async def _let_go(self, reply: Reply) -> None:
        """Reads the few bytes after the end mark, so that the connection can serve the next call."""
        deadline = self._ctx.mono() + _TAIL_WAIT_S
        try:
            while (data := await reply.read(max(0.0, deadline - self._ctx.mono()))) != b"":
                if data is None:
                    return
        except UpstreamFault:
            return


def _is_event_stream(reply: Reply) -> bool:
    return reply.headers.get("content-type", "").lower().startswith("text/event-stream")


def _incomplete() -> Fault:
    return Fault(
        FaultKind.INCOMPLETE,
        "the upstream ended its answer without a finish_reason; what came before is not whole",
    )


def _abandon(opening: "asyncio.Task[Reply]") -> None:
    """Cancels an opening call, and closes it where it was just opened."""
    if not opening.done():
        opening.cancel()
        opening.add_done_callback(_close_late)
    else:
        _close_late(opening)


def _close_late(opening: "asyncio.Task[Reply]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
