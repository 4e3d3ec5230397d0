"""Advice on the cache's lifetime: known gaps give the known optimum and saving, to the last digit."""

from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.advice.tariffs import Tariffs
from pricing.advice.ttl import Advice, Clock, GroupAdvice, advise, refuse_unknown
from pricing.cards import load_cards
from pricing.ledger.row import LedgerRow, LineRecord
from pricing.rates import Card, CardBook, Rates
from support.ledger_rows import START, open_row, settled_row

TARIFFS = Tariffs(load_cards(), {})
HIGHSPEED: dict[str, Any] = {
    "card": "moonshot/kimi-k3.1-pro-highspeed@2026-10-24 writes=replaces",
    "model": "kimi-k3.1-pro-highspeed",
    "tier": "highspeed",
}
M = 1_000_000


def uses(gaps: Sequence[float], prompts: Sequence[int] | int = M, **fields: object) -> list[LedgerRow]:
    """One prefix: the first use, and one more after each gap in seconds."""
    sizes = [prompts] * (len(gaps) + 1) if isinstance(prompts, int) else list(prompts)
    at, rows = START, []
    for number, size in enumerate(sizes):
        at += gaps[number - 1] if number else 0
        values: dict[str, object] = {"prefix": "p", "prompt_tokens": size, "cached_tokens": None, "ttl": "5m"}
        rows.append(settled_row(f"{fields.get('prefix', 'p')}{number}", started_at=at, **(values | fields)))
    return rows


def advice(rows: Sequence[LedgerRow], by: Sequence[str] = (), clock: Clock = "start") -> Advice:
    """The advice on rows, brought into the order of their start."""
    return advise(sorted(rows, key=lambda row: row.started_at), TARIFFS, by=by, clock=clock)


def only(rows: Sequence[LedgerRow], clock: Clock = "start") -> GroupAdvice:
    """The advice on rows that are one group."""
    (group,) = advice(rows, clock=clock).groups
    return group


def costs(group: GroupAdvice) -> tuple[int, int, int, int]:
    """Nano-dollars today, at 5m, at 1h and without a cache."""
    return tuple(group.costs[choice].nano for choice in ("today", "5m", "1h", "none"))  # type: ignore[return-value]


def usd(*dollars: float) -> tuple[int, ...]:
    """Nano-dollars."""
    return tuple(round(value * 10**9) for value in dollars)


def test_one_use_again_after_ten_minutes_keeps_five_minutes() -> None:
    group = only(uses([600]))
    assert costs(group) == usd(4.00, 4.00, 4.20, 4.00)
    assert (group.best, group.saving_nano("5m"), group.saving_nano("1h")) == ("5m", 0, -200_000_000)


def test_two_uses_again_after_ten_minutes_each_pay_for_one_hour() -> None:
    group = only(uses([600, 600]))
    assert costs(group) == usd(6.00, 6.00, 4.40, 6.00)
    assert (group.best, group.saving_nano(group.best)) == ("1h", 1_600_000_000)


def test_short_gaps_keep_five_minutes_however_many_there_are() -> None:
    group = only(uses([299.999] * 20))
    assert costs(group) == usd(6.00, 6.00, 8.00, 42.00)
    assert group.best == "5m"
    assert (group.under_5m, group.under_1h, group.longer) == (20, 0, 0)


@pytest.mark.parametrize(
    ("gap_s", "at_5m", "at_1h", "classes"),
    [
        (299.999, 2.20, 4.20, (1, 0, 0)),
        (300, 4.00, 4.20, (0, 1, 0)),
        (3599.999, 4.00, 4.20, (0, 1, 0)),
        (3600, 4.00, 8.00, (0, 0, 1)),
    ],
)
def test_at_exactly_its_end_a_lifetime_is_over(
    gap_s: float, at_5m: float, at_1h: float, classes: tuple[int, int, int]
) -> None:
    group = only(uses([gap_s]))
    assert costs(group)[1:3] == usd(at_5m, at_1h)
    assert (group.under_5m, group.under_1h, group.longer) == classes


def test_each_hit_renews_the_whole_lifetime() -> None:
    assert costs(only(uses([200, 200, 200])))[1] == usd(2.60)[0]


