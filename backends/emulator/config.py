"""What can be set on an emulator."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

from backends.emulator.clock import wall_clock_s
from backends.emulator.exchange import FaultHook
from backends.emulator.limits import NO_LIMITS, Limits
from backends.emulator.profile import Profile, relaxed
from backends.emulator.profiles import PROFILES
from backends.emulator.shape import Reports, UsagePlace


def _usual_thoughts() -> Mapping[str, int]:
    return {"low": 24, "high": 72, "max": 160}


@dataclass(frozen=True, slots=True)
class EmulatorConfig:
    """One emulator. Raises `ValueError` for a dialect that it does not speak and for numbers out of range."""

    dialect: str = "moonshot"
    seed: int = 0
    permissive: bool = False
    """A bare engine that enforces nothing of the dialect's contract."""
    api_keys: tuple[str, ...] = ()
    """Keys that are accepted; empty: any key, and none."""
    organisations: Mapping[str, str] = field(default_factory=dict)
    """Key -> organisation, for keys that share a prefix cache; a key not named here is its own."""

    pace: float = 1.0
    """Factor on every pause; 0: no pauses."""
    tokens_per_s: float = 60.0
    highspeed_factor: float = 2.5
    first_token_s: float = 0.15
    """From the request to the first token, besides the prompt's reading."""
    prefill_tokens_per_s: float = 20_000.0
    """How fast prompt tokens are read; those from the cache cost no time."""
    min_duration_s: float = 0.0
    """No answer takes less, whatever the pace; a stream is stretched evenly."""
    chunk_tokens: int = 4
    events_per_write: int = 32
    """Stream events that leave in one write where nothing is waited for."""

    thought_tokens: Mapping[str, int] = field(default_factory=_usual_thoughts)
    """Usual length of a thought by effort."""
    text_tokens: int = 80
    """Usual length of a text."""
    context_tokens: int = 0
    """The window; 0: the dialect's."""
    block_tokens: int = 0
    """The cache's block; 0: the dialect's."""
    max_cache_blocks: int = 200_000

    stream_ttl_headers: bool = False
    """Whether streams carry the headers with written tokens by lifetime; unstreamed answers always do."""
    usage_places: tuple[UsagePlace, ...] | None = None
    """Where a stream's usage stands; None: as the service documents it."""
    vary_usage_places: bool = False
    """Each request's seed picks one of the documented places."""

    text_only: bool = False
    """The model takes no pictures (engines)."""
    cached_counts: bool = True
    """Usage tells cached tokens: `--enable-prompt-tokens-details`, `--enable-cache-report` (engines)."""
    reasoning_parser: bool = True
    """Thought is told from text; without it the text holds both, with the model's marks, and nothing counts it."""
    tool_parser: bool = True
    """Calls are told from text; without it they stay in the text."""
    leaks_calls: bool | None = None
    """With `tool_choice: none` the marks of a call get into the text; None: as the dialect does (SGLang)."""
    comment_interval_s: float | None = None
    """A comment (unstreamed: white space) when so long nothing went out; 0: none; None: as the dialect does."""
    byok_share: float | None = None
    """The share of answers that the operator's own provider key pays for; None: as the dialect does."""

    limits: Limits = NO_LIMITS
    """What an account may do; each organisation is one account."""
    balance_usd: str = "1000.00"
    enforce_balance: bool = False
    """An account without money left is refused."""
    max_body_bytes: int = 104_857_600
    max_invoice_lines: int = 100_000
    max_requests: int = 1_000
    max_requests_bytes: int = 67_108_864
    faults: FaultHook | None = None
    clock: Callable[[], float] = wall_clock_s
    """Unix seconds; everything that expires lives by it."""

    def __post_init__(self) -> None:
        if self.dialect not in PROFILES:
            raise ValueError(f"the emulator speaks {', '.join(PROFILES)}, not {self.dialect!r}")
        for name in (
            "pace",
            "min_duration_s",
            "first_token_s",
            "context_tokens",
            "block_tokens",
            "comment_interval_s",
        ):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must be zero or more, not {getattr(self, name)}")
        if not 0 <= (self.byok_share or 0) <= 1:
            raise ValueError(f"byok_share must be from 0 to 1, not {self.byok_share}")
        for name in (
            "tokens_per_s",
            "prefill_tokens_per_s",
            "highspeed_factor",
            "chunk_tokens",
            "events_per_write",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than zero, not {getattr(self, name)}")
        try:
            Decimal(self.balance_usd)
        except ArithmeticError as err:
            raise ValueError(f"balance_usd must be a decimal number, not {self.balance_usd!r}") from err
        missing = sorted(set(PROFILES[self.dialect].efforts) - set(self.thought_tokens))
        if missing:
            raise ValueError(f"thought_tokens must have a length for {', '.join(missing)}")

    @property
    def profile(self) -> Profile:
        """The facts of the dialect as set up here, without its rules where the emulator is permissive."""
        profile = PROFILES[self.dialect]
        if self.text_only and profile.check_text_only is not None:
            profile = replace(profile, checks=(*profile.checks, profile.check_text_only))
        if self.leaks_calls is not None:
            profile = replace(profile, leaks_calls=self.leaks_calls)
        if self.comment_interval_s is not None:
            profile = replace(profile, comment_interval_s=self.comment_interval_s, comments_at_once=False)
        if self.byok_share is not None:
            profile = replace(profile, byok_share=self.byok_share)
        return relaxed(profile) if self.permissive else profile

    @property
    def reports(self) -> Reports:
        """The counts that usage holds."""
        return Reports(cached=self.cached_counts, reasoning=self.reasoning_parser)
