"""The cases of kinds errors, sse, billing and context, where a first target fails before another serves.

What the second target's answer is worth to the client and to the ledger is the same as without the first.
"""

import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from email.utils import formatdate
from typing import Any

import httpx2
import pytest

from support.cases import case
from support.fleet import DEAR, OK, PRO, Fleet, Talk, after, bearer, fleet, key, route, together
from support.lab import Heard

MODELS = {
    "moonshot": PRO,
    "openrouter": "moonshotai/kimi-k3.1-pro",
    "vllm": "moonshotai/Kimi-K3.1-Pro",
    "sglang": "moonshotai/Kimi-K3.1-Pro",
}
BROKEN: Mapping[str, Any] = {
    "500": {"status": 500, "json": {"error": {"message": "no", "type": "server_error"}}},
    "reset": {"then": "reset"},
    "quota": case("err-01")["given"]["upstream"][0],
}
KEEPALIVE_S = 0.3
SLOW = 0.02  # as in the cases without failover


@pytest.fixture(scope="module")
def made() -> Iterator[Fleet]:
    """A first target, and one of each dialect behind it: model `to-NAME` goes to the first, then to that one.

    `from-NAME` goes there first, and then to `first`. Of the sglang target `larger` is a route with more room.
    """
    public = [f"{way}-{name}" for way in ("to", "from") for name in MODELS]
    targets: dict[str, dict[str, object]] = {"first": {"models": {name: PRO for name in [*public, "larger"]}}}
    for name, model in MODELS.items():
        models = {f"to-{name}": model, f"from-{name}": model, "larger": model}
        prices = {"prices": DEAR} if name in ("vllm", "sglang") else {}
        targets[name] = {"dialect": name, "models": models, "idle_timeout_s": 0.8, **prices}
    targets["vllm"]["context_window"] = 2_000_000
    routes = [route(f"to-{name}", ["first", name]) for name in MODELS]
    routes += [route(f"from-{name}", [name, "first"]) for name in MODELS]
    routes.append(route("larger", ["sglang", "first", "vllm", "openrouter"]))
    keys = key("plain", pin=True) + key("capped", budget_usd="0.05")
    with fleet(
        targets,
        "".join(routes) + keys,
        head="[retry]\nglobal_ratio = 1\nbreaker_failures = 1000000\nmax_wait_s = 3",
        server=f"keepalive_interval_s = {KEEPALIVE_S}",
        keys=("plain", "capped"),
    ) as found:
        yield found


def ask(
    made: Fleet, request: Mapping[str, Any], target: str, answer: Any, *, first: str = "500", by: str = "plain"
) -> Heard:
    """The request to a route whose first target breaks so and whose second one gives this answer."""
    made.upstreams["first"].add(BROKEN[first])
    made.upstreams[target].add(answer)
    heard = made.ask({**request, "model": f"to-{target}"}, bearer(by))
    if first == "quota":
        made.heal()
    return heard


def tried(made: Fleet, heard: Heard) -> list[tuple[str, str | None]]:
    """The targets of a request, each with its fault."""
    return [(one.target, one.fault) for one in made.row(heard).attempts]


SSE = [
    ("sse-01", "moonshot", None, "ab"),
    ("sse-02", "moonshot", None, "价格 🚀 ok"),
    ("sse-03", "openrouter", None, "x"),
    ("sse-05", "moonshot", "B", "all"),
    ("sse-05", "moonshot", "C", "all"),
]


@pytest.mark.parametrize("first", BROKEN)
@pytest.mark.parametrize(("name", "target", "variant", "text"), SSE)
def test_a_stream_of_the_second_target_is_read_as_carefully_as_one_of_the_first(
    made: Fleet, name: str, target: str, variant: str | None, text: str, first: str
) -> None:
    given = case(name)["given"]
    answer = given["upstream"][0] if variant is None else {"status": 200, **given["variants"][variant]}
    heard = ask(made, given["client_request"], target, answer, first=first)
    assert (heard.joined("content"), heard.finish_reason(), heard.done) == (text, "stop", True)
    assert heard.headers["x-kimi-attempts"] == "2"


def test_sse_04_an_error_after_content_goes_nowhere_else(made: Fleet) -> None:
    given = case("sse-04")["given"]
    before = made.calls("first")
    made.upstreams["openrouter"].add(*given["upstream"])
    heard = made.ask({**given["client_request"], "model": "from-openrouter"}, bearer("plain"))
    assert (heard.joined("content"), heard.error["type"], heard.done) == ("Par", "upstream_error", False)
    assert made.calls("first") == before
    assert tried(made, heard) == [("openrouter", "server")]


