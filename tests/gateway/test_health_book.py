"""Which targets are out after which fault, for how long, and what a reload forgets."""

from dataclasses import replace

import pytest

from backends.faults import Fault, FaultKind
from kimi_gateway.core.routing import breaker
from kimi_gateway.core.routing.facts import Out
from kimi_gateway.core.routing.health import LONGEST_RATE_S, HealthBook, Member, Rules
from kimi_gateway.core.routing.health_notice import Notice, read, written

RULES = Rules(breaker.Rules(failures=2, open_s=30, probe_s=30), quota_out_s=300)
A1 = Member("a1", "acme", "login-0", "0a0a0a")
A2 = Member("a2", "acme", "login-1", "0b0b0b")
SAME_KEY = Member("b", "other", "login-0", "0c0c0c")
ENGINE = Member("vllm", "vllm", "login-2", "0d0d0d")
EVERYBODY = (A1, A2, SAME_KEY, ENGINE)

QUOTA = Fault(FaultKind.QUOTA, "account suspended", 429, "exceeded_current_quota_error")
AUTH = Fault(FaultKind.AUTH, "Unauthorized", 401)
FORBIDDEN = Fault(FaultKind.AUTH, "not this model", 403)
RATE = Fault(FaultKind.RATE, "slow down", 429)
OVERLOAD = Fault(FaultKind.OVERLOAD, "engine busy", 429)
BROKEN = Fault(FaultKind.SERVER, "broken", 500)


def book(*members: Member, rules: Rules = RULES) -> HealthBook:
    made = HealthBook()
    made.configure(members or EVERYBODY, rules, 0)
    made.take_news()
    return made


def out_at(held: HealthBook, now_s: float) -> list[str]:
    return [member.target for member in EVERYBODY if held.out(member.target, now_s) is not None]


def test_an_empty_account_takes_out_all_its_targets_for_its_time() -> None:
    held = book()
    held.failed("a1", QUOTA, 10)
    assert out_at(held, 10) == ["a1", "a2"]
    assert held.out("a2", 309.9) == Out(QUOTA, 310)
    assert out_at(held, 310) == []


def test_a_refused_key_takes_out_all_who_use_it_at_that_host_until_the_configuration_is_read_again() -> None:
    held = book()
    held.failed("a1", AUTH, 0)
    assert out_at(held, 1e9) == ["a1", "b"]
    assert held.out("b", 1e9) == Out(AUTH, None)
    held.configure(EVERYBODY, RULES, 1e9)
    assert out_at(held, 1e9) == []


def test_a_403_takes_out_the_target_alone() -> None:
    held = book()
    held.failed("a1", FORBIDDEN, 0)
    assert out_at(held, 1e9) == ["a1"]


def test_a_named_rate_cools_the_account_down_until_then_and_says_what_is_left() -> None:
    held = book()
    held.failed("a1", replace(RATE, retry_after_s=20), 0)
    assert out_at(held, 19.9) == ["a1", "a2"]
    found = held.out("a2", 15)
    assert found == Out(replace(RATE, retry_after_s=5), 20)
    held.failed("a2", replace(RATE, retry_after_s=1), 2)
    assert out_at(held, 19.9) == ["a1", "a2"], "a shorter wait does not end a longer one"
    assert out_at(held, 20) == []


def test_a_rate_that_names_years_is_asked_again_after_an_hour() -> None:
    held = book()
    held.failed("a1", replace(RATE, retry_after_s=1e9), 0)
    assert out_at(held, LONGEST_RATE_S - 1) == ["a1", "a2"]
    assert out_at(held, LONGEST_RATE_S) == []


def test_an_unnamed_rate_cools_down_briefly_and_grows_once_for_a_crowd() -> None:
    held = book()
    now_s, spans = 0.0, []
    for _ in range(6):
        for _ in range(100):
            held.failed("a1", RATE, now_s)
        found = held.out("a2", now_s)
        assert found is not None
        assert found.until_s is not None
        spans.append(found.until_s - now_s)
        now_s = found.until_s
    assert spans == [0.5, 1, 2, 4, 8, 8]
    held.succeeded("a2", now_s)
    held.failed("a1", RATE, now_s)
    assert out_at(held, now_s + 0.5) == []


