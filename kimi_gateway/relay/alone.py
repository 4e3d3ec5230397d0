"""The plan of a request that one target serves and that asks for nothing special: there is nothing to weigh.

`None` wherever routing has to look closer; what it finds is the same, at 25 times the price (50 µs against 2).
"""

from typing import Final

from kimi_gateway.core.plan import Plan
from kimi_gateway.core.routing.facts import Place
from kimi_gateway.core.routing.rank import Ranked, Ranking
from kimi_gateway.core.view import RequestView
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.frame import Decided
from kimi_gateway.relay.planning import Planned
from kimi_gateway.relay.request import Routed
from kimi_gateway.relay.routing import Surroundings, output_name
from kimi_gateway.settings import Route
from pricing.estimate import Estimate

_MEDIA: Final = b'_url"'  # `image_url`, `video_url`: parts that not every target takes


def alone(
    asked: Plan,
    route: Route | None,
    view: RequestView,
    prompt: Estimate,
    decided: Decided,
    body: bytes,
    ctx: Context,
    *,
    priced_only: bool,
) -> Planned | None:
    """The plan as `planning.planned` makes it, without a deadline, a pinned target or a wish to see it."""
    if (
        len(asked.targets) != 1
        or asked.standard is not None
        or view.n != 1
        or decided.effort.off
        or _MEDIA in body
    ):
        return None
    routing, now_s = ctx.routing, ctx.mono()
    known = Surroundings(ctx.settings, ctx.cards, ctx.dialects, ctx.wall(), now_s)
    base = routing.bases(asked, route, decided.ttl, known)[0]
    if base.tariff is None and priced_only:
        return None
    if prompt.high >= base.window or routing.health.out(base.name) is not None:
        return None
    output = decided.limit or routing.outputs.expected(output_name(asked.route, decided.effort_sent), None, now_s)
    places = {base.name: Place(base.name, base.account, base.quota)}
    ranking = Ranking((Ranked(base, None, 0.0, 0),))
    return Planned(asked, ranking, Routed(places, prompt.tokens + output))
