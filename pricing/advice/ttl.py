"""Which lifetime of cache writes would have been the cheapest: the uses of each prefix, played again.

What is assumed, because no text of the vendor's says otherwise (`kimi-api-facts.md` 3.1, 3.2, 3.7):

* A prefix that is warm is read at the read price, and each hit renews its whole lifetime free of charge. At
  exactly the end of it the prefix is cold.
* The lifetime is fixed when a cold prefix is written. What is added while it is warm is written at that lifetime.
* A write replaces the input price of its tokens, where the card says so.
* Of two prompts of one prefix the shorter is the beginning of the longer.
* Caches are apart for each target, model and effort. Output costs the same under every choice and is left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from pricing.advice.tariffs import Tariff, Tariffs
from pricing.cost import Line, cost_of
from pricing.ledger.row import LedgerRow
from pricing.usage import TokenUsage, Ttl

Choice = Literal["today", "5m", "1h", "none"]
CHOICES: Final[tuple[Choice, ...]] = ("today", "5m", "1h", "none")
"""`today`: what each request asked for; `none`: no cache at all, every prompt token fresh."""

Clock = Literal["start", "end"]
"""From when a lifetime counts: the start of the request that wrote or read, or the end of its answer."""

TTL_MS: Final[Mapping[Ttl, int]] = {"5m": 300_000, "1h": 3_600_000}
_DEFAULT_TTL: Final[Ttl] = "5m"  # what an omitted wish means upstream

Unusable = Literal["under way", "no prefix", "no token counts", "no known price", "no price per TTL"]
UNUSABLE: Final[tuple[Unusable, ...]] = (
    "under way",
    "no prefix",
    "no token counts",
    "no known price",
    "no price per TTL",
)

DIMENSIONS: Final = ("route", "key", "target", "model", "tier", "effort")
TAG_PREFIX: Final = "tag:"


@dataclass(frozen=True, slots=True)
class Use:
    """One prompt of a prefix. Times are Unix milliseconds.

    `cacheable`: tokens that the upstream read from the cache or wrote to it; `fresh`: the others, which no choice
    of lifetime changes. `wish` is the lifetime that was written or, where nothing was, asked for.
    """

    start_ms: int
    renewed_ms: int  # from when the lifetime counts
    cacheable: int
    fresh: int
    wish: Ttl


@dataclass(slots=True)
class _Warm:
    """What of one prefix is warm: depths in tokens, ascending, and when each ends; deeper ones end earlier."""

    ttl: Ttl = _DEFAULT_TTL
    layers: list[tuple[int, int]] = field(default_factory=list)

    def use(self, use: Use, wish: Ttl, counts: list[int]) -> None:
        """Renews what this use touches, and adds its tokens to `counts`: fresh, read, written for 5m, for 1h."""
        live = [(depth, end_ms) for depth, end_ms in self.layers if end_ms > use.start_ms]
        self.ttl = self.ttl if live else wish
        read = min(live[-1][0], use.cacheable) if live else 0
        if use.cacheable:
            deeper = [layer for layer in live if layer[0] > use.cacheable]
            self.layers = [(use.cacheable, use.renewed_ms + TTL_MS[self.ttl]), *deeper]
        counts[0] += use.fresh
        counts[1] += read
        counts[2 if self.ttl == "5m" else 3] += use.cacheable - read


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What one choice costs at one tariff: tokens by meter with the rate of each, nano-dollars."""

    tariff: Tariff
    usage: TokenUsage
    lines: tuple[Line, ...]
    nano: int


@dataclass(frozen=True, slots=True)
class ChoiceCost:
    """What one choice costs, over all tariffs."""

    choice: Choice
    parts: tuple[ModelCost, ...]

    @property
    def nano(self) -> int:
        """Nano-dollars."""
        return sum(part.nano for part in self.parts)

    @property
    def read_tokens(self) -> int:
        """Tokens that this choice reads from the cache."""
        return sum(part.usage.cache_read or 0 for part in self.parts)


@dataclass(frozen=True, slots=True)
class GroupAdvice:
    """One group: its uses, the gaps between them, every choice, and the cheapest of 5m, 1h and today's mix.

    `under_5m` are gaps below 300 s, `under_1h` those from 300 s to below 3,600 s, `longer` the rest.
    `each_prefix_nano`: if every prefix had the better of the two lifetimes for itself.
    `read_tokens`: what the upstreams reported as read, None where a use has no report of it.
    """

    by: Mapping[str, str | None]
    uses: int
    prefixes: int
    under_5m: int
    under_1h: int
    longer: int
    estimated: int
    whole_prompts: int
    booked_nano: int | None
    read_tokens: int | None
    costs: Mapping[Choice, ChoiceCost]
    each_prefix_nano: int

    @property
    def best(self) -> Choice:
        """The cheapest; 5m before 1h, and today's mix only where it is cheaper than both."""
        best: Choice = "1h" if self.costs["1h"].nano < self.costs["5m"].nano else "5m"
        return "today" if self.costs["today"].nano < self.costs[best].nano else best

    def saving_nano(self, choice: Choice) -> int:
        """What a choice costs less than today's mix; negative where it costs more."""
        return self.costs["today"].nano - self.costs[choice].nano


