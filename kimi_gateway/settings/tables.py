"""The configuration file's tables with their defaults and ranges, name for name.

A name's unit is its ending. "" and 0 mean *unset* wherever the comment says so. What needs the environment or
another table (secrets, routes' targets) is settled in `resolve`.
"""

from dataclasses import field
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, Strict, StringConstraints
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

_STRICT = ConfigDict(extra="forbid")


def _number(value: object) -> float:
    """A number of the file (TOML fractions arrive as `Decimal`) as float."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not isfinite(value):
        raise PydanticCustomError("number", "must be a number")
    return float(value)


def _money(value: object) -> Decimal | None:
    """Exact dollars from text or a number; "" is unset."""
    if value == "" or value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise PydanticCustomError("money", 'must be an amount of dollars such as "0.50"')
    try:
        amount = Decimal(value)
    except InvalidOperation:
        raise PydanticCustomError("money", 'must be an amount of dollars such as "0.50"') from None
    if not amount.is_finite() or amount < 0:
        raise PydanticCustomError("money", "must be an amount of dollars, zero or more")
    return amount


Text = Annotated[str, Strict()]
Name = Annotated[str, Strict(), StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict(), Field(ge=0, lt=2**53)]
Positive = Annotated[int, Strict(), Field(ge=1, lt=2**53)]
Port = Annotated[int, Strict(), Field(ge=0, le=65535)]
Seconds = Annotated[float, BeforeValidator(_number), Field(ge=0)]
PositiveSeconds = Annotated[float, BeforeValidator(_number), Field(gt=0)]
Ratio = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1)]
Weight = Annotated[float, BeforeValidator(_number), Field(ge=0)]
Usd = Annotated[Decimal | None, BeforeValidator(_money)]
Effort = Literal["", "low", "high", "max"]
Ttl = Literal["", "5m", "1h"]
Tier = Literal["standard", "highspeed"]
Contract = Literal["", "adjust", "strict"]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Server:
    """The HTTP server: where it listens, what it takes, how it ends."""

    host: Annotated[str, Strict(), StringConstraints(min_length=1)] = "127.0.0.1"
    port: Port = 8000  # 0 = one that the system picks
    workers: Positive = 1
    max_connections: Positive = 10000
    max_body_bytes: Positive = 104857600
    max_buffered_bytes: Positive = 1073741824
    client_stall_timeout_s: PositiveSeconds = 120.0
    keepalive_interval_s: PositiveSeconds = 15.0
    keepalive: Literal["comment", "chunk", "off"] = "comment"
    drain_grace_s: Seconds = 5.0
    drain_timeout_s: Seconds = 300.0
    cors_origins: tuple[Text, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class AdminTable:
    """Where /metrics listens and the variable of the key that opens it."""

    listen: Text = ""
    key_env: Text = "KIMI_ADMIN_KEY"


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Ledger:
    """Where requests are booked."""

    url: Annotated[str, Strict(), StringConstraints(min_length=1)] = "sqlite:///kimi-ledger.db"
    journal_dir: Annotated[str, Strict(), StringConstraints(min_length=1)] = ".kimi-journal"
    max_journal_bytes: Annotated[int, Strict(), Field(ge=2**20, lt=2**53)] = 1073741824
    on_full: Literal["refuse", "serve"] = "refuse"
    fsync: Flag = False
    retention_days: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class State:
    """What several processes share."""

    url: Text = "memory://"
    on_outage: Literal["open", "closed"] = "open"
    replicas: Positive = 1


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ContractMode:
    """Whether requests are adjusted to a target's rules or refused by them."""

    mode: Literal["adjust", "strict"] = "adjust"


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Thinking:
    """The store that mends conversations whose client dropped the thoughts."""

    repair: Flag = True
    retention_s: PositiveSeconds = 86400.0
    max_bytes: Count = 268435456
    max_bytes_per_key: Count = 67108864
    encrypt_key_env: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Retry:
    """Further attempts and the breaker."""

    max_retries: Count = 2
    max_wait_s: Seconds = 30.0
    global_ratio: Ratio = 0.2
    breaker_failures: Positive = 5
    breaker_open_s: Seconds = 30.0


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Queue:
    """Waiting for a free target."""

    max: Count = 1000
    timeout_s: Seconds = 60.0


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Pricing:
    """Dated cards that add to or override the shipped ones; "" = none."""

    cards_dir: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Alerts:
    """Where budgets report."""

    webhook_url_env: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Timing:
    """Every period, in seconds, so that a test can shorten it."""

    usage_grace_s: Seconds = 2.0
    progress_s: PositiveSeconds = 5.0
    lease_s: PositiveSeconds = 60.0
    adopt_s: PositiveSeconds = 10.0
    keys_refresh_s: PositiveSeconds = 5.0
    quota_out_s: Seconds = 300.0
    load_refresh_s: PositiveSeconds = 2.0
    health_refresh_s: PositiveSeconds = 0.5


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class TargetTable:
    """One `[[targets]]`: a deployment that answers. `base_url`, `models`: unset = the dialect's own."""

    name: Name
    dialect: Text
    base_url: Text = ""
    api_key_env: Text = ""
    api_key_file: Text = ""
    account: Text = ""
    models: dict[str, Text] = field(default_factory=dict)
    max_concurrency: Count = 0
    rpm: Count = 0
    tpm: Count = 0
    tpd: Count = 0
    context_window: Count = 0
    connect_timeout_s: PositiveSeconds = 5.0
    first_byte_timeout_s: PositiveSeconds = 600.0
    idle_timeout_s: PositiveSeconds = 300.0
    fold: Flag = True
    contract: Contract = ""
    prices: dict[str, Any] | None = None  # by meter, USD per 1M tokens
    gpu_usd_per_hour: Usd = Decimal("0")
    split_think_tags: Flag = False
    extra_body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class RouteTable:
    """One `[[routes]]`: a public model and the targets that may answer; `targets` unset = all that map it."""

    model: Annotated[str, Strict(), StringConstraints(min_length=1)]
    aliases: tuple[Text, ...] | None = None  # None = those that ship for the model
    policy: Literal["cost", "order", "fastest", "least-busy"] = "cost"
    targets: tuple[Text, ...] = ()
    weights: dict[str, Weight] = field(default_factory=dict)
    wait_usd_per_hour: Usd = Decimal("0.50")
    tier_fallback: Flag = False
    highspeed_aliases: tuple[Text, ...] = ()
    default_effort: Effort = ""
    default_ttl: Ttl = ""
    max_completion_tokens: Count = 0
    contract: Contract = ""
    narrow_tools_above: Count = 100000


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class KeyTable:
    """One `[[keys]]`: a caller, known by name. Exactly one of `key_env`, `key_file`, `key_sha256`."""

    name: Name
    key_env: Text = ""
    key_file: Text = ""
    key_sha256: Text = ""
    budget_usd: Usd = None
    highspeed_budget_usd: Usd = None
    budget_period: Literal["day", "month", "total"] = "month"
    rpm: Count = 0
    tpm: Count = 0
    concurrency: Count = 0
    max_effort: Literal["low", "high", "max"] = "max"
    default_effort: Effort = ""
    default_ttl: Ttl = ""
    max_completion_tokens: Count = 0
    tiers: Annotated[tuple[Tier, ...], Field(min_length=1)] = ("standard", "highspeed")
    pin: Flag = False
    explain: Flag = False
    thinking_repair: Flag = True
