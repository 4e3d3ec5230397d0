"""Planning: model, alias, tier, pin."""

from dataclasses import dataclass, field

import pytest

from kimi_gateway.core.plan import Asked, plan
from kimi_gateway.errors import Forbidden, GatewayError, InvalidRequest, NotFound


@dataclass(frozen=True)
class FakeTarget:
    name: str
    models: dict[str, str]


@dataclass(frozen=True)
class FakeRoute:
    model: str
    targets: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    highspeed_aliases: tuple[str, ...] = ()
    extra: dict[str, str] = field(default_factory=dict)


PRO, FAST = "kimi-k3.1-pro", "kimi-k3.1-pro-highspeed"
MOON = FakeTarget("moonshot", {PRO: PRO, FAST: FAST})
ENGINE = FakeTarget("vllm", {PRO: "moonshotai/Kimi-K3.1-Pro"})
ROUTE = FakeRoute(
    PRO, ("vllm", "moonshot"), aliases=("moonshotai/kimi-k3.1-pro",), highspeed_aliases=("priority",)
)


def targets_of(asked: Asked) -> tuple[tuple[str, str], ...]:
    return plan(asked, [ROUTE], [MOON, ENGINE]).targets


def test_the_order_is_the_routes() -> None:
    assert targets_of(Asked(PRO)) == (("vllm", "moonshotai/Kimi-K3.1-Pro"), ("moonshot", PRO))


def test_an_alias_is_its_route() -> None:
    found = plan(Asked("moonshotai/kimi-k3.1-pro"), [ROUTE], [MOON, ENGINE])
    assert (found.route, found.model) == (PRO, PRO)


@pytest.mark.parametrize("asked", [Asked(PRO, "highspeed"), Asked(PRO, "priority"), Asked(FAST)])
def test_highspeed_goes_only_where_it_is_mapped(asked: Asked) -> None:
    found = plan(asked, [ROUTE], [MOON, ENGINE])
    assert (found.tier, found.model, found.targets) == ("highspeed", FAST, (("moonshot", FAST),))


@pytest.mark.parametrize("tier", ["flex", "scale", "Highspeed"])
def test_another_service_tier_means_what_the_model_says_and_is_disclosed(tier: str) -> None:
    found = plan(Asked(PRO, tier), [ROUTE], [MOON])
    assert (found.tier, found.adjusted) == ("standard", ("service_tier",))


@pytest.mark.parametrize("tier", [None, "auto", "default"])
def test_a_neutral_service_tier_is_no_change(tier: str | None) -> None:
    assert plan(Asked(PRO, tier), [ROUTE], [MOON]).adjusted == ()


@pytest.mark.parametrize(
    ("asked", "kind", "param"),
    [
        (Asked("gpt-7"), NotFound, "model"),
        (Asked(PRO, "highspeed", tiers=("standard",)), Forbidden, "service_tier"),
        (Asked(FAST, tiers=("standard",)), Forbidden, "model"),
        (Asked(PRO, pinned="nobody"), InvalidRequest, "x-kimi-target"),
    ],
)
def test_what_cannot_be_served_is_said_by_field(asked: Asked, kind: type[GatewayError], param: str) -> None:
    with pytest.raises(kind) as caught:
        plan(asked, [ROUTE], [MOON, ENGINE])
    assert caught.value.param == param


def test_highspeed_without_a_target_is_a_400_about_the_tier() -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan(Asked(PRO, "highspeed"), [ROUTE], [ENGINE, FakeTarget("moonshot", {PRO: PRO})])
    assert caught.value.param == "service_tier"


def test_a_pin_leaves_one_target() -> None:
    assert targets_of(Asked(PRO, pinned="moonshot")) == (("moonshot", PRO),)


def test_an_unknown_model_or_target_is_told_the_closest_one() -> None:
    with pytest.raises(NotFound, match=r"did you mean kimi-k3\.1-pro-highspeed\?"):
        targets_of(Asked("kimi-k3.1-pro-highsped"))
    with pytest.raises(NotFound, match=r"did you mean moonshotai/kimi-k3\.1-pro\?"):
        targets_of(Asked("moonshotai/kimi-k3.1-pr"))
    with pytest.raises(InvalidRequest, match=r"did you mean vllm\?"):
        targets_of(Asked(PRO, pinned="vlm"))


# --- standard instead of Highspeed ------------------------------------------------------------------------------


def test_a_highspeed_plan_knows_the_way_down_to_standard() -> None:
    for asked in (Asked(PRO, "highspeed"), Asked(FAST)):
        found = plan(asked, [ROUTE], [MOON, ENGINE])
        assert found.standard is not None
        assert (found.standard.model, found.standard.tier) == (PRO, "standard")
        assert found.standard.targets == (("vllm", "moonshotai/Kimi-K3.1-Pro"), ("moonshot", PRO))
        assert not found.may_fall_back
    assert plan(Asked(PRO, "highspeed"), [ROUTE], [MOON]).asked_by == "service_tier"
    assert plan(Asked(FAST), [ROUTE], [MOON]).asked_by == "model"


@pytest.mark.parametrize(
    "asked",
    [
        Asked(PRO),  # nothing to go down from
        Asked(PRO, "highspeed", tiers=("highspeed",)),  # the key may not use standard
        Asked("only-highspeed"),  # nobody serves it at standard
    ],
)
def test_there_is_no_way_down_where_standard_is_asked_for_or_may_not_serve(asked: Asked) -> None:
    fast_only = FakeTarget("fast", {"only-highspeed": "x"})
    assert plan(asked, [ROUTE], [MOON, ENGINE, fast_only]).standard is None


def test_a_pinned_target_stays_pinned_on_the_way_down() -> None:
    found = plan(Asked(PRO, "highspeed", pinned="moonshot"), [ROUTE], [MOON, ENGINE])
    assert found.standard is not None
    assert found.standard.targets == (("moonshot", PRO),)


def test_highspeed_that_nobody_maps_falls_back_only_where_the_route_allows_it_and_says_so() -> None:
    asked = Asked(PRO, "highspeed", tier_fallback=True)
    found = plan(asked, [ROUTE], [ENGINE])
    assert (found.model, found.tier, found.adjusted) == (PRO, "standard", ("tier_fallback",))
    assert found.targets == (("vllm", "moonshotai/Kimi-K3.1-Pro"),)
    pinned = plan(Asked(FAST, pinned="vllm", tier_fallback=True), [ROUTE], [MOON, ENGINE])
    assert (pinned.tier, pinned.adjusted) == ("standard", ("tier_fallback",))
    with pytest.raises(InvalidRequest):
        plan(Asked(PRO, "highspeed"), [ROUTE], [ENGINE])
    with pytest.raises(InvalidRequest):
        plan(Asked(PRO, "highspeed", tiers=("highspeed",), tier_fallback=True), [ROUTE], [ENGINE])
    with pytest.raises(Forbidden):
        plan(Asked(PRO, "highspeed", tiers=("standard",), tier_fallback=True), [ROUTE], [MOON])
