"""What a request will cost before it is sent: its prompt counted or bounded, its output from nothing to its limit.

The bounds hold whatever the cache does: from the shortest prompt, all read from the cache, without an answer, to
the longest, all at its dearest rate, with an answer as long as its limit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pricing.advice.offers import DEFAULT_MODEL, Offer, family_of, tier_of
from pricing.cost import billed_rate
from pricing.rates import Tier
from pricing.tokens import TokenCount, TokenCounter, count_chat
from pricing.usage import Meter
from pricing.xtml import ChatError

WINDOW_TOKENS: Final = 1_048_576
OUTPUT_LIMIT_TOKENS: Final = 131_072
"""The context window, and the limit where a request names none (`kimi-api-facts.md` 1.1, 1.3)."""

EFFORTS: Final = ("low", "high", "max")

Case = Literal["fresh", "first", "warm", "limit", "assumed"]
CASES: Final[tuple[Case, ...]] = ("fresh", "first", "warm", "limit", "assumed")
"""The whole prompt as fresh input; written to the cache, as on a first use; read from it, as with a warm prefix.
The output at its limit, and at the assumed length."""

LimitSource = Literal["request", "default", "window"]


class RequestError(ValueError):
    """The request cannot be estimated; the message says which field is wrong and what it must be."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks for, as far as money depends on it. `model` is the family, without maker and tier.

    `has_model` is False where it names none and the default is taken. `effort` is "unset" where it names none.
    """

    model: str
    has_model: bool
    tier: Tier
    ttl: Literal["5m", "1h"]
    effort: str
    limit_tokens: int | None
    choices: int


@dataclass(frozen=True, slots=True)
class Output:
    """How long the answer can be, over all choices. `assumed_tokens` is None where nothing was assumed."""

    limit_tokens: int
    limit_source: LimitSource
    assumed_tokens: int | None


@dataclass(frozen=True, slots=True)
class ForecastLine:
    """One part of the money: the case it is for, the meter it is billed by. `rate` None: no price."""

    case: Case
    meter: Meter
    tokens: int
    rate: int | None

    @property
    def nano(self) -> int | None:
        """Nano-dollars."""
        return None if self.rate is None else self.tokens * self.rate


@dataclass(frozen=True, slots=True)
class Priced:
    """One offer's answer in nano-dollars; None where it is unknown.

    `first_nano` and `warm_nano`: the likely prompt, written or read, with the assumed output. `low_nano` and
    `high_nano` bound every case; there is no upper bound where parts of the prompt were not counted.
    """

    offer: Offer
    requested: bool
    lines: tuple[ForecastLine, ...]
    first_nano: int | None
    warm_nano: int | None
    low_nano: int | None
    high_nano: int | None

    def line(self, case: Case) -> ForecastLine | None:
        """The line of a case, None where there is none."""
        return next((line for line in self.lines if line.case == case), None)


@dataclass(frozen=True, slots=True)
class Forecast:
    """One request at one effort, with every offer."""

    wish: Wish
    effort: str
    prompt: TokenCount
    output: Output
    priced: tuple[Priced, ...]


def read_wish(request: Mapping[str, object], model: str = "") -> Wish:
    """What a chat completions body asks for; `model` overrides its own. Raises `RequestError`."""
    named = request.get("model")
    if named is not None and not (isinstance(named, str) and named):
        raise RequestError("model must be a name in quotes")
    name = model or named or DEFAULT_MODEL
    tier: Tier = "highspeed" if request.get("service_tier") == "highspeed" else tier_of(name)
    return Wish(
        model=family_of(name),
        has_model=bool(model or named),
        tier=tier,
        ttl=_ttl(request.get("prompt_cache_options")),
        effort=_effort(request),
        limit_tokens=_limit(request),
        choices=_count(request, "n") or 1,
    )


def forecast(
    request: Mapping[str, object],
    wish: Wish,
    offers: Sequence[Offer],
    *,
    efforts: Sequence[str] = (),
    output_tokens: int | None = None,
    counter: TokenCounter | None = None,
) -> list[Forecast]:
    """A forecast per effort, the request's own where none is named. `output_tokens` is assumed for each choice.

    Raises `RequestError` for a body that is no chat, and for a prompt that no window holds.
    """
    found = []
    for effort in efforts or (wish.effort,):
        prompt = _counted(_at_effort(request, effort) if efforts else request, counter)
        if prompt.low >= WINDOW_TOKENS:
            raise RequestError(
                f"the prompt has at least {prompt.low:,} tokens, the model's window is {WINDOW_TOKENS:,}"
            )
        output = _output(wish, prompt, output_tokens)
        priced = tuple(_priced(offer, wish, prompt, output) for offer in offers)
        found.append(Forecast(wish, effort, prompt, output, priced))
    return found


def _counted(request: Mapping[str, object], counter: TokenCounter | None) -> TokenCount:
    try:
        return count_chat(request, counter)
    except ChatError as err:
        raise RequestError(str(err)) from err


def _at_effort(request: Mapping[str, object], effort: str) -> dict[str, object]:
    """The request with this effort under the one name that every upstream is sent."""
    body = {name: value for name, value in request.items() if name not in ("thinking", "reasoning")}
    return body | {"reasoning_effort": effort}


def _output(wish: Wish, prompt: TokenCount, assumed_tokens: int | None) -> Output:
    wanted = wish.limit_tokens or OUTPUT_LIMIT_TOKENS
    source: LimitSource = "request" if wish.limit_tokens else "default"
    room = WINDOW_TOKENS - prompt.low
    if wanted > room:
        wanted, source = room, "window"
    assumed = None if assumed_tokens is None else min(assumed_tokens, wanted) * wish.choices
    return Output(wanted * wish.choices, source, assumed)


def _priced(offer: Offer, wish: Wish, prompt: TokenCount, output: Output) -> Priced:
    rates = {meter: _rate(offer, meter) for meter in ("input", offer.write_meter, "cache_read", "output")}
    lines = [
        ForecastLine("fresh", "input", prompt.tokens, rates["input"]),
        ForecastLine("first", offer.write_meter, prompt.tokens, rates[offer.write_meter]),
        ForecastLine("warm", "cache_read", prompt.tokens, rates["cache_read"]),
        ForecastLine("limit", "output", output.limit_tokens, rates["output"]),
    ]
    if output.assumed_tokens is not None:
        lines.append(ForecastLine("assumed", "output", output.assumed_tokens, rates["output"]))
    by_case = {line.case: line.nano for line in lines}
    prompt_rates = [rate for meter, rate in rates.items() if meter != "output" and rate is not None]
    low = prompt.low * min(prompt_rates) if prompt_rates and rates["output"] is not None else None
    high = prompt.high * max(prompt_rates) if prompt_rates and prompt.high is not None else None
    return Priced(
        offer=offer,
        requested=offer.tier == wish.tier and offer.ttl in (wish.ttl, ""),
        lines=tuple(lines),
        first_nano=total((by_case["first"], by_case.get("assumed"))),
        warm_nano=total((by_case["warm"], by_case.get("assumed"))),
        low_nano=low,
        high_nano=total((high, by_case["limit"])),
    )


def _rate(offer: Offer, meter: Meter) -> int | None:
    return None if offer.rates is None else billed_rate(offer.rates, meter, write_rule=offer.write_rule)


def total(parts: Iterable[int | None]) -> int | None:
    """The sum, None where a part is unknown."""
    added = 0
    for part in parts:
        if part is None:
            return None
        added += part
    return added


def _ttl(options: object) -> Literal["5m", "1h"]:
    wanted = options.get("ttl") if isinstance(options, Mapping) else None
    if wanted is None or wanted == "5m":
        return "5m"
    if wanted == "1h":
        return "1h"
    raise RequestError(f'prompt_cache_options.ttl must be "5m" or "1h", not {wanted!r}')


def _effort(request: Mapping[str, object]) -> str:
    effort = request.get("reasoning_effort")
    for name in ("thinking", "reasoning"):
        nested = request.get(name)
        if effort is None and isinstance(nested, Mapping):
            effort = nested.get("effort")
    return effort if isinstance(effort, str) else "unset"


def _limit(request: Mapping[str, object]) -> int | None:
    """`max_completion_tokens` wins over its older name."""
    return _count(request, "max_completion_tokens") or _count(request, "max_tokens")


def _count(request: Mapping[str, object], name: str) -> int | None:
    value = request.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(f"{name} must be a whole number above 0, not {value!r}")
    return value
