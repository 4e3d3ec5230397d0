"""Forecasts of many requests, added up by effort and offer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pricing.advice.forecast import Forecast, Priced, total
from pricing.advice.offers import Offer
from pricing.tokens import TokenCount


@dataclass(frozen=True, slots=True)
class PromptSum:
    """Prompt tokens over all requests; `high` is None where parts of one were not counted."""

    low: int = 0
    tokens: int = 0
    high: int | None = 0


@dataclass(frozen=True, slots=True)
class OfferSum:
    """One offer at one effort, "" for the requests' own: how many requests, how many of them ask for just this
    offer, and the sums."""

    effort: str
    requests: int
    requested: int
    prompt: PromptSum
    priced: Priced


class ForecastSums:
    """Sums of forecasts, in the order in which their offers came."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, Offer], OfferSum] = {}
        self.requests = 0
        self.media_parts = 0
        self.models_assumed = 0
        self.limits_lowered = 0

    def add(self, forecasts: Sequence[Forecast], *, by_effort: bool = False) -> None:
        """Adds one request: at all its efforts one by one, or at its own."""
        self.requests += 1
        first = forecasts[0]
        self.media_parts += first.prompt.media_parts
        self.models_assumed += not first.wish.has_model
        self.limits_lowered += first.output.limit_source == "window"
        for one in forecasts:
            effort = one.effort if by_effort else ""
            for priced in one.priced:
                key = (effort, priced.offer)
                self._sums[key] = _added(self._sums.get(key), effort, one.prompt, priced)

    def sums(self) -> list[OfferSum]:
        """One per effort and offer."""
        return list(self._sums.values())


def _added(before: OfferSum | None, effort: str, prompt: TokenCount, priced: Priced) -> OfferSum:
    if before is None:
        counted = PromptSum(prompt.low, prompt.tokens, prompt.high)
        return OfferSum(effort, 1, int(priced.requested), counted, priced)
    return OfferSum(
        effort=effort,
        requests=before.requests + 1,
        requested=before.requested + priced.requested,
        prompt=PromptSum(
            before.prompt.low + prompt.low,
            before.prompt.tokens + prompt.tokens,
            total((before.prompt.high, prompt.high)),
        ),
        priced=_sum(before.priced, priced),
    )


def _sum(left: Priced, right: Priced) -> Priced:
    """Both at once; they are of one offer and have the same cases."""
    lines = tuple(
        replace(mine, tokens=mine.tokens + other.tokens)
        for mine, other in zip(left.lines, right.lines, strict=True)
    )
    return Priced(
        offer=left.offer,
        requested=left.requested and right.requested,
        lines=lines,
        first_nano=total((left.first_nano, right.first_nano)),
        warm_nano=total((left.warm_nano, right.warm_nano)),
        low_nano=total((left.low_nano, right.low_nano)),
        high_nano=total((left.high_nano, right.high_nano)),
    )
