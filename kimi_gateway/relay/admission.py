"""A key's limits on the way of one request: reserved before its first attempt, settled when it ends.

How much a prompt can be is bounded as cheaply as will do: by its bytes, then by what the last turn of the
conversation was reported to have and the bytes that came since, then by an exact count in a thread. The next bound
is looked for only where the one before does not fit into what is left.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from kimi_gateway.core.keys import KeyPolicy
from kimi_gateway.core.limit_answers import rate_headers, refusal
from kimi_gateway.core.limits import Claim, Limits, Use, Verdict
from kimi_gateway.core.reserve import (
    DEFAULT_OUTPUT,
    Ceiling,
    Offer,
    byte_bound,
    grown_bound,
    offer,
)
from kimi_gateway.errors import InvalidRequest, StateOut
from kimi_gateway.ports import Limiter, StateUnavailable
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.prices import prices_of
from kimi_gateway.relay.request import Prepared
from pricing.ledger.row import LedgerRow

_HOUR_S: Final = 3600
_LIMIT_FIELD: Final = "max_completion_tokens"


@dataclass(slots=True)
class Admission:
    """What one request holds of its key's limits, settled once. `verdict` is what was left at its admission."""

    limiter: Limiter
    claim: Claim
    limits: Limits
    verdict: Verdict
    _settled: bool = False

    @property
    def headers(self) -> Mapping[str, str]:
        """`x-ratelimit-…` for the limits that there are."""
        return rate_headers(self.verdict)

    async def abandon(self) -> None:
        """Gives everything back where the request came to no row. Acts once, and not after `settle`."""
        if not self._settled:
            self._settled = True
            await self.limiter.settle(self.claim, self.limits, Use(0, 0))

    async def settle(self, row: LedgerRow) -> None:
        """Replaces the reservation by what the row booked. Acts once."""
        if self.settle_now(row):
            return
        self._settled = True
        await self.limiter.settle(self.claim, self.limits, self._use(row))

    def settle_now(self, row: LedgerRow) -> bool:
        """The same where nothing has to be waited for; false, and nothing settled, elsewhere."""
        if self._settled:
            return True
        self._settled = self.limiter.settle_now(self.claim, self.limits, self._use(row)) is not None
        return self._settled

    def _use(self, row: LedgerRow) -> Use:
        """What the row booked."""
        if row.status == "open":  # it could not be booked, so it was not sent
            return Use(0, 0)
        tokens = None
        if row.prompt_tokens is not None and row.completion_tokens is not None:
            tokens = row.prompt_tokens + row.completion_tokens
        elif row.cost_nano == 0:
            tokens = 0
        # What came without a price is not free: the reservation stands for it.
        unknown = self.claim.nano if self.limits.has_budget else 0
        nano = row.cost_nano if row.cost_nano is not None else unknown
        return Use(nano, tokens, highspeed=row.tier == "highspeed")


async def admit(
    ctx: Context, prepared: Prepared, policy: KeyPolicy, request_id: str, started_at: float, body: bytes
) -> Admission | None:
    """The reservation of a request, None for a key without limits.

    Raises what refuses it: 402 `budget_exceeded`, 429 `rate_limit_exceeded`, 503 `state_unavailable`.
    """
    limits = policy.limits
    if not limits.any:
        return None
    request = _Request(ctx, prepared, limits)
    claim = Claim(request_id, policy.name, started_at, highspeed=prepared.tier == "highspeed")
    admission = _at_once(request, claim)
    if admission is not None:
        return admission
    last: tuple[Verdict, Claim, Offer] | None = None
    try:
        async for prompt_tokens in request.bounds(body):
            verdict, claim, found = await _claimed(request, claim, prompt_tokens, last[0] if last else None)
            if verdict.admitted:
                return Admission(ctx.limiter, claim, limits, verdict)
            last = verdict, claim, found
            if verdict.refused_by not in ("budget", "highspeed_budget"):
                break
    except StateUnavailable as err:
        raise StateOut(str(err)) from err
    assert last is not None, "there is at least one bound"
    verdict, claim, found = last
    if verdict.refused_by in ("budget", "highspeed_budget"):
        verdict = await _finally(ctx, claim, limits)
        if verdict.admitted:  # another request has just given back what it held
            await _taken(request, claim, found)
            return Admission(ctx.limiter, claim, limits, verdict)
    raise refusal(
        verdict,
        key=policy.name,
        concurrency=limits.concurrency,
        asked_nano=claim.nano if limits.has_budget else None,
    )


