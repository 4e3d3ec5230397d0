"""Prices of the targets that may serve a request, known before any of them is asked."""

from collections.abc import Sequence

from kimi_gateway.core.keys import KeyPolicy
from kimi_gateway.core.reserve import is_priced
from kimi_gateway.errors import Forbidden
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.settle import PriceTag, price_tag, seller_of
from kimi_gateway.settings import Settings, Target


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
    return price_tag(
        target.name,
        target.prices,
        seller=seller_of(ctx.dialects[target.dialect], target.host),
        model=upstream_model,
        at_s=ctx.wall(),
        cards=ctx.cards,
    )