def test_sse_04_at_the_second_target_is_the_end_as_well(made: Fleet) -> None:
    given = case("sse-04")["given"]
    heard = ask(made, given["client_request"], "openrouter", given["upstream"][0])
    assert (heard.joined("content"), heard.error["type"], heard.done) == ("Par", "upstream_error", False)
    row = made.row(heard)
    assert (row.status, row.estimated, len(row.attempts)) == ("error", True, 2)


def test_sse_05_cut_at_the_second_target_is_incomplete(made: Fleet) -> None:
    given = case("sse-05")["given"]
    heard = ask(made, given["client_request"], "moonshot", {"status": 200, **given["variants"]["A"]})
    assert (heard.joined("content"), heard.error["type"], heard.done) == ("half", "upstream_error", False)
    row = made.row(heard)
    assert (row.status, [one.maybe_billed for one in row.attempts]) == ("incomplete", [False, True])


def test_sse_06_a_first_target_that_is_silent_too_long_is_left_for_the_second(made: Fleet) -> None:
    given = case("sse-06")["given"]
    role, *tail = given["upstream"][0]["timeline"]
    made.upstreams["vllm"].add({"status": 200, "timeline": [role, [500, ""]]})
    whole = [[at * SLOW, text] for at, text in (role, *tail)]
    made.upstreams["first"].add(
        {"status": 200, "timeline": [[0, whole[0][1]], [0.5, whole[1][1]], [0.5, whole[2][1]]]}
    )
    heard = made.ask({**given["client_request"], "model": "from-vllm"}, bearer("plain"))
    assert (heard.finish_reason(), heard.error, heard.done) == ("tool_calls", None, True)
    assert heard.comments >= 3
    assert len(heard.tool_calls()) == 1
    row = made.row(heard)
    assert [(one.fault, one.maybe_billed) for one in row.attempts] == [("timeout", True), (None, False)]


def test_err_01_quota_moves_on_and_err_04_err_05_do(made: Fleet) -> None:
    for name, target in (("err-01", "moonshot"), ("err-04", "vllm"), ("err-05", "openrouter")):
        given = case(name)["given"]
        made.upstreams[target].add(*given["upstream"])
        made.upstreams["first"].add(OK)
        heard = made.ask({**given["client_request"], "model": f"from-{target}"}, bearer("plain"))
        assert (heard.status, heard.json["kimi"]["target"], heard.json["kimi"]["attempts"]) == (200, "first", 2), (
            name
        )
        assert (made.row(heard).cost_nano, b"org-" in heard.raw) == (40_000, False)
    made.heal()


@pytest.mark.parametrize("stream", [False, True])
def test_err_02_an_overload_is_waited_for_once_and_then_left(made: Fleet, stream: bool) -> None:
    given = case("err-02")["given"]
    made.upstreams["moonshot"].add(*given["upstream"][:2])
    made.upstreams["first"].add(given["upstream"][2])
    began = time.monotonic()
    heard = made.ask({**given["client_request"], "model": "from-moonshot", "stream": stream}, bearer("plain"))
    assert heard.status == 200
    assert time.monotonic() - began >= 0.25
    assert tried(made, heard) == [("moonshot", "overload"), ("moonshot", "overload"), ("first", None)]
    assert made.row(heard).cost_nano == 40_000


def test_err_02_and_03_a_rate_is_waited_for_as_long_as_it_says_and_left_where_that_is_too_long(
    made: Fleet,
) -> None:
    given = case("err-03")["given"]
    limited = given["upstream"][0]
    words = {
        "status": 429,
        "json": {"error": {"type": "rate_limit_reached_error", "message": "try again after 1 seconds"}},
    }
    short = {"seconds": {**limited, "headers": {"Retry-After": "1"}}, "words": words}
    short["a date"] = {**limited, "headers": {"Retry-After": formatdate(time.time() + 2, usegmt=True)}}

    def patient(name: str) -> tuple[float, Heard]:
        began = time.monotonic()
        target = {"seconds": "openrouter", "words": "moonshot", "a date": "sglang"}[name]
        made.upstreams[target].add(short[name], given["upstream"][1])
        return began, made.ask({**given["client_request"], "model": f"from-{target}"}, bearer("plain"))

    for began, heard in together(patient, short):
        assert heard.status == 200
        assert [fault for _, fault in tried(made, heard)] == ["rate", None]
        assert made.row(heard).attempts[1].start_ms >= 950
        assert time.monotonic() - began < 6
    for wait in ("60", formatdate(time.time() + 60, usegmt=True)):
        made.upstreams["openrouter"].add({**limited, "headers": {"Retry-After": wait}})
        made.upstreams["first"].add(OK)
        heard = made.ask({**given["client_request"], "model": "from-openrouter"}, bearer("plain"))
        assert tried(made, heard) == [("openrouter", "rate"), ("first", None)]
        made.heal()


