"""The account of one request: its row, what was seen of its answer, and the one settlement."""

from collections.abc import Mapping, Sequence

from backends.faults import Fault, FaultKind
from backends.json import JsonObject
from backends.sentinel import Sign, usage_signs
from backends.usage import Measured
from kimi_gateway.core.allocation import allocated_nano
from kimi_gateway.core.cache_loss import NO_LOSS, Loss, loss_cost_nano, loss_header, loss_object
from kimi_gateway.core.plan import tier_of
from kimi_gateway.core.warmth import Answered, Observed, observe
from kimi_gateway.errors import GatewayError
from kimi_gateway.relay.admission import Admission
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.prices import tag_at
from kimi_gateway.relay.request import Option, Prepared
from kimi_gateway.relay.settle import (
    Estimated,
    PriceTag,
    Used,
    book,
    book_unknown,
    doubts,
    http_status,
    measured_use,
    note,
)
from kimi_gateway.relay.tally import Tally
from pricing.estimate import Estimate, estimate_tokens
from pricing.ledger.row import AttemptRecord, LedgerRow, Status
from pricing.money import usd, usd_text

_MAYBE_BILLED = frozenset({FaultKind.TIMEOUT, FaultKind.RESET, FaultKind.INCOMPLETE})
"""Faults after the request was sent: the upstream may have charged for it."""


_BEYOND = 4
"""So many windows are no token count any more: windows that are not stated are taken to be the usual one."""

_MODEL_CHARACTERS = 200
"""As much of a name that an upstream gives itself as is kept."""


