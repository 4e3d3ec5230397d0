"""What reconciling finds: one finding for each request, bill line or interval, in a class of a closed list."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, Literal

from pricing.money import usd
from pricing.usage import Meter

Kind = Literal[
    "equal",
    "rounding",
    "estimated",
    "assumed",
    "only_in_ledger",
    "only_in_bill",
    "unpriced",
    "under_way",
    "priced_differently",
    "unexplained",
]
KINDS: Final[tuple[Kind, ...]] = (
    "equal",
    "rounding",
    "estimated",
    "assumed",
    "only_in_ledger",
    "only_in_bill",
    "unpriced",
    "under_way",
    "priced_differently",
    "unexplained",
)
EXPLAINED: Final[frozenset[Kind]] = frozenset(KINDS[:-2])
"""The classes that the ledger announced by itself: estimates within their bounds, attempts that may have been
billed, and so on. `priced_differently` is known by its meters, but nothing announced it."""


def dollars_text(amount: Decimal) -> str:
    """Exact dollars, which may be less than nano-dollars, without trailing zeros and never in exponent form."""
    words = f"{amount:f}"
    words = words.rstrip("0").rstrip(".") if "." in words else words
    return "0" if words in ("", "-0") else words


@dataclass(frozen=True, slots=True)
class MeterDifference:
    """One meter on both sides, in tokens; `nano` is what the difference costs at the ledger's rate, None where it
    has none."""

    meter: Meter
    ledger: int
    bill: int
    nano: int | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference, or none. `ledger_nano` is None where no cost is booked or known, `bill_usd` where nothing is
    billed. `bound_nano` is how far an estimate may be off by its own word."""

    kind: Kind
    reason: str
    ledger_nano: int | None
    bill_usd: Decimal | None
    request_id: str = ""
    bill_id: str = ""
    status: str = ""
    started_at: float | None = None
    bound_nano: int | None = None
    meters: Sequence[MeterDifference] = ()

    @property
    def difference(self) -> Decimal:
        """Bill less ledger, dollars; what is unknown or not there counts as nothing."""
        return (self.bill_usd or Decimal(0)) - usd(self.ledger_nano or 0)


@dataclass(slots=True)
class KindSums:
    """The findings of one class; dollars. `off` sums the differences without their signs. It grows."""

    findings: int = 0
    ledger_nano: int = 0
    bill: Decimal = Decimal(0)
    off: Decimal = Decimal(0)

    @property
    def difference(self) -> Decimal:
        """Bill less ledger."""
        return self.bill - usd(self.ledger_nano)


@dataclass(slots=True)
class Found:
    """Everything found. `rows` are all findings but the equal ones; `without_charge` counts requests that nobody
    charged anything for. It grows."""

    by_kind: Mapping[Kind, KindSums] = field(default_factory=lambda: {kind: KindSums() for kind in KINDS})
    rows: list[Finding] = field(default_factory=list)
    without_charge: int = 0

    def add(self, finding: Finding) -> None:
        """Takes a finding."""
        sums = self.by_kind[finding.kind]
        sums.findings += 1
        sums.ledger_nano += finding.ledger_nano or 0
        sums.bill += finding.bill_usd or 0
        sums.off += abs(finding.difference)
        if finding.kind != "equal":
            self.rows.append(finding)

    @property
    def total(self) -> KindSums:
        """All classes together."""
        total = KindSums()
        for sums in self.by_kind.values():
            total.findings += sums.findings
            total.ledger_nano += sums.ledger_nano
            total.bill += sums.bill
            total.off += sums.off
        return total

    @property
    def not_explained(self) -> Decimal:
        """What the classes differ by, without signs, that nothing announced; dollars."""
        return sum((self.by_kind[kind].off for kind in KINDS if kind not in EXPLAINED), Decimal(0))

    def is_explained(self, within: Decimal) -> bool:
        """Whether everything is explained, or all that is not is at most this many dollars."""
        if not any(self.by_kind[kind].findings for kind in KINDS if kind not in EXPLAINED):
            return True
        return within > 0 and self.not_explained <= within
