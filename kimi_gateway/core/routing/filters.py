"""Who cannot take a request: the first filter that refuses a target, and why, in words.

| filter | a target is refused that |
|---|---|
| pinned | is not the one that `x-kimi-target` names |
| model | does not map the model of the tier that is asked for |
| rights | has no price, where the key has a budget |
| context | has a window that is smaller than the prompt, for certain |
| capability | lacks n > 1, thinking off, public addresses, or the account of an uploaded file |
| out | takes nothing now: an empty account, a refused key, an open breaker, a long rate limit |

A target that is at its limits is not refused: it is waited for. Pure.
"""

from typing import Final, Literal

from msgspec import Struct

from backends.faults import FaultKind
from kimi_gateway.core.routing.candidate import Candidate, Policy, Wants
from kimi_gateway.core.routing.facts import Out

Filter = Literal["pinned", "model", "rights", "context", "capability", "out"]
FILTERS: Final[tuple[Filter, ...]] = ("pinned", "model", "rights", "context", "capability", "out")
"""In the order in which they are asked."""

_NAMED_WAITS: Final = (FaultKind.RATE, FaultKind.OVERLOAD)
"""Faults whose end the target named itself: it is waited for."""
_OUT_WORDS: Final = {
    FaultKind.QUOTA: "its account is empty",
    FaultKind.AUTH: "its key is refused",
    FaultKind.RATE: "its rate limit is reached",
    FaultKind.OVERLOAD: "it is overloaded",
}


class Refusal(Struct, frozen=True, gc=False):
    """A target that cannot take the request. `param` is the request's field that keeps it out, "" where none
    does."""

    candidate: Candidate
    filter: Filter
    why: str
    param: str = ""


def refusal(wants: Wants, candidate: Candidate, policy: Policy) -> Refusal | None:
    """The first filter that refuses a target; None where all let it pass, in about half a microsecond."""
    if wants.pinned is not None and wants.pinned != candidate.name:
        return Refusal(candidate, "pinned", f"x-kimi-target names {wants.pinned}", "x-kimi-target")
    if not candidate.model:
        return Refusal(candidate, "model", "does not serve this model at this tier", "model")
    if wants.priced_only and candidate.tariff is None:
        return Refusal(candidate, "rights", "has no price, and the key has a budget")
    if wants.prompt.low >= candidate.window:
        why = f"its window has {candidate.window} tokens, the prompt at least {wants.prompt.low}"
        return Refusal(candidate, "context", why, "messages")
    lacking = _lacking(wants, candidate)
    if lacking is not None:
        return Refusal(candidate, "capability", lacking[1], lacking[0])
    if candidate.out is not None and not _passes(candidate.out, wants.now_s, policy):
        return Refusal(candidate, "out", _out_words(candidate.out, wants.now_s))
    return None


def is_doubtful(wants: Wants, candidate: Candidate) -> bool:
    """The prompt likely does not fit into a window, though it may: only an exact count, or the upstream, can
    tell."""
    return wants.prompt.high >= candidate.window and wants.prompt.tokens >= candidate.window


def is_near(wants: Wants, candidate: Candidate) -> bool:
    """The bounds leave open whether the prompt fits, and the likely count is no less than half of the window."""
    prompt = wants.prompt
    return prompt.low < candidate.window <= prompt.high and prompt.tokens * 2 >= candidate.window


def _lacking(wants: Wants, candidate: Candidate) -> tuple[str, str] | None:
    """The field that asks for what a target cannot do, and what it cannot do."""
    abilities = candidate.abilities
    if abilities.max_n is not None and wants.n > abilities.max_n:
        return "n", f"gives {abilities.max_n} answer{'' if abilities.max_n == 1 else 's'} a request, not {wants.n}"
    if wants.thinking_off and not abilities.thinking_off:
        return wants.thinking_off, "cannot switch thinking off"
    if wants.remote_media and not abilities.remote_media:
        return wants.remote_media, "does not fetch public addresses"
    if wants.file:
        if not abilities.files:
            return wants.file, "takes no uploaded files (ms://)"
        if candidate.account != wants.file_account:
            return wants.file, f"the file belongs to account {wants.file_account}, this is {candidate.account}"
    return None


def _passes(out: Out, now_s: float, policy: Policy) -> bool:
    """It takes something again: at once, or, where it named the time itself, soon enough to be waited for."""
    if out.until_s is None or out.probing:
        return False
    left_s = out.until_s - now_s
    return left_s <= 0 or (out.fault.kind in _NAMED_WAITS and left_s <= policy.max_wait_s)


def _out_words(out: Out, now_s: float) -> str:
    kind = out.fault.kind
    words = _OUT_WORDS.get(kind, f"it failed too often ({kind.value})")
    if out.probing:
        return f"{words}; one request tries it now"
    if out.until_s is None:
        return f"{words}, until the configuration is read again"
    return f"{words}, for another {max(0.0, out.until_s - now_s):.1f} s"
