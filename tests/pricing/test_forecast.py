"""Forecasts: hand-computed lines, and bounds that hold whatever the cache and the answer do."""

from collections.abc import Mapping
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.advice.forecast import (
    OUTPUT_LIMIT_TOKENS,
    WINDOW_TOKENS,
    Forecast,
    Priced,
    RequestError,
    forecast,
    read_wish,
)
from pricing.advice.forecast_sums import ForecastSums
from pricing.advice.offers import StatedTarget, card_offers, chosen, family_of, target_offers, tier_of
from pricing.cards import load_cards
from pricing.cost import cost_of
from pricing.rates import Rates
from pricing.usage import TokenUsage

BOOK, DAY = load_cards(), date(2026, 11, 30)
OFFERS = card_offers(BOOK, "kimi-k3.1-pro", DAY)


class Words:
    """Counts a token per word: exact enough to compute by hand."""

    def count(self, text: str) -> int:
        """The words of a text."""
        return len(text.split())


def chat(**fields: Any) -> dict[str, Any]:
    """A request of 1,000 words; with the frame of one message it has 1,089 tokens at low effort."""
    messages = [{"role": "user", "content": "word " * 1000}]
    return {"model": "kimi-k3.1-pro", "reasoning_effort": "low", "messages": messages, **fields}


def one(request: Mapping[str, Any], **options: Any) -> Forecast:
    """The forecast of a request at its own effort, counted by words."""
    (found,) = forecast(request, read_wish(request), OFFERS, counter=Words(), **options)
    return found


def by_label(found: Forecast) -> dict[str, Priced]:
    """The offers by their label."""
    return {priced.offer.label: priced for priced in found.priced}


def lines(priced: Priced) -> dict[str, tuple[str, int, int | None]]:
    """Meter, tokens and nano-dollars by case."""
    return {line.case: (line.meter, line.tokens, line.nano) for line in priced.lines}


def test_every_case_has_its_line_at_every_offer() -> None:
    found = by_label(one(chat(max_completion_tokens=16_000), output_tokens=2_000))
    assert list(found) == [
        "moonshot standard 5m",
        "moonshot standard 1h",
        "moonshot highspeed 5m",
        "moonshot highspeed 1h",
        "openrouter standard",
    ]
    assert lines(found["moonshot standard 1h"]) == {
        "fresh": ("input", 1_089, 2_178_000),
        "first": ("write_1h", 1_089, 4_356_000),
        "warm": ("cache_read", 1_089, 217_800),
        "limit": ("output", 16_000, 160_000_000),
        "assumed": ("output", 2_000, 20_000_000),
    }
    hour = found["moonshot standard 1h"]
    assert (hour.first_nano, hour.warm_nano) == (24_356_000, 20_217_800)
    # 1,000 words at the read price; 1,000 words and twice the frame of 89 at the dearest, and the whole output.
    assert (hour.low_nano, hour.high_nano) == (200_000, 1_178 * 4_000 + 160_000_000)
    assert lines(found["moonshot highspeed 5m"])["first"] == ("write_5m", 1_089, 4_356_000)
    assert lines(found["openrouter standard"])["first"] == ("input", 1_089, 2_178_000)


def test_what_the_request_asks_for_is_marked() -> None:
    def marked(request: dict[str, Any]) -> list[str]:
        return [priced.offer.label for priced in one(request).priced if priced.requested]

    assert marked(chat()) == ["moonshot standard 5m", "openrouter standard"]
    hour = {"mode": "implicit", "ttl": "1h"}
    assert marked(chat(service_tier="highspeed", prompt_cache_options=hour)) == ["moonshot highspeed 1h"]
    assert marked(chat(model="kimi-k3.1-pro-highspeed")) == ["moonshot highspeed 5m"]


def test_the_limit_is_the_requests_else_the_default_and_never_more_than_the_window_leaves() -> None:
    def limit(**fields: Any) -> tuple[int, str]:
        output = one(chat(**fields)).output
        return output.limit_tokens, output.limit_source

    assert limit() == (OUTPUT_LIMIT_TOKENS, "default")
    assert limit(max_tokens=7) == (7, "request")
    assert limit(max_tokens=7, max_completion_tokens=9) == (9, "request")
    assert limit(max_completion_tokens=WINDOW_TOKENS) == (WINDOW_TOKENS - 1_000, "window")
    assert limit(max_completion_tokens=9, n=3) == (27, "request")


def test_an_assumed_length_is_never_beyond_the_limit() -> None:
    assert one(chat(max_completion_tokens=100), output_tokens=2_000).output.assumed_tokens == 100
    assert one(chat(n=2), output_tokens=2_000).output.assumed_tokens == 4_000
    assert one(chat()).priced[0].first_nano is None


def test_each_effort_is_counted_with_its_own_frame() -> None:
    request = chat(thinking={"type": "disabled"})
    found = forecast(request, read_wish(request), OFFERS, efforts=["low", "max"], counter=Words())
    assert [(each.effort, each.prompt.tokens) for each in found] == [("low", 1_089), ("max", 1_088)]


