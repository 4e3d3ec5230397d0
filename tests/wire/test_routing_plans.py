"""What decides where a request goes besides faults: rights, weights, files; and the plan as it is shown."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from support.fleet import (
    OK,
    PRO,
    Fleet,
    bearer,
    chunk,
    fleet,
    hi,
    key,
    route,
    together,
)
from support.lab import Heard

RESET: Mapping[str, Any] = {"then": "reset"}
LONG = [f"{'n' * 60}-{number:02}" for number in range(40)]


@pytest.fixture(scope="module")
def made() -> Iterator[Fleet]:
    """Keys with and without rights; targets with and without a price, and of two accounts at Moonshot."""
    open_models = {
        name: PRO for name in ("unpriced-first", "only-unpriced", "split", "files", "one-account", "many")
    }
    targets: dict[str, dict[str, object]] = {
        "own": {"dialect": "vllm", "models": {"unpriced-first": "m", "only-unpriced": "m", "files": "m"}},
        "paid": {"models": open_models, "account": "first"},
        "half": {"models": {"split": PRO, "files": PRO}, "account": "second"},
        "none": {"models": {"split": PRO, "one-account": PRO}, "account": "first"},
    }
    many = "".join(
        f'[[targets]]\nname = "{name}"\ndialect = "vllm"\nbase_url = "http://127.0.0.1:9/v1"\n'
        f'models = {{ many = "m" }}\ncontext_window = 1000000\n'
        for name in LONG
    )
    routes = [
        route("unpriced-first", ["own", "paid"]),
        route("only-unpriced", ["own"]),
        route("split", ["paid", "half", "none"], weights={"paid": 3, "half": 1, "none": 0}),
        route("files", ["own", "paid", "half"]),
        route("one-account", ["none", "paid"]),
        route("many", ["paid", *LONG], policy="cost"),
    ]
    keys = [
        key("plain", pin=True, explain=True),
        key("capped", budget_usd="5.00", explain=True),
        key("blind"),
    ]
    with fleet(
        targets,
        many + "".join([*routes, *keys]),
        keys=("plain", "capped", "blind"),
        head="[retry]\nglobal_ratio = 1",
    ) as found:
        yield found


def ask(made: Fleet, model: str, by: str = "plain", text: str = "hi", **headers: str) -> Heard:
    """A small request by that key."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return made.ask(hi(text, model), {**bearer(by), **named})


def plan_of(heard: Heard) -> Any:
    """The plan in the header: compact JSON of at most 4 KB in ASCII."""
    text = heard.headers["x-kimi-plan"]
    assert len(text) <= 4096
    assert text.isascii()
    found = json.loads(text)
    assert json.dumps(found, separators=(",", ":")) == text
    return found


# --- rights -----------------------------------------------------------------------------------------------------


def test_a_key_with_a_budget_goes_past_a_target_without_a_price(made: Fleet) -> None:
    made.upstreams["paid"].add(OK)
    before = made.calls("own")
    heard = ask(made, "unpriced-first", "capped")
    assert (heard.json["kimi"]["target"], heard.json["kimi"]["attempts"]) == ("paid", 1)
    made.upstreams["own"].add(OK)
    assert made.calls("own") == before
    assert ask(made, "unpriced-first").json["kimi"]["target"] == "own"


def test_not_even_a_failure_brings_a_key_with_a_budget_to_one_without_a_price(made: Fleet) -> None:
    made.upstreams["paid"].add(RESET)
    before = made.calls("own")
    heard = ask(made, "unpriced-first", "capped")
    assert (heard.status, made.calls("own")) == (502, before)


def test_where_nobody_has_a_price_the_key_is_told(made: Fleet) -> None:
    heard = ask(made, "only-unpriced", "capped", x_kimi_explain="1")
    assert (heard.status, heard.error["code"]) == (403, "unpriced_target")
    (only,) = plan_of(heard)["targets"]
    assert (only["target"], only["refused"]) == ("own", "rights")


def test_weights_share_conversations_out_and_zero_gets_none(made: Fleet) -> None:
    for name in ("paid", "half"):
        made.upstreams[name].add(*[OK] * 100)
    heard = together(lambda number: ask(made, "split", text=f"conversation {number}"), range(100), most=8)
    for name in ("paid", "half"):
        made.upstreams[name].forget()
    found = Counter(one.json["kimi"]["target"] for one in heard)
    assert set(found) == {"paid", "half"}
    assert 10 <= found["half"] <= 40


