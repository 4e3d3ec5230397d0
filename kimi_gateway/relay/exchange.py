"""One answer, from the open record to the settled one. The straight line of the whole product:

    book open → open the upstream → read → decode events → shape or fold → client; usage → cost → book settled

An attempt that fails before the head was sent is an HTTP error, after it an error event. A client that leaves
cancels the upstream at once. Whatever happens, the row is settled exactly once.
"""

import asyncio
from collections.abc import Sequence

from backends.faults import Fault, FaultKind
from backends.json import JsonError
from backends.ports import UpstreamFault
from kimi_gateway.core.retry import Decision, Standing, next_step
from kimi_gateway.core.routing.facts import Place, Ticket
from kimi_gateway.errors import GatewayError, ShuttingDown
from kimi_gateway.relay.account import Account
from kimi_gateway.relay.attempt import AnswerSink, Attempt
from kimi_gateway.relay.client import Client, ClientStalled
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.faults import error_for, without_secret
from kimi_gateway.relay.request import Option, Prepared
from kimi_gateway.relay.seat import Seat, nobody, places_now, seated
from kimi_gateway.relay.settle import used_tokens
from pricing.ledger.row import Status

_QUICK_BYTES = 256 * 1024  # an end that the kernel takes at once, as good as always


class Exchange:
    """Runs one prepared request against its targets, the first option first."""

    def __init__(
        self,
        ctx: Context,
        prepared: Prepared,
        option: Option,
        account: Account,
        client: Client,
        sink: AnswerSink,
    ) -> None:
        self._ctx = ctx
        self._prepared = prepared
        self._account = account
        self._client = client
        self._sink = sink
        self._task: asyncio.Task[None] | None = None
        self._stopped: Status | None = None
        self._repeats = 0
        self._retries_left = ctx.settings.retry.max_retries
        self._attempt = Attempt(ctx, prepared, option, account, sink)
        self._seat: Seat | None = None
        self._attempts_made = 0

    def interrupt(self) -> None:
        """Ends the answer with `shutting_down`."""
        self._stop("shutting_down")

    async def run(self) -> None:
        """Serves the request to its end and settles its row. Raises only what cancelled it from outside."""
        self._task = asyncio.current_task()
        unwatch = self._client.watch(self._client_gone)
        self._ctx.lifecycle.track(self)
        try:
            await self._to_an_end()
        finally:
            self._ctx.lifecycle.untrack(self)
            unwatch()
            self._attempt.close()
            self._account.settle("error")
            await self._leave()

    def _client_gone(self) -> None:
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
        except GatewayError as error:
            await self._fail(error)
        except ClientStalled:
            self._account.settle("client_stalled")
            await self._remember(partial=True)
        except asyncio.CancelledError:
            if self._stopped is None or self._task is None:
                raise
            self._task.uncancel()
            await self._end_stopped(self._stopped)

    async def _end_stopped(self, status: Status) -> None:
        self._attempt.close()
        if status == "shutting_down":
            await self._fail(ShuttingDown(), status=status)
        else:
            self._account.settle(status)
            await self._remember(partial=True)

    async def _remember(self, *, partial: bool) -> None:
        """Keeps the thoughts of the answer as far as it was delivered, before the client hears its end."""
        if not self._attempt.committed:
            return
        messages = self._sink.messages()
        observed = self._account.observed(messages)
        thinking, recall = self._ctx.thinking, self._prepared.recall
        if thinking.keep_now(recall, messages, observed, partial=partial):
            return
        anomaly = await thinking.keep(recall, messages, observed, partial=partial)
        if anomaly:
            self._account.note(anomaly)

    async def _fail(self, error: GatewayError, *, status: Status | None = None) -> None:
        """Settles, then tells the client; a client that no longer listens changes nothing any more."""
        self._account.settle(status or self._account.ended_by_fault(), error=error)
        self._attempt.close()
        await self._remember(partial=True)
        await self._account.give_back()
        try:
            await self._sink.fail(error)
        except ClientStalled:
            return

    async def _attempts(self) -> None:
        """Attempts until one succeeds. Raises the `UpstreamFault` that nothing may follow."""
        self._ctx.retries.request()
        if not await self._begin(self._places()):
            raise self._nobody()
        while True:
            try:
                await self._attempt.run()
                self._judge(None)
                await self._finish()
                return
            except UpstreamFault as failure:
                option = self._attempt.option
                fault = without_secret(failure.fault, option.target.api_key)
                self._account.failed(fault)
                self._ctx.metrics.fault(option.target.name, fault.kind)
                self._judge(fault)
                if not await self._follows(fault):
                    raise UpstreamFault(fault) from None

    def _judge(self, fault: Fault | None) -> None:
        """Tells how the attempt ended, when it has ended: a head that came says nothing of the rest."""
        if self._seat is not None and fault is None:
            self._seat.succeeded()
        elif self._seat is not None and fault is not None:
            self._seat.failed(fault)

    def _places(self) -> tuple[Place, ...]:
        """The places of the targets that are left and may be asked now, in order."""
        planned, left = self._prepared.routed.places, self._prepared.options.names
        return self._now([planned[name] for name in left])

    def _nobody(self) -> GatewayError:
        """The answer where all have gone out since they were planned."""
        outs = [self._ctx.routing.health.out(name) for name in self._prepared.routed.places]
        return nobody([out for out in outs if out is not None], self._ctx.mono())

    def _now(self, places: Sequence[Place]) -> tuple[Place, ...]:
        max_wait_s = self._ctx.settings.retry.max_wait_s
        return places_now(self._ctx.routing, places, self._ctx.mono(), max_wait_s=max_wait_s)

    async def _begin(self, places: Sequence[Place], again: Option | None = None) -> bool:
        """Takes a place at one of these targets and makes the next attempt one there; false where none takes it.

        `again` is the option of an attempt that is repeated.
        """
        left = list(places)
        while left:
            seat = await self._seated(left)
            left = [place for place in left if place.target != seat.target]
            option = again or await self._prepared.options.take(seat.target)
            self._seat = seat
            if option is None or not seat.begin():
                await self._leave()
                continue
            self._account.begin(option, seat.waited_s)
            if self._attempts_made:
                self._sink.restart()
                self._sink.answers_as(self._prepared.model)
            self._attempts_made += 1
            last = self._attempt
            if self._attempts_made > 1 or last.option is not option or seat.grant is not None:
                self._attempt = Attempt(self._ctx, self._prepared, option, self._account, self._sink)
                self._attempt.pace.last_sent = last.pace.last_sent
            return True
        return False

    async def _seated(self, places: Sequence[Place]) -> Seat:
        prepared = self._prepared
        name = f"{self._account.row.request_id}.{self._attempts_made + 1}"
        ticket = Ticket(name, self._account.row.key, prepared.routed.tokens, tuple(places))
        began = self._ctx.mono()
        try:
            return await seated(
                self._ctx.routing, ticket, wait_s=self._attempt.keepalive_in, keep_alive=self._attempt.keep_alive
            )
        except BaseException:  # the queue is full, the time is over, or the client has left it
            self._account.waited(self._ctx.mono() - began)
            raise

    async def _leave(self) -> None:
        """Gives the place back, with what was used where that is known."""
        seat, self._seat = self._seat, None
        if seat is not None:
            await seat.leave(used_tokens(self._account.row))

    async def _follows(self, fault: Fault) -> bool:
        """Prepares the attempt that follows a fault, after its pause; false where none may."""
        if self._attempt.committed:
            return False
        places = await self._others(fault)
        standing = Standing(
            retries_left=self._retries_left,
            repeats=self._repeats,
            others=bool(places),
            max_wait_s=self._ctx.settings.retry.max_wait_s,
            draw=self._ctx.random_bits(53) / 2**53,
        )
        decision = next_step(fault, standing)
        if decision.step == "stop":
            return False
        if decision.step == "again" and not self._may_repeat(fault):
            self._account.note("retry_budget_spent")
            if not places:
                return False
            decision = Decision("next")
        self._attempt.close()
        await self._leave()
        await self._attempt.pause(decision.wait_s)
        self._retries_left -= 1
        if decision.step == "again":
            option = self._attempt.option
            self._repeats += 1
            return await self._begin(self._now([self._prepared.routed.places[option.target.name]]), again=option)
        self._repeats = 0
        return await self._begin(places)

    def _may_repeat(self, fault: Fault) -> bool:
        """Whether the same target may be asked again. Repeats are bounded over all requests, but for those after a
        wait that the upstream named. Moves to another target are not: that is what it is there for, and its
        breaker bounds what they can do to it."""
        return bool(fault.retry_after_s) or self._ctx.retries.take()

    async def _others(self, fault: Fault) -> tuple[Place, ...]:
        """The places of other targets that may do better: a prompt that is too long needs a larger window."""
        await self._prepared.options.peek()  # those that cannot take the request are found out
        places = self._places()
        if fault.kind is not FaultKind.CONTEXT:
            return places
        windows = {target.name: target.window for target in self._ctx.settings.targets}
        own = self._attempt.option.target.window
        return tuple(place for place in places if windows.get(place.target, 0) > own)

    async def _finish(self) -> None:
        """The clean end: thoughts kept, the row settled, the client told."""
        await self._remember(partial=False)
        data = self._closing()
        if len(data) <= _QUICK_BYTES:
            self._account.settle("ok")
            await self._account.give_back()  # before the client can send its next request
            await self._leave()
            await self._sink.end(data)
        else:
            await self._sink.end(data)  # a client may stall over it, and then its row says so
            self._account.settle("ok")
        await self._attempt.let_go()

    def _closing(self) -> bytes:
        try:
            return self._sink.closing(*self._account.close_measured())
        except JsonError as err:
            raise UpstreamFault(Fault(FaultKind.SERVER, f"the answer cannot be passed on: {err}")) from err
