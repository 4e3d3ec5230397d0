"""What processes tell each other of the health of targets, and how it is written down.

A notice holds what a client would be told, and no key: which target it is about is said by its name and by a short
digest of its address and key, so that a process with another configuration does not take it for its own.
"""

from dataclasses import dataclass
from typing import Final, Literal

from backends.faults import Fault, FaultKind
from backends.json import JsonError, as_count, as_object, as_str, decode, encode

Why = Literal["auth", "quota", "breaker", "rate", "overload"]
"""Why a target takes nothing, the gravest first."""

WHYS: Final[tuple[Why, ...]] = ("auth", "quota", "breaker", "rate", "overload")
_LONGEST_MESSAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Notice:
    """A target is out because of `fault` (None: no longer) until `until_s` (None: until the configuration is read
    again), a moment of the clock of whoever holds the notice. `identity` tells which target `target` is."""

    why: Why
    target: str
    identity: str
    fault: Fault | None
    until_s: float | None

    @property
    def place(self) -> str:
        """Where it is kept: a later notice takes the place of an earlier one."""
        return f"{self.why}|{self.target}"


def written(notice: Notice) -> bytes:
    """The notice without its time, which the store keeps on its own clock."""
    fault = notice.fault
    said: dict[str, object] = {"why": notice.why, "target": notice.target, "identity": notice.identity}
    said["timed"] = notice.until_s is not None
    if fault is not None:
        said |= {"kind": fault.kind.value, "message": fault.message[:_LONGEST_MESSAGE], "status": fault.status}
        said |= {name: value for name in ("type", "code") if (value := getattr(fault, name)) is not None}
    return encode(said)


def read(data: bytes, until_s: float) -> Notice | None:
    """The notice, None for what is none: another version's, or nobody's."""
    try:
        said = as_object(decode(data))
    except JsonError:
        return None
    if said is None:
        return None
    why, target, identity = (as_str(said.get(name)) for name in ("why", "target", "identity"))
    known = next((one for one in WHYS if one == why), None)
    if known is None or not target or not identity:
        return None
    fault: Fault | None = None
    if "kind" in said:
        kind = next((one for one in FaultKind if one == as_str(said["kind"])), None)
        if kind is None:
            return None
        fault = Fault(
            kind,
            as_str(said.get("message")) or "",
            as_count(said.get("status")) or 0,
            as_str(said.get("type")),
            as_str(said.get("code")),
        )
    return Notice(known, target, identity, fault, until_s if said.get("timed") is True else None)
