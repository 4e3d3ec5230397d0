"""Usage reports of every dialect as disjoint meters, exact costs and an object for the client."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.catalog import DIALECTS
from backends.dialect import Dialect
from backends.json import JsonObject, decode
from backends.usage import Measured, read_usage
from pricing.usage import TokenUsage
from support.cases import case

WRITES = {"prompt_tokens": 100, "completion_tokens": 1, "prompt_tokens_details": {"cache_write_tokens": 60}}


def read(raw: Any, dialect: str = "moonshot", *, ttl: str = "", **headers: str) -> Measured:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return read_usage(raw, dialect=DIALECTS[dialect], headers=named, ttl=ttl)


def reported(case_id: str) -> JsonObject:
    usage: JsonObject = case(case_id)["given"]["upstream"][0]["json_usage"]
    return usage


def test_cached_tokens_at_two_places_are_counted_once() -> None:
    measured = read(reported("use-02"))
    assert measured.usage == TokenUsage(input=904, cache_read=4096, output=200)
    assert measured.wire == {
        "prompt_tokens": 5000,
        "completion_tokens": 200,
        "total_tokens": 5200,
        "cached_tokens": 4096,
        "prompt_tokens_details": {"cached_tokens": 4096},
    }


@pytest.mark.parametrize(
    "places",
    [
        {"cached_tokens": 64},
        {"prompt_tokens_details": {"cached_tokens": 64}},
        {"prompt_tokens_details": {"cached_tokens": None}, "cached_tokens": 64},
        {"prompt_tokens_details": None, "cached_tokens": 64},
    ],
)
@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_cached_tokens_are_found_wherever_they_stand(places: dict[str, Any], dialect: str) -> None:
    measured = read({"prompt_tokens": 100, "completion_tokens": 1, **places}, dialect)
    assert (measured.usage.input, measured.usage.cache_read) == (36, 64)
    assert measured.wire["cached_tokens"] == 64
    assert measured.wire["prompt_tokens_details"] == {"cached_tokens": 64}


def test_the_details_win_over_the_top_level_and_a_difference_is_named() -> None:
    measured = read(
        {"prompt_tokens": 9, "completion_tokens": 1, "cached_tokens": 5}
        | {"prompt_tokens_details": {"cached_tokens": 4}}
    )
    assert measured.usage.cache_read == 4
    assert measured.anomaly == ("cached_tokens_differ",)


def test_no_cached_count_is_zero_at_moonshot_and_unknown_elsewhere() -> None:
    raw = {"prompt_tokens": 9, "completion_tokens": 1}
    assert read(raw, "moonshot").usage.cache_read == 0
    for dialect in ("vllm", "sglang", "openrouter", "llamacpp"):
        measured = read(raw, dialect)
        assert measured.usage.cache_read is None
        assert "cached_tokens" not in measured.wire
        assert "prompt_tokens_details" not in measured.wire


def test_null_details_and_members_are_unknown_counts() -> None:
    measured = read(reported("use-04"), "vllm")
    assert measured.usage == TokenUsage(input=300, output=1000, reasoning=900)
    assert measured.wire["completion_tokens_details"] == {"reasoning_tokens": 900}
    assert measured.anomaly == ()
    also = dict(reported("use-04"), prompt_tokens_details={"cached_tokens": None})
    assert read(also, "vllm") == measured


def test_reasoning_tokens_are_read_from_the_details_then_from_the_top_level() -> None:
    raw = {"prompt_tokens": 1, "completion_tokens": 50}
    assert read(dict(raw, reasoning_tokens=40), "sglang").usage.reasoning == 40
    both = dict(raw, reasoning_tokens=40, completion_tokens_details={"reasoning_tokens": 41})
    assert read(both, "sglang").usage.reasoning == 41


def test_more_cached_than_prompt_tokens_are_clamped_and_named() -> None:
    measured = read(reported("use-07"))
    assert measured.usage == TokenUsage(input=0, cache_read=1000, output=10)
    assert measured.wire["cached_tokens"] == 1000
    assert measured.anomaly == ("cache_exceeds_prompt",)


def test_clamping_keeps_the_read_then_the_dearer_write() -> None:
    raw = {"prompt_tokens": 100, "completion_tokens": 1, "cached_tokens": 70}
    raw_details = {"cached_tokens": 70, "cache_write_tokens": 60}
    measured = read(
        {**raw, "prompt_tokens_details": raw_details},
        Msh_Usage_Cache_Write_Tokens_5m="40",
        Msh_Usage_Cache_Write_Tokens_1h="20",
    )
    assert measured.usage == TokenUsage(input=0, cache_read=70, write_1h=20, write_5m=10, output=1)
    assert measured.wire["prompt_tokens_details"] == {"cached_tokens": 70, "cache_write_tokens": 30}
    assert measured.anomaly == ("cache_exceeds_prompt",)


def test_more_reasoning_than_completion_tokens_are_clamped_and_named() -> None:
    measured = read({"prompt_tokens": 1, "completion_tokens": 0, "reasoning_tokens": 1}, "sglang")
    assert measured.usage.reasoning == 0
    assert measured.anomaly == ("reasoning_exceeds_completion",)


def test_headers_split_written_tokens_by_ttl_in_any_case() -> None:
    headers = {"MSH-USAGE-CACHE-WRITE-TOKENS-5M": "20", "msh-usage-cache-write-tokens-1h": " 40 "}
    measured = read_usage(WRITES, dialect=DIALECTS["moonshot"], headers=headers, ttl="5m")  # type: ignore[arg-type]
    assert (measured.usage.input, measured.usage.write_5m, measured.usage.write_1h) == (40, 20, 40)
    assert (measured.assumed, measured.anomaly) == (False, ())


@pytest.mark.parametrize(("ttl", "split"), [("", (60, 0)), ("5m", (60, 0)), ("1h", (0, 60))])
def test_without_headers_the_requested_ttl_is_assumed(ttl: str, split: tuple[int, int]) -> None:
    measured = read(WRITES, ttl=ttl)
    assert (measured.usage.write_5m, measured.usage.write_1h) == split
    assert measured.assumed


def test_nothing_is_assumed_where_nothing_was_written() -> None:
    measured = read({**WRITES, "prompt_tokens_details": {"cache_write_tokens": 0}}, ttl="1h")
    assert (measured.usage.write_5m, measured.usage.write_1h, measured.assumed) == (0, 0, False)
    assert not read({"prompt_tokens": 5, "completion_tokens": 1}, ttl="1h").assumed


@pytest.mark.parametrize(
    ("at_5m", "at_1h", "split", "assumed"),
    [
        ("10", "20", (10, 50), True),  # 30 are left over: at the requested hour
        ("50", "20", (40, 20), False),  # 10 too many: the dearer first, up to the count
        ("0", "90", (0, 60), False),
        ("", "20", (0, 60), True),
        ("-5", "nan", (0, 60), True),
        ("9" * 400, "60", (0, 60), False),
    ],
)
def test_headers_that_do_not_add_up_bill_no_more_than_the_count(
    at_5m: str, at_1h: str, split: tuple[int, int], assumed: bool
) -> None:
    measured = read(WRITES, ttl="1h", msh_usage_cache_write_tokens_5m=at_5m, msh_usage_cache_write_tokens_1h=at_1h)
    assert (measured.usage.write_5m, measured.usage.write_1h) == split
    assert measured.assumed == assumed
    assert measured.anomaly != ()


def test_headers_alone_are_a_report_of_writes() -> None:
    measured = read({"prompt_tokens": 100, "completion_tokens": 1}, msh_usage_cache_write_tokens_1h="30")
    assert (measured.usage.write_5m, measured.usage.write_1h, measured.assumed) == (0, 30, False)


def test_an_engines_created_tokens_are_a_priced_write_only_where_the_dialect_says_so() -> None:
    raw: JsonObject = {
        "prompt_tokens": 953,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0, "created_cache_tokens": 896},
    }
    assert read(raw, "vllm").usage == TokenUsage(input=953, cache_read=0, output=4)
    priced = read_usage(raw, dialect=Dialect(name="x", created_is_write=True), headers={}, ttl="")
    assert priced.usage.write_5m == 896


def test_openrouters_cost_is_exact() -> None:
    measured = read(decode(b'{"prompt_tokens":10000,"completion_tokens":500,"cost":0.0212}'), "openrouter")
    assert measured.reported_cost == measured.charged == Decimal("0.0212")
    assert str(measured.reported_cost) == "0.0212"


def test_with_the_operators_own_key_the_providers_cost_comes_on_top() -> None:
    raw = decode(
        b'{"prompt_tokens":1,"completion_tokens":1,"cost":0.001,"is_byok":true,'
        b'"cost_details":{"upstream_inference_cost":0.02}}'
    )
    measured = read(raw, "openrouter")
    assert (measured.reported_cost, measured.byok_cost) == (Decimal("0.001"), Decimal("0.02"))
    assert measured.charged == Decimal("0.021")


def test_the_providers_cost_is_inside_the_charge_without_an_own_key() -> None:
    raw = decode(
        b'{"prompt_tokens":1,"completion_tokens":1,"cost":0.03,"cost_details":{"upstream_inference_cost":0.02}}'
    )
    assert read(raw, "openrouter").charged == Decimal("0.03")


def test_a_cost_from_an_upstream_that_reports_none_is_not_believed() -> None:
    assert read({"prompt_tokens": 1, "completion_tokens": 1, "cost": 5}, "vllm").charged is None


@pytest.mark.parametrize("cost", [-1, "0.5", True, {}])
def test_a_cost_that_is_none_is_named_and_not_used(cost: Any) -> None:
    measured = read({"prompt_tokens": 1, "completion_tokens": 1, "cost": cost}, "openrouter")
    assert (measured.charged, measured.anomaly) == (None, ("cost_invalid",))


@pytest.mark.parametrize("count", [-1, 2**53 + 1, 10**30, "12", 1.5, True, [], {}, Decimal("1E+400")])
def test_a_count_that_cannot_be_one_is_unknown(count: Any) -> None:
    measured = read({"prompt_tokens": count, "completion_tokens": 7, "total_tokens": 9})
    assert (measured.prompt_tokens, measured.completion_tokens) == (None, 7)
    assert not measured.is_complete
    assert measured.anomaly == ("prompt_tokens_invalid",)
    assert measured.wire == {
        "completion_tokens": 7,
        "cached_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.mark.parametrize("raw", [{}, {"total_tokens": 12}, {"prompt_tokens": 4}, {"completion_tokens": None}])
def test_a_partial_report_says_unknown_and_invents_nothing(raw: JsonObject) -> None:
    measured = read(raw, "vllm")
    assert not measured.is_complete
    assert "total_tokens" not in measured.wire
    assert set(measured.wire) == {name for name in raw if name == "prompt_tokens"}
    assert all(name.endswith("_missing") for name in measured.anomaly)


def test_a_total_that_does_not_add_up_is_named_and_set_right() -> None:
    measured = read({"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 9})
    assert measured.wire["total_tokens"] == 7
    assert measured.anomaly == ("total_mismatch",)


def test_other_details_reach_the_client_and_nulls_do_not() -> None:
    details = {"cached_tokens": 1, "multimodal_tokens": 3, "audio_tokens": None}
    measured = read({"prompt_tokens": 4, "completion_tokens": 3, "prompt_tokens_details": details}, "vllm")
    assert measured.wire["prompt_tokens_details"] == {"cached_tokens": 1, "multimodal_tokens": 3}


COUNTS = st.none() | st.integers(-5, 300) | st.sampled_from(["7", True, 2**60, 1.5, [], {}])
DETAILS = st.none() | st.dictionaries(
    st.sampled_from(["cached_tokens", "cache_write_tokens", "created_cache_tokens", "reasoning_tokens"]), COUNTS
)
REPORTS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(["prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "cost"], COUNTS),
        **dict.fromkeys(["prompt_tokens_details", "completion_tokens_details", "cost_details"], DETAILS),
    },
)
HEADERS = st.dictionaries(
    st.sampled_from(["Msh-Usage-Cache-Write-Tokens-5m", "msh-usage-cache-write-tokens-1H", "date"]),
    st.sampled_from(["0", "10", "200", "-1", "x", ""]),
)


@given(REPORTS, HEADERS, st.sampled_from(["", "5m", "1h"]), st.sampled_from(sorted(DIALECTS)))
@settings(max_examples=200)
def test_every_report_gives_disjoint_meters_that_fit_into_the_prompt(
    raw: JsonObject, headers: dict[str, str], ttl: str, dialect: str
) -> None:
    measured = read_usage(raw, dialect=DIALECTS[dialect], headers=headers, ttl=ttl)
    usage = measured.usage
    if measured.prompt_tokens is not None:
        assert usage.prompt == measured.prompt_tokens
    assert usage.output == (measured.completion_tokens or 0)
    assert (usage.reasoning or 0) <= usage.output or measured.completion_tokens is None
    assert None not in measured.wire.values()
    assert measured.wire.get("prompt_tokens") == measured.prompt_tokens
    assert measured.wire.get("cached_tokens") == usage.cache_read
    assert not measured.assumed or usage.write_5m or usage.write_1h
