"""One request and the targets it could go to, as one immutable snapshot: all that ranking looks at.

Time is seconds of one monotonic clock, money integer nano-dollars (per token where it is a rate), tokens are ints.
Made for each request and each of its targets, so these are `msgspec` structs, which take a quarter of a
microsecond where a frozen dataclass takes two.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Final, Literal

from msgspec import Struct

from backends.dialect import Dialect
from backends.family import dialect_for, family_of
from kimi_gateway.core.reserve import is_priced
from kimi_gateway.core.routing.facts import Load, Out, Quota
from pricing.cost import billed_rate
from pricing.estimate import Estimate
from pricing.rates import Rates, WriteRule
from pricing.usage import Meter

PolicyName = Literal["cost", "order", "fastest", "least-busy", "weights"]

USUAL_OUTPUT_TOKENS: Final = 1_000
"""What an answer is taken to have where none of its route was seen yet: an agent's turn, thought included."""

_NANO: Final = 1_000_000_000
_NO_QUOTA: Final = Quota()
_NOTHING: Final = Estimate(0, 0, 0)
_WRITE_METERS: Final[Mapping[str, Meter]] = {"5m": "write_5m", "1h": "write_1h"}


class Tariff(Struct, frozen=True, gc=False):
    """What a token costs at one target: read from its cache, new in the prompt (`fresh`, billed under `meter`), in
    the answer."""

    read: int
    fresh: int
    output: int
    meter: Meter = "input"


class Pace(Struct, frozen=True, gc=False):
    """How fast a target has been of late. `first_s` is the time to the first token without any prompt to read,
    `fresh_s` what each fresh prompt token adds, `token_s` the time of a token of the answer, `answer_s` that of a
    whole answer."""

    first_s: float
    fresh_s: float
    token_s: float
    answer_s: float


class Abilities(Struct, frozen=True, gc=False):
    """What a target can do that others cannot. `max_n` None: no limit is known."""

    max_n: int | None = None
    thinking_off: bool = True
    remote_media: bool = True
    files: bool = True


class Candidate(Struct, frozen=True, gc=False):
    """One target for one request.

    `model` is the target's own name of the model that is asked for, "" where it has none. `place` counts from 0 in
    the route as it is written. `tariff` None: no price is known; `by_the_hour` says that none is needed, because
    the operator pays for machines and not for tokens. `read_tokens` are expected to be read from the target's
    cache, None where nobody can say; with `read_shared` they are what other conversations have left there. `full`:
    it or its account is at its limits now; `queued` requests of ours wait for it. `in_flight` are ours.
    """

    name: str
    account: str = ""
    model: str = ""
    place: int = 0
    window: int = 1_048_576
    abilities: Abilities = Abilities()
    tariff: Tariff | None = None
    by_the_hour: bool = False
    weight: float = 1.0
    quota: Quota = _NO_QUOTA
    full: bool = False
    in_flight: int = 0
    queued: int = 0
    read_tokens: int | None = 0
    read_age_s: float | None = None
    read_shared: bool = False
    load: Load | None = None
    out: Out | None = None
    pace: Pace | None = None


class Wants(Struct, frozen=True, gc=False):
    """What a request asks for, as far as it decides where it can go.

    `key` stands for its conversation (`shared_prefix.conversation_key`). `prompt` are the likely tokens and the
    bounds between which the true count lies: the same number three times after an exact count. `output_tokens` are
    expected of each of the `n` answers. `remote_media` and `file` are the paths of the first parts that are a
    public address and an uploaded file, "" where there is none; `file_account` is the one that has the file.
    `priced_only`: the key has a budget, which nothing without a price can keep. `deadline_s` is a duration.
    """

    now_s: float = 0.0
    key: bytes = b""
    prompt: Estimate = _NOTHING
    output_tokens: int = USUAL_OUTPUT_TOKENS
    n: int = 1
    thinking_off: str = ""  # the field that asks for it
    remote_media: str = ""
    file: str = ""
    file_account: str = ""
    pinned: str | None = None
    priced_only: bool = False
    deadline_s: float | None = None


