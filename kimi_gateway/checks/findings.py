"""What a check found: mistakes to set right, what was looked at, notes, and what probes brought back."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from backends.faults import Fault
from backends.sentinel import Sign
from backends.usage import Measured
from pricing.ledger.row import LedgerRow

_QUOTED: Final = re.compile(r'\["(?:[^"\\]|\\.)*"\]')


class Output(StrEnum):
    """How to print what was found."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Mistake:
    """Something to set right: where it stands, what is wrong, what to do ("" where the words before say it)."""

    where: str
    what: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """All three on one line."""
        return f"{self.where}: {self.what}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True)
class Checked:
    """One thing that was looked at and is well, could not be looked at (`is_checked` false), or is wrong
    (`is_well` false; a mistake says how)."""

    what: str
    where: str
    result: str
    is_checked: bool = True
    is_well: bool = True


@dataclass(frozen=True, slots=True)
class Sight:
    """What one answer to a probe showed. Times are milliseconds since the request was sent, sizes UTF-8 bytes.

    `thought_names` are the fields a thought stood in, `usage_places` where usage stood, both as the target spells
    them. `tools` says whether a tool was offered, `calls` which ones were called. `signs` are those of a wrong or
    broken engine. `fault` None: a whole answer.
    """

    status: int = 0
    model: str = ""
    thought_names: tuple[str, ...] = ()
    thought_bytes: int = 0
    text: str = ""
    calls: tuple[str, ...] = ()
    finish_reason: str = ""
    usage_places: tuple[str, ...] = ()
    measured: Measured | None = None
    has_cached_count: bool = False
    has_request_id: bool = False
    first_token_ms: int | None = None
    whole_ms: int | None = None
    tools: bool = False
    signs: tuple[Sign, ...] = ()
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe: the target, its own name of the model that was asked for, what came back, the row that a request
    with this answer would have in the ledger, and the version of the target's engine ("": not known)."""

    target: str
    model: str
    sight: Sight
    row: LedgerRow
    version: str = ""


@dataclass(slots=True)
class Findings:
    """Collects what is found. A mistake or note that is found twice is one."""

    mistakes: list[Mistake] = field(default_factory=list)
    checked: list[Checked] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)

    def wrong(self, *mistakes: Mistake | None) -> None:
        """Adds mistakes; None is none."""
        self.mistakes += [found for found in mistakes if found is not None and found not in self.mistakes]

    def well(self, what: str, where: str, result: str) -> None:
        """Adds a row for something that is well."""
        self.checked.append(Checked(what, where, result))

    def unseen(self, what: str, where: str, reason: str) -> None:
        """Adds a row for something that could not be looked at."""
        self.checked.append(Checked(what, where, reason, is_checked=False))

    def bad(self, what: str, where: str) -> None:
        """Adds a row for something about which there is a mistake."""
        self.checked.append(Checked(what, where, "wrong, see below", is_well=False))

    def note(self, *texts: str) -> None:
        """Adds notes; "" is none."""
        self.notes += [text for text in texts if text and text not in self.notes]

    def take(self, others: "Iterable[Findings] | Findings") -> None:
        """Adds everything that others found."""
        for other in [others] if isinstance(others, Findings) else others:
            self.wrong(*other.mistakes)
            self.note(*other.notes)
            self.checked += other.checked
            self.probes += other.probes


def settings_mistakes(lines: Sequence[str], source: str) -> list[Mistake]:
    """The lines of a `SettingsError` taken apart; one that names no setting stands for the whole file."""
    found = []
    for line in lines:
        place, colon, rest = line.partition(": ")
        if not colon or " " in _QUOTED.sub("", place.partition(" (from ")[0]):
            place, rest = source or "settings", line
        what, _, remedy = rest.partition("; ")
        found.append(Mistake(place, what, remedy))
    return found


def card_text(label: str) -> str:
    """The label of a price in few words: a card without its write rule, or the target's own prices."""
    return "the target's own prices" if label.startswith("target:") else label.partition(" ")[0]
