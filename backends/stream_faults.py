"""Faults that a stream or a whole answer shows in its own words."""

from typing import Final

from backends.faults import Fault, FaultKind, fault_from_error_object
from backends.json import Json

_BROKEN_FINISHES: Final = frozenset({"error", "abort"})
"""Finish reasons that say the answer broke off: OpenRouter's `error` (its page on errors), SGLang's `abort`
(0.5.23: a request that was aborted inside the engine)."""


def breaks_off(reason: Json) -> bool:
    """The finish reason says that the upstream broke the answer off."""
    return isinstance(reason, str) and reason in _BROKEN_FINISHES


def broken_off(reason: str) -> Fault:
    """The fault of such an answer."""
    return Fault(FaultKind.SERVER, f"the upstream broke the answer off (finish_reason {reason})", code=reason)


def unreadable(value: Json, event: str, what: str) -> Fault:
    """The fault of an event that holds no object; one that is called an error is read as such."""
    if event == "error":
        return fault_from_error_object(value)
    return Fault(FaultKind.SERVER, f"the upstream's stream holds an event {what}")
