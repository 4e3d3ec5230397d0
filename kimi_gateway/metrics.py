"""Prometheus metrics of one process, in a registry of their own.

Labels are only target, model, tier, kind, meter and key, each from a closed set: a value that is not configured
counts as `other`, so no client can make series. Sums of money stay integer nano-dollars until they are rendered.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from math import inf
from typing import Final

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from typing_extensions import override

from backends.faults import FaultKind
from kimi_gateway.core.limits import Verdict
from pricing.ledger.row import STATUSES, LedgerRow
from pricing.money import usd

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
OTHER: Final = "other"
REFUSED: Final = "refused"
"""`kind` of a request that was answered before it was planned, and so has no row."""

_TIERS: Final = frozenset({"standard", "highspeed"})
_KINDS: Final = frozenset({*STATUSES, REFUSED})
_FAULTS: Final = frozenset(FaultKind)
_METERS: Final = ("input", "cache_read", "write_5m", "write_1h", "output", "search")
_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
_GAP_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_PACES: Final = (5, 10, 20, 40, 60, 80, 120, 160, 240, 320, 640)
_LAG_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1)


class _Dollars(Collector):
    """Sums of nano-dollars by labels; a float only in what it hands to the exposition."""

    def __init__(self) -> None:
        self._nano: dict[tuple[str, ...], int] = {}

    def add(self, labels: tuple[str, ...], nano: int) -> None:
        self._nano[labels] = self._nano.get(labels, 0) + nano

    @override
    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(
            "kimi_cost_usd", "Cost of settled requests in USD.", labels=("target", "model", "tier", "key")
        )
        for labels, nano in list(self._nano.items()):
            family.add_metric(labels, float(usd(nano)))
        yield family


class _Counts(Collector):
    """A counter by labels. Of the library's own a count costs 2 µs, and a request makes seven; of these 0.2."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self._name, self._text, self._labels = name, text, labels
        self.values: dict[tuple[str, ...], int] = {}

    def add(self, labels: tuple[str, ...], count: int = 1) -> None:
        self.values[labels] = self.values.get(labels, 0) + count

    @override
    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in list(self.values.items()):
            family.add_metric(labels, value)
        yield family


