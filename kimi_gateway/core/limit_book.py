"""The state of keys' limits in one process, and the rules that every other keeper of it follows. Pure.

Money of a key in a period is `booked + held`. What is booked begins with what the ledger says (`install`); each
request is then held at its bound and booked at its cost. The lease of a hold ends when nobody renews it; it still
counts until `resolve` says what became of the request. A request that ended stays known for a while, so that its
end may be told twice, or corrected; an end of which the beginning is not known makes the period's sums void, and
they are read again from the ledger. So nothing is ever counted twice or not at all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from kimi_gateway.core.limits import (
    MINUTE_S,
    Account,
    Claim,
    Limit,
    Limits,
    Spent,
    Use,
    Verdict,
    money_period,
    verdict,
)

_FORGOTTEN_AT_ONCE: Final = 16


class LedgerEntry(Protocol):
    """What the ledger has of one request: its cost so far, and the most that it can have cost."""

    @property
    def state(self) -> Literal["open", "unsettled", "settled"]: ...
    @property
    def nano(self) -> int: ...
    @property
    def highspeed(self) -> bool: ...
    @property
    def bound_nano(self) -> int: ...


class LedgerSums(Protocol):
    """The cost of a key's requests in a period, and the rows asked for and all that are not settled."""

    @property
    def total_nano(self) -> int: ...
    @property
    def highspeed_nano(self) -> int: ...
    @property
    def rows(self) -> Mapping[str, LedgerEntry]: ...


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A hold whose lease ended `late_s` seconds ago."""

    key: str
    id: str
    period: str
    nano: int
    highspeed: bool
    late_s: float


@dataclass(slots=True)
class Bucket:
    """A token bucket that holds what one minute allows and fills evenly."""

    level: float
    at_s: float

    def level_at(self, per_minute: int, now_s: float) -> float:
        """The level at a moment. A clock that goes back adds nothing."""
        added = max(0.0, now_s - self.at_s) * per_minute / MINUTE_S
        return min(per_minute, self.level + added)

    def fill(self, per_minute: int, now_s: float) -> None:
        """Brings it up to now."""
        self.level, self.at_s = self.level_at(per_minute, now_s), max(self.at_s, now_s)


@dataclass(slots=True)
class _Hold:
    nano: int
    highspeed: bool
    tokens: int
    period: str  # "" where no money is counted
    lease_until_s: float


@dataclass(slots=True)
class _Done:
    nano: int
    highspeed: bool
    period: str
    at_s: float


@dataclass(slots=True)
class _State:
    """One key's state."""

    spent: dict[str, Spent] = field(default_factory=dict)  # by period
    loaded: set[str] = field(default_factory=set)  # periods whose sums are true
    holds: dict[str, _Hold] = field(default_factory=dict)
    done: dict[str, _Done] = field(default_factory=dict)  # the oldest first
    requests: Bucket | None = None
    tokens: Bucket | None = None

    def sums(self, period: str) -> Spent:
        return self.spent.setdefault(period, Spent())


