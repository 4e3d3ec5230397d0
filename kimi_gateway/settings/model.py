"""Settings as the gateway uses them: checked, with secrets read and names resolved. Immutable; a reload makes a
new value, and a request keeps the one it began with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final
from urllib.parse import urlsplit

from kimi_gateway.core.keys import KeyPolicy, KeyRing
from kimi_gateway.core.openmode import is_loopback
from kimi_gateway.core.routing.facts import Quota
from kimi_gateway.core.secret import Secret
from kimi_gateway.core.state_url import state_url
from kimi_gateway.settings.tables import (
    Alerts,
    ContractMode,
    Ledger,
    Pricing,
    Queue,
    Retry,
    Server,
    State,
    Thinking,
    Timing,
)
from pricing.rates import Rates

DEFAULT_WINDOW: Final = 1_048_576
"""Tokens a K3.1 target takes where nobody says otherwise (platform.kimi.ai/docs/api/models-overview)."""


@dataclass(frozen=True, slots=True)
class Admin:
    """Where /metrics listens (None: on the gateway's own port) and the key that opens it (None: no access)."""

    listen: tuple[str, int] | None = None
    key: Secret | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """One deployment that answers. `models` maps public names to its own; `base_url` has no slash at its end.

    `context_window` is 0 until someone says; `window` is what counts. `prices` None means the card's.
    """

    name: str
    dialect: str
    base_url: str
    api_key: Secret | None = None
    account: str = ""
    quota: Quota = field(default_factory=Quota)
    models: Mapping[str, str] = field(default_factory=dict)
    context_window: int = 0
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 600.0
    idle_timeout_s: float = 300.0
    fold: bool = True
    prices: Rates | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    contract: str = ""  # adjust | strict; "" = the route's, else the gateway's
    split_think_tags: bool = False
    gpu_nano_per_hour: int = 0  # what all its GPUs together cost; 0 = nobody said
    models_assumed: bool = False
    """Nobody stated its models: where it does not list the usual name, the only model it lists is meant."""

    @property
    def host(self) -> str:
        """The host of `base_url`, in lower case."""
        return urlsplit(self.base_url).hostname or ""

    @property
    def window(self) -> int:
        """The largest prompt plus answer, in tokens."""
        return self.context_window or DEFAULT_WINDOW


@dataclass(frozen=True, slots=True)
class Route:
    """A public model, its other names and the targets that may answer, first choice first.

    `stated` is false for a route nobody wrote: every target that maps the model.
    """

    model: str
    targets: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    policy: str = "cost"
    weights: Mapping[str, float] = field(default_factory=dict)  # by target; one that is not named has 1
    wait_usd_per_hour: Decimal = Decimal("0.50")
    tier_fallback: bool = False
    default_effort: str = ""
    default_ttl: str = ""
    max_completion_tokens: int = 0
    highspeed_aliases: tuple[str, ...] = ()
    contract: str = ""  # adjust | strict; "" = the gateway's
    narrow_tools_above: int = 100_000  # warm tokens; 0 = a named tool_choice always narrows the tools
    stated: bool = True


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a gateway needs to know. Sections are named as in the file."""

    source: str  # the file, "" where there is none
    server: Server
    admin: Admin
    ledger: Ledger
    state: State
    contract: ContractMode
    thinking: Thinking
    retry: Retry
    queue: Queue
    pricing: Pricing
    alerts: Alerts
    timing: Timing
    targets: tuple[Target, ...]
    routes: tuple[Route, ...]
    keys: tuple[KeyPolicy, ...]
    key_ring: KeyRing
    client_secrets: tuple[Secret, ...] = ()
    thoughts_secret: Secret | None = None  # what kept thoughts are sealed with
    webhook_url: Secret | None = None  # where budgets report

    @property
    def open_mode(self) -> bool:
        """No keys: this machine only."""
        return self.key_ring.is_open

    @property
    def on_loopback(self) -> bool:
        """The gateway's own address can be reached from this machine only."""
        return is_loopback(self.server.host)

    def secrets(self) -> Iterator[str]:
        """Every secret known, for the log's redaction."""
        for target in self.targets:
            if target.api_key is not None:
                yield target.api_key.reveal()
        if self.admin.key is not None:
            yield self.admin.key.reveal()
        if password := state_url(self.state.url).secret:
            yield password
        if self.webhook_url is not None:
            yield self.webhook_url.reveal()
        if self.thoughts_secret is not None:
            yield self.thoughts_secret.reveal()
        for secret in self.client_secrets:
            yield secret.reveal()


def open_mode_problem(settings: Settings) -> str:
    """Why a gateway without any key may not listen where it is to, "" where it may. Keys of the ledger count too,
    so only who has read them can tell."""
    if settings.on_loopback:
        return ""
    return (
        f"{settings.server.host} can be reached from other machines, and without keys anybody there could spend "
        "your money; add [[keys]], make one with `kimi-gateway keys create`, or listen on 127.0.0.1"
    )


def with_targets(settings: Settings, targets: tuple[Target, ...]) -> Settings:
    """The same settings with these targets; the routes that nobody wrote are made anew."""
    stated = tuple(route for route in settings.routes if route.stated)
    return replace(settings, targets=targets, routes=all_routes(stated, targets))


DEFAULT_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "kimi-k3.1-pro": ("moonshotai/kimi-k3.1-pro", "moonshotai/Kimi-K3.1-Pro"),
}
"""Other names that ship: OpenRouter's and the weights' own."""


def all_routes(stated: tuple[Route, ...], targets: tuple[Target, ...]) -> tuple[Route, ...]:
    """The stated routes, and one for each model that a target maps and no stated route names."""
    taken = {name for route in stated for name in (route.model, *route.aliases)}
    models = dict.fromkeys(model for target in targets for model in target.models)
    made = []
    for model in models:
        if model in taken:
            continue
        names = tuple(target.name for target in targets if model in target.models)
        aliases = tuple(
            alias for alias in DEFAULT_ALIASES.get(model, ()) if alias not in taken and alias not in models
        )
        made.append(Route(model=model, targets=names, aliases=aliases, stated=False))
    return (*stated, *made)
