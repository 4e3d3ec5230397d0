"""The ledger's rows at other sellers' prices, on the day of each: with the cache kept, and with all reads lost.

A cache does not move. Where a row was billed by the very card it is compared with, nothing moves and both figures
are the same; elsewhere the truth lies between: every read still a read, and every read fresh input again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pricing.advice.speed import SpeedAnswer, SpeedSums
from pricing.advice.tariffs import Tariff, Tariffs, day_of, usage_of
from pricing.cost import billed_rate, cost_of
from pricing.ledger.row import LedgerRow
from pricing.usage import TokenUsage


@dataclass(frozen=True, slots=True)
class Scenario:
    """A place that everything could go to."""

    name: str
    seller: str
    model: str


PRO: Final = Scenario("pro", "moonshot", "kimi-k3.1-pro")
HIGHSPEED: Final = Scenario("highspeed", "moonshot", "kimi-k3.1-pro-highspeed")
OPENROUTER: Final = Scenario("openrouter", "openrouter", "moonshotai/kimi-k3.1-pro")
SCENARIOS: Final = (PRO, HIGHSPEED, OPENROUTER)

Left = Literal["used_nothing", "under_way", "without_counts"]
LEFT: Final[tuple[Left, ...]] = ("used_nothing", "under_way", "without_counts")
"""Why a row is not compared."""


@dataclass(slots=True)
class Sums:
    """Requests with their tokens, and what they cost with the cache kept and lost, nano-dollars. They grow."""

    requests: int = 0
    tokens: int = 0
    kept_nano: int = 0
    lost_nano: int = 0

    def add(self, tokens: int, kept_nano: int, lost_nano: int) -> None:
        """Adds one request."""
        self.requests += 1
        self.tokens += tokens
        self.kept_nano += kept_nano
        self.lost_nano += lost_nano


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """One scenario. `sums` has every row that has a price there; `without_price` counts the others.

    `of_booked` has those of them whose booked cost is known, and `booked_nano` what was booked for them: only
    these two can be held against each other.
    """

    scenario: Scenario
    sums: Sums
    without_price: int
    of_booked: Sums
    booked_nano: int


@dataclass(frozen=True, slots=True)
class Reported:
    """Rows that the upstream reported a cost for, beside what the card says: requests, how many differ, nano."""

    requests: int = 0
    differing: int = 0
    reported_nano: int = 0
    table_nano: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was found. `usage` sums all compared rows; `booked` those whose cost is known, `unpriced` counts the
    rest. `tokens_by_hour` has Unix hours. Times are Unix seconds, None without rows."""

    requests: int
    compared: int
    left: Mapping[Left, int]
    unpriced: int
    estimated: int
    cache_unknown: int
    usage: TokenUsage
    booked: Sums
    elsewhere: Sequence[Elsewhere]
    reported: Reported
    speed: SpeedAnswer
    tokens_by_hour: Mapping[int, int]
    first_s: float | None
    last_s: float | None


def compare(rows: Iterable[LedgerRow], tariffs: Tariffs) -> Comparison:
    """Every row at every scenario's prices."""
    sums = _Comparing(tariffs)
    for row in rows:
        sums.add(row)
    return sums.result()