@dataclass(frozen=True, slots=True)
class Advice:
    """All groups, the dearest first, and how many rows could not be used, by reason."""

    by: Sequence[str]
    clock: Clock
    groups: Sequence[GroupAdvice]
    unusable: Mapping[Unusable, int]


def refuse_unknown(by: Sequence[str]) -> None:
    """Raises `ValueError` for a name that cannot be grouped by."""
    for name in by:
        if name not in DIMENSIONS and not (name.startswith(TAG_PREFIX) and name != TAG_PREFIX):
            raise ValueError(f"cannot group by {name!r}; expected {', '.join(DIMENSIONS)} or tag:KEY")


def advise(rows: Iterable[LedgerRow], tariffs: Tariffs, *, by: Sequence[str], clock: Clock = "start") -> Advice:
    """What each group would have paid for its prompts under each choice. `rows` come in the order of their start.

    `by` are names that `refuse_unknown` lets pass.
    """
    unusable: dict[Unusable, int] = dict.fromkeys(UNUSABLE, 0)
    groups: dict[tuple[str | None, ...], _Group] = {}
    for row in rows:
        tariff = tariffs.of_row(row)
        reason = _reason(row, tariff)
        if reason is not None or tariff is None:
            unusable[reason or "no known price"] += 1
            continue
        groups.setdefault(tuple(_value(row, name) for name in by), _Group()).add(row, tariff, clock)
    found = [group.advice(dict(zip(by, key, strict=True))) for key, group in groups.items()]
    found.sort(key=lambda group: (-group.costs["today"].nano, *(value or "" for value in group.by.values())))
    return Advice(by, clock, found, unusable)


def _reason(row: LedgerRow, tariff: Tariff | None) -> Unusable | None:
    """Why a row says nothing about lifetimes; None where it does. The first that applies."""
    if row.status in ("open", "unsettled"):
        return "under way"
    if row.prompt_tokens is None:
        return "no token counts"
    if not row.prefix:
        return "no prefix"
    if tariff is None:
        return "no known price"
    priced = (tariff.rates.input, tariff.rates.write_5m, tariff.rates.write_1h)
    return "no price per TTL" if None in priced else None


def _value(row: LedgerRow, name: str) -> str | None:
    if name.startswith(TAG_PREFIX):
        return row.tags.get(name.removeprefix(TAG_PREFIX))
    value: str = getattr(row, name)
    return value


def use_of(row: LedgerRow, clock: Clock) -> Use:
    """The row as one use of its prefix. Where the upstream did not say what it wrote, the whole prompt counts."""
    prompt = row.prompt_tokens or 0
    cacheable = prompt
    if _says_writes(row):
        kept = (row.cached_tokens or 0) + (row.write_5m_tokens or 0) + (row.write_1h_tokens or 0)
        cacheable = min(prompt, kept)
    start_ms = round(row.started_at * 1000)
    renewed_ms = start_ms + (row.total_ms or 0) if clock == "end" else start_ms
    return Use(start_ms, renewed_ms, cacheable, prompt - cacheable, _wish(row))


def _wish(row: LedgerRow) -> Ttl:
    """The lifetime of what the request wrote: the reported one, which may be another than was asked for."""
    if row.write_1h_tokens or row.write_5m_tokens:
        return "5m" if row.write_5m_tokens else "1h"
    return "1h" if row.ttl == "1h" else _DEFAULT_TTL


def _says_writes(row: LedgerRow) -> bool:
    return row.write_5m_tokens is not None or row.write_1h_tokens is not None


_Counts: TypeAlias = tuple[list[int], list[int], list[int]]  # today, 5m, 1h


