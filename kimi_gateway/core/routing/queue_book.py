"""Places at accounts and the queue for them in one process, and the rules that every other keeper follows. Pure.

A request takes the first of its places that has room. An account has room where its limits allow the request and
nobody waits there who may ask now, so nobody is overtaken; whose turn it is may hold up an account until there are
tokens enough. Who finds no room waits in the line of every account that it could use and gets the first that is
free. Where a day's allowance is used up it stands aside until midnight.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from kimi_gateway.core.routing.facts import Place, Quota, Refused, Ticket
from kimi_gateway.core.routing.queue_account import AccountUse, Hold, Moment
from kimi_gateway.core.routing.queue_line import Line, Waiter

RETRY_S = 1.0
"""When to ask again where nobody knows when a place gets free, and the least that is ever said."""


class QueueBook:
    """All accounts. One thread; a call is a few dictionary look-ups.

    `most` is how many may wait over all; `quota_of` gives the limits of a place's account.
    """

    def __init__(self, quota_of: Callable[[Place], Quota], most: int) -> None:
        self._quota_of = quota_of
        self._most = most
        self._accounts: dict[str, tuple[AccountUse, Line]] = {}
        self._holds: dict[str, Hold] = {}
        self._waiters: dict[str, Waiter] = {}
        self._granted: list[tuple[str, Place]] = []
        self._count = 0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def enter(
        self, ticket: Ticket, now: Moment, *, patience_s: float, since_s: float | None = None
    ) -> Place | Refused | None:
        """A place, why there is none, or None: it waits, and is among `take_granted` when it has one.

        `patience_s` is how long it would wait. `since_s`: it has been waiting since then, elsewhere, and is taken
        in however many wait. A place without a limit is given without a trace. Raises `ValueError` for a ticket
        that is known already or has no place.
        """
        if not ticket.places or ticket.id in self._holds or ticket.id in self._waiters:
            raise ValueError(f"ticket {ticket.id} has to be new and to name a place, at least one")
        for place in ticket.places:
            quota = self._quota_of(place)
            is_ready = place.not_before_s <= now.mono_s
            if is_ready and not quota.any:
                return place
            use, line = self._account(place.account, quota)
            if line.size:
                self._serve((place.account,), now)
            if is_ready and use.fits(ticket.tokens, now) and not (line.size and line.first(now.mono_s)):
                self._holds[ticket.id] = use.take(ticket.tokens, now)
                return place
        return self._wait(ticket, now, patience_s, since_s)

    def leave(self, ticket_id: str, used_tokens: int | None, now: Moment) -> None:
        """Gives a place back; what has no trace is ignored."""
        hold = self._holds.pop(ticket_id, None)
        if hold is None:
            return
        use, line = self._accounts[hold.account]
        use.settle(hold, used_tokens, now, is_waited_for=line.size > 0)
        if line.size:
            self._serve((hold.account,), now)

    def abandon(self, ticket_id: str, now: Moment) -> None:
        """Leaves the queue; or gives back a place that nobody has used."""
        waiter = self._waiters.get(ticket_id)
        if waiter is not None:
            self._remove(waiter)
            self._serve(waiter.ready_s, now)
            return
        hold = self._holds.pop(ticket_id, None)
        if hold is not None:
            self._accounts[hold.account][0].undo(hold, now)
            self._serve((hold.account,), now)

    def give_up(self, ticket_id: str, now: Moment) -> Refused:
        """Leaves the queue because the time is over. Says when to come back."""
        waiter = self._waiters[ticket_id]
        self.abandon(ticket_id, now)
        waited_s = now.mono_s - waiter.order[0]
        return Refused("timeout", self._retry_s(waiter.ticket, now) or max(RETRY_S, waited_s))

    def count(self, ticket_id: str, place: Place) -> None:
        """Counts a place that was given elsewhere: it is taken, and nothing is charged for it here."""
        use, _ = self._account(place.account, self._quota_of(place))
        use.running += 1
        self._holds[ticket_id] = Hold(place.account)

    def serve(self, now: Moment) -> None:
        """Gives what time has made free. Due at `next_s`."""
        self._serve([name for name, (_, line) in self._accounts.items() if line.size], now)

    def limits_changed(self, quota_of: Callable[[str], Quota | None], now: Moment) -> None:
        """Accounts have other limits now: by name, None where there is no such account any more."""
        for use, _ in self._accounts.values():
            use.quota = quota_of(use.name) or use.quota
        self.serve(now)

    def take_granted(self) -> Sequence[tuple[str, Place]]:
        """Who of the waiting got a place since the last call, in that order; each has it now."""
        granted, self._granted = self._granted, []
        return granted

    def next_s(self, now: Moment) -> float | None:
        """When time alone lets somebody go; None: a place has to be given back before."""
        due: list[float] = []
        for use, line in self._accounts.values():
            if not line.size:
                continue
            first = line.first(now.mono_s)
            opens_s = use.opens_s(first.ticket.tokens, now) if first is not None else None
            due += [at_s for at_s in (opens_s, line.next_s()) if at_s is not None]
        return min(due, default=None)

    def room(self, place: Place, now: Moment) -> bool:
        """Whether a small request would get this place now."""
        if place.not_before_s > now.mono_s:
            return False
        quota = self._quota_of(place)
        if not quota.any:
            return True
        use, line = self._account(place.account, quota)
        return use.fits(1, now) and not (line.size and line.first(now.mono_s))

    def queued(self, account: str) -> int:
        """How many wait who could use this account."""
        known = self._accounts.get(account)
        return 0 if known is None else known[1].size

    def running(self, account: str) -> int:
        """How many places of this account are taken."""
        known = self._accounts.get(account)
        return 0 if known is None else known[0].running

    def _account(self, name: str, quota: Quota) -> tuple[AccountUse, Line]:
        known = self._accounts.get(name)
        if known is None:
            known = self._accounts[name] = (AccountUse(name, quota), Line())
        known[0].quota = quota
        return known

    def _wait(self, ticket: Ticket, now: Moment, patience_s: float, since_s: float | None) -> Refused | None:
        ready_s = self._ready_s(ticket, now)
        soonest_s = min(ready_s.values()) - now.mono_s
        if soonest_s > patience_s or patience_s <= 0:
            return Refused("timeout", max(RETRY_S, soonest_s, self._retry_s(ticket, now)))
        if since_s is None and len(self._waiters) >= self._most:
            return Refused("full", self._retry_s(ticket, now) or RETRY_S)
        self._count += 1
        order = (now.mono_s if since_s is None else since_s, self._count)
        waiter = self._waiters[ticket.id] = Waiter(ticket, order, ready_s)
        for account, at_s in ready_s.items():
            self._accounts[account][1].join(waiter, at_s, now.mono_s)
        return None

    def _ready_s(self, ticket: Ticket, now: Moment) -> Mapping[str, float]:
        """When each of its accounts may be asked."""
        ready_s: dict[str, float] = {}
        for place in ticket.places:
            at_s = max(place.not_before_s, now.mono_s)
            if self._accounts[place.account][0].is_spent(ticket.tokens, now):
                at_s = max(at_s, now.midnight_s)
            ready_s[place.account] = min(at_s, ready_s.get(place.account, at_s))
        return ready_s

    def _retry_s(self, ticket: Ticket, now: Moment) -> float:
        """In how many seconds the soonest of its places may be had, as far as is known; 0 where nobody knows."""
        known = [wait_s for place in ticket.places if (wait_s := self._place_retry_s(ticket, place, now))]
        return min(known, default=0.0)

    def _place_retry_s(self, ticket: Ticket, place: Place, now: Moment) -> float:
        use, line = self._accounts[place.account]
        wait_s = max(use.retry_s(ticket.tokens, line.size, now), place.not_before_s - now.mono_s)
        return max(RETRY_S, wait_s) if wait_s > 0 else 0.0

    def _serve(self, accounts: Iterable[str], now: Moment) -> None:
        """Gives the free places of these accounts to whose turn it is, account by account in order of their names.

        Who gets one leaves the lines of other accounts, where it may have held up others.
        """
        due = set(accounts)
        while due:
            use, line = self._accounts[min(due)]
            due.discard(use.name)
            while (waiter := self._next(use, line, now)) is not None:
                ticket, place = waiter.ticket, self._choice(waiter, use.name, now)
                self._remove(waiter, served_at=place.account)
                self._holds[ticket.id] = self._accounts[place.account][0].take(ticket.tokens, now)
                self._granted.append((ticket.id, place))
                due.update(waiter.ready_s)
                due.discard(use.name)

    @staticmethod
    def _next(use: AccountUse, line: Line, now: Moment) -> Waiter | None:
        """Whose turn it is at an account, where there is room for it."""
        while (waiter := line.first(now.mono_s)) is not None:
            tokens = waiter.ticket.tokens
            if not use.is_spent(tokens, now):
                return waiter if use.fits(tokens, now) else None
            line.postpone(waiter, now.midnight_s)
        return None

    def _choice(self, waiter: Waiter, account: str, now: Moment) -> Place:
        """The first of its places that it may have: `account` has one, others may just have got free as well."""
        ready = [place for place in waiter.ticket.places if place.not_before_s <= now.mono_s]
        for place in ready:
            use, line = self._accounts[place.account]
            if place.account == account:
                return place
            if line.first(now.mono_s) is waiter and use.fits(waiter.ticket.tokens, now):
                return place
        return ready[0]

    def _remove(self, waiter: Waiter, *, served_at: str = "") -> None:
        del self._waiters[waiter.ticket.id]
        waiter.gone = True
        for account in waiter.ready_s:
            line = self._accounts[account][1]
            if account == served_at:
                line.served(waiter)
            else:
                line.leave(waiter)