class _Level(Collector):
    """A gauge without labels that goes up and down."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self.value = 0

    @override
    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily(self._name, self._text, value=self.value)


class _Spread:
    """The observations of one histogram with certain labels: how many in each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class _Spreads(Collector):
    """A histogram by labels, for the same reason as `_Counts`; one without labels shows from the start."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...], *, buckets: tuple[float, ...]) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, labels, buckets
        self._spreads: dict[tuple[str, ...], _Spread] = {} if labels else {(): _Spread(buckets)}

    def of(self, *labels: str) -> _Spread:
        """Where observations with these labels go."""
        spread = self._spreads.get(labels)
        if spread is None:
            spread = self._spreads[labels] = _Spread(self._bounds)
        return spread

    @override
    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        names = [str(floatToGoString(bound)) for bound in (*self._bounds, inf)]  # type: ignore[no-untyped-call]  # theirs
        for labels, spread in list(self._spreads.items()):
            buckets = list(zip(names, accumulate(spread.counts), strict=True))
            family.add_metric(labels, buckets, spread.total)
        yield family


class _Store(Collector):
    """The store of thoughts as it last described itself; nothing of it before it has."""

    _GAUGES: Final = (
        ("bytes", "kimi_thinking_bytes", "Bytes of thoughts kept for repair."),
        ("conversations", "kimi_thinking_conversations", "Conversations with thoughts kept for repair."),
    )
    _COUNTERS: Final = (
        ("evicted", "kimi_thinking_evictions", "Conversations that had to go to make room."),
        ("expired", "kimi_thinking_expiries", "Conversations that were not used for the retention time."),
        ("refused", "kimi_thinking_refusals", "Thoughts that found no room."),
    )

    def __init__(self) -> None:
        names = [name for name, _, _ in (*self._GAUGES, *self._COUNTERS)]
        self.statistics: Mapping[str, int] = dict.fromkeys(names, 0)

    @override
    def collect(self) -> Iterator[Metric]:
        known = self.statistics
        for name, title, text in self._GAUGES:
            if name in known:
                yield GaugeMetricFamily(title, text, value=known[name])
        for name, title, text in self._COUNTERS:
            if name in known:
                yield CounterMetricFamily(title, text, value=known[name])


class _Bound(Struct, gc=False):
    """Where a request with certain labels counts."""

    caller: tuple[str, str, str, str]  # target, model, tier, key
    seconds: _Spread
    paces: _Spread
    meters: dict[str, tuple[str, ...]]  # the labels of its tokens


class Metrics:
    """Counts what happens. Every method is a few dictionary look-ups; none raises."""

    def __init__(
        self, *, targets: Iterable[str] = (), models: Iterable[str] = (), keys: Iterable[str] = ()
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library left it untyped
        self.configure(targets=targets, models=models, keys=keys)
        self._registry = CollectorRegistry()
        registry = self._registry
        by_caller = ("target", "model", "tier", "key")
        self._requests = _Counts("kimi_requests", "Requests by how they ended.", (*by_caller, "kind"))
        self._tokens = _Counts("kimi_tokens", "Tokens by meter.", ("meter", *by_caller))
        self._dollars = _Dollars()
        by_tier = ("target", "tier")
        self._seconds = _Spreads("kimi_request_seconds", "Time to the end.", by_tier, buckets=_SECONDS)
        self._ttft = _Spreads("kimi_ttft_seconds", "Time to the first content.", ("target",), buckets=_SECONDS)
        self._gaps = _Spreads("kimi_chunk_gap_seconds", "Time between content chunks.", (), buckets=_GAP_SECONDS)
        self._gap = self._gaps.of()
        self._waits = _Spreads("kimi_queue_wait_seconds", "Time waited for a target.", (), buckets=_SECONDS)
        self._wait = self._waits.of()
        paces = "Tokens per second of answers, from their first token on."
        self._paces = _Spreads("kimi_tokens_per_second", paces, by_tier, buckets=_PACES)
        self._in_flight = _Level("kimi_in_flight", "Requests under way.")
        ours: tuple[Collector, ...] = (
            self._requests,
            self._tokens,
            self._dollars,
            self._seconds,
            self._ttft,
            self._gaps,
            self._waits,
            self._paces,
            self._in_flight,
        )
        for collector in ours:
            registry.register(collector)
        self._store = _Store()
        registry.register(self._store)
        self._repairs = Counter(
            "kimi_thinking_repairs", "Thoughts put back into histories that had lost them.", registry=registry
        )
        self._declare_health(registry)
        self._bound: dict[tuple[str, str, str, str, str], _Bound] = {}

    def _declare_health(self, registry: CollectorRegistry) -> None:
        """The metrics of what is wrong, or may become so."""
        self._faults = Counter(
            "kimi_upstream_faults", "Faults of upstreams.", ("target", "kind"), registry=registry
        )
        self._remaining = Gauge(
            "kimi_budget_remaining_usd", "What a key's budget has left.", ("key",), registry=registry
        )
        self._signs = Counter(
            "kimi_engine_signs",
            "Answers that show an engine set up wrongly or broken.",
            ("target", "kind"),
            registry=registry,
        )
        self._losses = Counter(
            "kimi_cache_losses", "Requests whose cached prefix was lost.", ("target", "kind"), registry=registry
        )
        self._lag = Histogram(
            "kimi_event_loop_lag_seconds",
            "How late the event loop runs what is due.",
            buckets=_LAG_SECONDS,
            registry=registry,
        )

    def configure(self, *, targets: Iterable[str], models: Iterable[str], keys: Iterable[str]) -> None:
        """The label values that are shown as they are, from now on."""
        self._targets = frozenset(targets)
        self._models = frozenset(models)
        self._keys = frozenset(keys)

    def thinking(self, statistics: Mapping[str, int]) -> None:
        """The store of thoughts describes itself so."""
        self._store.statistics = statistics

    def signs(self, target: str, signs: Iterable[str]) -> None:
        """What an engine's answer shows to be wrong with its set-up, by the names of `backends.sentinel`."""
        for sign in signs:
            self._signs.labels(target if target in self._targets else OTHER, str(sign)).inc()

    def cache_lost(self, target: str, reason: str) -> None:
        """A request found its cached prefix gone."""
        self._losses.labels(target if target in self._targets else OTHER, reason).inc()

    def repaired(self, thoughts: int) -> None:
        """So many thoughts were put back into one history."""
        self._repairs.inc(thoughts)

    def seen(self, key: str, verdict: Verdict) -> None:
        """A key's budgets stand so."""
        if verdict.left_nano is not None and key in self._keys:
            self._remaining.labels(key).set(float(usd(max(0, verdict.left_nano))))

    def in_flight_changed(self, change: int) -> None:
        """A request began (+1) or ended (-1)."""
        self._in_flight.value += change

    def first_token(self, target: str, seconds: float) -> None:
        """The first content of an answer came."""
        self._ttft.of(target if target in self._targets else OTHER).observe(seconds)

    def chunk_gap(self, seconds: float) -> None:
        """A further chunk of content came, this long after the one before."""
        self._gap.observe(seconds)

    def fault(self, target: str, kind: str) -> None:
        """An upstream failed."""
        self._faults.labels(
            target if target in self._targets else OTHER, str(kind) if kind in _FAULTS else OTHER
        ).inc()

    def loop_lag(self, seconds: float) -> None:
        """The event loop ran something this late."""
        self._lag.observe(seconds)

    def refused(self, key: str = "") -> None:
        """A request was answered with an error before it was planned."""
        self._requests.add(("", "", "", key if key in self._keys else OTHER, REFUSED))

    def settled(self, row: LedgerRow, seconds: float) -> None:
        """A request ended; its row says how and with what."""
        target = row.target if row.target in self._targets else OTHER
        model = row.model if row.model in self._models else OTHER
        tier = row.tier if row.tier in _TIERS else OTHER
        key = row.key if row.key in self._keys else OTHER
        kind = row.status if row.status in _KINDS else OTHER
        labels = (target, model, tier, key, kind)
        bound = self._bound.get(labels) or self._bind(labels)
        self._requests.add(labels)
        bound.seconds.observe(seconds)
        self._wait.observe(row.wait_ms / 1000)
        tokens_per_s = pace_of(row)
        if tokens_per_s is not None:
            bound.paces.observe(tokens_per_s)
        for meter, count in meters_of(row):
            if count:
                self._tokens.add(bound.meters[meter], count)
        if row.cost_nano:
            self._dollars.add(bound.caller, row.cost_nano)

    def _bind(self, labels: tuple[str, str, str, str, str]) -> _Bound:
        target, model, tier, key, _ = labels
        caller = (target, model, tier, key)
        meters: dict[str, tuple[str, ...]] = {meter: (meter, *caller) for meter in _METERS}
        bound = _Bound(caller, self._seconds.of(target, tier), self._paces.of(target, tier), meters)
        self._bound[labels] = bound
        return bound

    def render(self) -> bytes:
        """The exposition, in the text format of `CONTENT_TYPE`."""
        return generate_latest(self._registry)