def test_an_overload_takes_out_the_target_only_where_it_names_a_time() -> None:
    held = book()
    for _ in range(10):
        held.failed("a1", OVERLOAD, 0)
    assert out_at(held, 0) == []
    held.failed("a1", replace(OVERLOAD, retry_after_s=3), 0)
    assert out_at(held, 2.9) == ["a1"]
    assert out_at(held, 3) == []


@pytest.mark.parametrize("kind", [FaultKind.REQUEST, FaultKind.FILTER, FaultKind.CONTEXT])
def test_a_requests_own_faults_take_nobody_out(kind: FaultKind) -> None:
    held = book()
    for _ in range(20):
        held.failed("a1", Fault(kind, "x", 400), 0)
    assert out_at(held, 0) == []


def test_a_broken_target_is_out_alone_and_comes_back_through_one_probe() -> None:
    held = book()
    for name in ("x", "y"):
        assert held.begin("vllm", 0, name)
        held.failed("vllm", BROKEN, 0, name)
    assert held.out("vllm", 29) == Out(BROKEN, 30)
    assert out_at(held, 29) == ["vllm"]
    assert not held.begin("vllm", 29, "early")
    assert held.out("vllm", 30) is None
    assert held.begin("vllm", 30, "probe")
    assert held.out("vllm", 31) == Out(BROKEN, 60, probing=True)
    assert not held.begin("vllm", 31, "second")
    held.succeeded("vllm", 40, "probe")
    assert held.out("vllm", 40) is None
    assert held.begin("vllm", 40, "third")


def test_without_names_of_attempts_the_end_of_any_counts_for_the_probe() -> None:
    held = book()
    held.failed("vllm", BROKEN, 0)
    held.failed("vllm", BROKEN, 0)
    assert held.begin("vllm", 30)
    held.given_up("vllm")
    assert held.begin("vllm", 31)
    assert not held.begin("vllm", 31)
    held.succeeded("vllm", 32)
    assert held.begin("vllm", 32)


def test_the_gravest_reason_is_told() -> None:
    held = book()
    held.failed("a1", replace(RATE, retry_after_s=100), 0)
    assert (held.out("a1", 1) or Out(BROKEN, 0)).fault.kind is FaultKind.RATE
    held.failed("a1", BROKEN, 0)
    held.failed("a1", BROKEN, 0)
    assert (held.out("a1", 1) or Out(BROKEN, 0)).fault == BROKEN
    held.failed("a1", QUOTA, 0)
    assert (held.out("a1", 1) or Out(BROKEN, 0)).fault == QUOTA
    held.failed("a1", AUTH, 0)
    assert (held.out("a1", 1) or Out(BROKEN, 0)).fault == AUTH


def test_unknown_names_raise_nothing_and_leave_nothing() -> None:
    held = book(A1)
    for fault in (QUOTA, AUTH, RATE, BROKEN, BROKEN, OVERLOAD):
        assert held.begin("gone", 0, "x")
        held.failed("gone", fault, 0, "x")
    held.succeeded("gone", 0)
    held.given_up("gone")
    held.found_gone("gone", BROKEN, 0)
    held.found_there("gone", 0)
    held.heard(Notice("quota", "gone", "0a0a0a", QUOTA, 10), 0)
    assert held.out("gone", 0) is None
    assert out_at(held, 0) == []
    assert not held.has_news


def test_a_reload_tries_everything_again_here_and_elsewhere() -> None:
    held, other = book(), book()
    for member in (A1, ENGINE):
        held.failed(member.target, BROKEN, 0)
        held.failed(member.target, BROKEN, 0)
    held.failed("a2", QUOTA, 0)
    tell(held, other, 0)
    assert held.out("a1", 1) is not None
    assert other.out("a2", 1) is not None
    held.configure((A1, A2, ENGINE), RULES, 1)
    assert out_at(held, 1) == []
    tell(held, other, 1)
    assert other.out("a2", 1) is None
    assert other.begin("vllm", 1, "probe"), "a breaker that was closed elsewhere lets one request try"


def test_an_attempt_with_a_replaced_key_says_nothing_of_the_new_one() -> None:
    held = book()
    assert held.begin("a1", 0, "old")
    held.configure((replace(A1, identity="ffffff"), A2, ENGINE), RULES, 1)
    held.failed("a1", AUTH, 2, "old")
    assert out_at(held, 2) == []
    assert held.begin("a1", 3, "new")
    held.failed("a1", AUTH, 4, "new")
    assert out_at(held, 4) == ["a1"]