def _at_once(request: "_Request", claim: Claim) -> Admission | None:
    """The admission by the cheapest bound, where it fits, nothing is to be lowered, and nobody has to be waited
    for: nearly always. None, and nothing held, elsewhere."""
    found = request.offer(request.first_bound(), None)
    if request.changes_limit(found):
        return None
    limiter, limits = request.ctx.limiter, request.limits
    claim = Claim(claim.id, claim.key, claim.at_s, found.nano, claim.highspeed, found.tokens)
    verdict = limiter.admit_now(claim, limits)
    return Admission(limiter, claim, limits, verdict) if verdict is not None else None


async def _finally(ctx: Context, claim: Claim, limits: Limits) -> Verdict:
    """The last word on a claim: nothing smaller follows, so a refusal means that the budget is used up."""
    try:
        return await ctx.limiter.admit(claim, limits)
    except StateUnavailable as err:
        raise StateOut(str(err)) from err


async def _claimed(
    request: "_Request", claim: Claim, prompt_tokens: int, before: Verdict | None
) -> tuple[Verdict, Claim, Offer]:
    """The verdict on a claim with this bound; a request without a limit of its own asks for less where it must."""
    left = None if before is None else before.decided[1]
    while True:
        found = request.offer(prompt_tokens, left)
        claim = replace(claim, nano=found.nano, tokens=found.tokens)
        verdict = await request.ctx.limiter.admit(claim, request.limits, last=False)
        if verdict.admitted:
            await _taken(request, claim, found)
            return verdict, claim, found
        by_money = verdict.refused_by in ("budget", "highspeed_budget")
        if not by_money or not request.may_lower or left is not None:
            return verdict, claim, found
        left = verdict.decided[1]


async def _taken(request: "_Request", claim: Claim, found: Offer) -> None:
    """Makes the request one of the size that was reserved; what cannot be sent so holds nothing."""
    try:
        await request.take(found)
    except BaseException:
        await request.ctx.limiter.settle(claim, request.limits, Use(0, 0))
        raise


class _Request:
    """What is known of one request's prices and size."""

    def __init__(self, ctx: Context, prepared: Prepared, limits: Limits) -> None:
        self.ctx = ctx
        self.limits = limits
        self._prepared = prepared
        prices = prices_of(ctx, prepared.targets, one_hour=prepared.ttl == "1h" or self._wrote_an_hour())
        self._window = prices.window
        self._sends_default = limits.has_budget and prices.sends_default
        self._ceiling = prices.ceiling if limits.has_budget else Ceiling(0, 0)

    @property
    def may_lower(self) -> bool:
        """Nobody named an output limit, so a smaller one than the default may be sent."""
        return self._prepared.limit is None

    def _wrote_an_hour(self) -> bool:
        """The conversation has a prefix that is kept for an hour, and the hour is not over."""
        record, now_s = self._prepared.recall.record, self.ctx.wall()
        lines = record.lines if record is not None else ()
        return any(line.ttl_s == _HOUR_S and now_s - line.ended_s < _HOUR_S for line in lines)

    async def bounds(self, body: bytes) -> AsyncIterator[int]:
        """Bounds on the prompt's tokens, thoughts that are put back included, the cheapest first."""
        prepared = self._prepared
        yield self.first_bound()
        if not self.limits.has_budget:
            return
        known = prepared.known()
        if known is not None:
            yield grown_bound(*known, self._window)
        try:
            count = await self.ctx.counting.count(body)
        except InvalidRequest:
            return  # what cannot be counted is bounded by its bytes, and the upstream judges it
        if count.high is not None:
            yield byte_bound(count.high + self._added_bytes, self._window)

    def first_bound(self) -> int:
        """The cheapest bound on the prompt's tokens: its bytes."""
        return byte_bound(self._prepared.prompt_estimate.high + self._added_bytes, self._window)

    @property
    def _added_bytes(self) -> int:
        plan = self._prepared.recall.plan
        return plan.text_bytes if plan is not None else 0

    def changes_limit(self, found: Offer) -> bool:
        """The request is to be sent with another output limit than its own."""
        return found.lowered_to is not None or (self.may_lower and self._sends_default)

    def offer(self, prompt_tokens: int, left_nano: int | None) -> Offer:
        return offer(
            self._ceiling,
            prompt_tokens=prompt_tokens,
            limit=self._prepared.limit,
            window=self._window,
            answers=self._prepared.n,
            left_nano=left_nano,
        )

    async def take(self, found: Offer) -> None:
        """Sends the limit that was reserved for, where it is not the client's own."""
        prepared = self._prepared
        if not self.changes_limit(found):
            return
        limit = found.lowered_to
        if limit is None:
            limit = min(DEFAULT_OUTPUT, max(1, self._window - 1))
        prepared.options = await prepared.lower(limit)
        prepared.adjusted = tuple(dict.fromkeys((*prepared.adjusted, _LIMIT_FIELD)))
