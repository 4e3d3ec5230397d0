"""How a reply is read: places of usage, who says the cost, what is no answer. Pure."""

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from backends.dialect import Dialect
from backends.json import decode, encode
from kimi_sdk.errors import BadReply
from kimi_sdk.place import Place, place_of
from kimi_sdk.prices import Tariff
from kimi_sdk.reply import Reading, Reply, read_body, read_reply
from kimi_sdk.wire import Answer
from pricing.cards import load_cards
from pricing.rates import CardBook
from pricing.usage import TokenUsage

MOONSHOT = place_of("api.moonshot.ai", None)
PLAIN = place_of("127.0.0.1", None)
SELLS = Place(Dialect(name="sells", reports_cost=True), is_gateway=False)
ON = date(2026, 11, 30)

USAGE = {"prompt_tokens": 5000, "completion_tokens": 200, "total_tokens": 5200, "cached_tokens": 4096}


def reading(place: Place, cards: CardBook, on: date) -> Reading:
    return Reading(place, Tariff(cards, place.dialect.seller), on)


def read(
    body: dict[str, Any],
    *,
    place: Place = PLAIN,
    headers: dict[str, str] | None = None,
    on: date = ON,
    cards: CardBook | None = None,
) -> Reply:
    whole = {
        "id": "cmpl-1",
        "model": "kimi-k3.1-pro",
        "choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}],
        **body,
    }
    answer = Answer(200, headers or {}, encode(whole))
    return read_reply(answer, read_body(answer), reading(place, cards or load_cards(), on))


def test_moonshot_itself_is_priced_from_the_cards_and_marked() -> None:
    reply = read({"usage": USAGE}, place=MOONSHOT)

    assert reply.cost == Decimal("0.0046272")
    assert (reply.cost_source, reply.tier, reply.target, reply.effort) == ("cards", "standard", None, "unset")


def test_the_cache_write_split_of_moonshots_headers_is_billed_by_lifetime() -> None:
    usage = {
        "prompt_tokens": 40_000,
        "completion_tokens": 1_000,
        "prompt_tokens_details": {"cached_tokens": 5_000, "cache_write_tokens": 30_000},
    }
    headers = {"msh-usage-cache-write-tokens-5m": "10000", "msh-usage-cache-write-tokens-1h": "20000"}

    reply = read({"usage": usage}, place=MOONSHOT, headers=headers)

    assert reply.usage == TokenUsage(input=5000, output=1000, cache_read=5000, write_5m=10_000, write_1h=20_000)
    assert reply.cost == Decimal("0.121")


def test_a_model_without_a_card_has_no_known_cost() -> None:
    reply = read({"usage": USAGE, "model": "kimi-k9"}, place=MOONSHOT)

    assert (reply.cost, reply.cost_source, reply.tier) == (None, "unknown", None)


def test_a_server_that_nobody_sells_has_no_known_cost() -> None:
    reply = read({"usage": USAGE})

    assert (reply.cost, reply.cost_source) == (None, "unknown")
    assert reply.usage == TokenUsage(input=904, output=200, cache_read=4096)


def test_a_reported_cost_wins_over_the_cards_and_keeps_its_digits() -> None:
    reply = read({"usage": {**USAGE, "cost": Decimal("0.0212")}}, place=SELLS)

    assert (reply.cost, reply.cost_source) == (Decimal("0.0212"), "upstream")


def test_the_gateways_booked_cost_wins_over_every_other() -> None:
    reply = read({"usage": {**USAGE, "cost": 9}, "kimi": {"cost_usd": "0.0000114"}}, place=SELLS)

    assert (reply.cost, reply.cost_source) == (Decimal("0.0000114"), "gateway")


@pytest.mark.parametrize("cost", [None, "", "much", "NaN", 0.5])
def test_where_the_gateway_knows_no_price_none_is_made_up(cost: object) -> None:
    reply = read({"usage": USAGE, "kimi": {"cost_usd": cost}}, place=MOONSHOT)

    assert (reply.cost, reply.cost_source) == (None, "unknown")


def test_usage_inside_the_choice_is_read() -> None:
    choice = {"finish_reason": "stop", "message": {"content": "ok"}, "usage": USAGE}

    assert read({"choices": [choice]}).usage == TokenUsage(input=904, output=200, cache_read=4096)


