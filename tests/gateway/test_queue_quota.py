"""Limits of accounts: what their targets share, what they allow by the minute, what changes while requests run."""

from dataclasses import replace
from itertools import pairwise

import pytest

from kimi_gateway.core.routing.facts import Place, Quota, Ticket
from kimi_gateway.core.routing.queue_account import Moment
from kimi_gateway.core.routing.queue_book import QueueBook
from kimi_gateway.core.routing.queue_quota import AccountQuotas, share_of, smallest


def place(quota: Quota, target: str = "x") -> Place:
    return Place(target, "A", quota)


def ask(book: QueueBook, name: str, place: Place) -> object:
    return book.enter(Ticket(name, "k", 1, (place,)), Moment(0, 0), patience_s=1e6)


def granted(book: QueueBook) -> list[str]:
    return [name for name, _ in book.take_granted()]


def test_the_smallest_limit_of_an_accounts_targets_counts_for_all_of_them() -> None:
    book = QueueBook(AccountQuotas().of, 100)
    assert ask(book, "a", place(Quota(concurrency=3), target="x")) is not None
    assert ask(book, "b", place(Quota(concurrency=2, rpm=9), target="y")) is not None
    assert ask(book, "c", place(Quota(concurrency=3), target="x")) is None
    assert smallest([Quota(concurrency=3), Quota(concurrency=2, rpm=9), Quota()]) == Quota(concurrency=2, rpm=9)
    assert smallest([]) == Quota()
    assert share_of(Quota(concurrency=50, rpm=1), 4) == Quota(concurrency=12, rpm=1)


def test_declared_targets_count_before_they_are_asked_for_and_no_more_when_they_are_gone() -> None:
    quotas = AccountQuotas()
    x, y = place(Quota(concurrency=5), target="x"), place(Quota(concurrency=2), target="y")
    quotas.declare([x, y])
    assert quotas.of(x) == Quota(concurrency=2)
    quotas.declare([x])
    assert quotas.of(x) == Quota(concurrency=5)
    assert quotas.of(replace(x, quota=Quota(rpm=7))) == Quota(concurrency=5)  # it was planned before the change
    assert quotas.of(replace(x, account="other", quota=Quota(rpm=7))) == Quota(rpm=7)
    assert [quotas.of_account(name) for name in ("A", "other", "none")] == [Quota(5), Quota(rpm=7), None]


def test_a_lower_limit_counts_from_the_next_request_on() -> None:
    book = QueueBook(AccountQuotas().of, 100)
    for number in range(3):
        ask(book, f"r{number}", place(Quota(concurrency=3)))
    assert ask(book, "next", place(Quota(concurrency=2))) is None
    for number, expected in enumerate([[], ["next"]]):
        book.leave(f"r{number}", None, Moment(0, 0))
        assert granted(book) == expected


def test_a_bucket_lets_a_minutes_worth_through_at_once_and_the_rest_evenly() -> None:
    book, minute = QueueBook(AccountQuotas().of, 100), place(Quota(rpm=6))
    for number in range(9):
        ask(book, f"r{number}", minute)
    times = [0.0]
    while book.waiting:
        due_s = book.next_s(Moment(times[-1], times[-1]))
        assert due_s is not None
        times.append(due_s)
        book.serve(Moment(times[-1], times[-1]))
        assert len(granted(book)) == 1
    assert [after - before for before, after in pairwise(times)] == pytest.approx([10, 10, 10])
