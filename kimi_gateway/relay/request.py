"""One request on its way: what is known of it once it is read and planned, and the targets that can take it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import Struct
from msgspec import field as msgspec_field

from backends.dialect import Dialect
from backends.ports import Call
from backends.tool_ids import ToolIds
from kimi_gateway.core.routing.facts import Place
from kimi_gateway.core.routing.shared_prefix import Opening, Reads
from kimi_gateway.core.sending import Sending
from kimi_gateway.core.warmth import Warmth
from kimi_gateway.relay.thinking import Recall
from kimi_gateway.settings import Target
from pricing.estimate import Estimate


@dataclass(slots=True)
class Option:
    """One target that can take the request, with the request in its words and what it may have cached of it."""

    target: Target
    dialect: Dialect
    upstream_model: str
    call: Call = field(repr=False)
    sending: Sending
    warmth: Warmth
    adjusted: tuple[str, ...] = ()
    thinking: str = ""  # what was done about the history's thoughts, "" without an assistant turn
    repaired: int = 0  # how many were put back
    tool_ids: ToolIds | None = None  # turns the ids of its calls back, where they had to be rewritten

    def release(self) -> None:
        """Lets go of the request's body: it will not be sent again."""
        self.call = replace(self.call, body=b"")


class Routed(Struct, frozen=True, gc=False):
    """How the targets were ranked: the places to ask for by target, in order, and what was expected of caches.

    `tokens` is what an attempt is taken to use at most of a target's limits; `shown` the value of `x-kimi-plan`,
    "" where nobody asked for it.
    """

    places: Mapping[str, Place]
    tokens: int
    opening: Opening | None = None
    reads: Mapping[str, Reads] = msgspec_field(default_factory=dict)
    shown: str = ""


@dataclass(slots=True)
class Prepared:
    """One request, checked and planned. It holds the client's body until `release`."""

    route: str
    model: str
    tier: str
    effort: str  # as sent; "unset" where none was
    ttl: str
    stream: bool
    n: int
    wants_usage: bool
    wants_meta: bool
    named_tool: bool
    calls_wanted: bool  # tools are offered, and not forbidden
    named_tier: bool  # the request has a service_tier, so the answer says which one served
    prompt_estimate: Estimate
    recall: Recall = field(repr=False)
    adjusted: tuple[str, ...]
    tags: dict[str, str]
    targets: tuple[tuple[str, str], ...]  # those planned, with the upstream's names of the model
    limit: int | None  # the output limit of the request, its key or its route
    read_timeout_s: float | None  # how long the client waits between bytes, where it said so
    options: "Options" = field(repr=False)
    routed: "Routed" = field(repr=False)
    lower: Callable[[int], Awaitable["Options"]] = field(repr=False)  # the options with this output limit
    known: Callable[[], tuple[int, int] | None] = field(repr=False)
    """The tokens of the conversation's last prompt as reported, and the bytes that came since; None: not known."""

    def release(self) -> None:
        """Lets go of the bodies: content was forwarded, so no further attempt can follow."""
        self.options = Options((), _nothing)
        self.lower, self.known = _no_options, _unknown


class Options:
    """The capable targets of a plan in order, each encoded when its turn comes."""

    def __init__(
        self, planned: Sequence[tuple[str, str]], encode: Callable[[str, str], Awaitable[Option | None]]
    ) -> None:
        self._left = dict(planned)
        self._encode = encode
        self._next: Option | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The targets that are left, in order; some may turn out not to be able to take the request."""
        return tuple(self._left)

    async def peek(self) -> Option | None:
        """The next target that can take the request, None where none is left."""
        while self._next is None and self._left:
            name, model = next(iter(self._left.items()))
            self._next = await self._encode(name, model)
            if self._next is None:
                del self._left[name]
        return self._next

    async def take(self, name: str) -> Option | None:
        """The option of one of the targets that are left, which then is not; None where it cannot take the
        request."""
        model = self._left.pop(name)
        if self._next is not None and self._next.target.name == name:
            option, self._next = self._next, None
            return option
        return await self._encode(name, model)


async def _no_options(limit: int) -> Options:
    return Options((), _nothing)


def _unknown() -> tuple[int, int] | None:
    return None


async def _nothing(name: str, model: str) -> Option | None:
    return None
