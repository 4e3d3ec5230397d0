"""Highspeed with a deadline, and Highspeed that nobody takes: what serves, what is disclosed, what it costs."""

from collections.abc import Iterator
from typing import Any

import pytest

from support.fleet import FAST, OK, PRO, Fleet, fleet, hi, route
from support.lab import Heard

QUOTA = {"status": 429, "json": {"error": {"type": "exceeded_current_quota_error", "message": "empty"}}}
STANDARD_NANO, HIGHSPEED_NANO = 40_000, 80_000
"""Ten tokens of prompt and two of answer."""


def timed(seconds: float) -> dict[str, Any]:
    """A stream of 200 tokens that takes so long."""
    first = '{"id":"c","model":"kimi-k3.1-pro","choices":[{"index":0,"delta":{"content":"a"}}]}'
    last = (
        '{"id":"c","model":"kimi-k3.1-pro","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
        '"usage":{"prompt_tokens":10,"completion_tokens":200,"total_tokens":210}}'
    )
    return {
        "status": 200,
        "timeline": [[0.01, f"data: {first}\n\n"], [seconds, f"data: {last}\n\ndata: [DONE]\n\n"]],
    }


def pair(*names: str) -> dict[str, str]:
    """These models at both tiers."""
    return {name: PRO for name in names} | {f"{name}-highspeed": FAST for name in names}


@pytest.fixture(scope="module")
def made() -> Iterator[Fleet]:
    """Model `falls` may fall back to standard, `stays` may not, `alone` has nobody at Highspeed; `paced` is for
    deadlines."""
    targets = {
        "both": {"models": pair("falls", "stays", "paced")},
        "slow": {"models": {"falls": PRO, "stays": PRO, "alone": PRO}},
    }
    routes = [
        route("falls", ["both", "slow"], tier_fallback=True),
        route("stays", ["both", "slow"]),
        route("alone", ["slow"], tier_fallback=True),
        route("paced", ["both"]),
    ]
    with fleet(targets, "".join(routes), head="[retry]\nglobal_ratio = 1") as found:
        yield found


def fast(model: str) -> dict[str, Any]:
    """A request for Highspeed by its field."""
    return hi(model=model, service_tier="highspeed")


def tiers(made: Fleet, heard: Heard) -> tuple[str, str, str, int | None]:
    """The tier by header, in the answer, in the row; what it cost."""
    row = made.row(heard)
    assert heard.json["kimi"]["tier"] == heard.headers["x-kimi-tier"]
    return heard.headers["x-kimi-tier"], heard.json["service_tier"], row.tier, row.cost_nano


@pytest.mark.parametrize("value", ["0", "-5", "1.5", "soon", "86400001", "", "9" * 12, "1e3", "\u0661\u0660"])
def test_a_deadline_that_is_no_number_of_milliseconds_is_a_400(made: Fleet, value: str) -> None:
    headers = {"x-kimi-deadline-ms": value.encode().decode("latin-1")}
    heard = made.ask(hi(model="paced"), headers)
    assert (heard.status, heard.error["type"], heard.error["code"]) == (
        400,
        "invalid_request_error",
        "invalid_value",
    )
    assert heard.error["param"] == "x-kimi-deadline-ms"


def test_highspeed_with_a_deadline_stays_while_the_pace_of_standard_is_not_known(made: Fleet) -> None:
    made.upstreams["both"].add(OK)
    heard = made.ask(fast("paced"), {"x-kimi-deadline-ms": "86400000"})
    assert tiers(made, heard) == ("highspeed", "highspeed", "highspeed", HIGHSPEED_NANO)
    made.upstreams["both"].add(timed(0.5))
    made.row(made.ask(hi(model="paced")))
    made.upstreams["both"].add(*[OK] * 3)

    generous = made.ask(fast("paced"), {"x-kimi-deadline-ms": "60000"})
    assert tiers(made, generous) == ("standard", "standard", "standard", STANDARD_NANO)
    assert generous.headers["x-kimi-adjusted"] == "service_tier"
    assert generous.json["kimi"]["adjusted"] == ["service_tier"]
    assert made.upstreams["both"].requests[-1].json["model"] == PRO

    by_name = made.ask(hi(model="paced-highspeed"), {"x-kimi-deadline-ms": "60000"})
    assert (by_name.headers["x-kimi-tier"], by_name.headers["x-kimi-adjusted"]) == ("standard", "model")

    tight = made.ask(fast("paced"), {"x-kimi-deadline-ms": "1000"})
    assert tiers(made, tight) == ("highspeed", "highspeed", "highspeed", HIGHSPEED_NANO)
    assert "x-kimi-adjusted" not in tight.headers


def test_a_deadline_never_raises_the_tier(made: Fleet) -> None:
    made.upstreams["both"].add(OK)
    heard = made.ask(hi(model="paced"), {"x-kimi-deadline-ms": "1"})
    assert (heard.status, heard.headers["x-kimi-tier"]) == (200, "standard")


def test_highspeed_that_nobody_serves_is_standard_where_the_route_says_so(made: Fleet) -> None:
    made.upstreams["slow"].add(OK)
    heard = made.ask(fast("alone"))
    assert tiers(made, heard) == ("standard", "standard", "standard", STANDARD_NANO)
    assert heard.headers["x-kimi-adjusted"] == "tier_fallback"


def test_highspeed_whose_account_is_empty_falls_back_where_the_route_says_so(made: Fleet) -> None:
    made.upstreams["both"].add(QUOTA)
    assert made.ask(fast("stays")).status == 402
    made.upstreams["slow"].add(OK)
    heard = made.ask(fast("falls"))
    assert tiers(made, heard) == ("standard", "standard", "standard", STANDARD_NANO)
    assert (heard.json["kimi"]["target"], heard.headers["x-kimi-adjusted"]) == ("slow", "tier_fallback")
    refused = made.ask(fast("stays"))
    assert (refused.status, refused.error["type"]) == (402, "exceeded_current_quota_error")
    made.heal()
    made.upstreams["both"].add(OK)
    assert tiers(made, made.ask(fast("falls")))[0] == "highspeed"