def test_err_06_and_a_bad_request_are_the_end(made: Fleet) -> None:
    for answer in (case("err-06")["given"]["upstream"][0], {"status": 400, "json": {"error": {"message": "no"}}}):
        before = made.calls("first")
        made.upstreams["moonshot"].add(answer)
        heard = made.ask({**case("err-06")["given"]["client_request"], "model": "from-moonshot"}, bearer("plain"))
        assert (heard.status, made.calls("first")) == (400, before)


def test_ctx_01_only_the_larger_window_is_asked(made: Fleet) -> None:
    """Behind sglang stand two with the same window; the larger one between them serves."""
    given = case("ctx-01")["given"]
    made.upstreams["sglang"].add(*given["upstream"])
    made.upstreams["vllm"].add(OK)
    heard = made.ask({**given["client_request"], "model": "larger"}, bearer("plain"))
    assert heard.status == 200
    assert tried(made, heard) == [("sglang", "context"), ("vllm", None)]


def test_ctx_01_at_the_larger_window_too_is_a_400(made: Fleet) -> None:
    given = case("ctx-01")["given"]
    made.upstreams["sglang"].add(*given["upstream"])
    made.upstreams["vllm"].add(*given["upstream"])
    heard = made.ask({**given["client_request"], "model": "larger"}, bearer("plain"))
    assert (heard.status, heard.error["code"]) == (400, "context_length_exceeded")
    assert tried(made, heard) == [("sglang", "context"), ("vllm", "context")]


def budget(made: Fleet) -> dict[str, Any]:
    answer = httpx2.get(f"{made.gateway.base_url}/users/me/balance", headers=bearer("capped"))
    found: dict[str, Any] = answer.json()["data"]["budget"]
    return found


def test_bill_01_a_client_that_leaves_the_second_target_is_booked_there(made: Fleet) -> None:
    given = case("bill-01")["given"]
    made.upstreams["first"].add(BROKEN["reset"])
    made.upstreams["vllm"].add(*given["upstream"])
    with Talk(made.gateway.base_url, {**given["client_request"], "model": "to-vllm"}, bearer("plain")) as talk:
        talk.until(b"upon")
        heard = Heard(200, talk.headers, b"")
    made.upstreams["vllm"].wait_for_disconnect(2)
    row = made.row(heard)
    assert (row.status, row.estimated, row.target) == ("client_disconnected", True, "vllm")
    assert [(one.target, one.maybe_billed) for one in row.attempts] == [("first", True), ("vllm", True)]
    assert row.cost_nano


def test_bill_02_and_03_one_reservation_for_all_attempts(made: Fleet) -> None:
    """Two of five fit into the budget, though each needs two attempts; what they reserved is given back."""
    request = {
        "max_completion_tokens": 1500,
        "messages": [{"role": "user", "content": "word " * 150}],
        "model": "to-moonshot",
    }
    usage = {"prompt_tokens": 1000, "completion_tokens": 400, "total_tokens": 1400, "cached_tokens": 0}
    made.upstreams["first"].add(BROKEN["500"], BROKEN["500"])
    made.upstreams["moonshot"].add(*[after(0.5, {"status": 200, "json_usage": usage})] * 2)
    before = made.calls("moonshot"), made.calls("first")
    statuses = together(lambda _: made.ask(request, bearer("capped")).status, range(5))
    assert sorted(statuses) == [200, 200, 402, 402, 402]
    assert (made.calls("moonshot") - before[0], made.calls("first") - before[1]) == (2, 2)
    left = budget(made)
    assert (Decimal(str(left["spent"])), left["reserved"]) == (Decimal("0.012"), 0)


def test_bill_04_and_05_are_billed_as_the_second_target_says(made: Fleet) -> None:
    given, expect = case("bill-05")["given"], case("bill-05")["expect"]
    row = made.row(ask(made, given["client_request"], "moonshot", given["upstream"][0], first="reset"))
    assert (row.cost_nano, row.assumed) == (int(Decimal(expect["ledger"][0]["cost_usd"]) * 10**9), False)
    usage = case("bill-04")["given"]["upstream_x1000"]["usage"]
    answers = [
        ask(made, case("err-04")["given"]["client_request"], "moonshot", {"status": 200, "json_usage": usage})
        for _ in range(10)
    ]
    assert {one.headers["x-kimi-cost-usd"] for one in answers} == {"0.0000114"}
    assert sum(row.cost_nano or 0 for row in made.rows(*answers)) == 114_000
