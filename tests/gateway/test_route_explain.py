"""A plan told: the header of a running gateway, the table and JSON of a check."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from backends.dialects.moonshot import DIALECT as MOONSHOT
from backends.dialects.vllm import DIALECT as VLLM
from backends.faults import Fault, FaultKind
from backends.messages import read_heads
from kimi_gateway.checks.explain import run_explain
from kimi_gateway.checks.findings import Output
from kimi_gateway.core.routing.candidate import Candidate, Pace, Policy, Tariff, Wants, abilities_of, candidate_of
from kimi_gateway.core.routing.explain import plan_header
from kimi_gateway.core.routing.facts import Out, Quota
from kimi_gateway.core.routing.needs import needs_of
from kimi_gateway.core.routing.rank import rank
from kimi_gateway.core.view import Raw
from pricing.estimate import Estimate
from pricing.rates import Rates

PRO = Tariff(read=200, fresh=4_000, output=10_000, meter="write_1h")
COST = Policy()
WANTS = Wants(now_s=5.0, key=b"k", prompt=Estimate(100_000, 90_000, 110_000), output_tokens=2_000)


def told(targets: list[Candidate], wants: Wants = WANTS, policy: Policy = COST) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        plan_header(rank(wants, targets, policy), wants, policy, model="kimi-k3.1-pro", tier="standard")
    )
    return found


def test_the_header_tells_money_per_meter_reads_age_wait_score_and_who_was_refused() -> None:
    home = Candidate(
        "moonshot", "m", "m", tariff=PRO, pace=Pace(0.3, 0.0001, 0.02, 9.0), read_tokens=80_000, read_age_s=12.25
    )
    gone = Candidate("openrouter", "o", "m", 1, tariff=PRO, out=Out(Fault(FaultKind.QUOTA, "x"), 305.0))
    plan = told([home, gone])
    first, second = plan["targets"]
    assert first == {
        "target": "moonshot",
        "usd": {"cache_read": "0.016", "write_1h": "0.08", "output": "0.02"},
        "money_usd": "0.116",
        "read_tokens": 80_000,
        "read_age_s": 12.25,
        "wait_s": 2.3,
        "score_usd": "0.116319444",
    }
    assert second == {
        "target": "openrouter",
        "refused": "out",
        "why": "its account is empty, for another 300.0 s",
    }
    assert (plan["policy"], plan["prompt_tokens"], plan["wait_usd_per_hour"]) == ("cost", 100_000, "0.5")


def test_the_score_is_money_and_the_wait_at_its_price() -> None:
    plan = told([Candidate("a", "a", "m", tariff=PRO, pace=Pace(36.0, 0.0, 0.02, 9.0))])
    (only,) = plan["targets"]
    assert Decimal(only["score_usd"]) == Decimal(only["money_usd"]) + Decimal("0.005")


def test_what_has_a_part_in_the_order_is_noted() -> None:
    hired = Candidate(
        "own", "o", "m", by_the_hour=True, full=True, quota=Quota(100), in_flight=100, read_tokens=9_000
    )
    unknown = Candidate("strange", "s", "m", 1, weight=0.0)
    shared = Candidate("crowd", "c", "m", 2, tariff=PRO, in_flight=900, read_tokens=2_000, read_shared=True)
    plan = {one["target"]: one for one in told([hired, unknown, shared])["targets"]}
    assert (plan["own"]["price"], plan["own"]["notes"]) == (
        "by the hour",
        ["pace not measured", "full", "crowded"],
    )
    assert (plan["strange"]["price"], plan["strange"]["notes"][0]) == ("unknown", "last: weight 0")
    assert plan["crowd"]["notes"] == ["shared prefix", "pace not measured", "crowded"]
    assert plan["crowd"]["held_s"] > 0


def test_a_plan_that_is_too_long_says_how_many_targets_it_leaves_out() -> None:
    fleet = [Candidate(f"target-{n:02}", "a", "m" if n < 30 else "", n, tariff=PRO) for n in range(50)]
    plan = told(fleet)
    assert len(plan["targets"]) + plan["omitted"] == 50
    assert len(plan["targets"]) >= 10
    assert "omitted" not in told(fleet[:10])


def test_what_a_dialect_can_do_is_what_a_candidate_can() -> None:
    made = abilities_of(MOONSHOT, "kimi-k3.1-pro")
    assert (made.max_n, made.thinking_off, made.remote_media, made.files) == (1, False, False, True)
    passed = abilities_of(MOONSHOT, "kimi-k2.6")
    assert (passed.max_n, passed.thinking_off) == (None, True)
    own = abilities_of(VLLM, "moonshotai/Kimi-K3.1-Pro")
    assert (own.max_n, own.thinking_off, own.remote_media, own.files) == (None, True, True, False)


@pytest.mark.parametrize(
    ("ttl", "tariff"),
    [
        ("", Tariff(200, 2_000, 10_000, "input")),
        ("5m", Tariff(200, 2_500, 10_000, "write_5m")),
        ("1h", Tariff(200, 4_000, 10_000, "write_1h")),
    ],
)
def test_what_is_new_in_a_prompt_is_priced_by_the_lifetime_it_is_written_at(ttl: str, tariff: Tariff) -> None:
    rates = Rates(input=2_000, output=10_000, cache_read=200, write_5m=2_500, write_1h=4_000)
    assert candidate_of("a", "kimi-k3.1-pro", MOONSHOT, rates, ttl=ttl).tariff == tariff
    assert candidate_of("a", "m", VLLM, rates, ttl=ttl).tariff == Tariff(200, 2_000, 10_000, "input")
    dearer = candidate_of("a", "kimi-k3.1-pro", MOONSHOT, rates, "adds", ttl="1h").tariff
    assert dearer == Tariff(200, 6_000, 10_000, "write_1h")


def test_a_target_without_a_price_is_paid_by_the_hour_only_where_it_is_the_operators_own() -> None:
    assert candidate_of("a", "m", VLLM, None).by_the_hour
    assert not candidate_of("a", "m", MOONSHOT, None).by_the_hour
    assert candidate_of("a", "m", VLLM, Rates(input=5)).tariff is None


def test_needs_are_read_by_path() -> None:
    parts = (
        '[{"role":"user","content":"plain"},{"role":"user","content":[{"type":"text","text":"t"},'
        '{"type":"image_url","image_url":{"url":"https://example.org/a.png"}},'
        '{"type":"image_url","image_url":"ms://abc"}]}]'
    )
    found = needs_of(read_heads(Raw(parts.encode())), {"thinking": 1}, thinking_off=True)
    assert (found.thinking_off, found.remote_media, found.file) == (
        "thinking",
        "messages[1].content[1]",
        "messages[1].content[2]",
    )
    plain = needs_of(read_heads(Raw(b'[{"role":"user","content":"ms:// _url"}]')), {}, thinking_off=False)
    assert (plain.thinking_off, plain.remote_media, plain.file) == ("", "", "")


# --- kimi-gateway check --explain -------------------------------------------------------------------------------

CONFIG = """
[[targets]]
name = "own"
dialect = "vllm"
base_url = "http://127.0.0.1:9/v1"
[[targets]]
name = "moonshot"
dialect = "moonshot"
api_key_env = "A_KEY"
[[targets]]
name = "second"
dialect = "moonshot"
api_key_env = "A_KEY"
[[routes]]
model = "kimi-k3.1-pro"
targets = ["own", "moonshot", "second"]
policy = "order"
"""


def check(
    folder: Path,
    request: dict[str, object],
    capsys: pytest.CaptureFixture[str],
    output: Output,
    text: str = CONFIG,
) -> tuple[int, str]:
    config, file = folder / "kimi-gateway.toml", folder / "request.json"
    config.write_text(text)
    file.write_text(json.dumps(request))
    code = run_explain(config, file, {"A_KEY": "sk-secret"}, output=output)
    return code, capsys.readouterr().out


ASKED: dict[str, object] = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "hi"}]}


def test_a_check_explains_where_a_request_would_go_and_says_what_it_cannot_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = check(tmp_path, {**ASKED, "max_tokens": 100}, capsys, Output.JSON)
    plan = json.loads(text)
    assert code == 0
    assert [one["target"] for one in plan["targets"]] == ["own", "moonshot", "second"]
    own, moonshot = plan["targets"][:2]
    assert own["price"] == "by the hour"
    assert moonshot["usd"]["output"] == "0.001"
    for one in (own, moonshot):
        assert {one[name] for name in ("read_tokens", "read_age_s", "wait_s", "score_usd")} == {"unknown here"}
    code, table = check(tmp_path, ASKED, capsys, Output.TABLE)
    assert code == 0
    for words in ("choice 1", "moonshot", "unknown here", "by the hour", "x-kimi-explain: 1", "nothing is warm"):
        assert words in " ".join(table.split())


def test_a_check_names_the_first_filter_that_refuses_each_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = check(tmp_path, {**ASKED, "n": 2}, capsys, Output.JSON)
    refused = {one["target"]: one.get("refused") for one in json.loads(text)["targets"]}
    assert (code, refused) == (0, {"own": None, "moonshot": "capability", "second": "capability"})
    code, text = check(tmp_path, {**ASKED, "service_tier": "highspeed"}, capsys, Output.JSON)
    own = next(one for one in json.loads(text)["targets"] if one["target"] == "own")
    assert (code, own["refused"], own["why"]) == (0, "model", "does not serve this model at this tier")


def test_a_check_uses_the_routes_weights_and_its_way_down_to_standard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = CONFIG.replace('policy = "order"', 'weights = { own = 0 }\nwait_usd_per_hour = "2.5"')
    code, text = check(tmp_path, ASKED, capsys, Output.JSON, config)
    plan = json.loads(text)
    assert (code, plan["wait_usd_per_hour"], plan["targets"][-1]["target"]) == (0, "2.5", "own")
    assert plan["targets"][-1]["notes"] == ["last: weight 0"]
    only_own = CONFIG.replace('targets = ["own", "moonshot", "second"]', 'targets = ["own"]\ntier_fallback = true')
    code, text = check(tmp_path, {**ASKED, "service_tier": "highspeed"}, capsys, Output.JSON, only_own)
    assert (code, json.loads(text)["tier"]) == (0, "standard")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({**ASKED, "model": "kimi-k3.1-prp"}, "did you mean kimi-k3.1-pro?"),
        ({"model": "kimi-k3.1-pro"}, "messages: messages is missing; send an array"),
        (
            {
                **ASKED,
                "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "ms://x"}]}],
            },
            "one of the accounts moonshot, second has; name a target of that account in x-kimi-target",
        ),
    ],
)
def test_what_is_wrong_with_a_request_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request_: dict[str, object], words: str
) -> None:
    code, text = check(tmp_path, request_, capsys, Output.TABLE)
    assert code == 1
    assert words in text
    assert "sk-secret" not in text


def test_a_file_that_is_not_there_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kimi-gateway.toml").write_text(CONFIG)
    code = run_explain(tmp_path / "kimi-gateway.toml", tmp_path / "none.json", {"A_KEY": "k"}, output=Output.TABLE)
    assert code == 1
    assert "none.json cannot be read" in capsys.readouterr().out


def test_a_prompt_that_is_not_known_to_be_warm_is_not_told_as_zero() -> None:
    cold = Candidate("a", "a", "m", tariff=PRO, read_tokens=None)
    assert told([cold])["targets"][0]["read_tokens"] == "unknown here"
    assert told([replace(cold, read_tokens=0)])["targets"][0]["read_tokens"] == 0