class Policy(Struct, frozen=True, gc=False):
    """How a route chooses. `wait_nano_per_hour` is what an hour of waiting for the first token is worth.

    `weighted`: the route states weights. `load_bound`: a target with more than so many times its share of what
    is in flight, and more than `load_floor`, is crowded, which counts as `crowd_s` of waiting, and where it has a
    limit as money besides (see `rank`). `hold_max_s`: where all are full, so much longer a request waits for the
    place that is cheaper. `max_wait_s`: a rate limit that ends within it is waited for.
    """

    name: PolicyName = "cost"
    wait_nano_per_hour: int = _NANO // 2
    weighted: bool = False
    load_bound: float = 1.25
    load_floor: int = 4
    crowd_s: float = 30.0
    hold_max_s: float = 10.0
    max_wait_s: float = 30.0


def policy_of(
    name: Literal["cost", "order", "fastest", "least-busy"] | str,
    weights: Mapping[str, float] | None = None,
    wait_usd_per_hour: Decimal | None = None,
    max_wait_s: float = 30.0,
) -> Policy:
    """The policy of a route as it is configured. Weights turn `order` into a split by weight; with any other
    policy they share out what it finds equal. `wait_usd_per_hour` None is the default, 0.50."""
    split = name == "order" and bool(weights)
    known: PolicyName = "weights" if split else name  # type: ignore[assignment]  # the settings have checked it
    hour = Decimal("0.50") if wait_usd_per_hour is None else wait_usd_per_hour
    return Policy(known, int(hour * _NANO), bool(weights), max_wait_s=max_wait_s)


def candidate_of(
    name: str,
    model: str,
    dialect: Dialect,
    rates: Rates | None,
    write_rule: WriteRule = "replaces",
    *,
    account: str = "",
    place: int = 0,
    window: int = 1_048_576,
    ttl: str = "",
    weight: float = 1.0,
    quota: Quota = _NO_QUOTA,
) -> Candidate:
    """A target as the configuration has it, with nothing known of its cache, load and health; those are put in
    with `msgspec.structs.replace`.

    `ttl` is the lifetime at which new tokens are written: that of the prefix that is warm, else the one asked for
    ("5m" where nobody asks). It means nothing where the dialect knows no cache options. Whoever has no public
    address is the operator's own, so without a price it is paid by the hour.
    """
    tariff = tariff_of(rates, write_rule, ttl if dialect.cache_options else "")
    return Candidate(
        name=name,
        account=account or name,
        model=model,
        place=place,
        window=window,
        abilities=abilities_of(dialect, model),
        tariff=tariff,
        by_the_hour=tariff is None and not dialect.base_url,
        weight=weight,
        quota=quota,
    )


def tariff_of(rates: Rates | None, write_rule: WriteRule = "replaces", ttl: str = "") -> Tariff | None:
    """The tariff of these rates; None where prompt or answer has no price.

    `ttl` is the lifetime at which the target writes what is new ("5m", "1h"), "" where it bills no writes.
    """
    if rates is None or not is_priced(rates):
        return None
    meter = _WRITE_METERS.get(ttl, "input")
    fresh = billed_rate(rates, meter, write_rule=write_rule)
    read = billed_rate(rates, "cache_read", write_rule=write_rule)
    if fresh is None or read is None or rates.output is None:
        return None
    return Tariff(read, fresh, rates.output, meter)


def abilities_of(dialect: Dialect, model: str) -> Abilities:
    """What a model can do at a target of this dialect. Whether a family that passes through can stop thinking is
    the upstream's to say."""
    family = family_of(model)
    facts = dialect_for(family, dialect)
    return Abilities(
        max_n=facts.max_n,
        thinking_off=family.passes_through or facts.thinking_off is not None,
        remote_media=facts.remote_images,
        files=facts.file_urls,
    )
