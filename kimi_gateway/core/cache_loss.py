"""Why cached tokens were lost, how many, and what that cost: in a header, in the `kimi` object, in the row.

Lost are the tokens that would have been read at the cache's price had the request been the last one, grown, on the
same target in time, and that were computed anew instead.
"""

from typing import Final, Literal

from msgspec import Struct

from backends.json import JsonObject
from pricing.cost import billed_rate
from pricing.money import usd_text
from pricing.rates import Rates, WriteRule
from pricing.usage import Meter

Reason = Literal["expired", "tools", "effort", "target", "model", "history_edited", "thinking_lost", "upstream"]
REASONS: Final[tuple[Reason, ...]] = (
    "expired",  # more time has passed than the cache keeps a prefix
    "tools",  # another list of tools, or one cut down to the function that tool_choice names
    "effort",  # another effort than the last request's
    "target",  # it went to another target than the one that holds the prefix
    "model",  # to another model there: Pro and Highspeed are taken to have caches of their own
    "history_edited",  # earlier messages are not those of the last request, grown
    "thinking_lost",  # earlier turns went out without the thought they had, or with one they had not
    "upstream",  # nothing of all this: the upstream read less than it should still have held
)


class Loss(Struct, frozen=True, gc=False):
    """What was lost. `reason` "" and 0 tokens: nothing. `measured`: the upstream reported what it read; else this
    is what must be expected."""

    reason: Reason | Literal[""] = ""
    tokens: int = 0
    measured: bool = False

    def __bool__(self) -> bool:
        return bool(self.reason)


NO_LOSS: Final = Loss()

_WRITE_METERS: Final[dict[str, Meter]] = {"5m": "write_5m", "1h": "write_1h"}


def loss_cost_nano(
    lost_tokens: int, rates: Rates | None, *, ttl: str, write_rule: WriteRule = "replaces"
) -> int | None:
    """What the lost tokens cost more than reading them would have, in nano-dollars; None where no price is known.

    `ttl` is the lifetime at which the target writes them ("5m", "1h"), "" where it bills no writes: they are
    fresh input then.
    """
    if rates is None:
        return None
    paid = billed_rate(rates, _WRITE_METERS.get(ttl, "input"), write_rule=write_rule)
    read = billed_rate(rates, "cache_read", write_rule=write_rule)
    if paid is None or read is None:
        return None
    return lost_tokens * max(0, paid - read)


def loss_header(loss: Loss, cost_nano: int | None) -> str:
    """The value of `x-kimi-cache-loss`, such as `effort;tokens=5760;usd=0.010368`; "" where nothing was lost."""
    if not loss:
        return ""
    parts = [loss.reason, f"tokens={loss.tokens}"]
    if cost_nano is not None:
        parts.append(f"usd={usd_text(cost_nano)}")
    return ";".join(parts)


def loss_object(loss: Loss, cost_nano: int | None) -> JsonObject | None:
    """The member `cache_loss` of the `kimi` object; None where nothing was lost. `usd` is null where unpriced."""
    if not loss:
        return None
    usd = usd_text(cost_nano) if cost_nano is not None else None
    return {"reason": loss.reason, "tokens": loss.tokens, "usd": usd}