def test_what_a_conversation_grows_by_is_written_and_the_rest_read() -> None:
    group = only(uses([600, 60], [M, M + 200_000, M + 300_000]))
    # 5m: 1.0 M and 1.2 M written, then 1.2 M read and 0.1 M written.
    # 1h: 1.0 M written, then 1.0 M read and 0.2 M written, then 1.2 M read and 0.1 M written.
    assert costs(group)[1:] == usd(2.00 + 2.40 + 0.24 + 0.20, 4.00 + 0.20 + 0.80 + 0.24 + 0.40, 7.00)
    tokens = {line.meter: line.count for part in group.costs["1h"].parts for line in part.lines}
    assert tokens == {"cache_read": 2_200_000, "write_1h": 1_300_000}


def test_a_shorter_prompt_renews_only_its_own_part() -> None:
    rows = uses([200, 200], [M, 400_000, M])
    # The last use finds 0.4 M warm: the other 0.6 M was last used 400 s before.
    assert costs(only(rows))[1] == usd(2.00 + 0.08 + 0.08 + 1.20)[0]


def test_highspeed_is_reckoned_at_its_own_rates() -> None:
    group = only(uses([600, 600], **HIGHSPEED))
    assert costs(group) == usd(12.00, 12.00, 8.40, 12.00)
    assert group.best == "1h"


def test_tiers_models_efforts_and_targets_share_no_cache() -> None:
    others: list[dict[str, Any]] = [HIGHSPEED, {"effort": "low"}, {"target": "elsewhere"}]
    for other in others:
        rows = [*uses([]), *[row for row in uses([60], **other) if row.request_id == "p1"]]
        group = only(rows)
        assert group.prefixes == 2
        assert group.costs["5m"].read_tokens == 0


def test_todays_mix_keeps_the_lifetime_that_a_prefix_was_first_written_with() -> None:
    rows = uses([600, 600, 4000])
    rows[0].ttl = "1h"
    # 1h is locked for three uses; then the prefix is cold, and what is asked for counts.
    assert costs(only(rows))[0] == usd(4.00 + 0.20 + 0.20 + 2.00)[0]


def test_a_mix_that_beats_both_is_left_as_it_is() -> None:
    rows = [*uses([600, 600], prefix="a", ttl="1h"), *uses([60], prefix="b", ttl="5m")]
    group = only(rows)
    assert costs(group)[:3] == usd(4.40 + 2.20, 6.00 + 2.20, 4.40 + 4.20)
    assert (group.best, group.each_prefix_nano) == ("today", usd(6.60)[0])


def test_the_reported_split_counts_more_than_the_wish() -> None:
    rows = uses([600], ttl="5m", cached_tokens=0, write_5m_tokens=0, write_1h_tokens=900_000)
    group = only(rows)
    # 0.1 M fresh at every use, whatever the lifetime.
    assert costs(group)[0] == usd(0.20 + 3.60 + 0.20 + 0.18)[0]
    assert group.costs["1h"].parts[0].usage.input == 200_000
    assert group.whole_prompts == 0


def test_the_clock_can_count_from_the_end_of_an_answer() -> None:
    rows = uses([310], total_ms=20_000)
    assert only(rows).under_5m == 0
    assert only(rows, clock="end").under_5m == 1
    assert costs(only(rows, clock="end"))[1] == usd(2.20)[0]


def test_groups_are_by_route_and_key_and_the_dearest_first() -> None:
    rows = [
        *uses([600, 600], prefix="a", key="team-a"),
        *uses([60], prefix="b", key="team-b", route="fast"),
        *uses([], 1000, prefix="c", key="team-a", tags={"project": "x"}),
    ]
    groups = advice(rows, ("route", "key")).groups
    assert [(dict(group.by), group.best) for group in groups] == [
        ({"route": "kimi-k3.1-pro", "key": "team-a"}, "1h"),
        ({"route": "fast", "key": "team-b"}, "5m"),
    ]
    assert [group.by["tag:project"] for group in advice(rows, ("tag:project",)).groups] == [None, "x"]


