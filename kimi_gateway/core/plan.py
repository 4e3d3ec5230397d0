"""Which targets may serve a request, in order: a pure function of the configuration and the request.

The model name, or `service_tier: "highspeed"` on the standard name, picks the tier; nothing else raises it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from kimi_gateway.core.near import meant, quoted
from kimi_gateway.errors import Forbidden, InvalidRequest, NotFound

HIGHSPEED_SUFFIX: Final = "-highspeed"
TIER_FALLBACK: Final = "tier_fallback"
"""Disclosed where Highspeed was asked for and standard serves, because no target takes it at Highspeed."""
_MODEL_TIERS: Final = (None, "auto", "default", "standard", "standard_only")
"""`service_tier` values that ask for nothing that the model name does not say already."""


class TargetLike(Protocol):
    """What planning needs of a target."""

    @property
    def name(self) -> str: ...

    @property
    def models(self) -> Mapping[str, str]:
        """Public model name to the upstream's name."""
        ...


class RouteLike(Protocol):
    """What planning needs of a route."""

    @property
    def model(self) -> str: ...

    @property
    def aliases(self) -> Sequence[str]: ...

    @property
    def targets(self) -> Sequence[str]: ...

    @property
    def highspeed_aliases(self) -> Sequence[str]: ...


TargetT = TypeVar("TargetT", bound=TargetLike)
RouteT = TypeVar("RouteT", bound=RouteLike)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the request says about where it goes. `tier_fallback` is the route's: Highspeed that nobody takes may
    be served at standard."""

    model: str
    service_tier: str | None = None
    pinned: str | None = None  # x-kimi-target
    tiers: Sequence[str] = ("standard", "highspeed")  # those the key may use
    tier_fallback: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Targets that map the model, first choice first, each with its own name of the model.

    `route` is the public model of the route, `model` that of the tier asked for. `standard` is the same request at
    standard, where Highspeed is asked for and both the key and a target allow standard; `may_fall_back`: it may be
    taken where no target can take this one. `asked_by` is the field that picked the tier.
    """

    route: str
    model: str
    tier: str
    targets: tuple[tuple[str, str], ...]
    adjusted: tuple[str, ...] = ()
    standard: "Plan | None" = None
    may_fall_back: bool = False
    asked_by: str = "model"


def tier_of(model: str) -> str:
    """The tier a public model name stands for."""
    return "highspeed" if model.endswith(HIGHSPEED_SUFFIX) else "standard"


def find_route(model: str, routes: Sequence[RouteT]) -> RouteT | None:
    """The route of a model name or of one of its aliases."""
    for route in routes:
        if model == route.model or model in route.aliases:
            return route
    return None


def plan(asked: Asked, routes: Sequence[RouteT], targets: Sequence[TargetT]) -> Plan:
    """The plan for a request.

    Raises `NotFound` for a model nobody serves, `InvalidRequest` for a tier or pinned target that cannot take it,
    `Forbidden` for a tier that the key may not use.
    """
    route = find_route(asked.model, routes)
    base = route.model if route is not None else asked.model
    model, adjusted = _with_tier(base, asked, route)
    tier = tier_of(model)
    asked_by = "service_tier" if model != base else "model"
    if tier not in asked.tiers:
        raise Forbidden(
            f"this key may not use tier {tier}; it may use {', '.join(asked.tiers)}",
            code="tier_not_allowed",
            param=asked_by,
        )
    found = _mapping(model, route, targets)
    lower = _standard(asked, base, routes, targets) if tier != "standard" and "standard" in asked.tiers else None
    if not found:
        if lower is not None and asked.tier_fallback:
            return replace(lower, adjusted=(*adjusted, TIER_FALLBACK))
        raise _nobody(asked, model, base, targets, routes)
    if asked.pinned is not None:
        if lower is not None and asked.tier_fallback and asked.pinned not in dict(found):
            return replace(lower, adjusted=(*adjusted, TIER_FALLBACK))
        found = _pinned(asked.pinned, found)
    return Plan(base, model, tier, found, adjusted, lower, asked.tier_fallback and lower is not None, asked_by)


def _mapping(model: str, route: RouteLike | None, targets: Sequence[TargetLike]) -> tuple[tuple[str, str], ...]:
    """The targets of a route, all without one, that map a model."""
    names = route.targets if route is not None else [target.name for target in targets]
    by_name = {target.name: target for target in targets}
    present = [by_name[name] for name in names if name in by_name]
    return tuple((target.name, target.models[model]) for target in present if model in target.models)


def _standard(asked: Asked, base: str, routes: Sequence[RouteLike], targets: Sequence[TargetLike]) -> Plan | None:
    """The plan for the same request at standard, None where nobody serves that, or not the pinned target. Where
    the model's name asks for Highspeed, the route of the standard model says who serves it."""
    model = base.removesuffix(HIGHSPEED_SUFFIX)
    route = find_route(model, routes) or find_route(base, routes)
    found = _mapping(model, route, targets)
    if asked.pinned is not None:
        found = tuple(one for one in found if one[0] == asked.pinned)
    if not found:
        return None
    return Plan(base, model, "standard", found)


def _with_tier(base: str, asked: Asked, route: RouteLike | None) -> tuple[str, tuple[str, ...]]:
    wish = asked.service_tier
    raising = ("highspeed", *(route.highspeed_aliases if route is not None else ()))
    if wish in raising:
        return (base if tier_of(base) == "highspeed" else base + HIGHSPEED_SUFFIX), ()
    if wish in _MODEL_TIERS:
        return base, ()
    return base, ("service_tier",)


def _pinned(name: str, found: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    for target, model in found:
        if target == name:
            return ((target, model),)
    names = [target for target, _ in found]
    raise InvalidRequest(
        f"x-kimi-target {quoted(name)} does not serve this model;{meant(name, names)} "
        f"it can be {', '.join(names)}",
        code="unknown_target",
        param="x-kimi-target",
    )


def _nobody(
    asked: Asked, model: str, base: str, targets: Sequence[TargetLike], routes: Sequence[RouteLike]
) -> NotFound | InvalidRequest:
    if model != base:
        return InvalidRequest(
            f"service_tier highspeed is not served: no target maps {model}; leave it out or map the model",
            code="tier_unavailable",
            param="service_tier",
        )
    known = sorted({route.model for route in routes} | {name for target in targets for name in target.models})
    near = meant(asked.model, [*known, *(alias for route in routes for alias in route.aliases)])
    return NotFound(
        f"the model {quoted(asked.model)} is not served here;{near} "
        f"GET /v1/models lists {', '.join(known) or 'none'}",
        code="model_not_found",
        param="model",
    )
