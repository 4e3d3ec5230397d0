"""From a body to a call: read, check rights and contract, plan. Raises before anything is booked."""

import asyncio
from typing import Final

from backends.contract import Incapable
from kimi_gateway.core.contract import refusal, violations
from kimi_gateway.core.keys import KeyPolicy
from kimi_gateway.core.plan import Plan
from kimi_gateway.core.routing.tiers import read_deadline
from kimi_gateway.core.tags import read_tags
from kimi_gateway.core.view import Raw, RequestView, read, read_steps
from kimi_gateway.errors import Forbidden, InvalidRequest
from kimi_gateway.relay.alone import alone
from kimi_gateway.relay.client import Client
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.encoding import Encoder
from kimi_gateway.relay.frame import Decided, Frame, strict_targets
from kimi_gateway.relay.planning import Planned
from kimi_gateway.relay.planning import planned as _planned
from kimi_gateway.relay.request import Options, Prepared
from kimi_gateway.relay.routing import Asking, Router, Surroundings
from kimi_gateway.relay.thinking import Recall
from kimi_gateway.relay.turnstile import HEAVY_BYTES, in_pieces
from pricing.estimate import Estimate, estimate_prompt

_PATIENCE_MAX_S: Final = 86_400.0
_NARROW_ABOVE: Final = 100_000
_CHEAP_BODY_BYTES: Final = 1024 * 1024
_CHEAP_TOOLS_BYTES: Final = 16 * 1024
"""Below both a strict check takes a few milliseconds at most, and stays on the loop."""


async def prepare(body: bytes, client: Client, policy: KeyPolicy, ctx: Context) -> Prepared:
    """The prepared request. Raises `InvalidRequest`, `NotFound`, `Forbidden`, and what is answered where every
    target that could serve it is out."""
    settings = ctx.settings
    view = read(body) if len(body) < HEAVY_BYTES else await _view(body, ctx)
    usual = client.is_usual
    explains = not usual and _explains(client, policy)
    pinned = None if usual else _pinned(client, policy)
    frame = ctx.frames.find(view, pinned, policy, settings, ctx.dialects)
    asked, route, strict = frame.asked, frame.route, frame.strict
    broken = await _judged(view, asked, strict) if strict else None
    decided = frame.decided(view)
    recall = await _recall(view, frame, client, ctx)
    prompt = estimate_prompt(view.text, messages=len(view.messages), tools="tools" in view.fields)
    planned = None
    if usual and not strict:
        has_budget = policy.limits.has_budget
        planned = alone(asked, route, view, prompt, decided, body, ctx, priced_only=has_budget)
    if planned is None:
        router = _router(view, recall, prompt, frame, decided, client, ctx)
        planned = await _planned(router, asked, body, ctx, explains=explains)
    found = planned.plan
    if found is not asked:
        strict = strict_targets(found, route, settings)
        broken = await _judged(view, found, strict)
    encoder = Encoder(view, ctx, decided, recall, prompt, ctx.wall())
    targets = tuple([(one.name, one.candidate.model) for one in planned.ranking.ranked])
    if broken is not None:
        encoder.refuse(Incapable(broken.param or "messages", broken.message))
        targets = tuple([one for one in targets if one[0] not in strict])
    encoder.targets = targets
    options = await encoder.options(targets)
    return _prepared(view, client, planned, encoder, options, usual=usual)


def _prepared(
    view: RequestView, client: Client, planned: Planned, encoder: Encoder, options: Options, *, usual: bool
) -> Prepared:
    """The request as it is handed on. `usual`: no header of it asks for anything."""
    found, decided = planned.plan, encoder.decided
    adjusted = (*found.adjusted, *planned.adjusted, *decided.effort.adjusted)
    return Prepared(
        route=found.route,
        model=found.model,
        tier=found.tier,
        effort=decided.effort_sent,
        ttl=decided.ttl,
        stream=view.stream,
        n=view.n,
        wants_usage=view.include_usage,
        wants_meta=view.include_usage or (not usual and client.header(b"x-kimi-meta") == "1"),
        named_tool=view.named_tool is not None,
        calls_wanted=_wants_calls(view),
        named_tier=view.service_tier is not None,
        prompt_estimate=encoder.prompt,
        recall=encoder.recall,
        adjusted=tuple(dict.fromkeys(adjusted)) if adjusted else (),
        tags={} if usual else read_tags(client.header(b"x-kimi-tags")),
        read_timeout_s=None if usual else _seconds(client.header(b"x-stainless-read-timeout")),
        targets=encoder.targets,
        limit=decided.limit,
        options=options,
        routed=planned.routed,
        lower=encoder.lowered,
        known=encoder.known,
    )


def _router(
    view: RequestView,
    recall: Recall,
    prompt: Estimate,
    frame: Frame,
    decided: Decided,
    client: Client,
    ctx: Context,
) -> Router:
    """What ranks the targets. Raises `InvalidRequest` for a deadline that is none."""
    asking = Asking(
        view=view,
        recall=recall,
        prompt=prompt,
        effort=decided.effort_sent,
        ttl=decided.ttl,
        limit=decided.limit,
        thinking_off=decided.effort.off,
        pinned=client.header(b"x-kimi-target"),
        priced_only=frame.policy.limits.has_budget,
        deadline_s=read_deadline(client.header(b"x-kimi-deadline-ms")),
    )
    known = Surroundings(ctx.settings, ctx.cards, ctx.dialects, ctx.wall(), ctx.mono())
    return Router(ctx.routing, known, asking, frame.route, prompt)


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
    """The view of a large body, read in its turn and in pieces."""
    async with ctx.turnstile:
        return await in_pieces(read_steps(body))


def _pinned(client: Client, policy: KeyPolicy) -> str | None:
    """The target that the request names. Raises `Forbidden` for a key that may not."""
    pinned = client.header(b"x-kimi-target")
    if pinned is not None and not policy.pin:
        raise Forbidden(
            "this key may not choose a target; leave x-kimi-target out, or set pin = true for the key",
            code="pin_not_allowed",
            param="x-kimi-target",
        )
    return pinned


async def _judged(view: RequestView, found: Plan, strict: frozenset[str]) -> InvalidRequest | None:
    """The 400 that the strict targets of a plan answer with. Raises it where there are no others."""
    broken = await _broken(view) if strict else None
    if broken is not None and len(strict) == len(found.targets):
        raise broken
    return broken


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


def _seconds(header: str | None) -> float | None:
    """A positive number of seconds; anything else is no announcement."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if 0 < seconds < _PATIENCE_MAX_S else None


async def _recall(view: RequestView, frame: Frame, client: Client, ctx: Context) -> Recall:
    """What is remembered of the conversation; its thoughts only where repair is on, for all and for this key."""
    policy, thinking = frame.policy, ctx.thinking
    repairs = ctx.settings.thinking.repair and policy.thinking_repair
    name = client.header(b"x-kimi-conversation")
    found = thinking.recall_now(view, policy.name, repairs=repairs, details=frame.details, conversation=name)
    if found is not None:
        return found
    return await thinking.recall(view, policy.name, repairs=repairs, details=frame.details, conversation=name)


def _wants_calls(view: RequestView) -> bool:
    """Tools are offered, in the request or in a message, and the choice does not forbid them."""
    offered = "tools" in view.fields or any(isinstance(head.tools, Raw) for head in view.heads)
    choice = view.fields.get("tool_choice")
    return offered and (choice is None or bytes(choice) != b'"none"')
