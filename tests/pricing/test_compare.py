"""The comparison against ledgers small enough to be computed by hand."""

import csv
import io
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from pricing.advice.compare import Comparison, compare
from pricing.advice.gpus import (
    Alternative,
    GpuAssumptions,
    Load,
    busy_s,
    capacity_tokens_per_hour,
    gpu_answers,
)
from pricing.advice.tariffs import Tariffs
from pricing.cards import load_cards
from pricing.ledger.row import LedgerRow
from pricing.rates import Card, CardBook, Rates
from support.ledger_rows import START, open_row, settled_row
from support.pricing_cli import book_rows, help_examples, pricing_json, run_pricing, too_wide

TARIFFS = Tariffs(load_cards(), {})
OPENROUTER = "openrouter/moonshotai/kimi-k3.1-pro@2026-10-24 writes=replaces"
HIGHSPEED = "moonshot/kimi-k3.1-pro-highspeed@2026-10-24 writes=replaces"


def checked_row(request_id: str, **fields: Any) -> LedgerRow:
    """The check figures: 5,000 fresh, 80,000 read, 15,000 written for 5 minutes, 2,000 of output; 0.076 USD."""
    values: dict[str, Any] = {
        "prompt_tokens": 100_000,
        "cached_tokens": 80_000,
        "write_5m_tokens": 15_000,
        "write_1h_tokens": 0,
        "completion_tokens": 2_000,
        "cost_nano": 76_000_000,
        "ttft_ms": 1_000,
        "total_ms": 41_000,
    }
    return settled_row(request_id, **(values | fields))


def fast_row(request_id: str, **fields: Any) -> LedgerRow:
    """The same on Highspeed: 0.136 USD, 2,000 tokens in 16 s."""
    return checked_row(
        request_id,
        **{"card": HIGHSPEED, "tier": "highspeed", "cost_nano": 136_000_000, "total_ms": 17_000, **fields},
    )


