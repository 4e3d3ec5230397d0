"""What a request's fields decide without its messages: found once, and again for every request with the same.

A client sends the same model, limits and effort all day. Its plan, its route, which of its targets are strict, and
what is decided of effort, lifetime and output limit follow from those, its key and the configuration alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from backends.dialect import Dialect
from backends.family import family_of
from kimi_gateway.core.effort import Effort, EffortPolicy, EffortWish, as_stated, resolve
from kimi_gateway.core.keys import KeyPolicy
from kimi_gateway.core.plan import Asked, Plan, find_route, plan
from kimi_gateway.core.view import RequestView
from kimi_gateway.settings import Route, Settings

_NARROW_ABOVE: Final = 100_000
_FRAMES_MAX: Final = 1024
_DECISIONS_MAX: Final = 64  # of one frame: efforts, lifetimes and limits


class Decided(Struct, frozen=True, gc=False):
    """What the gateway has decided about a request before any target is looked at. `limit` None sends none."""

    effort: Effort
    ttl: str
    limit: int | None
    narrow_tools_above: int

    @property
    def effort_sent(self) -> str:
        """The effort as it is sent: a word, `none` for thinking off, `unset` where none is."""
        return "none" if self.effort.off else self.effort.value or "unset"


@dataclass(slots=True, eq=False)
class Frame:
    """The plan of requests that are alike. `strict` are the targets to which the contract applies as written;
    `details`: one of the targets keeps `reasoning_details`."""

    policy: KeyPolicy
    asked: Plan
    route: Route | None
    strict: frozenset[str]
    details: bool
    _decided: dict[tuple[EffortWish, str, int | None], Decided] = field(default_factory=dict)

    @property
    def all_strict(self) -> bool:
        """No target takes what breaks the contract."""
        return len(self.strict) == len(self.asked.targets)

    def decided(self, view: RequestView) -> Decided:
        """What is decided before any target is looked at. Raises `InvalidRequest` and `Forbidden`."""
        name = (view.effort, view.ttl, view.output_limit)
        found = self._decided.get(name)
        if found is None:
            found = decide(view, self.asked, self.policy, self.route, strict=self.all_strict)
            if len(self._decided) >= _DECISIONS_MAX:
                self._decided.clear()
            self._decided[name] = found
        return found


class Frames:
    """The frames of one process, for the configuration in force."""

    def __init__(self) -> None:
        self._frames: dict[tuple[int, str, str | None, str | None], Frame] = {}
        self._settings: Settings | None = None

    def find(
        self,
        view: RequestView,
        pinned: str | None,
        policy: KeyPolicy,
        settings: Settings,
        dialects: Mapping[str, Dialect],
    ) -> Frame:
        """The frame of a request, `pinned` to a target or not. 1 µs, and 20 µs where it is the first of its kind.

        Raises `NotFound`, `InvalidRequest`, `Forbidden`: what is refused is looked at anew each time.
        """
        if settings is not self._settings or len(self._frames) >= _FRAMES_MAX:
            self._frames, self._settings = {}, settings
        name = (id(policy), view.model, view.service_tier, pinned)
        frame = self._frames.get(name)
        if frame is None or frame.policy is not policy:
            frame = self._frames[name] = _frame(view, pinned, policy, settings, dialects)
        return frame


def _frame(
    view: RequestView,
    pinned: str | None,
    policy: KeyPolicy,
    settings: Settings,
    dialects: Mapping[str, Dialect],
) -> Frame:
    route = find_route(view.model, settings.routes)
    asked = Asked(
        model=view.model,
        service_tier=view.service_tier,
        pinned=pinned,
        tiers=policy.tiers,
        tier_fallback=route is not None and route.tier_fallback,
    )
    found = plan(asked, settings.routes, settings.targets)
    spoken = {target.name: dialects[target.dialect] for target in settings.targets}
    details = any(spoken[name].keeps_thought_details for name, _ in found.targets)
    return Frame(policy, found, route, strict_targets(found, route, settings), details)


def strict_targets(found: Plan, route: Route | None, settings: Settings) -> frozenset[str]:
    """The planned targets to which the contract applies as it is written: by their own setting, else the route's,
    else the gateway's. It is the contract of K3, so a target with a model whose requests pass as they came (K2) is
    never one of them."""
    usual = (route.contract if route is not None else "") or settings.contract.mode
    modes = {target.name: target.contract or usual for target in settings.targets}
    return frozenset(
        name for name, model in found.targets if modes[name] == "strict" and not family_of(model).passes_through
    )


def decide(view: RequestView, found: Plan, policy: KeyPolicy, route: Route | None, *, strict: bool) -> Decided:
    """What is decided of a request's effort, lifetime and limit. Raises `InvalidRequest` and `Forbidden`.

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


def _effort_policy(policy: KeyPolicy, route: Route | None, *, strict: bool) -> EffortPolicy:
    default = policy.default_effort or (route.default_effort if route is not None else "")
    return EffortPolicy(default=default or None, ceiling=policy.max_effort or "max", strict=strict)
