"""The queue for places: never above a limit, fair between keys, in order within one, and nothing is left over."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_gateway.core.routing.facts import Place, Quota, Refused, Ticket
from kimi_gateway.core.routing.queue_account import DAY_S, Moment
from kimi_gateway.core.routing.queue_book import QueueBook
from kimi_gateway.core.routing.queue_quota import AccountQuotas

NOON_S = DAY_S * 20_000 + DAY_S / 2
LONG_S = 1e6


def at(seconds: float) -> Moment:
    return Moment(100 + seconds, NOON_S + seconds)


def book_of(most: int = 1000) -> QueueBook:
    return QueueBook(AccountQuotas().of, most)


def place(quota: Quota, account: str = "A", target: str = "", not_before_s: float = 0.0) -> Place:
    return Place(target or account.lower(), account, quota, 100 + not_before_s if not_before_s else 0.0)


def ask(book: QueueBook, name: str, *places: Place, key: str = "k", tokens: int = 1, now_s: float = 0.0) -> object:
    return book.enter(Ticket(name, key, tokens, places), at(now_s), patience_s=LONG_S)


def is_refused(found: object, reason: str, retry_after_s: float) -> bool:
    """Whether it is a refusal for that reason that says roughly this."""
    if not isinstance(found, Refused):
        return False
    return found.reason == reason and found.retry_after_s == pytest.approx(retry_after_s)


def granted(book: QueueBook) -> list[str]:
    return [name for name, _ in book.take_granted()]


# --- a model that is slow and plain ---------------------------------------------------------------------------


class Plain:
    """The rules again, with nothing but lists: everything is looked through each time."""

    def __init__(self, quotas: dict[str, Quota]) -> None:
        self.quotas = quotas
        self.held: dict[str, tuple[str, int]] = {}
        self.waiters: list[Ticket] = []  # as they came
        self.turns: dict[str, list[str]] = {name: [] for name in quotas}  # keys, whose turn it is first
        self.levels = {name: [float(quota.rpm), float(quota.tpm)] for name, quota in quotas.items()}
        self.filled_s = 0.0

    def fits(self, account: str, tokens: int) -> bool:
        quota, (requests, left) = self.quotas[account], self.levels[account]
        running = sum(1 for name, _ in self.held.values() if name == account)
        return (
            (not quota.concurrency or running < quota.concurrency)
            and (not quota.rpm or requests >= 1 - 1e-6)
            and (not quota.tpm or left >= min(max(1, tokens), quota.tpm) - 1e-6)
        )

    def turn(self, account: str) -> Ticket | None:
        waits = [ticket for ticket in self.waiters if account in {place.account for place in ticket.places}]
        ring = self.turns[account]
        ring[:] = [key for key in ring if any(ticket.key == key for ticket in waits)]
        ring += dict.fromkeys(ticket.key for ticket in waits if ticket.key not in ring)
        return next((ticket for ticket in waits if ticket.key == ring[0]), None) if ring else None

    def take(self, ticket: Ticket, account: str) -> None:
        quota = self.quotas[account]
        tokens = min(max(1, ticket.tokens), quota.tpm)
        self.held[ticket.id] = (account, tokens)
        self.levels[account][0] -= 1
        self.levels[account][1] -= tokens

    def enter(self, ticket: Ticket) -> str | None:
        for one in ticket.places:
            if self.turn(one.account) is None and self.fits(one.account, ticket.tokens):
                self.take(ticket, one.account)
                return one.account
        self.waiters.append(ticket)
        return None

    def serve(self) -> dict[str, str]:
        """Who gets which account now."""
        all_given: dict[str, str] = {}
        while given := self.serve_once():
            all_given |= given
        return all_given

    def serve_once(self) -> dict[str, str]:
        given: dict[str, str] = {}
        for account in sorted(self.quotas):
            while (ticket := self.turn(account)) is not None and self.fits(account, ticket.tokens):
                accounts = [one.account for one in ticket.places]
                mine = next(
                    name
                    for name in accounts
                    if name == account or (self.turn(name) is ticket and self.fits(name, ticket.tokens))
                )
                self.waiters.remove(ticket)
                self.turns[mine].remove(ticket.key)
                self.take(ticket, mine)
                given[ticket.id] = mine
                self.turn(mine)
        return given

    def leave(self, name: str, used: int | None) -> None:
        account, tokens = self.held.pop(name)
        if used is not None:
            self.refund(account, 0, tokens - used)

    def abandon(self, name: str) -> None:
        if name in self.held:
            account, tokens = self.held.pop(name)
            self.refund(account, 1, tokens)
        self.waiters = [ticket for ticket in self.waiters if ticket.id != name]
        for account in self.quotas:
            self.turn(account)

    def refund(self, account: str, requests: int, tokens: float) -> None:
        quota, levels = self.quotas[account], self.levels[account]
        levels[:] = [min(quota.rpm, levels[0] + requests), min(quota.tpm, levels[1] + tokens)]

    def wait_until(self, now_s: float) -> None:
        for account, quota in self.quotas.items():
            minutes = (now_s - self.filled_s) / 60
            self.refund(account, 0, minutes * quota.tpm)
            self.levels[account][0] = min(quota.rpm, self.levels[account][0] + minutes * quota.rpm)
        self.filled_s = now_s


QUOTAS = st.builds(
    Quota, concurrency=st.sampled_from([1, 2, 3]), rpm=st.sampled_from([0, 0, 6]), tpm=st.sampled_from([0, 0, 300])
)


@settings(max_examples=60, deadline=None)
@given(quotas=st.tuples(QUOTAS, QUOTAS), seed=st.integers(0, 2**32))
def test_the_book_gives_what_the_plain_model_gives_and_nothing_is_left_over(
    quotas: tuple[Quota, Quota], seed: int
) -> None:
    rng, book = random.Random(seed), book_of()
    limits = {"A": quotas[0], "B": quotas[1]}
    plain, now_s, known = Plain(limits), 0.0, list[str]()
    choices = [("A",), ("B",), ("A", "B"), ("B", "A")]
    for number in range(70):
        kind = rng.choice(["enter", "enter", "enter", "leave", "leave", "abandon", "wait"])
        name = rng.choice(known) if known else ""
        if kind == "enter":
            places = tuple(place(limits[account], account) for account in rng.choice(choices))
            ticket = Ticket(f"r{number}", f"k{rng.randrange(4)}", rng.randrange(200), places)
            found = book.enter(ticket, at(now_s), patience_s=LONG_S)
            assert (found.account if isinstance(found, Place) else found) == plain.enter(ticket)
            known.append(ticket.id)
        elif kind == "leave" and name in plain.held:
            used = rng.choice([None, rng.randrange(250)])
            known.remove(name)
            plain.leave(name, used)
            book.leave(name, used, at(now_s))
        elif kind == "abandon" and name:
            known.remove(name)
            plain.abandon(name)
            book.abandon(name, at(now_s))
        elif kind == "wait":
            now_s += rng.choice([0.5, 3, 20])
            plain.wait_until(now_s)
            book.serve(at(now_s))
        assert {name: one.account for name, one in book.take_granted()} == plain.serve()
        for account, quota in limits.items():
            assert book.running(account) == sum(1 for name, _ in plain.held.values() if name == account)
            assert book.running(account) <= quota.concurrency
    for name in rng.sample(known, len(known)):
        book.abandon(name, at(now_s))
    assert (book.waiting, book.running("A"), book.running("B")) == (0, 0, 0)
    assert (book.queued("A"), book.queued("B")) == (0, 0)
    assert book.next_s(at(now_s)) is None


# --- fairness -------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(keys=st.integers(2, 9), room=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_keys_that_always_wait_are_served_alike_and_each_in_its_order(keys: int, room: int, seed: int) -> None:
    rng, book = random.Random(seed), book_of()
    only = place(Quota(concurrency=room))
    running = [f"first-{number}" for number in range(room)]
    for name in running:
        assert ask(book, name, only) == only
    names = [f"{number:04}" for number in range(250)]
    key_of = {name: f"k{rng.choice([0, 0, 0, *range(keys)])}" for name in names[keys:]}
    key_of |= {name: f"k{number}" for number, name in enumerate(names[:keys])}
    for name in names:
        assert ask(book, name, only, key=key_of[name]) is None
    left, served = Counter(key_of.values()), Counter[str]()
    last: dict[str, str] = {}
    while len(left) == keys:  # all of them wait
        book.leave(running.pop(rng.randrange(len(running))), None, at(0))
        (name,) = granted(book)
        running.append(name)
        key = key_of[name]
        served[key] += 1
        assert last.get(key, "") < name
        last[key] = name
        left[key] -= 1
        left += Counter()
        assert max(served.values()) - min(served[key] for key in left) <= 1


def test_a_key_with_one_request_at_a_time_waits_one_round() -> None:
    book, only = book_of(), place(Quota(concurrency=1))
    ask(book, "running", only)
    for number in range(20):
        ask(book, f"greedy-{number}", only, key="greedy")
    running, order = "running", list[str]()
    for number in range(5):
        ask(book, f"modest-{number}", only, key="modest")
        for _ in range(2):
            book.leave(running, None, at(0))
            (running,) = granted(book)
            order.append(running)
    assert [name.partition("-")[0] for name in order] == ["greedy", "modest"] * 5


# --- who may go when ------------------------------------------------------------------------------------------


def test_a_newcomer_overtakes_nobody_who_could_use_the_place() -> None:
    book, small = book_of(), place(Quota(tpm=600))
    assert ask(book, "first", small, tokens=500) == small
    assert ask(book, "large", small, tokens=400) is None
    assert ask(book, "small", small, tokens=10) is None  # there are tokens for it, but it is not its turn
    assert not book.room(small, at(0))
    due_s = book.next_s(at(0))
    assert due_s == pytest.approx(100 + 30)  # 300 more tokens at 10 a second
    book.serve(at(29.9))
    assert granted(book) == []
    book.serve(at(30))
    assert granted(book) == ["large"]
    book.serve(at(31))
    assert granted(book) == ["small"]


def test_when_the_first_in_line_leaves_the_next_goes_at_once() -> None:
    book, small = book_of(), place(Quota(tpm=600))
    ask(book, "first", small, tokens=500)
    ask(book, "large", small, tokens=400)
    ask(book, "small", small, tokens=10)
    book.abandon("large", at(0))
    assert granted(book) == ["small"]


def test_who_may_not_ask_yet_holds_up_nobody_and_keeps_its_place() -> None:
    book, quota = book_of(), Quota(concurrency=1)
    cooling = place(quota, target="x", not_before_s=5)
    assert ask(book, "cooling", cooling) is None
    assert ask(book, "other", place(quota, target="y")) == place(quota, target="y")
    assert ask(book, "later", place(quota, target="x"), now_s=4) is None
    assert book.next_s(at(4)) == 105
    book.serve(at(5))
    assert granted(book) == []
    book.leave("other", None, at(6))
    assert granted(book) == ["cooling"]  # the first of its key
    book.leave("cooling", None, at(7))
    assert granted(book) == ["later"]


def test_a_place_that_cools_down_too_long_is_refused_at_once_with_the_time_that_it_needs() -> None:
    book = book_of()
    ticket = Ticket("r", "k", 1, (place(Quota(concurrency=1), not_before_s=90),))
    assert is_refused(book.enter(ticket, at(0), patience_s=60), "timeout", 90)
    assert book.enter(ticket, at(31), patience_s=60) is None


def test_the_first_choice_is_taken_where_several_get_free_together() -> None:
    book, quota = book_of(), Quota(rpm=60)
    near, far = place(quota, "B"), place(quota, "A")
    for number in range(60):
        ask(book, f"near-{number}", near)
        ask(book, f"far-{number}", far)
    assert ask(book, "r", near, far) is None
    book.serve(at(1))
    assert book.take_granted() == [("r", near)]


def test_a_days_tokens_are_charged_settled_and_new_at_midnight() -> None:
    book, daily = book_of(), place(Quota(tpd=1000))
    assert ask(book, "a", daily, tokens=700) == daily
    assert ask(book, "b", daily, tokens=500) is None  # may still go: what a does not use is given back
    book.leave("a", 400, at(1))
    assert granted(book) == ["b"]
    book.leave("b", 600, at(2))
    noon_to_midnight_s = DAY_S / 2
    refused = book.enter(Ticket("c", "k", 1, (daily,)), at(2), patience_s=60)
    assert is_refused(refused, "timeout", noon_to_midnight_s - 2)
    assert ask(book, "c", daily, now_s=3) is None
    assert book.next_s(at(3)) == pytest.approx(100 + noon_to_midnight_s)
    book.serve(at(noon_to_midnight_s))
    assert granted(book) == ["c"]


def test_tokens_used_beyond_their_bound_delay_those_who_follow() -> None:
    book, minute = book_of(), place(Quota(tpm=600))
    ask(book, "a", minute, tokens=100)
    book.leave("a", 900, at(0))
    assert ask(book, "b", minute, tokens=1) is None
    assert book.next_s(at(0)) == pytest.approx(100 + 30.1)


def test_a_full_queue_says_how_long_it_will_take() -> None:
    book, only = book_of(most=2), place(Quota(concurrency=1))
    assert ask(book, "r0", only) == only
    assert [ask(book, f"r{number}", only) for number in (1, 2)] == [None, None]
    assert is_refused(ask(book, "r3", only), "full", 1.0)  # nobody knows yet
    for number, now_s in enumerate((10, 16, 22)):
        book.leave(f"r{number}", None, at(now_s))
        if number < 2:
            assert ask(book, f"r{number + 3}", only, now_s=now_s) is None
    assert ask(book, "r5", only, now_s=22) is None
    # two wait before it and one place gets free every six seconds
    assert is_refused(ask(book, "r6", only, now_s=22), "full", 18)
    assert is_refused(book.give_up("r5", at(23)), "timeout", 12)


def test_a_request_that_nobody_saw_served_is_told_what_it_has_waited() -> None:
    book, only = book_of(), place(Quota(concurrency=1))
    ask(book, "r0", only)
    ask(book, "r1", only)
    assert is_refused(book.give_up("r1", at(60)), "timeout", 60)
    assert book.waiting == 0


def test_places_without_a_limit_leave_no_trace() -> None:
    book, free = book_of(), place(Quota())
    for _ in range(3):
        assert ask(book, "same", free) == free
    full = place(Quota(concurrency=1), "B")
    ask(book, "r", full)
    assert ask(book, "next", full, free) == free


@pytest.mark.parametrize("places", [(), (place(Quota(concurrency=1)),)])
def test_a_ticket_without_a_place_or_twice_is_an_error(places: tuple[Place, ...]) -> None:
    book = book_of()
    ask(book, "r", place(Quota(concurrency=1)))
    with pytest.raises(ValueError, match="has to be new and to name a place"):
        ask(book, "r", *places)
