"""From an address to the state behind it: in the process, in a private server, in one that several share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kimi_gateway.adapters.state.embedded import Embedded
from kimi_gateway.adapters.state.memory import MemoryConversations
from kimi_gateway.core.secret import Secret
from kimi_gateway.core.state_url import state_url
from kimi_gateway.core.thoughts import Bounds
from kimi_gateway.ports import Conversations, StateUnavailable

if TYPE_CHECKING:
    from kimi_gateway.adapters.state.link import Link


@dataclass(frozen=True, slots=True)
class State:
    """The state of a gateway. `link` is None where it is in the process; `shown` is its address for logs."""

    conversations: Conversations
    shown: str
    on_outage: Literal["open", "closed"]
    link: "Link | None" = None
    embedded: Embedded | None = None

    async def look(self) -> tuple[str, ...]:
        """What an operator should know before requests come, each a sentence.

        A server that is down is one of these with `open`. Raises `StateUnavailable` for it with `closed`, and
        `kimi_gateway.adapters.state.link.StateUnsuited` for a server that can never hold the state.
        """
        if self.link is None:
            return ()
        try:
            return await self.link.check()
        except StateUnavailable as err:
            if self.on_outage == "closed":
                raise
            return (f"{err}; until it is back thoughts are neither kept nor put back",)

    async def close(self) -> None:
        """Closes the connections, and the private server where this process started it."""
        await self.conversations.close()
        if self.link is not None:
            await self.link.close()
        if self.embedded is not None:
            await asyncio.to_thread(self.embedded.close)


def open_state(
    url: str,
    *,
    on_outage: Literal["open", "closed"],
    bounds: Bounds,
    secret: Secret | None,
    mono: Callable[[], float],
    max_connections: int = 16,
    connect_timeout_s: float = 0.5,
    operation_timeout_s: float = 0.5,
    rest_s: float = 1.0,
) -> State:
    """The state at an address. Waits for nothing but the start of a private server.

    Raises `StateUrlError`, `WeakSecret` and, for `embedded://`, `EmbeddedError`.
    """
    address = state_url(url)
    if address.kind == "memory":
        return State(MemoryConversations(bounds, mono), address.shown, on_outage)
    # Not at the top: a gateway with its state in the process needs none of these libraries.
    from kimi_gateway.adapters.state.link import Link
    from kimi_gateway.adapters.state.seal import seal_of
    from kimi_gateway.adapters.state.thoughts import ValkeyConversations

    seal = seal_of(secret)
    embedded = Embedded(bounds) if address.kind == "embedded" else None
    link = Link(
        state_url(embedded.launch()) if embedded is not None else address,
        mono=mono,
        max_connections=max_connections,
        connect_timeout_s=connect_timeout_s,
        operation_timeout_s=operation_timeout_s,
        rest_s=rest_s,
    )
    return State(ValkeyConversations(link, bounds, seal), address.shown, on_outage, link, embedded)