def test_media_have_no_upper_bound_and_are_said_not_to_be_counted() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10_000}}
    request = chat(messages=[{"role": "user", "content": [{"type": "text", "text": "look"}, picture]}])
    found = one(request)
    assert (found.prompt.media_parts, found.prompt.high, found.priced[0].high_nano) == (1, None, None)
    assert "1 media parts are not counted" in found.prompt.error
    assert found.prompt.tokens < 200


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": 5}, "model must be a name"),
        ({"messages": "hi"}, "messages must be an array"),
        ({"messages": [{"role": "user", "content": 5}]}, r"messages\[0\].content must be"),
        ({"max_completion_tokens": 0}, "max_completion_tokens must be a whole number above 0"),
        ({"max_tokens": 1.5}, "max_tokens must be a whole number"),
        ({"n": True}, "n must be a whole number"),
        ({"prompt_cache_options": {"ttl": "2h"}}, 'ttl must be "5m" or "1h"'),
        ({"messages": [{"role": "user", "content": "a " * WINDOW_TOKENS}]}, "the model's window is 1,048,576"),
    ],
)
def test_a_request_that_cannot_be_is_refused_by_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        one(chat(**fields))


def test_all_spellings_of_a_model_are_one_family() -> None:
    for name in (
        "kimi-k3.1-pro",
        "moonshotai/Kimi-K3.1-Pro",
        "moonshotai/kimi-k3.1-pro",
        "kimi-k3.1-pro-highspeed",
    ):
        assert family_of(name) == "kimi-k3.1-pro"
    assert (tier_of("kimi-k3.1-pro-highspeed"), tier_of("kimi-k3.1-pro")) == ("highspeed", "standard")
    assert read_wish({}).model == "kimi-k3.1-pro"
    assert (read_wish({}).has_model, read_wish({}, "kimi-k3").model) == (False, "kimi-k3")
    assert card_offers(BOOK, "gpt", DAY) == []


def test_a_target_is_offered_at_its_prices_else_its_sellers_else_without_one() -> None:
    prices = Rates.from_usd({"input": "1", "output": "2", "write_5m": "1"})
    own = StatedTarget("vllm-a", "", ("kimi-k3.1-pro",), prices)
    (offer,) = target_offers(own, BOOK, "kimi-k3.1-pro", DAY)
    assert (offer.label, offer.rates) == ("target:vllm-a standard 5m", prices)
    hosted = target_offers(StatedTarget("m", "moonshot"), BOOK, "kimi-k3.1-pro", DAY)
    assert [offer.seller for offer in hosted] == ["moonshot"] * 4
    (bare,) = target_offers(StatedTarget("vllm-b", ""), BOOK, "kimi-k3.1-pro", DAY)
    request = chat()
    (found,) = forecast(request, read_wish(request), [bare], output_tokens=5, counter=Words())
    priced = found.priced[0]
    assert (priced.first_nano, priced.low_nano, priced.high_nano) == (None, None, None)
    assert {line.nano for line in priced.lines} == {None}
    assert target_offers(own, BOOK, "kimi-k3", DAY) == []


def test_offers_are_chosen_by_tier_lifetime_and_seller() -> None:
    assert [one.label for one in chosen(OFFERS, tiers=["standard"], ttls=["1h"])] == [
        "moonshot standard 1h",
        "openrouter standard",
    ]
    assert [one.tier for one in chosen(OFFERS, sellers=["openrouter"])] == ["standard"]


@given(
    words=st.integers(0, 300),
    parts=st.tuples(*[st.integers(0, 1000)] * 4),
    answer=st.integers(0, 50),
    limit=st.integers(50, 90),
)
def test_no_split_of_the_prompt_and_no_answer_leaves_the_bounds(
    words: int, parts: tuple[int, int, int, int], answer: int, limit: int
) -> None:
    request = chat(messages=[{"role": "user", "content": "word " * words}], max_completion_tokens=limit)
    found = one(request)
    for prompt in (found.prompt.low, found.prompt.tokens, found.prompt.high or 0):
        whole = sum(parts) or 1
        fresh, read, written = (prompt * part // whole for part in parts[:3])
        for priced in found.priced:
            offer = priced.offer
            assert offer.rates is not None
            rest = prompt - fresh - read - written
            writes = {offer.write_meter: written} if offer.write_meter != "input" else {}
            usage = TokenUsage(
                input=fresh + rest + (0 if writes else written),
                cache_read=read,
                output=answer,
                **writes,
            )
            nano = cost_of(usage, offer.rates, write_rule=offer.write_rule).nano
            assert nano is not None
            assert (priced.low_nano or 0) <= nano <= (priced.high_nano or 0)


def test_sums_add_up_requests_of_one_offer_and_keep_efforts_apart_where_asked() -> None:
    sums, apart = ForecastSums(), ForecastSums()
    for effort in ("low", "max"):
        found = one(chat(reasoning_effort=effort), output_tokens=10)
        sums.add([found])
        apart.add([found], by_effort=True)
    first = sums.sums()[0]
    assert (first.effort, first.requests, first.requested, first.prompt.tokens) == ("", 2, 2, 1_089 + 1_088)
    assert first.priced.first_nano == (1_089 + 1_088) * 2_000 + 200_000
    assert [each.effort for each in apart.sums()] == ["low"] * 5 + ["max"] * 5
