"""From settings to a limiter: in the process, or on a link to what several processes share."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from kimi_gateway.adapters.limits.limiter import LedgerLimiter, Periods, Watcher
from kimi_gateway.adapters.limits.outage import OutageLimiter
from kimi_gateway.adapters.limits.spend import SpendSource
from kimi_gateway.adapters.limits.state import LimitState, MemoryLimits

if TYPE_CHECKING:
    from kimi_gateway.adapters.state.link import Link

_CLOSED_PATIENCE_S: Final = 0.08
"""With `closed` a caller is told within a tenth of a second."""
_DRAIN_S: Final = 2.0
"""A record is in the ledger so soon after somebody has adopted it."""


def periods_of(*, lease_s: float, adopt_s: float) -> Periods:
    """The limiter's periods that go with those of the ledger (`[timing]`)."""
    return Periods(lease_s=lease_s, release_s=adopt_s + _DRAIN_S)


def open_limiter(
    link: "Link | None",
    ledger: SpendSource,
    periods: Periods,
    *,
    scope: str,
    on_outage: Literal["open", "closed"],
    replicas: int,
    wall: Callable[[], float],
    mono: Callable[[], float],
    watcher: Watcher | None = None,
) -> OutageLimiter:
    """The limiter over a link, or in this process where there is none. Connects to nothing yet.

    `scope` is the ledger's id: on one server, limits over different ledgers do not mix. `replicas`: processes that
    share the state, workers counted one by one.
    """
    state: LimitState
    if link is None:
        state = MemoryLimits(wall, lease_s=periods.lease_s, keep_s=periods.keep_s)
    else:
        # Not at the top: a gateway with its state in the process needs none of these libraries.
        from kimi_gateway.adapters.limits.valkey import PREFIX, ValkeyLimits

        patience_s = _CLOSED_PATIENCE_S if on_outage == "closed" else None
        state = ValkeyLimits(
            link,
            lease_s=periods.lease_s,
            keep_s=periods.keep_s,
            patience_s=patience_s,
            prefix=f"{PREFIX}{scope}:",
        )
    inner = LedgerLimiter(state, ledger, periods, wall=wall, mono=mono, watcher=watcher)
    return OutageLimiter(inner, on_outage=on_outage, replicas=replicas, lease_s=periods.lease_s, wall=wall)
