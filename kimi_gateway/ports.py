"""Ports of the gateway: what the relay needs from the shell, each with a real adapter and one for tests."""

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from backends.faults import Fault
from kimi_gateway.core.digest import TurnKeys
from kimi_gateway.core.limits import Claim, Limits, Use, Verdict
from kimi_gateway.core.routing.facts import Grant, Load, Out, Place, Refused, Ticket
from kimi_gateway.core.thought_record import Owner, Thought
from kimi_gateway.core.thoughts import Found
from pricing.ledger.row import LedgerRow


class Books(Protocol):
    """Where requests are booked. Each call is one append to the local journal, about a microsecond."""

    def open(self, row: LedgerRow) -> None:
        """Books that a request is about to go upstream. Raises `errors.LedgerUnavailable`."""
        ...

    def progress(self, row: LedgerRow) -> None:
        """Books what has been delivered so far. Never raises: a full journal drops progress first."""
        ...

    def settled(self, row: LedgerRow) -> None:
        """Books the end, once per request. Never raises: a failure is logged and counted."""
        ...

    def refused(self, key: str, code: str) -> None:
        """Counts a request that was answered with an error before it was planned; "" where no key was known."""
        ...


class Answer(Protocol):
    """An answer under way that a shutdown may have to end."""

    def interrupt(self) -> None:
        """Ends it with `shutting_down`: an error event in a stream, a 503 where nothing was sent yet."""
        ...


class StateUnavailable(Exception):
    """The store did not answer within its time; the message says which and why, without any secret."""


class Remembered(Struct, frozen=True, gc=False):
    """What is known of a history: its thoughts, each in the place of its keys, and a note on it."""

    found: Sequence[Found | None]
    note: bytes | None = None


class Conversations(Protocol):
    """Where the thoughts of conversations are kept, and one note on each: in the process or shared by several.

    Bounds and retention are the store's. A place is a digest that a conversation is known by; a note is a small
    record that only its writer can read. One round trip per call.
    """

    async def recall(self, owner: Owner, wanted: Sequence[TurnKeys], places: Sequence[bytes]) -> Remembered:
        """The thoughts of these turns, and the note at the first of these places that has one.

        Renews what it finds. Raises `StateUnavailable`.
        """
        ...

    async def keep(
        self,
        owner: Owner,
        thoughts: Sequence[tuple[TurnKeys, Thought]],
        *,
        conversation: bytes = b"",
        places: Sequence[bytes] = (),
        note: bytes | None = None,
    ) -> None:
        """Stores thoughts in that conversation of the owner (b"": in one of its own), and the note at each place.

        What is stored already is renewed; what has no room is refused and counted. Raises `StateUnavailable`.
        """
        ...

    async def forget_key(self, key: str) -> int:
        """Deletes all that is kept under a key name; gives back how many thoughts. Raises `StateUnavailable`."""
        ...

    async def statistics(self) -> dict[str, int]:
        """Sizes and counts by name, such as `bytes` and `evicted`. Raises `StateUnavailable`."""
        ...

    async def close(self) -> None:
        """Lets go of connections and of what was started for them."""
        ...


@runtime_checkable
class AtOnce(Protocol):
    """What conversations that are kept in the process offer besides: the same without waiting."""

    def recall_now(self, owner: Owner, wanted: Sequence[TurnKeys], places: Sequence[bytes]) -> Remembered:
        """As `Conversations.recall`."""
        ...

    def keep_now(
        self,
        owner: Owner,
        thoughts: Sequence[tuple[TurnKeys, Thought]],
        *,
        conversation: bytes = b"",
        places: Sequence[bytes] = (),
        note: bytes | None = None,
    ) -> None:
        """As `Conversations.keep`."""
        ...


