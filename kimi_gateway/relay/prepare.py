"""From a body to a call: read, check rights and contract, plan. Raises before anything is booked."""

import asyncio
from functools import partial
from typing import Final

from backends.contract import Incapable
from backends.family import family_of
from kimi_gateway.core.contract import refusal, violations
from kimi_gateway.core.effort import EffortPolicy, as_stated, resolve
from kimi_gateway.core.keys import KeyPolicy
from kimi_gateway.core.plan import Asked, Plan, find_route, plan
from kimi_gateway.core.routing.tiers import read_deadline
from kimi_gateway.core.tags import read_tags
from kimi_gateway.core.view import Raw, RequestView, read, read_steps
from kimi_gateway.errors import Forbidden, InvalidRequest
from kimi_gateway.relay.client import Client
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.encoding import Decided, Encoder
from kimi_gateway.relay.planning import planned as _planned
from kimi_gateway.relay.request import Prepared
from kimi_gateway.relay.routing import Asking, Router, Surroundings
from kimi_gateway.relay.thinking import Recall
from kimi_gateway.relay.turnstile import HEAVY_BYTES, in_pieces
from kimi_gateway.settings import Route, Settings
from pricing.estimate import Estimate, estimate_prompt

_PATIENCE_MAX_S: Final = 86_400.0
_NARROW_ABOVE: Final = 100_000
_CHEAP_BODY_BYTES: Final = 1024 * 1024
_CHEAP_TOOLS_BYTES: Final = 16 * 1024
"""Below both a strict check takes a few milliseconds at most, and stays on the loop."""


async def prepare(body: bytes, client: Client, policy: KeyPolicy, ctx: Context) -> Prepared:
    """The prepared request. Raises `InvalidRequest`, `NotFound`, `Forbidden`, and what is answered where every
    target that could serve it is out."""
    view, settings = await _view(body, ctx), ctx.settings
    explains = _explains(client, policy)
    asked = _plan(view, client, policy, settings)
    route = find_route(view.model, settings.routes)
    strict, broken = await _judged(view, asked, route, settings)
    decided = _decided(view, asked, policy, route, strict=len(strict) == len(asked.targets))
    recall = await _recall(view, asked, policy, client, ctx)
    prompt = estimate_prompt(view.text, messages=len(view.messages), tools="tools" in view.fields)
    asking = _asking(view, recall, prompt, decided, policy, client)
    router = Router(ctx.routing, _surroundings(ctx), asking, route, prompt)
    planned = await _planned(router, asked, body, ctx, explains=explains)
    found = planned.plan
    if found is not asked:
        strict, broken = await _judged(view, found, route, settings)
    encoder = Encoder(view, ctx, decided, recall, prompt, ctx.wall())
    targets = [(one.name, one.candidate.model) for one in planned.ranking.ranked]
    if broken is not None:
        encoder.refuse(Incapable(broken.param or "messages", broken.message))
        targets = [one for one in targets if one[0] not in strict]
    options = await encoder.options(targets)
    return Prepared(
        route=found.route,
        model=found.model,
        tier=found.tier,
        effort=decided.effort_sent,
        ttl=decided.ttl,
        stream=view.stream,
        n=view.n,
        wants_usage=view.include_usage,
        wants_meta=view.include_usage or client.header(b"x-kimi-meta") == "1",
        named_tool=view.named_tool is not None,
        calls_wanted=_wants_calls(view),
        named_tier=view.service_tier is not None,
        prompt_estimate=prompt,
        recall=recall,
        adjusted=tuple(dict.fromkeys((*found.adjusted, *planned.adjusted, *decided.effort.adjusted))),
        tags=read_tags(client.header(b"x-kimi-tags")),
        read_timeout_s=_seconds(client.header(b"x-stainless-read-timeout")),
        targets=tuple(targets),
        limit=decided.limit,
        options=options,
        routed=planned.routed,
        lower=partial(encoder.lowered, targets),
        known=encoder.known,
    )


def _asking(
    view: RequestView, recall: Recall, prompt: Estimate, decided: Decided, policy: KeyPolicy, client: Client
) -> Asking:
    """What the request asks of routing. Raises `InvalidRequest` for a deadline that is none."""
    return Asking(
        view=view,
        recall=recall,
        prompt=prompt,
        effort=decided.effort_sent,
        ttl=decided.ttl,
        limit=decided.limit,
        thinking_off=decided.effort.off,
        pinned=client.header(b"x-kimi-target"),
        priced_only=policy.limits.has_budget,
        deadline_s=read_deadline(client.header(b"x-kimi-deadline-ms")),
    )


def _surroundings(ctx: Context) -> Surroundings:
    return Surroundings(ctx.settings, ctx.cards, ctx.dialects, ctx.wall(), ctx.mono())


def _explains(client: Client, policy: KeyPolicy) -> bool:
    """The request asks for its plan. Raises `Forbidden` for a key that may not see it."""
    if client.header(b"x-kimi-explain") is None:
        return False
    if not policy.explain:
        raise Forbidden(
            "this key may not see plans; leave x-kimi-explain out, or set explain = true for the key",
            code="explain_not_allowed",
            param="x-kimi-explain",
        )
    return True


