"""An upstream's usage object as disjoint meters, as numbers for the ledger and as an object for the client.

The wire counts inclusively: `prompt_tokens` holds the tokens read from the cache and written to it,
`completion_tokens` holds the reasoning. This is the one place that subtracts. Nothing here raises on a strange
report: a count that cannot be one is unknown (None), one that does not fit is clamped, and `anomaly` names both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from backends.dialect import Dialect
from backends.json import Json, JsonObject, as_count, as_object
from pricing.usage import TokenUsage

WRITE_5M_HEADER: Final = "msh-usage-cache-write-tokens-5m"
WRITE_1H_HEADER: Final = "msh-usage-cache-write-tokens-1h"
"""Moonshot's split of `cache_write_tokens` by TTL, the only one there is (seen in mixaill76/auto_ai_router)."""

_LARGEST_COUNT: Final = 2**32
"""Four thousand windows full: no count of tokens comes near, and its price fits into 64 bits of nano-dollars."""
_LARGEST_USD: Final = 1_000_000
"""No answer costs as much; what says so is no amount of money."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One usage report, read.

    `prompt_tokens` and `completion_tokens` are None where the report lacks them; the meters lack them too then,
    and an estimate is in order. `wire` is for the client: clamped, without unknown counts. Costs are USD, exact.
    `assumed`: some written tokens have their TTL from the request, because nothing reported it.
    """

    usage: TokenUsage
    prompt_tokens: int | None
    completion_tokens: int | None
    wire: JsonObject
    reported_cost: Decimal | None = None
    byok_cost: Decimal | None = None
    anomaly: tuple[str, ...] = ()
    assumed: bool = False

    @property
    def is_complete(self) -> bool:
        """Both totals were reported."""
        return self.prompt_tokens is not None and self.completion_tokens is not None

    @property
    def charged(self) -> Decimal | None:
        """What the upstream says the answer costs: its own charge and, with the operator's own provider key, the
        provider's. None where it says nothing."""
        if self.reported_cost is None:
            return None
        return self.reported_cost + (self.byok_cost or 0)


def read_usage(raw: JsonObject, *, dialect: Dialect, headers: Mapping[str, str], ttl: str) -> Measured:
    """The report `raw` of one answer, read by the facts of `dialect`.

    `headers` are the answer's, in any case; `ttl` is what the request asked for: "1h", else "5m" or "" (Moonshot's
    default, which is 5m too).
    """
    report = _Report(raw)
    prompt = report.count("prompt_tokens")
    completion = report.count("completion_tokens")
    cached = _cached(report, dialect)
    written = _written(report, dialect)
    write_5m, write_1h, assumed = _split(report, written, headers, ttl)
    reasoning = report.detail("completion_tokens_details", "reasoning_tokens")
    if reasoning is None:
        reasoning = report.count("reasoning_tokens")

    cached, write_1h, write_5m = report.fit(prompt, (cached, write_1h, write_5m))
    if reasoning is not None and completion is not None and reasoning > completion:
        report.note("reasoning_exceeds_completion")
        reasoning = completion
    report.check_totals(prompt, completion)
    usage = TokenUsage(
        input=max(0, (prompt or 0) - (cached or 0) - (write_5m or 0) - (write_1h or 0)),
        output=completion or 0,
        cache_read=cached,
        write_5m=write_5m,
        write_1h=write_1h,
        reasoning=reasoning,
    )
    cost, byok = _costs(report, dialect)
    return Measured(
        usage=usage,
        prompt_tokens=prompt,
        completion_tokens=completion,
        wire=_wire(report, prompt, completion, usage),
        reported_cost=cost,
        byok_cost=byok,
        anomaly=tuple(report.anomaly),
        assumed=assumed and bool(write_5m or write_1h),
    )


class _Report:
    """The raw object with getters that note what is wrong with it."""

    def __init__(self, raw: JsonObject) -> None:
        self.raw = raw
        self.anomaly: list[str] = []

    def note(self, name: str) -> None:
        if name not in self.anomaly:
            self.anomaly.append(name)

    def count(self, name: str) -> int | None:
        """A top-level count; None where it is absent, null or not a count."""
        return self._checked(name, self.raw.get(name))

    def detail(self, group: str, name: str) -> int | None:
        """A count in a details object; the object and each of its members may be null."""
        details = as_object(self.raw.get(group))
        return None if details is None else self._checked(name, details.get(name))

    def _checked(self, name: str, value: Json) -> int | None:
        if value is None:
            return None
        count = as_count(value)
        if count is None or not 0 <= count <= _LARGEST_COUNT:
            self.note(f"{name}_invalid")
            return None
        return count

    def fit(self, prompt: int | None, parts: tuple[int | None, ...]) -> list[int | None]:
        """The parts cut so that, in their order, they fit into the prompt. SGLang 0.5.23 reports more cached
        tokens than prompt tokens in ordinary answers."""
        if prompt is None:
            return list(parts)
        fitting: list[int | None] = []
        left = prompt
        for part in parts:
            taken = None if part is None else min(part, left)
            if part != taken:
                self.note("cache_exceeds_prompt")
            left -= taken or 0
            fitting.append(taken)
        return fitting

    def check_totals(self, prompt: int | None, completion: int | None) -> None:
        for name, value in (("prompt_tokens", prompt), ("completion_tokens", completion)):
            if value is None and f"{name}_invalid" not in self.anomaly:
                self.note(f"{name}_missing")
        total = self.count("total_tokens")
        if total is not None and prompt is not None and completion is not None and total != prompt + completion:
            self.note("total_mismatch")


