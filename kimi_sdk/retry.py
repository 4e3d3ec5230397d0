"""Whether a failed call is sent again, and when. Pure: the one owner of retries in this package.

Nothing that may have been billed is sent again, except to the gateway, which takes an idempotency key and runs a
request once. What the other side says of it (`x-should-retry`, `Retry-After`) is obeyed.
"""

from dataclasses import dataclass
from typing import Final

from kimi_sdk.errors import (
    BadReply,
    ConnectionFailed,
    KimiError,
    NoAnswerInTime,
    Overloaded,
    RateLimited,
    RequestRefused,
    ServerFailed,
)

MAX_WAIT_S: Final = 60.0
"""A longer wait is not ours to sit out: the error says how long it is."""

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 8.0
_MAYBE_RUNNING: Final = frozenset({408, 499, 504, 524})
"""Somebody on the way gave up waiting; the answer may still be made, and billed."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a call stands. `repeats` counts the attempts that failed before; `is_guarded`: it has an idempotency
    key that the server honours; `draw` is random in [0, 1)."""

    repeats: int
    max_retries: int
    is_guarded: bool
    draw: float


def pause_before_retry_s(error: KimiError, standing: Standing) -> float | None:
    """Seconds to wait before the call is sent again; None where it is not."""
    if standing.repeats >= standing.max_retries or not _may_help(error, guarded=standing.is_guarded):
        return None
    least_s = _pause_s(standing.repeats, standing.draw)
    named_s = error.retry_after_s if isinstance(error, RequestRefused) else None
    if named_s is None:
        return least_s
    return None if named_s > MAX_WAIT_S else named_s + least_s / 10  # a little later, so that not all come at once


def may_be_billed(error: KimiError) -> bool:
    """The request may have been answered although no answer came."""
    if isinstance(error, RequestRefused):
        return error.status in _MAYBE_RUNNING
    if isinstance(error, ConnectionFailed):
        return error.was_sent
    return isinstance(error, BadReply)


def _may_help(error: KimiError, *, guarded: bool) -> bool:
    if isinstance(error, RequestRefused):
        if error.should_retry is not None:
            return error.should_retry and (guarded or error.status not in _MAYBE_RUNNING)
        if error.status in _MAYBE_RUNNING:
            return guarded
        return isinstance(error, RateLimited | Overloaded | ServerFailed)
    if isinstance(error, NoAnswerInTime):
        return False  # whoever waited as long as they wanted to wait does not want to wait again
    if isinstance(error, ConnectionFailed):
        return guarded or not error.was_sent
    return False


def _pause_s(repeats: int, draw: float) -> float:
    """A growing, jittered pause: in the upper half of 0.5, 1, 2, 4, then 8 seconds."""
    top_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * float(2 ** min(repeats, 10)))
    return top_s / 2 + draw * top_s / 2