def test_a_target_of_weight_zero_serves_where_nobody_else_does(made: Fleet) -> None:
    made.upstreams["paid"].add(RESET)
    made.upstreams["half"].add(RESET)
    made.upstreams["none"].add(OK)
    heard = ask(made, "split")
    assert (heard.json["kimi"]["target"], heard.json["kimi"]["attempts"]) == ("none", 3)


# --- files ------------------------------------------------------------------------------------------------------


def with_file(model: str) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": "ms://file-abc"}}
    return {"model": model, "messages": [{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}]}


def test_a_file_goes_to_the_route_s_only_account(made: Fleet) -> None:
    made.upstreams["none"].add(RESET)
    made.upstreams["paid"].add(OK)
    heard = made.ask(with_file("one-account"), bearer("plain"))
    assert (heard.json["kimi"]["target"], heard.json["kimi"]["attempts"]) == ("paid", 2)


def test_a_file_that_two_accounts_could_have_is_a_400_without_a_target(made: Fleet) -> None:
    heard = made.ask(with_file("files"), bearer("plain"))
    assert (heard.status, heard.error["code"]) == (400, "ambiguous_file")
    assert "messages" in heard.error["param"]
    for name in ("paid", "half"):
        made.upstreams[name].add(OK)
        heard = made.ask(with_file("files"), {**bearer("plain"), "x-kimi-target": name})
        assert heard.json["kimi"]["target"] == name
        assert b"ms://file-abc" in made.upstreams[name].requests[-1].body


def test_a_file_that_no_target_reads_is_a_400(made: Fleet) -> None:
    heard = made.ask(with_file("only-unpriced"), bearer("plain"))
    assert (heard.status, heard.error["code"]) == (400, "unsupported_value")
    heard = made.ask(with_file("files"), {**bearer("plain"), "x-kimi-target": "own"})
    assert (heard.status, heard.error["code"]) == (400, "unsupported_value")


# --- the plan ---------------------------------------------------------------------------------------------------


def test_the_plan_is_shown_to_keys_that_may_see_it(made: Fleet) -> None:
    made.upstreams["own"].add(OK)
    heard = ask(made, "unpriced-first", x_kimi_explain="1")
    plan = plan_of(heard)
    assert (plan["policy"], plan["model"], plan["tier"]) == ("order", "unpriced-first", "standard")
    own, paid = plan["targets"]
    assert (own["target"], own["price"]) == ("own", "by the hour")
    assert (paid["target"], paid["read_tokens"]) == ("paid", 0)
    assert set(paid["usd"]) == {"write_5m", "output"}
    assert float(paid["money_usd"]) > 0
    assert {"wait_s", "score_usd", "read_age_s"} <= set(paid)
    assert "x-kimi-plan" not in ask(made, "only-unpriced", "capped").headers


def test_a_key_without_the_right_gets_a_403(made: Fleet) -> None:
    heard = ask(made, "unpriced-first", "blind", x_kimi_explain="1")
    assert (heard.status, heard.error["code"], heard.error["param"]) == (
        403,
        "explain_not_allowed",
        "x-kimi-explain",
    )


def test_a_plan_of_many_targets_fits_into_its_header_and_counts_what_it_leaves_out(made: Fleet) -> None:
    made.upstreams["paid"].add(OK)
    heard = ask(made, "many", "capped", x_kimi_explain="1")
    plan = plan_of(heard)
    assert heard.json["kimi"]["target"] == "paid"
    assert plan["targets"][0]["target"] == "paid"
    assert {one["refused"] for one in plan["targets"][1:]} == {"rights"}
    assert len(plan["targets"]) + plan["omitted"] == 41


def test_a_stream_and_an_error_of_the_upstream_have_their_plan_too(made: Fleet) -> None:
    made.upstreams["paid"].add({"status": 200, "sse_text": chunk({"content": "x"}, "stop")}, RESET)
    stream = made.ask(hi(model="unpriced-first", stream=True), {**bearer("capped"), "x-kimi-explain": "1"})
    failed = ask(made, "unpriced-first", "capped", x_kimi_explain="1")
    for heard, status in ((stream, 200), (failed, 502)):
        assert heard.status == status
        assert [(one["target"], one.get("refused")) for one in plan_of(heard)["targets"]] == [
            ("paid", None),
            ("own", "rights"),
        ]