def test_moonshot_reporting_no_cached_tokens_read_none_and_elsewhere_nobody_knows() -> None:
    usage = {"prompt_tokens": 300, "completion_tokens": 1000}

    counts = [reply.usage for reply in (read({"usage": usage}, place=MOONSHOT), read({"usage": usage}))]

    assert [count.cache_read for count in counts if count] == [0, None]


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 5}, []])
def test_no_whole_usage_report_is_no_usage_and_no_cost(usage: object) -> None:
    reply = read({"usage": usage}, place=MOONSHOT)

    assert (reply.usage, reply.cost, reply.cost_source) == (None, None, "unknown")


def test_the_request_id_is_the_gateways_else_the_upstreams() -> None:
    headers = {"x-trace-id": "trace", "x-request-id": "kr_2"}

    assert read({}, headers=headers).request_id == "kr_2"
    assert read({}, headers={"x-trace-id": "trace"}).request_id == "trace"
    assert read({"kimi": {"request_id": "kr_1"}}, headers=headers).request_id == "kr_1"
    assert read({}).request_id is None


@pytest.mark.parametrize(
    ("finish", "content", "exhausted"),
    [
        ("length", "", True),
        ("length", None, True),
        ("length", " \n", True),
        ("length", "Once", False),
        ("stop", "", False),
    ],
)
def test_thinking_is_exhausted_where_the_limit_left_no_answer(
    finish: str, content: str | None, exhausted: bool
) -> None:
    choice = {"finish_reason": finish, "message": {"content": content, "reasoning_content": "hm"}}

    assert read({"choices": [choice]}).thinking_exhausted is exhausted


def test_a_turn_with_a_tool_call_is_not_empty() -> None:
    call = {"id": "f:0", "function": {"name": "f", "arguments": "{}"}}
    message = {"content": None, "tool_calls": [call]}
    reply = read({"choices": [{"finish_reason": "tool_calls", "message": message}]})

    assert (reply.has_tool_calls, reply.is_empty, reply.text) == (True, False, "")


def test_a_history_turn_shares_nothing_with_the_raw_body() -> None:
    message = {"role": "assistant", "content": "ok", "reasoning_details": [{"text": "t"}]}
    reply = read({"choices": [{"finish_reason": "stop", "message": message}]})

    turn = reply.message
    reply.raw.clear()

    assert turn["reasoning_details"] == [{"text": "t"}]
    assert turn["reasoning_content"] == "t"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"[]", "not an object"),
        (b'{"object":"list"}', "base_url end in the API's path"),
        (b'{"choices":[]}', "no message"),
        (b'{"choices":null}', "no message"),
        (b'{"choices":[{"finish_reason":"stop"}]}', "no message"),
        (b'{"choices":[{"message":{"content":"half"},"finish_reason":null}]}', "no finish_reason"),
        (b'{"choices":[{"message":{"content":"half"}}]}', "no finish_reason"),
    ],
)
def test_what_is_no_whole_answer_is_refused_with_its_request_id(body: bytes, reason: str) -> None:
    answer = Answer(200, {"x-request-id": "kr_9"}, body)

    with pytest.raises(BadReply, match=reason) as caught:
        read_reply(answer, read_body(answer), reading(PLAIN, CardBook(()), ON))

    assert caught.value.request_id == "kr_9"


def test_raw_is_the_body_as_it_came() -> None:
    body = {"service_tier": "x", "usage": {"cost": Decimal("0.10")}, "choices": read({}).raw["choices"]}
    answer = Answer(200, {}, encode(body))

    reply = read_reply(answer, read_body(answer), reading(PLAIN, CardBook(()), ON))

    assert reply.raw == decode(encode(body))
    assert encode(reply.raw) == answer.body


def test_only_moonshots_own_host_is_priced_as_moonshot() -> None:
    hosts = ("api.moonshot.ai", "api.moonshot.cn", "openrouter.ai", "localhost")
    places = [place_of(host, None) for host in hosts]

    assert [place.dialect.seller for place in places] == ["moonshot", "", "openrouter", ""]
    assert [place.name for place in places] == ["moonshot", "moonshot", "openrouter", "gateway"]
