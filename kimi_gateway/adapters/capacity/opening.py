"""From settings to a capacity: in the process, or on a link to what several processes share."""

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from kimi_gateway.adapters.capacity.memory import MemoryCapacity
from kimi_gateway.ports import Capacity

if TYPE_CHECKING:
    from kimi_gateway.adapters.state.link import Link

_CLOSED_PATIENCE_S: Final = 0.08
"""With `closed` a caller is told within a tenth of a second."""
_OWNER_BYTES: Final = 6


def open_capacity(
    link: "Link | None",
    *,
    queue_max: int,
    queue_timeout_s: float,
    lease_s: float,
    on_outage: Literal["open", "closed"],
    replicas: int,
    mono: Callable[[], float],
    wall: Callable[[], float],
    scope: str = "",
    heartbeat_s: float = 2.0,
    poll_s: float = 0.025,
) -> Capacity:
    """The capacity over a link, or in this process where there is none. Connects to nothing yet.

    `replicas`: processes that share the state, workers counted one by one. `scope`: accounts of one name are the
    same account only within one. `heartbeat_s`: until the waiters of a process that died are forgotten; `poll_s`:
    how often a process asks the state while somebody waits.
    """
    if link is None:
        return MemoryCapacity(most=queue_max, timeout_s=queue_timeout_s, mono=mono, wall=wall)
    # Not at the top: a gateway with its state in the process needs none of these libraries.
    from kimi_gateway.adapters.capacity.asked import Periods
    from kimi_gateway.adapters.capacity.shared import SharedCapacity
    from kimi_gateway.adapters.capacity.store import PREFIX, ValkeyPlaces

    owner = secrets.token_hex(_OWNER_BYTES)
    return SharedCapacity(
        ValkeyPlaces(
            link, owner, lease_s=lease_s, heartbeat_s=heartbeat_s, prefix=f"{PREFIX}{scope}:" if scope else PREFIX
        ),
        Periods(lease_s=lease_s, poll_s=poll_s),
        most=queue_max,
        timeout_s=queue_timeout_s,
        is_open=on_outage == "open",
        replicas=replicas,
        mono=mono,
        wall=wall,
        bound_s=None if on_outage == "open" else _CLOSED_PATIENCE_S,
    )
