"""Which tier serves a request that asks for Highspeed.

Only the model name and `service_tier` raise the tier (`kimi_gateway.core.plan`). What is asked for at Highspeed is
served at standard in two cases: where standard keeps the request's deadline at the pace that was measured, and,
where the route's `tier_fallback` allows it, where no target takes it at Highspeed. Both are disclosed, and billed
as standard. Pure.
"""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from kimi_gateway.core.near import quoted
from kimi_gateway.core.plan import TIER_FALLBACK, Plan
from kimi_gateway.core.routing.candidate import Wants
from kimi_gateway.core.routing.rank import Ranking
from kimi_gateway.core.routing.score import total_s
from kimi_gateway.errors import InvalidRequest

DEADLINE_HEADER: Final = "x-kimi-deadline-ms"
_LONGEST_MS: Final = 86_400_000
_DIGITS_MAX: Final = 9


def read_deadline(header: str | None) -> float | None:
    """The deadline in seconds, None without one. Raises `InvalidRequest` for anything but a whole number of
    milliseconds from 1 to a day."""
    if header is None:
        return None
    text = header.strip()
    # `isdigit` alone takes digits of other scripts.
    whole = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    if not whole or not 1 <= int(text) <= _LONGEST_MS:
        raise InvalidRequest(
            f"{DEADLINE_HEADER} must be a whole number of milliseconds from 1 to {_LONGEST_MS}, not "
            f"{quoted(header)}; such as 30000 for an answer within 30 s",
            code="invalid_value",
            param=DEADLINE_HEADER,
        )
    return int(text) / 1000


class Tiered(Struct, frozen=True, gc=False):
    """The plan that is carried out, its ranking, and what is to be disclosed besides the plan's own."""

    plan: Plan
    ranking: Ranking
    adjusted: tuple[str, ...] = ()


def choose_tier(
    plan: Plan, rank_plan: Callable[[Plan], tuple[Wants, Ranking]], deadline_s: float | None
) -> Tiered:
    """The tier that serves a planned request.

    `rank_plan` ranks the targets of a plan; it is called a second time only where the plan has a way down. A
    deadline never raises the tier, and where the pace of standard is not known Highspeed stays.
    """
    down = plan.standard
    if down is not None and deadline_s is not None:
        wants, ranking = rank_plan(down)
        if _keeps(wants, ranking, deadline_s):
            return Tiered(down, ranking, (plan.asked_by,))
    _, ranking = rank_plan(plan)
    if ranking.ranked or down is None or not plan.may_fall_back:
        return Tiered(plan, ranking)
    _, lower = rank_plan(down)
    if not lower.ranked:
        return Tiered(plan, ranking)
    return Tiered(down, lower, (TIER_FALLBACK,))


def _keeps(wants: Wants, ranking: Ranking, deadline_s: float) -> bool:
    """The first choice is expected to have answered by then, at its measured pace."""
    if not ranking.ranked:
        return False
    first = ranking.ranked[0]
    return first.candidate.pace is not None and total_s(wants, first.candidate, first.wait_s) <= deadline_s


def account_of_file(path: str, pinned: str | None, accounts: Sequence[str]) -> str:
    """The account that has the uploaded file which a request names at `path` (ms://): that of the pinned target,
    else the only one there is.

    `accounts` are those of the route's targets that take files, `pinned` that of the target in `x-kimi-target`,
    None without one. Raises `InvalidRequest` that names the field where none or several can be meant.
    """
    distinct = list(dict.fromkeys(accounts))
    if pinned is not None and pinned in distinct:
        return pinned
    if pinned is not None or not distinct:
        who = "no target of this route reads" if pinned is None else "the target in x-kimi-target does not read"
        raise InvalidRequest(
            f"{path} names an uploaded file (ms://), which {who}; send the data itself as a base64 data URL",
            code="unsupported_value",
            param=path,
        )
    if len(distinct) > 1:
        raise InvalidRequest(
            f"{path} names an uploaded file (ms://), which one of the accounts {', '.join(distinct)} has; name a "
            "target of that account in x-kimi-target",
            code="ambiguous_file",
            param=path,
        )
    return distinct[0]