def _cached(report: _Report, dialect: Dialect) -> int | None:
    """Details first, then the top level: the same tokens twice, so never their sum."""
    nested = report.detail("prompt_tokens_details", "cached_tokens")
    flat = report.count("cached_tokens")
    if nested is not None and flat is not None and nested != flat:
        report.note("cached_tokens_differ")
    cached = flat if nested is None else nested
    return 0 if cached is None and dialect.absent_cached_is_zero else cached


def _written(report: _Report, dialect: Dialect) -> int | None:
    written = report.detail("prompt_tokens_details", "cache_write_tokens")
    if written is None and dialect.created_is_write:
        written = report.detail("prompt_tokens_details", "created_cache_tokens")
    return written


def _split(
    report: _Report, written: int | None, headers: Mapping[str, str], ttl: str
) -> tuple[int | None, int | None, bool]:
    """Written tokens at 5 minutes, at 1 hour, and whether some of them have their TTL from the request."""
    at_5m = _header_count(report, headers, WRITE_5M_HEADER)
    at_1h = _header_count(report, headers, WRITE_1H_HEADER)
    reported = None if at_5m is None and at_1h is None else (at_5m or 0) + (at_1h or 0)
    if written is None:
        return (None, None, False) if reported is None else (at_5m or 0, at_1h or 0, False)
    if reported is not None and reported != written:
        report.note("write_split_mismatch")
    write_1h = min(at_1h or 0, written)
    write_5m = min(at_5m or 0, written - write_1h)
    rest = written - write_1h - write_5m
    if ttl == "1h":
        return write_5m, write_1h + rest, rest > 0
    return write_5m + rest, write_1h, rest > 0


def _header_count(report: _Report, headers: Mapping[str, str], wanted: str) -> int | None:
    for name, value in headers.items():
        if name.lower() == wanted:
            text = value.strip()
            if text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= _LARGEST_COUNT:
                return int(text)
            report.note("write_header_invalid")
    return None


def _costs(report: _Report, dialect: Dialect) -> tuple[Decimal | None, Decimal | None]:
    """The reported charge and, where the request ran on the operator's own provider key, the provider's share."""
    if not dialect.reports_cost:
        return None, None
    cost = _money(report, "cost", report.raw.get("cost"))
    details = as_object(report.raw.get("cost_details")) or {}
    if report.raw.get("is_byok") is not True:
        return cost, None
    return cost, _money(report, "upstream_inference_cost", details.get("upstream_inference_cost"))


def _money(report: _Report, name: str, value: Json) -> Decimal | None:
    if value is None:
        return None
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        amount = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
        if amount.is_finite() and 0 <= amount <= _LARGEST_USD:
            return amount
    report.note(f"{name}_invalid")
    return None


def _wire(report: _Report, prompt: int | None, completion: int | None, usage: TokenUsage) -> JsonObject:
    """The object for the client, in Moonshot's spelling: cached tokens at the top level and in the details."""
    wire: JsonObject = {}
    if prompt is not None:
        wire["prompt_tokens"] = prompt
    if completion is not None:
        wire["completion_tokens"] = completion
    if prompt is not None and completion is not None:
        wire["total_tokens"] = prompt + completion
    if usage.cache_read is not None:
        wire["cached_tokens"] = usage.cache_read
    prompt_details = _other_details(report.raw.get("prompt_tokens_details"))
    _put(prompt_details, "cached_tokens", usage.cache_read)
    written = None if usage.write_5m is None else usage.write_5m + (usage.write_1h or 0)
    _put(prompt_details, "cache_write_tokens", written)
    completion_details = _other_details(report.raw.get("completion_tokens_details"))
    _put(completion_details, "reasoning_tokens", usage.reasoning)
    if prompt_details:
        wire["prompt_tokens_details"] = prompt_details
    if completion_details:
        wire["completion_tokens_details"] = completion_details
    return wire


def _other_details(details: Json) -> JsonObject:
    """What a details object holds beside the counts that are written by us; nulls are left out."""
    return {name: value for name, value in (as_object(details) or {}).items() if value is not None}


def _put(details: JsonObject, name: str, count: int | None) -> None:
    if count is None:
        details.pop(name, None)
    else:
        details[name] = count
