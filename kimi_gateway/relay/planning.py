"""Which targets a request may go to, in order, at the tier that serves it; or the answer where there is none."""

from msgspec import Struct
from msgspec.structs import replace

from kimi_gateway.core.plan import Plan
from kimi_gateway.core.routing.filters import Refusal
from kimi_gateway.core.routing.rank import Ranking
from kimi_gateway.core.routing.tiers import Tiered, choose_tier
from kimi_gateway.errors import Forbidden, GatewayError, InvalidRequest
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.request import Routed
from kimi_gateway.relay.routing import Router
from kimi_gateway.relay.seat import nobody
from pricing.estimate import Estimate


class Planned(Struct, frozen=True, gc=False):
    """The plan that is carried out, its ranking, and what the relay needs of it. `adjusted` is to be disclosed."""

    plan: Plan
    ranking: Ranking
    routed: Routed
    adjusted: tuple[str, ...] = ()


async def planned(router: Router, asked: Plan, body: bytes, ctx: Context, *, explains: bool) -> Planned:
    """The planned request. Raises `GatewayError` where no target can take it now."""
    tiered = choose_tier(asked, router.rank, router.asking.deadline_s)
    if tiered.ranking.needs_exact:
        tiered = await _exact(router, tiered, body, ctx)
    shown = router.header(tiered.plan, *router.rank(router.whole(tiered.plan))) if explains else ""
    if not tiered.ranking.ranked:
        raise _refused(tiered, router, ctx, {"x-kimi-plan": shown} if shown else {})
    asking = router.asking
    output = asking.limit or router.expected_output(asked)
    routed = Routed(
        places={one.name: one.place for one in tiered.ranking.ranked},
        tokens=router.prompt.tokens + output * asking.view.n,
        opening=router.opening,
        reads=router.reads,
        shown=shown,
    )
    return Planned(tiered.plan, tiered.ranking, routed, tiered.adjusted)


async def _exact(router: Router, tiered: Tiered, body: bytes, ctx: Context) -> Tiered:
    """The same ranked again with an exact count of the prompt, where a vocabulary is there to count with."""
    try:
        count = await ctx.counting.count(body)
    except InvalidRequest:
        return tiered  # what cannot be counted is for the upstream to judge
    if count.high is None:
        return tiered
    router.prompt = Estimate(count.tokens, count.low, count.high)
    _, ranking = router.rank(tiered.plan)
    return replace(tiered, ranking=ranking) if ranking.ranked else tiered


def _refused(tiered: Tiered, router: Router, ctx: Context, headers: dict[str, str]) -> GatewayError:
    """Why no target takes the request: the reason of the one that came furthest."""
    decisive = tiered.ranking.decisive
    assert decisive is not None, "a plan has a target"
    if decisive.filter == "out":
        outs = [one.candidate.out for one in tiered.ranking.out if one.candidate.out is not None]
        error = nobody(outs, ctx.mono())
    else:
        error = _lacking(decisive, tiered, router)
    error.headers = {**error.headers, **headers}
    return error


def _lacking(decisive: Refusal, tiered: Tiered, router: Router) -> GatewayError:
    if decisive.filter == "rights":
        return Forbidden(
            f"this key has a budget, and no target that serves {tiered.plan.model} has a price; the operator can "
            "set prices for the target, or take the budget off",
            code="unpriced_target",
            param="model",
        )
    if decisive.filter == "context":
        largest = max(one.candidate.window for one in tiered.ranking.refused if one.filter == "context")
        return InvalidRequest(
            f"the prompt has at least {router.prompt.low} tokens, and the largest context window of a target that "
            f"could serve it {largest}; shorten the conversation",
            code="context_length_exceeded",
            param="messages",
            headers={"x-should-retry": "false"},
        )
    name = decisive.candidate.name
    return InvalidRequest(
        f"{decisive.param or 'the request'}: target {name} {decisive.why}, and no other target can take it",
        code="unsupported_value",
        param=decisive.param or None,
    )