def meters_of(row: LedgerRow) -> tuple[tuple[str, int], ...]:
    """The row's tokens as disjoint meters; unknown counts as 0."""
    cached, write_5m, write_1h = row.cached_tokens or 0, row.write_5m_tokens or 0, row.write_1h_tokens or 0
    return (
        ("input", max(0, (row.prompt_tokens or 0) - cached - write_5m - write_1h)),
        ("cache_read", cached),
        ("write_5m", write_5m),
        ("write_1h", write_1h),
        ("output", row.completion_tokens or 0),
        ("search", row.search_calls),
    )


def pace_of(row: LedgerRow) -> float | None:
    """The tokens per second of an answer after its first; None where the row cannot tell."""
    if row.estimated or row.ttft_ms is None or row.total_ms is None or not row.completion_tokens:
        return None
    took_ms = row.total_ms - row.ttft_ms
    return (row.completion_tokens - 1) * 1000 / took_ms if took_ms > 0 and row.completion_tokens > 1 else None


async def sample_loop_lag(metrics: Metrics, mono: Callable[[], float], *, interval_s: float = 0.1) -> None:
    """Measures for ever how late a sleeping task wakes. Ends only by cancellation."""
    while True:
        due = mono() + interval_s
        await asyncio.sleep(interval_s)
        metrics.loop_lag(max(0.0, mono() - due))