class _Elsewhere:
    """The sums of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario: Final = scenario
        self._all, self._of_booked = Sums(), Sums()
        self._without_price = self._booked_nano = 0

    def add(self, row: LedgerRow, tokens: int, costs: tuple[int, int] | None) -> None:
        if costs is None:
            self._without_price += 1
            return
        self._all.add(tokens, *costs)
        if row.cost_nano is not None:
            self._of_booked.add(tokens, *costs)
            self._booked_nano += row.cost_nano

    def result(self) -> Elsewhere:
        return Elsewhere(self.scenario, self._all, self._without_price, self._of_booked, self._booked_nano)


class _Comparing:
    """The sums of everything."""

    def __init__(self, tariffs: Tariffs) -> None:
        self._tariffs: Final = tariffs
        self._elsewhere: Final = {scenario: _Elsewhere(scenario) for scenario in SCENARIOS}
        self._speed: Final = SpeedSums()
        self._hours: Final[Counter[int]] = Counter()
        self._left: Final[dict[Left, int]] = dict.fromkeys(LEFT, 0)
        self._requests = self._compared = self._unpriced = self._estimated = self._cache_unknown = 0
        self._usage = TokenUsage()
        self._booked = Sums()
        self._reported = Reported()
        self._first_s: float | None = None
        self._last_s: float | None = None

    def add(self, row: LedgerRow) -> None:
        self._requests += 1
        usage = usage_of(row)
        reason = _left(row, usage)
        if reason is not None or usage is None:
            self._left[reason or "without_counts"] += 1
            return
        tokens = usage.prompt + usage.output
        self._note(row, usage, tokens)
        billed = self._tariffs.of_row(row)
        costs: dict[Scenario, tuple[int, int] | None] = {}
        for scenario, sums in self._elsewhere.items():
            tariff = self._tariffs.on_day(scenario.seller, scenario.model, day_of(row))
            costs[scenario] = _costs(usage, tariff, moves=not _is_at(billed, scenario))
            sums.add(row, tokens, costs[scenario])
        self._add_speed(row, billed, costs)

    def _note(self, row: LedgerRow, usage: TokenUsage, tokens: int) -> None:
        self._compared += 1
        self._estimated += row.estimated
        self._cache_unknown += row.cached_tokens is None
        self._usage += usage
        self._hours[int(row.started_at // 3600)] += tokens
        self._first_s = row.started_at if self._first_s is None else min(self._first_s, row.started_at)
        end_s = row.started_at + (row.total_ms or 0) / 1000
        self._last_s = end_s if self._last_s is None else max(self._last_s, end_s)
        if row.cost_nano is None:
            self._unpriced += 1
            return
        self._booked.add(tokens, row.cost_nano, row.cost_nano)
        if row.cost_source == "upstream" and row.table_cost_nano is not None:
            self._reported = Reported(
                self._reported.requests + 1,
                self._reported.differing + (row.cost_nano != row.table_cost_nano),
                self._reported.reported_nano + row.cost_nano,
                self._reported.table_nano + row.table_cost_nano,
            )

    def _add_speed(
        self, row: LedgerRow, billed: Tariff | None, costs: Mapping[Scenario, tuple[int, int] | None]
    ) -> None:
        standard, highspeed = costs[PRO], costs[HIGHSPEED]
        if standard is None or highspeed is None:
            return
        if _is_at(billed, PRO):
            self._speed.add_standard(row, standard[0], *highspeed)
        elif _is_at(billed, HIGHSPEED):
            self._speed.add_highspeed(row, highspeed[0], standard[0])

    def result(self) -> Comparison:
        return Comparison(
            requests=self._requests,
            compared=self._compared,
            left=self._left,
            unpriced=self._unpriced,
            estimated=self._estimated,
            cache_unknown=self._cache_unknown,
            usage=self._usage,
            booked=self._booked,
            elsewhere=[sums.result() for sums in self._elsewhere.values()],
            reported=self._reported,
            speed=self._speed.answer(),
            tokens_by_hour=self._hours,
            first_s=self._first_s,
            last_s=self._last_s,
        )


def _left(row: LedgerRow, usage: TokenUsage | None) -> Left | None:
    """Why a row is left out, None where it is compared."""
    if row.status in ("open", "unsettled"):
        return "under_way"
    if row.cost_source == "none":
        return "used_nothing"
    return "without_counts" if usage is None else None


def _is_at(billed: Tariff | None, scenario: Scenario) -> bool:
    return billed is not None and (billed.seller, billed.model) == (scenario.seller, scenario.model)


def _costs(usage: TokenUsage, tariff: Tariff | None, *, moves: bool) -> tuple[int, int] | None:
    """With the cache kept and lost; None where a meter has no price there."""
    if tariff is None:
        return None
    kept = cost_of(usage, tariff.rates, write_rule=tariff.write_rule).nano
    if kept is None:
        return None
    read = usage.cache_read or 0
    if not moves or not read:
        return kept, kept
    fresh_rate = billed_rate(tariff.rates, "input", write_rule=tariff.write_rule)
    read_rate = billed_rate(tariff.rates, "cache_read", write_rule=tariff.write_rule)
    if fresh_rate is None or read_rate is None:
        return None
    return kept, kept + read * (fresh_rate - read_rate)