class Account:
    """Books one request over all its attempts. `settle` acts once; later calls change nothing."""

    def __init__(
        self,
        ctx: Context,
        prepared: Prepared,
        option: Option,
        row: LedgerRow,
        began: float,
        admission: Admission | None = None,
    ) -> None:
        self._admission = admission
        self._ctx = ctx
        self._prepared = prepared
        self._option = option
        self._began = began
        self._past: list[AttemptRecord] = []
        self._first_byte: float | None = None
        self._first_content: float | None = None
        self._last_content: float | None = None
        self._fault: Fault | None = None
        self._used: Used | None = None
        self._known_use: tuple[object, ...] = ()
        self._is_begun = False  # an attempt was sent
        self._asked_at_ms = 0
        self._sent_s = self._mark = 0.0
        self._loss: Loss = NO_LOSS
        self._loss_nano: int | None = None
        self.row = row
        self.tally = Tally()
        self.signs: set[Sign] = set()  # what the answer of this attempt shows of its engine
        self.is_settled = False

    def open(self) -> None:
        """Books that the request is about to go upstream. Raises `LedgerUnavailable`."""
        self._describe(self._option)
        self._ctx.books.open(self.row)

    def begin(self, option: Option, waited_s: float) -> None:
        """An attempt is about to be sent, after so long in the queue. One that failed before is noted."""
        if self._is_begun:
            self._past.append(self._attempt(self._ctx.mono()))
            self._allocate()
            self.tally = Tally()
            self.signs = set()
            self._fault = self._first_byte = self._used = None
            self._known_use = ()
        self._is_begun = True
        if option is not self._option or self._past:
            self._describe(option)
        self._asked_at_ms, self._sent_s = self._ms(self._ctx.mono()), self._ctx.wall()
        self._mark = self._ctx.allocation.begin(option.target.name, self._ctx.mono())
        if waited_s:
            self.waited(waited_s)
        target, sending, opening = option.target.name, option.sending, self._prepared.routed.opening
        self._ctx.routing.sent(target, option.upstream_model, opening, sending.ttl_s, self._ctx.mono())

    def waited(self, waited_s: float) -> None:
        """The request was in the queue for so long."""
        self.row.wait_ms += round(waited_s * 1000)

    def _describe(self, option: Option) -> None:
        row = self.row
        self._option = option
        row.target, row.model, row.tier = option.target.name, self._prepared.model, self._prepared.tier
        row.adjusted = list(dict.fromkeys((*self._prepared.adjusted, *option.adjusted)))
        row.upstream_model = ""
        row.anomaly = self._prepared.recall.anomaly
        row.thinking = option.thinking
        record = self._prepared.recall.record
        row.prefix = record.shown_id if record is not None else ""
        self._lose(option.warmth.loss(self._prepared.prompt_estimate.tokens))

    def _lose(self, loss: Loss) -> None:
        """Notes what of the cache is lost, as it is known now, and what that costs."""
        self._loss, self._loss_nano = loss, None
        if loss:
            tag, option = self._tag(), self._option
            ttl = (self._prepared.ttl or "5m") if option.dialect.cache_options else ""
            self._loss_nano = loss_cost_nano(loss.tokens, tag.rates, ttl=ttl, write_rule=tag.write_rule)
        row = self.row
        row.cache_loss, row.cache_lost_tokens = loss.reason, loss.tokens if loss else None
        row.cache_lost_nano = self._loss_nano

    @property
    def cache_loss(self) -> str:
        """The value of `x-kimi-cache-loss`, "" where nothing is lost."""
        return loss_header(self._loss, self._loss_nano)

    def observed(self, messages: Sequence[JsonObject]) -> Observed:
        """What the answer, whole or as far as it was delivered, teaches of the target's cache."""
        self._note_use()
        recall, used = self._prepared.recall, self._used
        measured = used if isinstance(used, Measured) else None
        answered = Answered(
            recall.prefix.answered(messages[0]) if len(messages) == 1 else None,
            sent_s=self._sent_s,
            ended_s=self._ctx.wall(),
            usage=measured.usage if measured is not None else None,
            assumed=measured.assumed if measured is not None else False,
        )
        found = observe(self._option.warmth, recall.record, recall.prefix, self._option.sending, answered)
        self._lose(found.loss)
        if found.record is not None:
            self.row.prefix = found.record.shown_id
        return found

    def note(self, anomaly: str) -> None:
        """Something about this request that whoever reads its row should know, by name."""
        note(self.row, (anomaly,))

    @property
    def limit_headers(self) -> Mapping[str, str]:
        """What is left of the key's limits by the minute."""
        return self._admission.headers if self._admission is not None else {}

    @property
    def plan(self) -> str:
        """The value of `x-kimi-plan`, "" where nobody asked for it."""
        return self._prepared.routed.shown

    async def give_back(self) -> None:
        """Settles what the request held of its key's limits, once its row is. Acts once."""
        if self._admission is not None and not self._admission.settle_now(self.row):
            await self._admission.settle(self.row)

    @property
    def attempts(self) -> int:
        """Attempts begun so far."""
        return len(self._past) + self._is_begun

    def progress(self) -> None:
        """Books what was delivered so far."""
        if not self.is_settled:
            self._note_use()
            self._ctx.books.progress(self.row)

    def first_byte(self, now: float) -> None:
        """The first byte of the answer's body came."""
        self._first_byte = now

    def content(self, now: float) -> None:
        """Content, thought, a call or a finish reason came."""
        if self._first_content is None:
            self._first_content = now
            self.row.ttft_ms = self._ms(now)
            self._ctx.metrics.first_token(self.row.target, now - self._began)
        elif self._last_content is not None and now > self._last_content:
            self._ctx.metrics.chunk_gap(now - self._last_content)
        self._last_content = now

    def answered_by(self, upstream_model: str) -> str:
        """The public name of the model that answers; noted in the row, an unasked one as an anomaly."""
        row, models = self.row, self._option.target.models
        upstream_model = upstream_model[:_MODEL_CHARACTERS]
        row.upstream_model = upstream_model
        if upstream_model == self._option.upstream_model or upstream_model == row.model:
            return row.model
        public = next((name for name, theirs in models.items() if theirs == upstream_model), upstream_model)
        if public != row.model:
            note(row, ("other_model",))
            row.model, row.tier = public, tier_of(public)
        return public

    def failed(self, fault: Fault) -> None:
        """The upstream failed."""
        self._fault = fault

    def ended_by_fault(self) -> Status:
        """`incomplete` for an answer that was cut off, `error` for everything else."""
        cut = self._fault is not None and self._fault.kind in (FaultKind.INCOMPLETE, FaultKind.RESET)
        return "incomplete" if cut and self.tally.delivered_bytes else "error"

    def close_measured(self) -> tuple[JsonObject | None, JsonObject]:
        """Usage for the client (None where the upstream reported none) and the `kimi` object, at a clean end."""
        self._note_use()
        wire = dict(self._used.wire) if isinstance(self._used, Measured) else None
        cost_nano = self.row.cost_nano
        if wire is not None and cost_nano is not None:
            wire["cost"] = usd(cost_nano)
        return wire, self._meta()

    def _meta(self) -> JsonObject:
        row = self.row
        lost = loss_object(self._loss, self._loss_nano)
        meta: JsonObject = {
            "request_id": row.request_id,
            "target": row.target,
            "model": row.model,
            "tier": row.tier,
            "effort": row.effort,
            "attempts": self.attempts,
            "thinking": row.thinking or None,
            "adjusted": list(row.adjusted),
            "cost_usd": usd_text(row.cost_nano) if row.cost_nano is not None else None,
        }
        return meta if lost is None else {**meta, "cache_loss": lost}

    def settle(self, status: Status, *, error: GatewayError | None = None) -> None:
        """Books the end of the request, once."""
        if self.is_settled:
            return
        self.is_settled = True
        row, now = self.row, self._ctx.mono()
        self._note_use()
        row.status = status
        row.http_status = http_status(status, error)
        row.outcome = "thinking_exhausted" if status == "ok" and self.tally.ran_out_thinking else ""
        if error is not None:
            row.error_type, row.error_code, row.message = error.type, error.code or "", error.message
        row.total_ms = self._ms(now)
        if self._is_begun:
            self._allocate()
            row.attempts = [*self._past, self._attempt(now)]
            option, routed = self._option, self._prepared.routed
            self._ctx.routing.learn(row, option.upstream_model, routed.opening, routed.reads, now)
        self._note_signs()
        self._ctx.books.settled(row)
        self._ctx.metrics.settled(row, now - self._began)
        if row.cache_loss:
            self._ctx.metrics.cache_lost(row.target, row.cache_loss)
        if self._option.repaired:
            self._ctx.metrics.repaired(self._option.repaired)
        self._ctx.log.settled(row)

    def _allocate(self) -> None:
        """Adds what the attempt that ends took of its target's GPUs, where their price is known."""
        target = self._option.target
        shared_s = self._ctx.allocation.end(target.name, self._mark, self._ctx.mono())
        if target.gpu_nano_per_hour:
            took = allocated_nano(shared_s, target.gpu_nano_per_hour)
            self.row.allocated_nano = (self.row.allocated_nano or 0) + took

    def _note_signs(self) -> None:
        """Counts what the answer shows of its engine, where it came to an end of its own."""
        if self.row.status != "ok":
            return
        measured = self._used if isinstance(self._used, Measured) else None
        signs = self.signs | usage_signs(measured)
        if signs:
            self._ctx.metrics.signs(self.row.target, signs)
            self._ctx.signs.seen(self._option.target, self._option.dialect, signs)

    def _attempt(self, now: float) -> AttemptRecord:
        fault, option = self._fault, self._option
        return AttemptRecord(
            target=option.target.name,
            dialect=option.dialect.name,
            model=option.upstream_model,
            start_ms=self._asked_at_ms,
            end_ms=self._ms(now),
            first_byte_ms=self._ms(self._first_byte) if self._first_byte is not None else None,
            upstream_id=self.tally.upstream_id,
            upstream_request_id=self.tally.upstream_request_id,
            status=self.tally.status,
            fault=fault.kind.value if fault is not None else None,
            message=fault.message if fault is not None else None,
            maybe_billed=self._maybe_billed(),
        )

    def _maybe_billed(self) -> bool:
        """It ended before the upstream said what it used, after the request had gone out."""
        if self.tally.usage is not None:
            return False
        if self._fault is not None:
            return self._fault.kind in _MAYBE_BILLED or self.tally.delivered_bytes > 0
        return self.row.status not in ("ok", "open")

    def _note_use(self) -> None:
        """Usage and money as known now. Whatever an upstream reports, the row is booked: at worst unpriced.

        It is asked for up to three times at an end; what has not changed is not reckoned again (60 µs each).
        """
        tally = self.tally
        known = (
            tally.usage,
            tally.delivered_bytes,
            tally.status,
            self._fault,
            self._option,
            self.row.upstream_model,
        )
        if known == self._known_use:
            return
        self._known_use = known
        try:
            self._measure()
        except (ArithmeticError, ValueError) as err:
            self._used = None
            book_unknown(self.row, type(err).__name__)

    def _measure(self) -> None:
        """The last report, else an estimate of what was delivered."""
        prepared, tally = self._prepared, self.tally
        if tally.usage is not None:
            self.row.raw_usage = tally.usage
            measured = measured_use(tally.usage, self._option.dialect, tally.headers, prepared.ttl)
            wrong = doubts(measured, tally.delivered_bytes) or self._beyond(measured)
            self._used = self._estimate(wrong) if wrong else measured
        elif self._was_answered():
            self._used = self._estimate()
        book(self.row, self._used, self._tag())

    def _beyond(self, measured: Measured) -> tuple[str, ...]:
        """The anomaly of a report far beyond what the target's window could ever hold."""
        most = _BEYOND * self._option.target.window
        is_beyond = (measured.prompt_tokens or 0) > most or (
            measured.completion_tokens or 0
        ) > most * self._prepared.n
        return (*measured.anomaly, "usage_beyond_window") if is_beyond else ()

    def _estimate(self, anomaly: tuple[str, ...] = ()) -> Estimated:
        """What must have been used, from what was sent and delivered."""
        output = estimate_tokens(self.tally.delivered_bytes)
        limit = self._output_bound()
        if output.tokens > limit:
            output, anomaly = Estimate(limit, min(output.low, limit), limit), (*anomaly, "output_beyond_limit")
        return Estimated(self._prepared.prompt_estimate, output, anomaly)

    def _output_bound(self) -> int:
        """The most tokens that all answers together can have: by the request's limit, else by the window."""
        return (self._prepared.limit or self._option.target.window) * self._prepared.n

    def _was_answered(self) -> bool:
        """A model worked on it: content came, or the answer had begun when the client left."""
        if self.tally.delivered_bytes > 0:
            return True
        return self._fault is None and self.tally.status is not None and self.tally.status < 300

    def _tag(self) -> PriceTag:
        option, row = self._option, self.row
        return tag_at(option.target, row.upstream_model or option.upstream_model, row.started_at, self._ctx)

    def _ms(self, now: float) -> int:
        return round((now - self._began) * 1000)
