"""What keeps answers for retries, in the process, for tests whose requests have no Idempotency-Key."""

from kimi_gateway.adapters.idempotency.memory import MemoryAnswers
from kimi_gateway.core.idempotency import Bounds
from kimi_gateway.lifecycle import Lifecycle
from kimi_gateway.relay.idempotent import Idempotency


def idempotency() -> Idempotency:
    """One with a clock that stands still."""
    bounds = Bounds()
    return Idempotency(
        MemoryAnswers(bounds, lambda: 0.0), Lifecycle(), lambda _: 0, bounds=bounds, on_outage="open"
    )