class LimitBook:
    """The limits of every key. One thread; a call is a few dictionary look-ups.

    `lease_s`: how long a hold lives without `renew`; `keep_s`: how long an ended request stays known.
    """

    def __init__(self, lease_s: float, keep_s: float = 300.0) -> None:
        self._lease_s = lease_s
        self._keep_s = keep_s
        self._keys: dict[str, _State] = {}

    def is_loaded(self, key: str, period: str) -> bool:
        """Whether the sums of that period are true; those of "" always are."""
        state = self._keys.get(key)
        return not period or (state is not None and period in state.loaded)

    def unload(self, key: str, period: str) -> None:
        """The sums of that period are to be read again from the ledger."""
        self._of(key).loaded.discard(period)

    def known(self, key: str, period: str) -> frozenset[str]:
        """The requests that are held or ended, of that period."""
        state = self._of(key)
        return frozenset(
            [name for name, hold in state.holds.items() if hold.period == period]
            + [name for name, done in state.done.items() if done.period == period]
        )

    def install(self, key: str, period: str, booked: LedgerSums, asked: frozenset[str], now_s: float) -> bool:
        """Takes the ledger's sums, which were read after `asked` was known to be all that the book knows.

        False, and nothing changed, where the book knows a request that is not in `asked`: whether the ledger's sum
        has it is uncertain, so it has to be read again.
        """
        if not self.known(key, period) <= asked:
            return False
        state = self._of(key)
        fresh = Spent(booked.total_nano, booked.highspeed_nano)
        for name, hold in state.holds.items():
            if hold.period == period:
                fresh.hold(hold.nano, highspeed=hold.highspeed)
                row = booked.rows.get(name)
                if row is not None:  # what it has cost so far is part of what is held
                    fresh.book(-row.nano, highspeed=row.highspeed)
        for name, done in state.done.items():
            if done.period == period and name not in state.holds:
                _reconcile(fresh, done, booked.rows.get(name))
        for name, row in booked.rows.items():
            if name not in state.holds and name not in state.done:
                self._take_over(state, fresh, name, row, period, now_s)
        state.spent[period] = fresh
        state.loaded.add(period)
        self._forget_others(state, period)
        return True

    def admit(self, claim: Claim, limits: Limits, now_s: float) -> Verdict:
        """Reserves what the claim asks for, all of it or nothing. The period's sums are taken as they are."""
        state = self._of(claim.key)
        self._fill(state, limits, now_s)
        period = money_period(limits, claim.at_s)
        refused_by = self._refusal(state, claim, limits, period, now_s)
        if not refused_by:
            if state.requests is not None and limits.rpm:
                state.requests.level -= 1
            if state.tokens is not None and limits.tpm:
                state.tokens.level -= min(claim.tokens, limits.tpm)
            self._hold(state, claim, period, now_s)
        return verdict(
            _account(state, limits, period),
            limits,
            at_s=claim.at_s,
            refused_by=refused_by,
            asked_tokens=claim.tokens,
        )

    def restore(self, claim: Claim, limits: Limits, now_s: float) -> None:
        """Holds a claim that was admitted elsewhere, or before the state was lost."""
        state = self._of(claim.key)
        if claim.id in state.holds or claim.id in state.done:
            return
        period = money_period(limits, claim.at_s)
        self._hold(state, claim, period, now_s)
        state.loaded.discard(period)

    def settle(self, claim: Claim, limits: Limits, use: Use, now_s: float) -> int:
        """Replaces a reservation by what was used; gives back by how many nano-dollars that exceeds it.

        May be repeated, with another use too: the last one counts.
        """
        state = self._of(claim.key)
        self._forget_done(state, now_s)
        highspeed = claim.highspeed if use.highspeed is None else use.highspeed
        hold = state.holds.pop(claim.id, None)
        if hold is None:
            self._correct(state, claim, limits, _Done(use.nano, highspeed, "", now_s))
            return 0
        self._give_back(state, hold, use, limits, now_s)
        if not hold.period:
            return 0
        state.sums(hold.period).hold(-hold.nano, highspeed=hold.highspeed)
        state.sums(hold.period).book(use.nano, highspeed=highspeed)
        state.done[claim.id] = _Done(use.nano, highspeed, hold.period, now_s)
        return max(0, use.nano - hold.nano)

    def renew(self, key: str, claim_id: str, now_s: float) -> bool:
        """The request is still under way. False where it is not held."""
        hold = self._of(key).holds.get(claim_id)
        if hold is not None:
            hold.lease_until_s = now_s + self._lease_s
        return hold is not None

    def lapsed(self, now_s: float, limit: int = 100) -> list[Lapsed]:
        """Holds whose lease ended, at most so many."""
        found: list[Lapsed] = []
        for key, state in self._keys.items():
            for name, hold in state.holds.items():
                if hold.lease_until_s <= now_s and len(found) < limit:
                    found.append(
                        Lapsed(key, name, hold.period, hold.nano, hold.highspeed, now_s - hold.lease_until_s)
                    )
        return found

    def resolve(self, key: str, claim_id: str, nano: int, *, highspeed: bool, now_s: float) -> bool:
        """Books so much for a hold whose lease has ended; false where there is none."""
        state = self._of(key)
        hold = state.holds.get(claim_id)
        if hold is None or hold.lease_until_s > now_s:
            return False
        del state.holds[claim_id]
        if hold.period:
            state.sums(hold.period).hold(-hold.nano, highspeed=hold.highspeed)
            state.sums(hold.period).book(nano, highspeed=highspeed)
            state.done[claim_id] = _Done(nano, highspeed, hold.period, now_s)
        return True

    def standing(self, key: str, limits: Limits, now_s: float) -> Verdict:
        """What is left of a key's limits, with nothing reserved and nothing changed."""
        state = self._of(key)
        account = Account(
            state.spent.get(money_period(limits, now_s)) or Spent(),
            _level(state.requests, limits.rpm, now_s),
            _level(state.tokens, limits.tpm, now_s),
        )
        return verdict(account, limits, at_s=now_s)

    def reserved_nano(self, key: str) -> int:
        """What is held for requests under way."""
        return sum(hold.nano for hold in self._of(key).holds.values() if hold.period)

    def holds(self) -> Iterator[tuple[str, str]]:
        """Everything that is held, as key and request."""
        return ((key, name) for key, state in self._keys.items() for name in state.holds)

    def _of(self, key: str) -> _State:
        state = self._keys.get(key)
        if state is None:
            state = self._keys[key] = _State()
        return state

    def _hold(self, state: _State, claim: Claim, period: str, now_s: float) -> None:
        nano = claim.nano if period else 0
        state.holds[claim.id] = _Hold(nano, claim.highspeed, claim.tokens, period, now_s + self._lease_s)
        if period:
            state.sums(period).hold(nano, highspeed=claim.highspeed)

    def _correct(self, state: _State, claim: Claim, limits: Limits, end: _Done) -> None:
        """An end without a hold: of a request whose end is known, or of one that nobody knows."""
        known = state.done.get(claim.id)
        if known is not None:
            sums = state.sums(known.period)
            sums.book(-known.nano, highspeed=known.highspeed)
            sums.book(end.nano, highspeed=end.highspeed)
            known.nano, known.highspeed = end.nano, end.highspeed
            return
        end.period = money_period(limits, claim.at_s)
        if end.period:
            state.done[claim.id] = end
            state.loaded.discard(end.period)

    def _take_over(
        self, state: _State, fresh: Spent, name: str, row: LedgerEntry, period: str, now_s: float
    ) -> None:
        """A request of the ledger's that the book did not know and that has not ended well known."""
        if row.state == "settled":
            return
        fresh.book(-row.nano, highspeed=row.highspeed)
        if row.state == "open":
            state.holds[name] = _Hold(row.bound_nano, row.highspeed, 0, period, now_s + self._lease_s)
            fresh.hold(row.bound_nano, highspeed=row.highspeed)
        else:
            state.done[name] = _Done(row.bound_nano, row.highspeed, period, now_s)
            fresh.book(row.bound_nano, highspeed=row.highspeed)

    def _forget_done(self, state: _State, now_s: float) -> None:
        old: list[str] = []
        for name, done in state.done.items():
            if done.at_s + self._keep_s > now_s or len(old) == _FORGOTTEN_AT_ONCE:
                break
            old.append(name)
        for name in old:
            del state.done[name]

    @staticmethod
    def _forget_others(state: _State, period: str) -> None:
        """Lets go of the sums of other periods that no request is left in."""
        used = {hold.period for hold in state.holds.values()} | {done.period for done in state.done.values()}
        for other in [name for name in state.spent if name != period and name not in used]:
            del state.spent[other]
            state.loaded.discard(other)

    @staticmethod
    def _fill(state: _State, limits: Limits, now_s: float) -> None:
        if limits.rpm:
            state.requests = state.requests or Bucket(limits.rpm, now_s)
            state.requests.fill(limits.rpm, now_s)
        if limits.tpm:
            state.tokens = state.tokens or Bucket(limits.tpm, now_s)
            state.tokens.fill(limits.tpm, now_s)

    @staticmethod
    def _give_back(state: _State, hold: _Hold, use: Use, limits: Limits, now_s: float) -> None:
        if use.tokens is None or not limits.tpm:
            return
        bucket = state.tokens = state.tokens or Bucket(limits.tpm, now_s)
        bucket.fill(limits.tpm, now_s)
        bucket.level = min(limits.tpm, bucket.level + min(hold.tokens, limits.tpm) - use.tokens)

    @staticmethod
    def _refusal(state: _State, claim: Claim, limits: Limits, period: str, now_s: float) -> Limit:
        spent = state.spent.get(period) or Spent()
        whole, fast = limits.budget_nano, limits.highspeed_nano
        if whole is not None and claim.nano > whole - spent.total_nano - spent.held_nano:
            return "budget"
        fast_left = None if fast is None else fast - spent.highspeed_nano - spent.held_highspeed_nano
        if claim.highspeed and fast_left is not None and claim.nano > fast_left:
            return "highspeed_budget"
        if limits.concurrency:
            alive = sum(1 for hold in state.holds.values() if hold.lease_until_s > now_s)
            if alive >= limits.concurrency:
                return "concurrency"
        if limits.rpm and state.requests is not None and state.requests.level < 1:
            return "requests"
        # A request that is larger than a whole minute's allowance goes when the bucket is full.
        if limits.tpm and state.tokens is not None and state.tokens.level < min(claim.tokens, limits.tpm):
            return "tokens"
        return ""


def _level(bucket: Bucket | None, per_minute: int, now_s: float) -> float | None:
    """A bucket's level; one that nothing was taken from is full, None where there is no such limit."""
    if not per_minute:
        return None
    return float(per_minute) if bucket is None else bucket.level_at(per_minute, now_s)


def _account(state: _State, limits: Limits, period: str) -> Account:
    return Account(
        state.spent.get(period) or Spent(),
        state.requests.level if limits.rpm and state.requests is not None else None,
        state.tokens.level if limits.tpm and state.tokens is not None else None,
    )


def _reconcile(fresh: Spent, done: _Done, row: LedgerEntry | None) -> None:
    """An ended request and what the ledger's sum has of it: its end where that is booked, else less."""
    if row is not None and row.state == "settled":
        done.nano, done.highspeed = row.nano, row.highspeed
        return
    if row is not None:
        fresh.book(-row.nano, highspeed=row.highspeed)
    fresh.book(done.nano, highspeed=done.highspeed)
