"""Highspeed or standard: deadlines, the fallback, and whose account an uploaded file is in."""

import pytest
from msgspec.structs import replace

from kimi_gateway.core.plan import Plan
from kimi_gateway.core.routing.candidate import Candidate, Pace, Policy, Tariff, Wants
from kimi_gateway.core.routing.rank import Ranking, rank
from kimi_gateway.core.routing.tiers import account_of_file, choose_tier, read_deadline
from kimi_gateway.errors import InvalidRequest
from pricing.estimate import Estimate

PACE = Pace(first_s=1.0, fresh_s=0.0, token_s=0.02, answer_s=20.0)  # 1,000 tokens within 21 s
DOWN = Plan("pro", "pro", "standard", (("a", "pro"),))
UP = Plan("pro", "pro-highspeed", "highspeed", (("a", "fast"),), standard=DOWN, asked_by="service_tier")
WANTS = Wants(prompt=Estimate(1_000, 1_000, 1_000), output_tokens=1_000)


class Fleet:
    """Ranks one target for each tier; a tier whose model is "" has none."""

    def __init__(self, *, standard: Pace | None = PACE, maps: str = "pro pro-highspeed") -> None:
        self.asked: list[str] = []
        self._pace = standard
        self._maps = maps.split()

    def rank(self, plan: Plan) -> tuple[Wants, Ranking]:
        self.asked.append(plan.tier)
        model = plan.model if plan.model in self._maps else ""
        target = Candidate("a", "a", model, tariff=Tariff(1, 2, 3), pace=self._pace)
        return WANTS, rank(WANTS, [target], Policy())


@pytest.mark.parametrize(
    ("deadline_s", "pace", "tier"),
    [
        (None, PACE, "highspeed"),
        (21.0, PACE, "standard"),  # in time, and half the price
        (20.9, PACE, "highspeed"),
        (60.0, None, "highspeed"),  # nobody knows how long standard takes
    ],
)
def test_highspeed_is_served_at_standard_where_that_keeps_the_deadline(
    deadline_s: float | None, pace: Pace | None, tier: str
) -> None:
    found = choose_tier(UP, Fleet(standard=pace).rank, deadline_s)
    assert found.plan.tier == tier
    assert found.adjusted == (("service_tier",) if tier == "standard" else ())
    assert found.ranking.ranked[0].candidate.model == found.plan.model


def test_a_deadline_never_raises_the_tier() -> None:
    fleet = Fleet()
    assert choose_tier(DOWN, fleet.rank, 0.001).plan is DOWN
    assert fleet.asked == ["standard"]


def test_highspeed_that_no_target_takes_falls_back_only_where_it_may_and_is_disclosed() -> None:
    fallback = replace_plan(UP, may_fall_back=True)
    found = choose_tier(fallback, Fleet(maps="pro").rank, None)
    assert (found.plan.tier, found.adjusted) == ("standard", ("tier_fallback",))
    kept = choose_tier(UP, Fleet(maps="pro").rank, None)
    assert (kept.plan.tier, kept.ranking.ranked) == ("highspeed", ())
    nobody = choose_tier(fallback, Fleet(maps="").rank, None)
    assert (nobody.plan.tier, nobody.ranking.ranked, nobody.adjusted) == ("highspeed", (), ())
    served = Fleet()
    assert choose_tier(fallback, served.rank, None).plan.tier == "highspeed"
    assert served.asked == ["highspeed"]


def replace_plan(plan: Plan, *, may_fall_back: bool) -> Plan:
    return Plan(plan.route, plan.model, plan.tier, plan.targets, (), plan.standard, may_fall_back, plan.asked_by)


@pytest.mark.parametrize(("header", "deadline_s"), [(None, None), ("1", 0.001), ("30000", 30.0), (" 250 ", 0.25)])
def test_a_deadline_is_a_whole_number_of_milliseconds(header: str | None, deadline_s: float | None) -> None:
    assert read_deadline(header) == deadline_s


@pytest.mark.parametrize("header", ["", "0", "-5", "1.5", "1e3", "٣٠٠", "30s", "86400001", "9" * 40, "+5", "0x10"])
def test_any_other_deadline_is_a_400_that_names_the_header(header: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_deadline(header)
    assert caught.value.param == "x-kimi-deadline-ms"
    assert "whole number of milliseconds" in caught.value.message


def test_a_deadline_on_standard_only_puts_late_targets_last() -> None:
    late = Candidate("late", "a", "m", 0, tariff=Tariff(1, 2, 3), pace=replace(PACE, token_s=0.1))
    soon = Candidate("soon", "b", "m", 1, tariff=Tariff(9, 9, 9), pace=PACE)
    wants = replace(WANTS, deadline_s=30.0)
    assert [one.name for one in rank(wants, [late, soon], Policy()).ranked] == ["soon", "late"]
    assert [one.name for one in rank(WANTS, [late, soon], Policy("order")).ranked] == ["late", "soon"]


# --- uploaded files ---------------------------------------------------------------------------------------------

PATH = "messages[0].content[1]"


@pytest.mark.parametrize(
    ("pinned", "accounts", "account"),
    [(None, ["m"], "m"), (None, ["m", "m"], "m"), ("n", ["m", "n"], "n"), ("m", ["m", "n"], "m")],
)
def test_a_file_goes_to_the_pinned_targets_account_or_to_the_only_one(
    pinned: str | None, accounts: list[str], account: str
) -> None:
    assert account_of_file(PATH, pinned, accounts) == account


@pytest.mark.parametrize(
    ("pinned", "accounts", "words"),
    [
        (None, [], "no target of this route reads; send the data itself as a base64 data URL"),
        ("vllm", ["m"], "the target in x-kimi-target does not read; send the data itself"),
        (None, ["m", "n"], "one of the accounts m, n has; name a target of that account in x-kimi-target"),
    ],
)
def test_a_file_that_could_be_anywhere_is_a_400_that_names_field_and_remedy(
    pinned: str | None, accounts: list[str], words: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        account_of_file(PATH, pinned, accounts)
    assert caught.value.param == PATH
    assert words in caught.value.message
