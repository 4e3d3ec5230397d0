"""One attempt on one target: opens the call, reads the answer, decodes its events and hands them to the client.

Raises `UpstreamFault` for every end that is not clean; what follows is the exchange's business.
"""

import asyncio
from typing import Final, Protocol

from backends.faults import Fault, FaultKind, fault_from_response
from backends.fold import as_chunks
from backends.json import JsonError
from backends.plain import PlainChunk
from backends.ports import Reply, UpstreamFault
from backends.reader import Chunk, ChunkReader, Done, Failed, Item, expanded, read_complete
from kimi_gateway.core.shaping import event
from kimi_gateway.relay.account import Account
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.pace import Limits, Pace, keepalives
from kimi_gateway.relay.pouring import Pour, Pouring
from kimi_gateway.relay.request import Option, Prepared
from kimi_gateway.relay.sinks import FoldSink, Sink

_ERROR_BODY_BYTES: Final = 256 * 1024
_WHOLE_BODY_BYTES: Final = 256 * 1024 * 1024
_TAIL_WAIT_S: Final = 0.05


class AnswerSink(Sink, Protocol):
    """A sink that is told which model answers."""

    def answers_as(self, model: str) -> None: ...


class Attempt:
    """Runs once. `committed` says that content was forwarded, so that no further attempt may follow."""

    def __init__(
        self, ctx: Context, prepared: Prepared, option: Option, account: Account, sink: AnswerSink
    ) -> None:
        self._ctx = ctx
        self._prepared = prepared
        self._account = account
        self._sink = sink
        self._reply: Reply | None = None
        self.option = option
        self.committed = False
        self.pace = Pace.begin(self._limits(), ctx.mono(), ctx.random_bits(16) / 2**16)

    def _limits(self) -> Limits:
        """The periods of this request; for a target's usual ones the same value each time, 5 µs less."""
        ctx, prepared, target = self._ctx, self._prepared, self.option.target
        if prepared.read_timeout_s is not None:
            return self._new_limits()
        kept = ctx.limits.get((target.name, prepared.stream))
        if kept is None or kept[0] is not ctx.settings or kept[1] is not target:
            kept = (ctx.settings, target, self._new_limits())
            ctx.limits[target.name, prepared.stream] = kept
        return kept[2]

    def _new_limits(self) -> Limits:
        server, timing = self._ctx.settings.server, self._ctx.settings.timing
        target = self.option.target
        period_s, first_s = keepalives(
            streams=self._prepared.stream,
            interval_s=server.keepalive_interval_s if server.keepalive != "off" else None,
            read_timeout_s=self._prepared.read_timeout_s,
        )
        return Limits(
            first_byte_s=target.first_byte_timeout_s,
            idle_s=target.idle_timeout_s,
            keepalive_s=period_s,
            first_keepalive_s=first_s,
            grace_s=timing.usage_grace_s,
            progress_s=timing.progress_s,
        )

    async def run(self) -> None:
        """Relays the answer up to its clean end. Raises `UpstreamFault`, and what the client's side raises."""
        reply = self._reply = await self._opened()
        self._account.tally.head(reply.status, reply.headers)
        if reply.status >= 300 or not _is_event_stream(reply):
            await self._whole(reply)
        else:
            await self._stream(reply)

    def close(self) -> None:
        """Ends the upstream's call at once, where there is one."""
        if self._reply is not None:
            self._reply.close()

    async def pause(self, seconds: float) -> None:
        """Waits, with keep-alives to a streaming client."""
        end = self._ctx.mono() + seconds
        while (left := end - self._ctx.mono()) > 0:
            await asyncio.sleep(min(left, self.keepalive_in()))
            await self.keep_alive()

    def keepalive_in(self) -> float:
        """Seconds until the client is due a keep-alive."""
        return self.pace.keepalive_in(self._ctx.mono())

    async def keep_alive(self) -> None:
        """Sends the client a keep-alive, where one is due."""
        await self._keep_alive(self._ctx.mono())

    async def let_go(self) -> None:
        """Reads the few bytes after the end mark, so that the connection can serve the next call."""
        if self._reply is None:
            return
        deadline = self._ctx.mono() + _TAIL_WAIT_S
        try:
            while (data := await self._reply.read(max(0.0, deadline - self._ctx.mono()))) != b"":
                if data is None:
                    return
        except UpstreamFault:
            return

    async def _opened(self) -> Reply:
        """The upstream's head, with keep-alives to the client while it takes its time."""
        started = self._ctx.upstream.start(self.option.call)
        if started is None:
            return await self._opened_anew()
        try:
            while (reply := await started.reply(self.pace.wait_s(self._ctx.mono()))) is None:
                await self._tick(self._ctx.mono())
            return reply
        except BaseException:
            started.close()
            raise

    async def _opened_anew(self) -> Reply:
        """The same over a connection that has to be made: a task, which costs 25 µs, so that it can be waited for
        while others are due."""
        opening = asyncio.create_task(self._ctx.upstream.open(self.option.call))
        try:
            while not opening.done():
                await asyncio.wait({opening}, timeout=self.pace.wait_s(self._ctx.mono()))
                if not opening.done():
                    await self._tick(self._ctx.mono())
            return opening.result()
        except BaseException:
            _abandon(opening)
            raise

    async def _tick(self, now: float) -> None:
        """What is due while the upstream is silent."""
        pace = self.pace
        if pace.is_silent(now):
            seconds = pace.limits.first_byte_s if pace.last_byte is None else pace.limits.idle_s
            raise UpstreamFault(Fault(FaultKind.TIMEOUT, f"the upstream sent nothing for {seconds:g} s"))
        if pace.progress_due(now):
            pace.last_progress = now
            self._account.progress()
        await self._keep_alive(now)

    async def _keep_alive(self, now: float) -> None:
        if self.pace.keepalive_due(now):
            await self._sink.keepalive()
            self.pace.last_sent = self._ctx.mono()

    async def _next(self, reply: Reply) -> bytes | None:
        """The next body bytes, `b""` at the end, None when something was due instead."""
        pace, mono = self.pace, self._ctx.mono
        began = mono()
        wait_s = pace.wait_s(began)
        data = await reply.read(wait_s)
        now = mono()
        if data:
            if pace.last_byte is None:
                self._account.first_byte(now)
            pace.last_byte = now
        if data != b"" and (data is None or now >= began + wait_s):  # else nothing is due: 3 µs a chunk less
            await self._tick(now)
        return data

    async def _stream(self, reply: Reply) -> None:
        """Relays events until the clean end. Raises `UpstreamFault` for every other one."""
        reader = ChunkReader(
            self.option.dialect,
            named_tool=self._prepared.named_tool,
            calls_wanted=self._prepared.calls_wanted,
            split_think_tags=self.option.target.split_think_tags,
            gives_plain=True,
        )
        try:
            await self._relay(reply, reader)
        finally:
            self._account.signs |= reader.signs
        if not self._sink.complete:
            raise UpstreamFault(_incomplete())

    async def _relay(self, reply: Reply, reader: ChunkReader) -> None:
        pour: Pour | None = getattr(reply, "pour", None)
        while True:
            may_pour = self.committed and self.pace.finished is None
            if pour is not None and may_pour and await self._poured(pour, reader):
                return
            try:
                data = await self._next(reply)
            except UpstreamFault:
                if self._sink.complete:
                    return  # every finish reason is here; only the end mark was lost
                raise
            if self.pace.finished is not None and self.pace.grace_over(self._ctx.mono()):
                return
            if data is None:
                continue
            items = reader.feed(data) if data else reader.finish()
            if await self._take(items) or not data:
                return

    async def _poured(self, pour: Pour, reader: ChunkReader) -> bool:
        """Relays what comes in the loop's own callbacks, until something has to be waited for, or is due, or is at
        its end; true at the upstream's end mark."""
        pace, mono = self.pace, self._ctx.mono
        pouring = Pouring(reader, self._sink, self._account, pace, mono, self._put)
        while True:
            await pour(pouring.take, pace.wait_s(mono()))
            if pouring.error is not None:
                raise pouring.error
            if not pouring.is_over and await self._sink.flush():
                pace.last_sent = mono()
            if pouring.fault is not None:
                raise UpstreamFault(pouring.fault)
            if pouring.is_over:
                return True
            now = mono()
            if now < pace.due_s():
                return False
            await self._tick(now)

    async def _take(self, items: list[Item]) -> bool:
        """Handles decoded items; true at the upstream's end mark. What they give the client is sent in one write:
        each costs about 15 µs, and an upstream often hands out several events at once."""
        now = self._ctx.mono()
        is_over, fault = self._put(items, now)
        if not is_over and await self._sink.flush():  # the end is sent with what is left
            self.pace.last_sent = now
        if fault is not None:
            raise UpstreamFault(fault)
        return is_over

    def _put(self, items: list[Item], now: float) -> tuple[bool, Fault | None]:
        """Puts decoded items into the sink: whether the upstream's end mark was among them, or a fault."""
        is_over, fault = False, None
        said = self._account.tally.delivered_bytes
        for item in items:
            if isinstance(item, PlainChunk):
                self._plain(item, now)
            elif isinstance(item, Chunk):
                try:
                    self._chunk(item, now)
                except JsonError as err:
                    fault = Fault(FaultKind.SERVER, f"an event cannot be passed on: {err}")
                    break
            elif isinstance(item, Failed):
                fault = item.fault
                break
            elif isinstance(item, Done):
                is_over = True
                break
        if self._account.tally.delivered_bytes != said:
            self._account.content(now)
        return is_over, fault

    def _plain(self, chunk: PlainChunk, now: float) -> None:
        """Takes a chunk that needs no change; what is unusual about it or the answer takes the long way."""
        tally = self._account.tally
        if not self.committed or tally.model != chunk.model or not self._sink.add_plain(chunk):
            self._chunk(expanded(chunk), now)
            return
        tally.text_bytes += chunk.text_bytes
        tally.thought_bytes += chunk.thought_bytes

    def _chunk(self, chunk: Chunk, now: float) -> None:
        tally = self._account.tally
        if tally.model is None and chunk.model is not None:
            self._sink.answers_as(self._account.answered_by(chunk.model))
        tally.add(chunk)
        if chunk.commits and not self.committed:
            self.committed = True
            self._account.content(now)  # a finish reason alone is content too
            self._prepared.release()
            self.option.release()
        self._sink.add(chunk)
        if self.pace.finished is None and self._sink.complete:
            self.pace.finished = now

    async def _whole(self, reply: Reply) -> None:
        """An answer that is no event stream: an error, or a complete JSON body."""
        limit = _ERROR_BODY_BYTES if reply.status >= 300 else _WHOLE_BODY_BYTES
        body = await self._read_all(reply, limit)
        if reply.status >= 300:
            raise UpstreamFault(fault_from_response(reply.status, reply.headers, body, self._ctx.wall()))
        found = read_complete(
            body,
            self.option.dialect,
            named_tool=self._prepared.named_tool,
            calls_wanted=self._prepared.calls_wanted,
            split_think_tags=self.option.target.split_think_tags,
            signs=self._account.signs,
        )
        if isinstance(found, Fault):
            raise UpstreamFault(found)
        answer, usage = found
        self._account.tally.whole(answer, usage)
        model = answer.get("model")
        if isinstance(model, str):
            self._sink.answers_as(self._account.answered_by(model))
        reader = ChunkReader(self.option.dialect, max_event_bytes=2 * _WHOLE_BODY_BYTES)
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
