"""Prices of the targets that may serve a request, known before any of them is asked."""

from collections.abc import Sequence
from typing import Final, cast

from msgspec import Struct

from kimi_gateway.core.keys import KeyPolicy
from kimi_gateway.core.reserve import Ceiling, Price, ceiling, is_priced
from kimi_gateway.errors import Forbidden
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.settle import PriceTag, price_tag, seller_of
from kimi_gateway.settings import Settings, Target

_DAY_S: Final = 86_400
_TAGS_MAX: Final = 1024


def planned_targets(planned: Sequence[tuple[str, str]], settings: Settings) -> list[tuple[Target, str]]:
    """The targets of a plan with the upstream's names of the model."""
    by_name = {target.name: target for target in settings.targets}
    return [(by_name[name], model) for name, model in planned]


def priced_only(
    planned: Sequence[tuple[str, str]], policy: KeyPolicy, ctx: Context, model: str
) -> Sequence[tuple[str, str]]:
    """The planned targets that a key may use: one with a budget only those whose price is known.

    Raises `Forbidden` where none is left: what nobody can price, no budget can hold.
    """
    if not policy.limits.has_budget:
        return planned
    priced = [
        (target.name, upstream)
        for target, upstream in planned_targets(planned, ctx.settings)
        if is_priced(tag_of(target, upstream, ctx).rates)
    ]
    if not priced:
        raise Forbidden(
            f"this key has a budget, and no target that serves {model} has a price; the operator can set prices "
            "for the target, or take the budget off",
            code="unpriced_target",
            param="model",
        )
    return priced


def tag_of(target: Target, upstream_model: str, ctx: Context) -> PriceTag:
    """The price of a target's model now."""
    return tag_at(target, upstream_model, ctx.wall(), ctx)


def tag_at(target: Target, upstream_model: str, at_s: float, ctx: Context) -> PriceTag:
    """The price of a target's model at a moment (Unix seconds). Cards change by the day, so what was found is
    good until it ends or they are read anew: 0.5 µs for 15."""
    day = at_s // _DAY_S
    name = (target.name, upstream_model)
    kept = ctx.tags.get(name)
    if kept is not None and kept[0] is target and kept[1] is ctx.cards and kept[2] == day:
        return kept[3]
    tag = price_tag(
        target.name,
        target.prices,
        seller=seller_of(ctx.dialects[target.dialect], target.host),
        model=upstream_model,
        at_s=at_s,
        cards=ctx.cards,
    )
    if len(ctx.tags) >= _TAGS_MAX:  # upstreams name their models as they like
        ctx.tags.clear()
    ctx.tags[name] = (target, ctx.cards, day, tag)
    return tag


class Prices(Struct, frozen=True, gc=False):
    """What a reservation over some targets has to go by. `sends_default`: what one of them answers without an
    output limit is not known."""

    window: int
    sends_default: bool
    ceiling: Ceiling


def prices_of(ctx: Context, planned: Sequence[tuple[str, str]], *, one_hour: bool) -> Prices:
    """The prices of a plan's targets now: the dearest counts. `one_hour`: cache writes at 1 h can happen."""
    name = (tuple(planned), one_hour)
    known = (ctx.settings, ctx.cards, ctx.wall() // _DAY_S)
    kept = ctx.prices.get(name)
    if kept is not None and kept[0] == known[2] and kept[1] is known[0] and kept[2] is known[1]:
        return cast(Prices, kept[3])
    targets = planned_targets(planned, ctx.settings)
    tags = [tag_of(target, model, ctx) for target, model in targets]
    priced = [Price(tag.rates, tag.write_rule) for tag in tags if tag.rates is not None]
    found = Prices(
        max(target.window for target, _ in targets),
        not all(ctx.dialects[target.dialect].default_output_known for target, _ in targets),
        ceiling(priced, one_hour=one_hour),
    )
    if len(ctx.prices) >= _TAGS_MAX:
        ctx.prices.clear()
    ctx.prices[name] = (known[2], *known[:2], found)
    return found