def sums(found: Comparison) -> dict[str, tuple[int, int]]:
    """Thousands of nano-dollars with the cache kept and lost, by place."""
    return {one.scenario.name: (one.sums.kept_nano // 1000, one.sums.lost_nano // 1000) for one in found.elsewhere}


def span(low: Fraction | int, high: Fraction | int) -> tuple[Fraction, Fraction]:
    """A range."""
    return Fraction(low), Fraction(high)


def test_a_row_of_pros_stays_as_it_is_on_pro_and_may_lose_its_cache_elsewhere() -> None:
    found = compare([checked_row("a")], TARIFFS)
    assert found.booked.kept_nano == 76_000_000
    assert sums(found) == {
        "pro": (76_000, 76_000),
        "highspeed": (136_000, 136_000 - 16_000 + 320_000),
        "openrouter": (76_000, 76_000 - 16_000 + 160_000),
    }


def test_one_hour_writes_are_dearer_and_input_where_no_lifetime_has_a_price() -> None:
    row = checked_row("a", write_5m_tokens=0, write_1h_tokens=15_000, cost_nano=106_000_000, card=OPENROUTER)
    assert sums(compare([row], TARIFFS)) == {
        "pro": (106_000, 250_000),
        "highspeed": (196_000, 500_000),
        "openrouter": (76_000, 76_000),
    }


def test_unpriced_rows_are_priced_elsewhere_and_not_held_against_what_was_booked() -> None:
    unpriced = checked_row("u", cost_nano=None, cost_source="unpriced", card="", target="vllm-a", lines=[])
    found = compare([checked_row("a"), unpriced], TARIFFS)
    assert (found.compared, found.unpriced, found.booked.requests) == (2, 1, 1)
    pro = found.elsewhere[0]
    assert (pro.sums.requests, pro.sums.kept_nano, pro.sums.lost_nano) == (2, 152_000_000, 296_000_000)
    assert (pro.of_booked.requests, pro.of_booked.kept_nano, pro.booked_nano) == (1, 76_000_000, 76_000_000)


def test_rows_that_cannot_be_compared_are_counted_by_reason() -> None:
    rows = [
        open_row("o"),
        open_row("u", status="unsettled"),
        settled_row("n", status="error", cost_nano=None, cost_source="none"),
        settled_row("x", prompt_tokens=None, completion_tokens=None, cost_nano=None, cost_source="unpriced"),
    ]
    found = compare(rows, TARIFFS)
    assert (found.requests, found.compared) == (4, 0)
    assert found.left == {"used_nothing": 1, "under_way": 2, "without_counts": 1}


def test_prices_are_those_of_the_day_and_their_absence_is_told() -> None:
    before = Rates.from_usd({"input": "1.00", "output": "1.00"})
    after = Rates.from_usd({"input": "3.00", "output": "3.00"})
    cards = [
        Card("a", "moonshot", "kimi-k3.1-pro", before, date(2026, 11, 1), date(2026, 11, 30)),
        Card("b", "moonshot", "kimi-k3.1-pro", after, date(2026, 12, 1)),
    ]
    rows = [
        settled_row(str(at), started_at=START + at * 86_400, prompt_tokens=1000, cached_tokens=0, card="a")
        for at in (-40, 0, 1)
    ]
    pro, highspeed, _ = compare(rows, Tariffs(CardBook(cards), {})).elsewhere
    assert (pro.sums.requests, pro.without_price, pro.sums.kept_nano) == (2, 1, 1_001_000 + 3_003_000)
    assert (highspeed.sums.requests, highspeed.without_price) == (0, 3)


def test_a_search_has_no_price_at_openrouter() -> None:
    pro, _, openrouter = compare([checked_row("a", search_calls=2)], TARIFFS).elsewhere
    assert (pro.sums.kept_nano, openrouter.without_price) == (86_000_000, 1)


def test_what_an_upstream_reports_stands_beside_the_card() -> None:
    reported = {"cost_source": "upstream", "card": OPENROUTER}
    rows = [
        checked_row("a", cost_nano=80_000_000, table_cost_nano=76_000_000, **reported),
        checked_row("b", cost_nano=76_000_000, table_cost_nano=76_000_000, **reported),
        checked_row("c"),
    ]
    one = compare(rows, TARIFFS).reported
    assert (one.requests, one.differing, one.reported_nano, one.table_nano) == (2, 1, 156_000_000, 152_000_000)


def test_a_second_saved_costs_what_was_measured_where_both_tiers_are_there() -> None:
    speed = compare([checked_row("a"), checked_row("b"), fast_row("c")], TARIFFS).speed
    assert (speed.basis, speed.factors) == ("measured", (Fraction(5, 2), Fraction(5, 2)))
    # 80 s of output become 32 s, for 0.12 USD with the cache kept and 0.728 with it lost.
    assert (speed.if_moved.extra_nano, speed.if_moved.saved_s) == ((120_000_000, 728_000_000), span(48, 48))
    assert speed.if_moved.nano_per_s == span(2_500_000, Fraction(728_000_000, 48))
    # 16 s would have been 40 s, for 0.06 USD.
    assert (speed.as_used.extra_nano, speed.as_used.saved_s) == ((60_000_000, 60_000_000), span(24, 24))
    assert speed.as_used.nano_per_s == span(2_500_000, 2_500_000)


def test_without_highspeed_requests_the_vendors_word_is_a_range() -> None:
    speed = compare([checked_row("a")], TARIFFS).speed
    assert (speed.basis, speed.factors) == ("stated", span(2, 3))
    assert speed.if_moved.saved_s == span(20, Fraction(80, 3))
    assert speed.if_moved.nano_per_s == span(60_000_000 / Fraction(80, 3), Fraction(364_000_000, 20))
    assert speed.as_used.nano_per_s is None


def test_highspeed_that_was_not_faster_saves_no_second() -> None:
    speed = compare([checked_row("a"), fast_row("b", total_ms=41_000)], TARIFFS).speed
    assert speed.if_moved.nano_per_s is None
    assert speed.as_used.nano_per_s is None


@pytest.mark.parametrize(
    "fields", [{"status": "incomplete"}, {"estimated": True}, {"ttft_ms": None}, {"total_ms": 1_000}]
)
def test_only_whole_counted_answers_are_timed(fields: dict[str, Any]) -> None:
    assert compare([checked_row("a", **fields)], TARIFFS).speed.standard.requests == 0


def test_gpus_break_even_at_the_price_of_an_hour_over_the_price_of_a_token() -> None:
    assumed = GpuAssumptions((2_500_000_000,), 8, 20_000, 2_000)
    load = Load(fresh_tokens=200_000, read_tokens=800_000, output_tokens=20_000, hours=10)
    # 20 USD an hour; 1,020,000 tokens cost 0.76 USD with the cache kept, 2.20 with it lost.
    (answer,) = gpu_answers(load, assumed, [Alternative("pro", load.tokens, 760_000_000, 2_200_000_000)])
    assert (answer.hour_nano, answer.period_nano) == (20 * 10**9, 200 * 10**9)
    (even,) = answer.break_even
    assert (even.low_tokens_per_hour, even.high_tokens_per_hour) == (9_272_728, 26_842_106)
    # 10 s for the fresh, 10 s for the output; 40 s more for what was read.
    assert busy_s(load, assumed) == span(20, 60)
    assert answer.busy_nano == (111_111_112, 333_333_334)
    assert capacity_tokens_per_hour(load, assumed) == (61_200_000, 183_600_000)


def test_without_throughput_there_is_a_break_even_and_no_busy_time() -> None:
    load = Load(100, 0, 100, 1)
    free = Alternative("free", 200, 0, 0)
    (answer,) = gpu_answers(load, GpuAssumptions((10**9,), 1), [free, Alternative("none", 0, 0, 0)])
    assert answer.busy_nano is None
    assert [(even.against, even.low_tokens_per_hour) for even in answer.break_even] == [("free", None)]


def ledger() -> list[LedgerRow]:
    """Both tiers, OpenRouter, own GPUs without prices, and a request that used nothing."""
    return [
        checked_row("a"),
        fast_row("b"),
        checked_row(
            "c", card=OPENROUTER, cost_source="upstream", cost_nano=80_000_000, table_cost_nano=76_000_000
        ),
        checked_row("d", card="", cost_nano=None, cost_source="unpriced", lines=[], started_at=START + 7_100),
        settled_row("e", status="error", cost_nano=None, cost_source="none"),
    ]


def test_the_object_matches_the_ledger_computed_by_hand(tmp_path: Path) -> None:
    book_rows(tmp_path, ledger())
    words = (
        "--gpu-usd-per-hour",
        "2.50",
        "--gpu-input-tokens-per-s",
        "20000",
        "--gpu-output-tokens-per-s",
        "2000",
    )
    found = pricing_json(tmp_path, "compare", *words)
    assert (found["requests"], found["compared"], found["unpriced"]) == (5, 4, 1)
    assert found["booked_usd"] == "0.292"
    assert found["tokens"] == {
        "input": 20_000,
        "cache_read": 320_000,
        "write_5m": 60_000,
        "write_1h": 0,
        "output": 8_000,
    }
    pro = found["elsewhere"][0]
    # One stays (0.076); three move: 0.076 with the cache kept, 0.22 with it lost.
    assert (pro["cache_kept_usd"], pro["cache_lost_usd"]) == ("0.304", "0.736")
    assert (pro["against_booked_kept_usd"], pro["against_booked_lost_usd"]) == ("-0.064", "0.224")
    assert found["upstream_reported"]["difference_usd"] == "0.004"
    assert found["highspeed"]["if_standard_moved"]["usd_per_s"] == ["0.0025", "0.015166667"]
    gpus = found["own_gpus"]
    assert (gpus["hours"], gpus["tokens"], gpus["busiest_hour_tokens"]) == (2, 408_000, 306_000)
    assert gpus["assumed"] == {
        "gpus": 8,
        "gpu_usd_per_hour": ["2.5"],
        "input_tokens_per_s": 20_000,
        "output_tokens_per_s": 2_000,
    }
    (at,) = gpus["at"]
    assert (at["usd_per_hour"], at["whole_period_usd"]) == ("20", "40")
    even = {one["against"]: one["tokens_per_hour"] for one in at["break_even"]}
    # 306,000 tokens were booked at 0.292 USD, and 408,000 cost 0.304 to 0.736 on Pro.
    assert even["as booked"] == [20_958_905, 20_958_905]
    assert even["pro"] == [11_086_957, 26_842_106]


def test_the_table_names_every_assumption_and_doubt(tmp_path: Path) -> None:
    book_rows(tmp_path, ledger())
    plain = run_pricing(tmp_path, "compare").stdout
    assert "Own GPUs: give --gpu-usd-per-hour" in plain
    printed = run_pricing(tmp_path, "compare", "--gpu-usd-per-hour", "2.5,4").stdout
    for part in (
        "8 GPUs serve the model together",
        "busy time unknown: give --gpu-input-tokens-per-s",
        "Highspeed: 2.500 times as fast as standard, measured in this ledger",
        "0.0025 to 0.015166667 USD per second saved",
        "Reported by the upstream: 0.08 USD",
        "1 unpriced",
        "1 not compared: used nothing",
        "kept: every cache read stays one after the move; lost: every read is fresh input again",
    ):
        assert part in printed
    rows = [line.split() for line in printed.splitlines() if line.startswith("pro ")]
    assert rows == [["pro", "kept", "4", "0.304", "-0.064"], ["pro", "lost", "4", "0.736", "+0.224"]]
    assert too_wide(plain) == []
    assert too_wide(printed) == []


def test_csv_has_a_line_per_place_and_state_of_the_cache(tmp_path: Path) -> None:
    book_rows(tmp_path, ledger())
    printed = run_pricing(tmp_path, "compare", "--gpu-usd-per-hour", "2.5", "--format", "csv").stdout
    rows = {(row["where"], row["cache"]): row["usd"] for row in csv.DictReader(io.StringIO(printed))}
    assert rows["pro", "lost"] == "0.736"
    assert rows["booked", ""] == "0.292"
    assert rows["own_gpus@2.5", ""] == "40"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--gpu-usd-per-hour", "much"), "'much' is no price"),
        (("--gpu-usd-per-hour", "0"), "a price above 0"),
        (("--gpu-usd-per-hour", "1", "--gpu-input-tokens-per-s", "5"), "give both"),
        (("--gpu-output-tokens-per-s", "5"), "without --gpu-usd-per-hour"),
        (("--since", "soon"), "--since: 'soon' is no instant"),
    ],
)
def test_assumptions_that_make_no_sense_are_exit_2(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    book_rows(tmp_path, ledger())
    assert expected in run_pricing(tmp_path, "compare", *words, expect=2).stderr


def test_every_example_of_its_help_runs(tmp_path: Path) -> None:
    book_rows(tmp_path, ledger())
    examples = list(help_examples(tmp_path, "compare"))
    assert len(examples) >= 4
    for words in examples:
        assert run_pricing(tmp_path, *words).stdout


def test_an_empty_period_is_no_mistake(tmp_path: Path) -> None:
    book_rows(tmp_path, ledger())
    words = ("compare", "--until", "2020-01-01", "--gpu-usd-per-hour", "2")
    assert pricing_json(tmp_path, *words)["compared"] == 0
    assert "0 requests" in run_pricing(tmp_path, *words).stdout
