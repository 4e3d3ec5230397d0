"""How much room a target's window leaves for thoughts that are put back: no repair makes a request too long."""

from typing import Final

from backends.dialect import Dialect
from kimi_gateway.core.repair import RepairPlan
from pricing.estimate import Estimate, text_size

_LEAST_LIMIT: Final = 16_000  # platform.kimi.ai recommends at least as many: thinking and answer share them
_BYTES_PER_TOKEN: Final = 3  # of a thought, likely; see pricing.estimate
_STEPS: Final = 64  # a cut moves in steps of this part of the window, so that a growing history keeps its prefix


def fitted(plan: RepairPlan, dialect: Dialect, *, prompt: Estimate, window: int, output: int) -> RepairPlan:
    """The plan for one target: all of it where even the upper bounds fit, else as much as likely fits.

    `prompt` are the tokens of the request as it came, `window` and `output` (the request's own limit, 0 without
    one) are tokens too. A limit gives way to thoughts down to the least that is recommended: some clients ask for
    the whole window.
    """
    output = min(output, _LEAST_LIMIT)
    keeps = dialect.keeps_thought_details
    safe = plan.towards(keeps_details=keeps, room_tokens=max(0, window - prompt.high - output))
    if not safe.trimmed:
        return safe
    return plan.towards(
        keeps_details=keeps,
        room_tokens=max(0, window - prompt.tokens - output),
        tokens_of=_likely_tokens,
        step_tokens=max(1, window // _STEPS),
    )


def output_limit(limit: int, *, prompt: Estimate, window: int, thoughts_bytes: int = 0) -> int:
    """The limit, or what the window leaves of it: a larger one is refused by most targets (Kimi Code asks for the
    whole window on its first turn).

    What is left is counted with the prompt's upper bound; where that bound leaves less than the vendor recommends
    as a least limit, with the likely count and a quarter more. `thoughts_bytes` are put back into the prompt.
    """
    left = window - prompt.high - thoughts_bytes
    if left < _LEAST_LIMIT:
        likely = prompt.tokens * 5 // 4 + thoughts_bytes // _BYTES_PER_TOKEN
        left = min(max(window - likely, 1), _LEAST_LIMIT)
    return min(limit, left)


def _likely_tokens(text: bytes) -> int:
    return text_size(text).estimate().tokens
