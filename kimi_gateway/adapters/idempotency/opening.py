"""From settings to a store of answers: in the process, or on a link to what several processes share."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kimi_gateway.adapters.idempotency.memory import MemoryAnswers
from kimi_gateway.core.idempotency import Bounds
from kimi_gateway.core.secret import Secret

if TYPE_CHECKING:
    from kimi_gateway.adapters.idempotency.valkey import ValkeyAnswers
    from kimi_gateway.adapters.state.link import Link


def open_answers(
    link: "Link | None", bounds: Bounds, secret: Secret | None, mono: Callable[[], float]
) -> "MemoryAnswers | ValkeyAnswers":
    """The store over a link, or in this process where there is none. Connects to nothing yet.

    Raises `kimi_gateway.adapters.state.seal.WeakSecret`.
    """
    if link is None:
        return MemoryAnswers(bounds, mono)
    # Not at the top: a gateway with its state in the process needs none of these libraries.
    from kimi_gateway.adapters.idempotency.valkey import ValkeyAnswers
    from kimi_gateway.adapters.state.seal import seal_of

    return ValkeyAnswers(link, bounds, seal_of(secret))
