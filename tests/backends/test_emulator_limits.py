"""The limits of an account: within them nothing is refused, beyond them everything is, in the platform's words."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.emulator.limits import TIERS, Account, Limits, Reached, Usage
from support.misbehaving import Heard, Upstream, misbehaving


def admitted(account: Account, tokens: int, now_s: float) -> Usage:
    found = account.admit(tokens, now_s)
    assert isinstance(found, Usage)
    return found


def refused(account: Account, tokens: int, now_s: float) -> Reached:
    found = account.admit(tokens, now_s)
    assert isinstance(found, Reached)
    return found


def test_requests_at_once_are_limited_until_one_ends() -> None:
    account = Account(Limits(concurrency=2))
    first = admitted(account, 1, 0)
    admitted(account, 1, 0)
    assert refused(account, 1, 0) == Reached("concurrency", 2, 3, 1)
    account.ended(first, 1)
    account.ended(first, 1)  # again: frees nothing more
    admitted(account, 1, 0)
    assert refused(account, 1, 0).limit == "concurrency"


def test_requests_a_minute_come_free_one_by_one() -> None:
    account = Account(Limits(rpm=2))
    admitted(account, 1, 1000)
    admitted(account, 1, 1020)
    assert refused(account, 1, 1030.5) == Reached("rpm", 2, 3, 30)
    admitted(account, 1, 1060)
    assert refused(account, 1, 1061).wait_s == 19


def test_tokens_count_as_the_limit_until_the_end_and_as_what_was_used_then() -> None:
    account = Account(Limits(tpm=1000))
    first = admitted(account, 900, 0)
    assert refused(account, 200, 1) == Reached("tpm", 1000, 1100, 59)
    account.ended(first, 100)
    admitted(account, 200, 1)
    assert refused(account, 701, 1).current == 1001


def test_a_request_that_never_fits_is_told_a_whole_minute() -> None:
    assert refused(Account(Limits(tpm=10)), 11, 0).wait_s == 60


def test_tokens_a_day_come_back_at_midnight() -> None:
    account = Account(Limits(tpd=100))
    admitted(account, 90, 86_399 - 3600)
    assert refused(account, 11, 86_399) == Reached("tpd", 100, 101, 1)
    admitted(account, 100, 86_400)


def test_what_ends_after_midnight_takes_nothing_back_from_the_new_day() -> None:
    account = Account(Limits(tpd=100))
    yesterday = admitted(account, 90, 86_399)
    admitted(account, 50, 86_401)
    account.ended(yesterday, 1)
    assert refused(account, 51, 86_402).current == 101


STEPS = st.lists(
    st.tuples(st.integers(0, 400), st.floats(0, 40), st.booleans(), st.integers(0, 300)), min_size=1, max_size=40
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, limits=st.builds(Limits, *[st.integers(0, n) for n in (3, 5, 900, 3000)]))
def test_no_window_ever_holds_more_than_its_limit(
    steps: list[tuple[int, float, bool, int]], limits: Limits
) -> None:
    account = Account(limits)
    taken: list[Usage] = []
    now_s = 86_400.0 * 100
    for tokens, later_s, ends, used in steps:
        now_s += later_s
        found = account.admit(tokens, now_s)
        if isinstance(found, Usage):
            taken.append(found)
        else:
            assert found.current > found.most == getattr(limits, found.limit) > 0
            assert found.wait_s >= 1
        if ends and taken:
            account.ended(taken[-1], min(used, taken[-1].tokens))
        minute = [usage for usage in taken if usage.at_s > now_s - 60]
        assert not limits.concurrency or sum(usage.open for usage in taken) <= limits.concurrency
        assert not limits.rpm or len(minute) <= limits.rpm
        assert not limits.tpm or sum(usage.tokens for usage in minute) <= limits.tpm
        day = sum(usage.tokens for usage in taken if usage.at_s // 86_400 == now_s // 86_400)
        assert not limits.tpd or day <= limits.tpd


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(1, 200))
def test_waiting_as_told_is_enough_for_requests_and_tokens(sizes: list[int], tpm: int) -> None:
    account = Account(Limits(rpm=5, tpm=tpm))
    now_s = 0.0
    for tokens in sizes:
        found = account.admit(tokens, now_s)
        waits = 0
        while isinstance(found, Reached) and tokens <= tpm:
            waits += 1
            assert waits <= 5
            now_s += found.wait_s
            found = account.admit(tokens, now_s)


def test_the_tiers_are_the_platforms() -> None:
    assert TIERS[0] == Limits(1, 3, 500_000, 1_500_000)
    assert [TIERS[tier].rpm for tier in sorted(TIERS)] == [3, 200, 500, 5_000, 5_000, 10_000]
    assert [TIERS[tier].concurrency for tier in sorted(TIERS)] == [1, 50, 100, 200, 400, 1_000]


# --- over a socket --------------------------------------------------------------------------------------------


@pytest.fixture
def three_a_minute() -> Iterator[Upstream]:
    with misbehaving("[limits]\nrpm = 3") as held:
        yield held


def key(name: str) -> str:
    return f"authorization: Bearer {name}\r\n"


BODY = b'{"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 100}'


def test_the_fourth_request_in_a_minute_is_a_429_that_costs_nothing(three_a_minute: Upstream) -> None:
    answers = [three_a_minute.ask() for _ in range(4)]
    assert [heard.status for heard in answers] == [200, 200, 200, 429]
    assert [heard.headers["x-ratelimit-remaining"] for heard in answers] == ["2", "1", "0", "0"]
    error = answers[-1].json["error"]
    assert error["type"] == "rate_limit_reached_error"
    assert "request reached organization max RPM: 3, please try again after" in error["message"]
    assert len(three_a_minute.lines()) == 3
    three_a_minute.control("/emulator/clock", '{"advance_s": 61}')
    assert three_a_minute.ask().status == 200


def test_each_organisation_has_limits_of_its_own() -> None:
    organisations = {"a": "one", "b": "one", "c": "two"}
    with misbehaving("[limits]\nrpm = 1", organisations=organisations) as held:
        told = [held.send(BODY, headers=key(name)).status for name in ("a", "b", "c")]
    assert told == [200, 429, 200]


def test_tokens_are_judged_by_prompt_and_limit() -> None:
    with misbehaving("[limits]\ntpm = 5000") as held:
        assert held.ask(max_completion_tokens=6_000).status == 429
        assert held.ask(max_completion_tokens=1_000).status == 200
        assert held.ask(max_completion_tokens=4_000).status == 200  # the one before took far fewer than its limit
        error = held.ask(max_completion_tokens=4_900).json["error"]
    assert "TPM rate limit, current: " in error["message"]
    assert "limit: 5000" in error["message"]


def at_once(count: int, ask: Callable[[], Heard]) -> list[Heard]:
    heard: list[Heard] = []
    threads = [threading.Thread(target=lambda: heard.append(ask())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return heard


def test_too_many_requests_at_once_are_a_429_and_later_ones_are_not() -> None:
    with misbehaving("[limits]\nconcurrency = 2", min_duration_s=0.4) as held:
        heard = at_once(4, lambda: held.ask(stream=True))
        assert sorted(answer.status for answer in heard) == [200, 200, 429, 429]
        told = next(answer.json["error"]["message"] for answer in heard if answer.status == 429)
        assert "max concurrency: 2, please try again after 1 seconds" in told
        assert held.ask().status == 200


def test_a_client_that_leaves_frees_its_place() -> None:
    with misbehaving("[limits]\nconcurrency = 1", min_duration_s=5.0) as held:
        assert held.ask(listen_s=0.1).end == "open"  # and is gone
        deadline_s = time.monotonic() + 5
        while not held.control("/emulator/requests")["requests"][-1]["finished"]:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        assert held.ask(listen_s=0.1).end == "open"  # taken in, not refused


@pytest.mark.parametrize(("dialect", "status"), [("vllm", 503), ("sglang", 503)])
def test_an_engine_with_too_many_requests_has_a_full_queue(dialect: str, status: int) -> None:
    with misbehaving("[limits]\nconcurrency = 1", dialect=dialect, min_duration_s=0.4) as held:
        plain = at_once(2, lambda: held.ask())
        streamed = at_once(2, lambda: held.ask(stream=True))
    assert sorted(answer.status for answer in plain) == [200, status]
    if dialect == "sglang":
        assert {answer.status for answer in streamed} == {200}
        assert [event for answer in streamed for event in answer.events if "error" in event] == [
            {
                "error": {
                    "object": "error",
                    "message": "The request queue is full.",
                    "type": "SERVICE_UNAVAILABLE",
                    "param": None,
                    "code": 503,
                }
            }
        ]
    else:
        assert sorted(answer.status for answer in streamed) == [200, status]


def test_an_account_without_money_is_refused_where_that_is_wanted() -> None:
    with misbehaving("[service]\nbalance_usd = '0.000001'\nenforce_balance = true") as held:
        assert [held.ask().status for _ in range(2)] == [200, 429]
        assert held.ask().json["error"]["type"] == "exceeded_current_quota_error"
        assert len(held.lines()) == 1
    with misbehaving("[service]\nbalance_usd = '0.000001'") as held:
        assert [held.ask().status for _ in range(2)] == [200, 200]