class _Prefix:
    """One prefix in the caches of every choice, and the tokens it has used there, by tariff."""

    __slots__ = ("_counts", "_tariff", "_warm", "by_tariff", "renewed_ms")

    def __init__(self) -> None:
        self.renewed_ms: int | None = None  # of the use before
        self.by_tariff: dict[Tariff, _Counts] = {}
        self._tariff: Tariff | None = None
        self._counts: _Counts = ([], [], [])
        self._warm = (_Warm(), _Warm(), _Warm())

    def use(self, use: Use, tariff: Tariff) -> None:
        """Adds a use under every choice."""
        if tariff is not self._tariff:  # the first, or another card from some day on
            self._tariff = tariff
            self._counts = self.by_tariff.setdefault(tariff, ([0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]))
        for warm, wish, counts in zip(self._warm, (use.wish, *TTL_MS), self._counts, strict=True):
            warm.use(use, wish, counts)
        self.renewed_ms = use.renewed_ms

    def better_nano(self) -> int:
        """What the better of the two lifetimes costs for this prefix."""
        costs = [0, 0]
        for tariff, (_, short, long) in self.by_tariff.items():
            costs[0] += _cost(_usage(short), tariff).nano
            costs[1] += _cost(_usage(long), tariff).nano
        return min(costs)


def _usage(counts: Sequence[int]) -> TokenUsage:
    fresh, read, write_5m, write_1h = counts
    return TokenUsage(input=fresh, cache_read=read, write_5m=write_5m, write_1h=write_1h)


class _Group:
    """Sums of one group."""

    def __init__(self) -> None:
        self._prefixes: dict[tuple[str, ...], _Prefix] = {}
        self._gaps = [0, 0, 0]
        self._uses = self._estimated = self._whole = 0
        self._booked_nano: int | None = 0
        self._read_tokens: int | None = 0

    def add(self, row: LedgerRow, tariff: Tariff, clock: Clock) -> None:
        use = use_of(row, clock)
        name = (row.prefix, row.target, tariff.seller, tariff.model, row.effort)
        prefix = self._prefixes.get(name)
        if prefix is None:
            prefix = self._prefixes[name] = _Prefix()
        if prefix.renewed_ms is not None:
            gap_ms = use.start_ms - prefix.renewed_ms
            self._gaps[sum(gap_ms >= ttl_ms for ttl_ms in TTL_MS.values())] += 1
        prefix.use(use, tariff)
        self._uses += 1
        self._estimated += row.estimated
        self._whole += not _says_writes(row)
        self._booked_nano = _plus(self._booked_nano, _booked_prompt_nano(row))
        self._read_tokens = _plus(self._read_tokens, row.cached_tokens)

    def advice(self, by: Mapping[str, str | None]) -> GroupAdvice:
        sums: dict[Tariff, _Counts] = {}
        for prefix in self._prefixes.values():
            for tariff, counts in prefix.by_tariff.items():
                known = sums.get(tariff)
                sums[tariff] = counts if known is None else _added(known, counts)
        under_5m, under_1h, longer = self._gaps
        return GroupAdvice(
            by=by,
            uses=self._uses,
            prefixes=len(self._prefixes),
            under_5m=under_5m,
            under_1h=under_1h,
            longer=longer,
            estimated=self._estimated,
            whole_prompts=self._whole,
            booked_nano=self._booked_nano,
            read_tokens=self._read_tokens,
            costs=_costs(sums),
            each_prefix_nano=sum(prefix.better_nano() for prefix in self._prefixes.values()),
        )


def _added(left: _Counts, right: _Counts) -> _Counts:
    today, short, long = ([a + b for a, b in zip(*pair, strict=True)] for pair in zip(left, right, strict=True))
    return today, short, long


def _costs(sums: Mapping[Tariff, _Counts]) -> dict[Choice, ChoiceCost]:
    parts: dict[Choice, list[ModelCost]] = {choice: [] for choice in CHOICES}
    for tariff in sorted(sums, key=lambda tariff: (tariff.seller, tariff.model)):
        today, short, long = (_usage(counts) for counts in sums[tariff])
        used = (today, short, long, TokenUsage(input=today.prompt))
        for choice, usage in zip(CHOICES, used, strict=True):
            parts[choice].append(_cost(usage, tariff))
    return {choice: ChoiceCost(choice, tuple(found)) for choice, found in parts.items()}


def _cost(usage: TokenUsage, tariff: Tariff) -> ModelCost:
    cost = cost_of(usage, tariff.rates, write_rule=tariff.write_rule)
    return ModelCost(tariff, usage, cost.lines, cost.nano or 0)  # every prompt meter has a price here: _reason


def _booked_prompt_nano(row: LedgerRow) -> int | None:
    """What the ledger booked for the prompt, None where the row has no lines to tell it from."""
    if not row.lines or row.cost_source == "unpriced":
        return None
    return sum(line.nano for line in row.lines if line.meter not in ("output", "search"))


def _plus(total: int | None, more: int | None) -> int | None:
    return None if total is None or more is None else total + more
