"""What calls have used and cost, shared by any number of chats and threads, and a limit on it."""

from collections.abc import Sequence
from decimal import Decimal
from threading import Lock

from typing_extensions import override

from kimi_sdk.amounts import checked_money, exact
from pricing.usage import TokenUsage

NOTHING = Decimal(0)


class Meter:
    """Counts the answers of the chats it is given to; with `max_cost` it keeps them together below that.

    A call is counted as the most it can cost while it is under way, and at its true cost from its end on. Money is
    exact dollars. `estimated` is for answers that broke off or were cancelled: no bill says what they cost. So
    `doubtful` counts against the limit too: what they can have cost beyond that at most.
    Safe to use from several threads and event loops.
    """

    def __init__(self, max_cost: Decimal | int | str | None = None) -> None:
        """`max_cost` in dollars, a decimal string for example. Raises `InvalidInput` for what is no amount."""
        self.max_cost = checked_money(max_cost)
        self._lock = Lock()
        self._usage = TokenUsage()
        self._cost = self._estimated = self._doubtful = self._reserved = NOTHING
        self._holds: set[Hold] = set()
        self._replies = self._unpriced = 0

    @property
    def usage(self) -> TokenUsage:
        """Tokens of all answers, by meter."""
        return self._usage

    @property
    def cost(self) -> Decimal:
        """Dollars for the answers whose cost is known; `unpriced` counts the others."""
        return self._cost

    @property
    def estimated(self) -> Decimal:
        """Dollars that answers without a bill have probably cost."""
        return self._estimated

    @property
    def doubtful(self) -> Decimal:
        """Dollars that they can have cost beyond `estimated`, at most."""
        return self._doubtful

    @property
    def reserved(self) -> Decimal:
        """The most that the calls now under way can cost, as far as they are limited."""
        return self._reserved

    @property
    def spent(self) -> Decimal:
        """What counts against the limit: `cost`, `estimated` and `doubtful`."""
        with self._lock, exact():
            return self._spent()

    @property
    def replies(self) -> int:
        """How many answers were counted."""
        return self._replies

    @property
    def unpriced(self) -> int:
        """How many of them have no known cost. Unknown is not free."""
        return self._unpriced

    @override
    def __repr__(self) -> str:
        limit = "" if self.max_cost is None else f", max_cost={self.max_cost}"
        return f"Meter(replies={self.replies}, cost={self.cost}, estimated={self.estimated}{limit})"

    def left(self, *, with_reserved: bool = False, but_of: object = None) -> Decimal | None:
        """Dollars that a further call may cost; with those reserved, as if no call were under way, except those
        that `but_of` holds. None: no limit."""
        if self.max_cost is None:
            return None
        with self._lock, exact():
            left = self.max_cost - self._spent()
            if not with_reserved:
                return left - self._reserved
            held = (each.bound for each in self._holds if but_of is not None and each.holder is but_of)
            return left - sum((bound for bound in held if bound is not None), NOTHING)

    def reserve(self, bound: Decimal, hold: "Hold | None" = None) -> bool:
        """Sets the most that a call can cost aside; false where it does not fit."""
        with self._lock, exact():
            if self.max_cost is not None and self._spent() + self._reserved + bound > self.max_cost:
                return False
            self._reserved += bound
            if hold is not None:
                self._holds.add(hold)
            return True

    def release(self, bound: Decimal, hold: "Hold | None" = None) -> None:
        """Gives back what was set aside."""
        with self._lock, exact():
            self._reserved -= bound
            if hold is not None:
                self._holds.discard(hold)

    def add(
        self, usage: TokenUsage | None, cost: Decimal | None, estimate: Decimal | None, doubtful: Decimal = NOTHING
    ) -> None:
        """Counts an answer; `estimate` is what it has probably cost where `cost` is None, `doubtful` what it can
        have cost beyond that."""
        with self._lock, exact():
            self._replies += 1
            if usage is not None:
                self._usage += usage
            if cost is None:
                self._unpriced += 1
                self._estimated += estimate or NOTHING
                self._doubtful += doubtful
            else:
                self._cost += cost

    def add_broken(self, estimate: Decimal, doubtful: Decimal = NOTHING) -> None:
        """Counts a call that gave no whole answer and was probably billed."""
        with self._lock, exact():
            self._estimated += estimate
            self._doubtful += doubtful

    def _spent(self) -> Decimal:
        return self._cost + self._estimated + self._doubtful

    def restore(
        self,
        usage: TokenUsage,
        cost: Decimal,
        *,
        estimated: Decimal,
        replies: int,
        unpriced: int,
        doubtful: Decimal = NOTHING,
    ) -> None:
        """Adds what a saved chat had counted."""
        with self._lock, exact():
            self._doubtful += doubtful
            self._usage += usage
            self._cost += cost
            self._estimated += estimated
            self._replies += replies
            self._unpriced += unpriced


class Hold:
    """Money set aside for one call in several meters, until it is settled; only the first settling counts.

    `holder` is the thread or task that has the call in its hands: it would wait for itself if it waited for this.
    """

    def __init__(self, meters: Sequence[Meter], bound: Decimal | None, holder: object = None) -> None:
        self._meters = meters
        self.bound = bound
        self.holder = holder
        self._is_open = True

    def settle(
        self,
        usage: TokenUsage | None,
        cost: Decimal | None,
        estimate: Decimal | None,
        most: Decimal | None = None,
    ) -> None:
        """Counts the answer; without a known cost the estimate, or else the bound. `most` is what it can have cost
        then."""
        if self._close():
            probable = self.bound if estimate is None else estimate
            for meter in self._meters:
                meter.add(usage, cost, probable, _beyond(probable, most))

    def settle_broken(self, estimate: Decimal | None, most: Decimal | None = None) -> None:
        """Counts a call that was probably billed and has no whole answer; `most` is what it can have cost."""
        if self._close():
            for meter in self._meters:
                meter.add_broken(estimate or NOTHING, _beyond(estimate, most))

    def release(self) -> None:
        """The call was not billed."""
        self._close()

    def _close(self) -> bool:
        was_open, self._is_open = self._is_open, False
        if was_open and self.bound is not None:
            for meter in self._meters:
                meter.release(self.bound, self)
        return was_open


def _beyond(estimate: Decimal | None, most: Decimal | None) -> Decimal:
    with exact():
        return NOTHING if most is None else max(NOTHING, most - (estimate or NOTHING))


class Account:
    """The meters that a chat's calls are counted in: its own first, then its limit and the one it was given."""

    def __init__(self, own: Meter, *others: Meter) -> None:
        self.own = own
        self.others = others

    @property
    def meters(self) -> tuple[Meter, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys((self.own, *self.others)))

    def tightest(self, *, with_reserved: bool = False, but_of: object = None) -> tuple[Meter, Decimal] | None:
        """The meter that leaves least for a further call, and how much that is; None where none has a limit. See
        `Meter.left`."""
        lefts = [(meter, meter.left(with_reserved=with_reserved, but_of=but_of)) for meter in self.meters]
        known = [(meter, left) for meter, left in lefts if left is not None]
        return min(known, key=lambda pair: pair[1], default=None)

    def hold(self, bound: Decimal | None, holder: object = None) -> Hold | None:
        """Sets money aside in all meters; None where one of them has too little left."""
        meters = self.meters
        hold = Hold(meters, bound, holder)
        if bound is None:
            return hold
        for at, meter in enumerate(meters):
            if not meter.reserve(bound, hold):
                for earlier in meters[:at]:
                    earlier.release(bound, hold)
                return None
        return hold