def test_rows_that_say_nothing_are_counted_by_reason() -> None:
    rows = [
        open_row("o", prefix="p"),
        settled_row("a"),
        settled_row("b", prefix="p", prompt_tokens=None),
        settled_row("c", prefix="p", card=""),
        settled_row("d", prefix="p", card="openrouter/moonshotai/kimi-k3.1-pro@2026-10-24 writes=replaces"),
        settled_row("e", prefix="p"),
    ]
    found = advice(rows)
    assert found.unusable == {
        "under way": 1,
        "no prefix": 1,
        "no token counts": 1,
        "no known price": 1,
        "no price per TTL": 1,
    }
    assert found.groups[0].uses == 1


def test_a_targets_own_prices_and_a_rule_that_adds_are_used() -> None:
    rates = Rates.from_usd({"input": "1", "cache_read": "0", "write_5m": "1", "write_1h": "3", "output": "1"})
    adds = Card("own", "moonshot", "m", rates, date(2026, 1, 1), write_rule="adds")
    tariffs = Tariffs(CardBook([adds]), {"t": rates})
    for card, expected in (("target:t", usd(2, 3)), ("own writes=adds", usd(4, 4))):
        (group,) = advise(uses([600], card=card), tariffs, by=()).groups
        assert costs(group)[1:3] == expected


def test_a_prefix_stays_warm_when_a_new_card_begins_and_each_use_has_its_own_price() -> None:
    first = Rates.from_usd({"input": "2", "cache_read": "0.2", "write_5m": "2", "write_1h": "4", "output": "1"})
    second = Rates.from_usd({"input": "3", "cache_read": "0.3", "write_5m": "3", "write_1h": "6", "output": "1"})
    cards = [
        Card("old", "moonshot", "m", first, date(2026, 1, 1)),
        Card("new", "moonshot", "m", second, date(2026, 2, 1)),
    ]
    rows = uses([60, 600])
    for row, card in zip(rows, ("old", "new", "new"), strict=True):
        row.card = card
    (group,) = advise(rows, Tariffs(CardBook(cards), {}), by=()).groups
    assert (group.prefixes, costs(group)[1:3]) == (1, usd(2.00 + 0.30 + 3.00, 4.00 + 0.30 + 0.30))
    assert group.each_prefix_nano == usd(4.60)[0]


def test_what_was_booked_and_read_stands_beside_the_reckoning() -> None:
    lines = [LineRecord("write_5m", M, 2_000, 2 * 10**9), LineRecord("output", 1, 10_000, 10_000)]
    group = only(uses([], cached_tokens=0, write_5m_tokens=M, lines=lines))
    assert (group.booked_nano, group.read_tokens) == (2 * 10**9, 0)
    assert group.costs["today"].nano == group.booked_nano
    assert only(uses([], lines=[])).booked_nano is None


def test_a_name_that_cannot_be_grouped_by_is_refused_with_the_known_ones() -> None:
    refuse_unknown(["route", "key", "tag:project"])
    for name in ("colour", "tag:"):
        with pytest.raises(ValueError, match=r"expected route, key.*tag:KEY"):
            refuse_unknown([name])


@given(
    st.lists(st.integers(0, 7_200_000), max_size=12),
    st.lists(st.integers(0, M), min_size=13, max_size=13),
    st.sampled_from(["5m", "1h", ""]),
)
def test_every_choice_counts_every_prompt_token_once(gaps_ms: list[int], sizes: list[int], ttl: str) -> None:
    rows = uses([gap / 1000 for gap in gaps_ms], sizes[: len(gaps_ms) + 1], ttl=ttl)
    group = only(rows)
    prompts = sum(row.prompt_tokens or 0 for row in rows)
    assert {sum(part.usage.prompt for part in cost.parts) for cost in group.costs.values()} == {prompts}
    # A longer lifetime never reads less; today's uniform mix is the choice that it asks for.
    assert group.costs["1h"].read_tokens >= group.costs["5m"].read_tokens
    assert group.costs["today"].nano == group.costs["1h" if ttl == "1h" else "5m"].nano
    assert group.each_prefix_nano == min(group.costs["5m"].nano, group.costs["1h"].nano)