class Limiter(Protocol):
    """Where keys' limits are counted: in the process or shared by several. A cache of the ledger.

    What is under way is renewed by the limiter itself, from `admit` to `settle`.
    """

    def admit_now(self, claim: Claim, limits: Limits) -> Verdict | None:
        """An admission that nothing had to be waited for; None, and nothing reserved, in every other case."""
        return None

    def settle_now(self, claim: Claim, limits: Limits, use: Use) -> int | None:
        """The same as `settle` where nothing has to be waited for; None, and nothing settled, in other cases."""
        return None

    async def admit(self, claim: Claim, limits: Limits, *, last: bool = True) -> Verdict:
        """Reserves what the claim asks for, all of it or nothing. Raises `StateUnavailable` where that decides.

        `last` is false where a smaller claim of the request follows a refusal: then a refusal alerts nobody.
        """
        ...

    async def settle(self, claim: Claim, limits: Limits, use: Use) -> int:
        """Replaces a reservation by what was used; gives back by how many nano-dollars that exceeds it.

        Once for each claim that was admitted. Never raises: what cannot be said now is said later, or made good
        from the ledger.
        """
        ...

    async def standing(self, key: str, limits: Limits) -> Verdict:
        """What is left of a key's limits, with nothing reserved. Raises `StateUnavailable`."""
        ...

    async def keep(self) -> None:
        """Renews and tidies beside the requests, for ever."""
        ...

    async def close(self) -> None:
        """Lets go of what it holds."""
        ...


class Capacity(Protocol):
    """Who may use a target now, within its limits and its account's: in the process or shared by several.

    Who finds no place waits in one bounded queue, fair between keys and first in first out within one. A place is
    renewed by the capacity itself until it is given back; one whose process has died is free after the lease.
    """

    async def enter(self, ticket: Ticket) -> Grant | Refused:
        """The first of the ticket's places that has room, at once or when one gets free.

        Cancelling it leaves the queue, and gives back a place that was just given. Raises `StateUnavailable` where
        that decides.
        """
        ...

    async def leave(self, grant: Grant, tokens: int | None) -> None:
        """Gives the place back; what it has used replaces its bound (None: unknown, the bound stays charged).

        Once for each grant. Never raises.
        """
        ...

    def waiting(self) -> int:
        """How many requests of this process are waiting."""
        ...

    def room(self, place: Place) -> bool:
        """Whether a small request would get this place now, as far as this process knows. No IO."""
        ...

    def queued(self, place: Place) -> int:
        """How many wait who could use this place's account, as far as this process knows. No IO."""
        ...

    def declare(self, places: Iterable[Place]) -> None:
        """These are all targets, with their own limits: said at the start and when they change.

        An account's limit is the smallest of its targets'.
        """
        ...

    async def keep(self) -> None:
        """Renews and tidies beside the requests, for ever."""
        ...

    async def close(self) -> None:
        """Lets go of what it holds."""
        ...


class Health(Protocol):
    """Which targets take nothing now: the breaker, empty accounts, refused keys, rates that were named.

    All calls are in memory and take about a microsecond; where several processes share a state, what one of them
    learns reaches the others within a second, beside the requests.
    """

    def out(self, target: str) -> Out | None:
        """Why a target takes nothing now; None where it may be asked."""
        ...

    def begin(self, target: str, attempt: str = "") -> bool:
        """An attempt is about to be sent; false where the target's breaker is open, or half open and its probe is
        taken. `attempt` is the attempt's own name: with it, only the probe's own end decides a breaker."""
        ...

    def failed(self, target: str, fault: Fault, attempt: str = "") -> None:
        """An attempt has failed. What is not the upstream's fault (request, filter, context) counts as health."""
        ...

    def succeeded(self, target: str, attempt: str = "") -> None:
        """An attempt has come to its clean end."""
        ...

    def given_up(self, target: str, attempt: str = "") -> None:
        """An attempt ended and said nothing of the target: the client left, or we were told to stop."""
        ...

    def reload(self) -> None:
        """The configuration was read again: what waited for that is over."""
        ...

    async def keep(self) -> None:
        """Shares and tidies beside the requests, for ever."""
        ...


class Loads(Protocol):
    """What engines say of their load. In memory; filled off the requests' path."""

    def load(self, target: str) -> Load | None:
        """The last word of a target, None where there is none or it is too old."""
        ...

    async def keep(self) -> None:
        """Asks the engines again and again, for ever."""
        ...
