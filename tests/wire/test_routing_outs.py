"""Targets that take nothing for a while: for whom, until when, and what a client hears who needs them."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from typing import Any

import pytest

from support.fleet import OK, PRO, Crowd, Fleet, Talk, fleet, hi, nothing, route, rows_of, said, together
from support.lab import Heard, ledger_url
from support.pids import becomes_true

QUOTA_OUT_S = 1.0
OPEN_S = 1.0
FAILURES = 3
CROWD = 24
QUOTA: Mapping[str, Any] = {
    "status": 429,
    "json": {"error": {"type": "exceeded_current_quota_error", "message": "account org-1a2b suspended"}},
}
RESET: Mapping[str, Any] = {"then": "reset"}
PROBED = ("probed", "crowded", "worse", "forsaken")


def rate(wait: str = "", words: str = "slow down") -> Mapping[str, Any]:
    """A rate limit that names its end in the header, in its words, or not at all."""
    headers = {"retry-after": wait} if wait else {}
    return {
        "status": 429,
        "headers": headers,
        "json": {"error": {"type": "rate_limit_reached_error", "message": words}},
    }


@pytest.fixture(scope="module")
def shared() -> Iterator[Fleet]:
    """Two targets of account A and one of account B; models by the targets that may serve them. Four more that
    have an account each."""
    routes = {"all": ["a1", "a2", "b"], "only-a": ["a1", "a2"]}
    for name in ("b", *PROBED):
        routes |= {f"just-{name}": [name], f"first-{name}": [name, "a1"]}
    models = dict.fromkeys(routes, PRO)
    targets = {name: {"account": name[0], "models": models} for name in ("a1", "a2", "b", *PROBED)}
    head = f"[retry]\nglobal_ratio = 1\nmax_wait_s = 3\nbreaker_failures = {FAILURES}\nbreaker_open_s = {OPEN_S}"
    made_routes = "".join(route(model, names) for model, names in routes.items())
    with fleet(
        targets,
        made_routes,
        head=head,
        timing=f"quota_out_s = {QUOTA_OUT_S}",
        server="keepalive_interval_s = 0.2",
    ) as found:
        yield found


@pytest.fixture
def made(shared: Fleet) -> Iterator[Fleet]:
    """The fleet, all targets well and without answers."""
    yield shared
    for upstream in shared.upstreams.values():
        upstream.forget()
    shared.heal()


def served(heard: Heard) -> tuple[str, int]:
    """By whom and with how many attempts a whole answer was given."""
    assert heard.status == 200, heard.raw
    return heard.json["kimi"]["target"], heard.json["kimi"]["attempts"]


def calls(made: Fleet) -> list[int]:
    """How often a1, a2 and b were asked."""
    return [made.calls(name) for name in ("a1", "a2", "b")]


# --- accounts and keys ------------------------------------------------------------------------------------------


def test_an_empty_account_takes_out_all_its_targets_for_its_time(made: Fleet) -> None:
    before = calls(made)
    made.upstreams["a1"].add(QUOTA, OK)
    made.upstreams["b"].add(OK, OK)
    assert served(made.ask(hi(model="all"))) == ("b", 2)
    began = time.monotonic()
    assert served(made.ask(hi(model="all"))) == ("b", 1)
    refused = made.ask(hi(model="only-a"))
    assert (refused.status, refused.error["type"]) == (402, "exceeded_current_quota_error")
    assert "retry-after" not in refused.headers
    assert refused.headers["x-should-retry"] == "false"
    assert b"org-1a2b" not in refused.raw
    assert [now - then for now, then in zip(calls(made), before, strict=True)] == [1, 0, 2]
    assert time.monotonic() - began < QUOTA_OUT_S
    time.sleep(began + QUOTA_OUT_S - time.monotonic())
    assert served(made.ask(hi(model="only-a"))) == ("a1", 1)


def test_what_the_upstream_itself_says_and_what_is_said_for_it_are_the_same(made: Fleet) -> None:
    made.upstreams["a1"].add(QUOTA)
    asked, told = made.ask(hi(model="only-a")), made.ask(hi(model="only-a"))
    assert (asked.status, asked.error) == (told.status, told.error)
    assert asked.headers["x-should-retry"] == told.headers["x-should-retry"]


def test_a_refused_key_is_out_until_the_configuration_is_read_again(made: Fleet) -> None:
    made.upstreams["b"].add({"status": 401, "json": {"error": {"message": "Invalid key sk-fleet-upstream"}}})
    made.upstreams["a1"].add(OK, OK)
    assert served(made.ask(hi(model="first-b"))) == ("a1", 2)
    time.sleep(max(QUOTA_OUT_S, OPEN_S) / 3)
    before = made.calls("b")
    assert served(made.ask(hi(model="first-b"))) == ("a1", 1)
    refused = made.ask(hi(model="just-b"))
    assert (refused.status, refused.error["code"], made.calls("b")) == (502, "upstream_auth", before)
    assert b"sk-fleet" not in refused.raw
    made.heal()
    made.upstreams["b"].add(OK)
    assert served(made.ask(hi(model="just-b"))) == ("b", 1)


# --- rates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["seconds", "date", "words"])
def test_a_rate_that_ends_soon_is_waited_for_where_nobody_else_can_serve(made: Fleet, form: str) -> None:
    limited = {
        "seconds": rate("1"),
        "date": rate(formatdate(time.time() + 2, usegmt=True)),
        "words": rate(words="Your account reached max RPM: 3, please try again after 1 seconds"),
    }[form]
    made.upstreams["a1"].add(limited, OK, OK)
    made.upstreams["b"].add(OK)
    with ThreadPoolExecutor(1) as pool:
        before = made.calls("a1")
        first = pool.submit(made.ask, hi(model="only-a"))
        made.upstreams["a1"].wait_for_requests(before + 1)
        time.sleep(0.15)
        assert served(made.ask(hi(model="all"))) == ("b", 1)  # others do not wait
        waiting = made.ask(hi("another", model="only-a"))
        row, own = made.rows(waiting, first.result())
    assert served(waiting) == ("a1", 1)
    assert row.wait_ms >= 300
    assert [(one.target, one.fault) for one in own.attempts] == [("a1", "rate"), ("a1", None)]


def test_a_stream_that_waits_for_a_rate_has_keep_alives(made: Fleet) -> None:
    before = made.calls("a1")
    made.upstreams["a1"].add(rate("1"), OK, {"status": 200, "sse_text": said("whole")})
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(made.ask, hi(model="only-a"))
        made.upstreams["a1"].wait_for_requests(before + 1)
        time.sleep(0.15)
        heard = made.ask(hi(model="only-a", stream=True))
        assert first.result().status == 200
    assert heard.comments >= 2
    assert (heard.error, heard.done) == (None, True)


@pytest.mark.parametrize("form", ["seconds", "date", "words"])
def test_a_rate_that_ends_late_is_the_answer_where_nobody_else_can_serve(made: Fleet, form: str) -> None:
    limited = {
        "seconds": rate("60"),
        "date": rate(formatdate(time.time() + 60, usegmt=True)),
        "words": rate(words="please try again after 60 seconds"),
    }[form]
    before = calls(made)
    made.upstreams["a1"].add(limited)
    made.upstreams["b"].add(OK)
    asked, told = made.ask(hi(model="only-a")), made.ask(hi(model="only-a"))
    for heard in (asked, told):
        assert (heard.status, heard.error["type"]) == (429, "rate_limit_reached_error")
        assert 57 <= int(heard.headers["retry-after"]) <= 60
        assert heard.headers["x-should-retry"] == "false"
    assert served(made.ask(hi(model="all"))) == ("b", 1)
    assert [now - then for now, then in zip(calls(made), before, strict=True)] == [1, 0, 1]


# --- a crowd ----------------------------------------------------------------------------------------------------


def refused_together(made: Fleet, model: str, answer: Mapping[str, Any], *, serves: str) -> list[Heard]:
    """What a crowd hears whose requests are all at target b when it refuses each of them once with this answer."""
    crowd = Crowd(answer=answer, gate=threading.Event())
    made.upstreams["b"].add(*[crowd] * CROWD)
    with ThreadPoolExecutor(CROWD) as pool:
        asked = [pool.submit(made.ask, hi(f"{number}", model)) for number in range(CROWD)]
        assert becomes_true(lambda: crowd.now == CROWD)
        made.upstreams[serves].add(*[OK] * CROWD)
        assert crowd.gate is not None
        crowd.gate.set()
        return [one.result() for one in asked]


@pytest.mark.parametrize("kind", ["rate_limit_reached_error", "engine_overloaded_error"])
def test_a_crowd_refused_with_the_time_to_come_back_is_served_then(made: Fleet, kind: str) -> None:
    """More than the budget for further attempts: who waits as he was told is no storm."""
    answer = {**rate("1"), "json": {"error": {"type": kind, "message": "slow down"}}}
    heard = refused_together(made, "just-b", answer, serves="b")
    assert Counter(served(one) for one in heard) == {("b", 2): CROWD}


def test_a_crowd_refused_without_a_time_is_served_elsewhere(made: Fleet) -> None:
    """Some try again, as many as the budget for further attempts allows; the others move on at once."""
    answer = {"status": 429, "json": {"error": {"type": "engine_overloaded_error", "message": "busy"}}}
    made.upstreams["a1"].add(*[OK] * CROWD)
    heard = refused_together(made, "first-b", answer, serves="b")
    by = Counter(served(one) for one in heard)
    assert set(by) == {("b", 2), ("a1", 2)}
    assert by["b", 2] <= 12


# --- the breaker ------------------------------------------------------------------------------------------------


def broken(made: Fleet, name: str = "b") -> float:
    """Opens the breaker of a target; since when it is open."""
    made.upstreams[name].add(*[RESET] * FAILURES)
    heard = [made.ask(hi(model=f"just-{name}")) for _ in range(FAILURES)]
    assert [one.status for one in heard] == [502] * FAILURES
    return time.monotonic()


def test_one_success_between_failures_keeps_the_breaker_closed(made: Fleet) -> None:
    made.upstreams["b"].add(RESET, RESET, OK, RESET, RESET, OK)
    assert [made.ask(hi(model="just-b")).status for _ in range(6)] == [502, 502, 200, 502, 502, 200]


def test_what_is_not_the_upstream_s_fault_does_not_open_it(made: Fleet) -> None:
    bad = {"status": 400, "json": {"error": {"type": "invalid_request_error", "message": "no"}}}
    made.upstreams["b"].add(*[bad] * (FAILURES + 2))
    assert [made.ask(hi(model="just-b")).status for _ in range(FAILURES + 2)] == [400] * (FAILURES + 2)
    made.upstreams["b"].add(OK)
    assert served(made.ask(hi(model="just-b"))) == ("b", 1)


def test_so_many_failures_in_a_row_open_the_breaker(made: Fleet) -> None:
    since_s = broken(made)
    before = made.calls("b")
    heard = made.ask(hi(model="just-b"))
    assert time.monotonic() - since_s < OPEN_S
    assert (heard.status, heard.error["type"], heard.error["code"]) == (503, "upstream_error", "no_target")
    assert (heard.headers["retry-after"], heard.headers["x-should-retry"]) == ("1", "true")
    made.upstreams["a1"].add(OK)
    assert served(made.ask(hi(model="first-b"))) == ("a1", 1)
    assert made.calls("b") == before


# The targets of the rest fail together and are half open together: nobody reads the configuration again.


@pytest.fixture(scope="module")
def half_open(shared: Fleet) -> Fleet:
    """The fleet, the breakers of four targets half open."""
    since_s = max(together(lambda name: broken(shared, name), PROBED))
    assert shared.ask(hi(model=f"just-{PROBED[0]}")).status == 503
    time.sleep(since_s + OPEN_S + 0.05 - time.monotonic())
    return shared


def test_half_open_admits_one_request_and_the_others_go_elsewhere_or_hear_so(half_open: Fleet) -> None:
    made, before = half_open, half_open.calls("probed")
    crowd = Crowd(gate=threading.Event())
    made.upstreams["probed"].add(crowd)
    made.upstreams["a1"].add(*[OK] * 3)
    with ThreadPoolExecutor(1) as pool:
        probe = pool.submit(made.ask, hi("the probe", model="just-probed"))
        assert becomes_true(lambda: crowd.now == 1)
        others = together(made.ask, [hi(model="just-probed")] * 3)
        elsewhere = together(made.ask, [hi(model="first-probed")] * 3)
        assert crowd.gate is not None
        crowd.gate.set()
        assert served(probe.result()) == ("probed", 1)
    assert [(one.status, one.error["code"]) for one in others] == [(503, "no_target")] * 3
    assert {one.headers["retry-after"] for one in others} == {"1"}
    assert [served(one) for one in elsewhere] == [("a1", 1)] * 3
    assert made.calls("probed") == before + 1
    made.upstreams["probed"].add(*[OK] * 3)
    assert {served(one) for one in together(made.ask, [hi(model="just-probed")] * 3)} == {("probed", 1)}


def test_a_crowd_at_the_moment_it_is_half_open_sends_one_probe(half_open: Fleet) -> None:
    made, before = half_open, half_open.calls("crowded")
    crowd = Crowd(0.3)
    made.upstreams["crowded"].add(crowd)
    made.upstreams["a1"].add(*[OK] * 8)
    found = together(made.ask, [hi(model="first-crowded")] * 8)
    assert sorted(served(one) for one in found) == [("a1", 1)] * 7 + [("crowded", 1)]
    assert (made.calls("crowded"), crowd.most) == (before + 1, 1)


def test_a_probe_that_fails_opens_it_again(half_open: Fleet) -> None:
    half_open.upstreams["worse"].add(RESET)
    assert half_open.ask(hi(model="just-worse")).status == 502
    before = half_open.calls("worse")
    assert (half_open.ask(hi(model="just-worse")).status, half_open.calls("worse")) == (503, before)


def test_a_client_that_leaves_during_the_probe_makes_way_for_the_next(half_open: Fleet) -> None:
    made = half_open
    made.upstreams["forsaken"].add(nothing)
    with Talk(made.gateway.base_url, hi(model="just-forsaken", stream=True)) as talk:
        talk.until(b": ")
        assert made.ask(hi(model="just-forsaken")).status == 503
        request_id = talk.headers["x-kimi-request-id"]
    made.upstreams["forsaken"].wait_for_disconnect()
    made.upstreams["forsaken"].add(OK)
    assert becomes_true(lambda: made.ask(hi(model="just-forsaken")).status == 200, 0.8)
    (left,) = rows_of(ledger_url(made.gateway), [request_id])
    assert left.status == "client_disconnected"