def test_a_target_that_was_found_gone_is_out_until_it_is_found_there() -> None:
    held = book()
    refused = Fault(FaultKind.CONNECT, "connection refused")
    held.found_gone("vllm", refused, 0)
    assert held.out("vllm", 2) == Out(refused, 30)
    held.found_there("vllm", 4)
    assert held.out("vllm", 4) is None
    assert held.begin("vllm", 4, "a")
    assert not held.begin("vllm", 4, "b")


def tell(one: HealthBook, other: HealthBook, now_s: float) -> list[str]:
    """Tells one book's news to the other, written down and read again; what about."""
    news = one.take_news()
    for notice in news:
        found = read(written(notice), notice.until_s if notice.until_s is not None else 0.0)
        assert found is not None
        other.heard(found, now_s)
    return [notice.place for notice in news]


def test_what_one_process_learns_another_knows() -> None:
    one, other = book(), book()
    one.failed("a1", QUOTA, 0)
    one.failed("a1", AUTH, 0)
    one.failed("vllm", replace(OVERLOAD, retry_after_s=5), 0)
    one.failed("b", replace(RATE, retry_after_s=7), 0)
    one.failed("vllm", BROKEN, 0)
    one.failed("vllm", BROKEN, 0)
    assert len(tell(one, other, 0)) == 5
    for target in ("a1", "a2", "b", "vllm"):
        for at_s in (0.0, 6.0, 8.0, 29.0, 299.0, 301.0):
            mine, theirs = one.out(target, at_s), other.out(target, at_s)
            assert (mine is None) == (theirs is None), (target, at_s)
            if mine is not None and theirs is not None:
                assert (mine.until_s, mine.fault.kind) == (theirs.until_s, theirs.fault.kind)
                assert mine.fault.message == theirs.fault.message


def test_a_breaker_that_closes_in_one_process_lets_one_request_try_in_the_other() -> None:
    one, other = book(), book()
    one.failed("vllm", BROKEN, 0)
    one.failed("vllm", BROKEN, 0)
    assert tell(one, other, 0) == ["breaker|vllm"]
    assert other.out("vllm", 29) == Out(BROKEN, 30)
    assert one.begin("vllm", 30, "probe")
    one.succeeded("vllm", 31, "probe")
    assert tell(one, other, 31) == ["breaker|vllm"]
    assert other.begin("vllm", 31, "a")
    assert not other.begin("vllm", 31, "b")
    assert not other.has_news, "what was heard is not told again"


def test_a_reload_in_one_process_ends_what_waited_for_it_in_others_with_the_same_key() -> None:
    one, same = book(), book()
    another_key = book(replace(A1, identity="ffffff"))
    for held in (one, same, another_key):
        held.failed("a1", AUTH, 0)
        held.take_news()
    one.configure(EVERYBODY, RULES, 1)
    news = one.take_news()
    for notice in news:
        same.heard(notice, 1)
        another_key.heard(notice, 1)
    assert same.out("a1", 1) is None
    assert another_key.out("a1", 1) == Out(AUTH, None)


def test_news_of_a_target_that_is_another_one_here_are_not_taken() -> None:
    one, other = book(), book(replace(A1, identity="ffffff"))
    one.failed("a1", QUOTA, 0)
    tell(one, other, 0)
    assert other.out("a1", 0) is None


def test_news_that_could_not_be_told_yield_to_newer_ones() -> None:
    held = book()
    held.failed("a1", replace(RATE, retry_after_s=5), 0)
    old = held.take_news()
    held.failed("a1", replace(RATE, retry_after_s=50), 1)
    held.untold(old)
    (kept,) = held.take_news()
    assert kept.until_s == 51


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"why":"quota"}',
        b'{"why":"weather","target":"a","identity":"b"}',
        b'{"why":"quota","target":"a","identity":"b","kind":"rain"}',
        b"\xff",
    ],
)
def test_what_is_no_notice_is_none(data: bytes) -> None:
    assert read(data, 1.0) is None


def test_a_quota_of_no_time_takes_nobody_out() -> None:
    held = book(rules=replace(RULES, quota_out_s=0))
    held.failed("a1", QUOTA, 0)
    assert out_at(held, 0) == []