async def _view(body: bytes, ctx: Context) -> RequestView:
    """The view of a body; a large one is read in its turn and in pieces."""
    if len(body) < HEAVY_BYTES:
        return read(body)
    async with ctx.turnstile:
        return await in_pieces(read_steps(body))


def _plan(view: RequestView, client: Client, policy: KeyPolicy, settings: Settings) -> Plan:
    pinned = client.header(b"x-kimi-target")
    if pinned is not None and not policy.pin:
        raise Forbidden(
            "this key may not choose a target; leave x-kimi-target out, or set pin = true for the key",
            code="pin_not_allowed",
            param="x-kimi-target",
        )
    route = find_route(view.model, settings.routes)
    asked = Asked(
        model=view.model,
        service_tier=view.service_tier,
        pinned=pinned,
        tiers=policy.tiers,
        tier_fallback=route is not None and route.tier_fallback,
    )
    return plan(asked, settings.routes, settings.targets)


async def _judged(
    view: RequestView, found: Plan, route: Route | None, settings: Settings
) -> tuple[frozenset[str], InvalidRequest | None]:
    """The strict targets of a plan, and the 400 that they answer with. Raises it where there are no others."""
    strict = _strict_targets(found, route, settings)
    broken = await _broken(view) if strict else None
    if broken is not None and len(strict) == len(found.targets):
        raise broken
    return strict, broken


def _strict_targets(found: Plan, route: Route | None, settings: Settings) -> frozenset[str]:
    """The planned targets to which the contract applies as it is written: by their own setting, else the route's,
    else the gateway's. It is the contract of K3, so a target with a model whose requests pass as they came (K2) is
    never one of them."""
    usual = (route.contract if route is not None else "") or settings.contract.mode
    modes = {target.name: target.contract or usual for target in settings.targets}
    return frozenset(
        name for name, model in found.targets if modes[name] == "strict" and not family_of(model).passes_through
    )


async def _broken(view: RequestView) -> InvalidRequest | None:
    """The 400 that names every violation of Moonshot's contract; None for a request that keeps to it."""
    tools = view.fields.get("tools")
    size = sum(map(len, view.messages))
    declared = sum(len(head.tools) for head in view.heads if isinstance(head.tools, Raw))
    if size > _CHEAP_BODY_BYTES or declared + (len(tools) if tools is not None else 0) > _CHEAP_TOOLS_BYTES:
        found = await asyncio.to_thread(violations, view)
    else:
        found = violations(view)
    return refusal(found) if found else None


def _decided(view: RequestView, found: Plan, policy: KeyPolicy, route: Route | None, *, strict: bool) -> Decided:
    """What is decided before any target is looked at. Raises `InvalidRequest` and `Forbidden` for the effort.

    Where every target has a model whose requests pass as they came (K2), neither the policy for efforts nor a
    default lifetime applies.
    """
    limit = _limit(view, policy, route)
    narrow_above = route.narrow_tools_above if route is not None else _NARROW_ABOVE
    if all(family_of(model).passes_through for _, model in found.targets):
        return Decided(as_stated(view.effort), view.ttl, limit, narrow_above)
    effort = resolve(view.effort, _effort_policy(policy, route, strict=strict))
    ttl = view.ttl or policy.default_ttl or (route.default_ttl if route is not None else "")
    return Decided(effort, ttl, limit, narrow_above)


def _limit(view: RequestView, policy: KeyPolicy, route: Route | None) -> int | None:
    """The output limit: the request's, else the key's, else the route's; None where nobody names one."""
    stated = view.output_limit or policy.max_completion_tokens
    return stated or (route.max_completion_tokens if route is not None else 0) or None


def _seconds(header: str | None) -> float | None:
    """A positive number of seconds; anything else is no announcement."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if 0 < seconds < _PATIENCE_MAX_S else None


def _effort_policy(policy: KeyPolicy, route: Route | None, *, strict: bool) -> EffortPolicy:
    default = policy.default_effort or (route.default_effort if route is not None else "")
    return EffortPolicy(default=default or None, ceiling=policy.max_effort or "max", strict=strict)


async def _recall(view: RequestView, found: Plan, policy: KeyPolicy, client: Client, ctx: Context) -> Recall:
    """What is remembered of the conversation; its thoughts only where repair is on, for all and for this key."""
    by_name = {target.name: target for target in ctx.settings.targets}
    return await ctx.thinking.recall(
        view,
        policy.name,
        repairs=ctx.settings.thinking.repair and policy.thinking_repair,
        details=any(ctx.dialects[by_name[name].dialect].keeps_thought_details for name, _ in found.targets),
        conversation=client.header(b"x-kimi-conversation"),
    )


def _wants_calls(view: RequestView) -> bool:
    """Tools are offered, in the request or in a message, and the choice does not forbid them."""
    offered = "tools" in view.fields or any(isinstance(head.tools, Raw) for head in view.heads)
    choice = view.fields.get("tool_choice")
    return offered and (choice is None or bytes(choice) != b'"none"')
