"""From checked tables to settings: secrets read, targets completed by their dialect, routes tied to targets."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from backends.catalog import DIALECTS
from backends.dialect import Dialect
from backends.json import encode
from kimi_gateway.core.keys import OPEN_NAME, KeyFormatError, secret_from_text
from kimi_gateway.core.routing.facts import Quota
from kimi_gateway.core.secret import Secret
from kimi_gateway.core.state_url import StateUrlError, state_url
from kimi_gateway.settings.mistakes import Mistakes, suggestion
from kimi_gateway.settings.model import DEFAULT_ALIASES, Admin, Route, Target
from kimi_gateway.settings.tables import AdminTable, Alerts, RouteTable, State, TargetTable, Thinking
from pricing.money import NANO
from pricing.rates import Rates

RESERVED: Final = (OPEN_NAME, "other")
"""Names that nothing configured can have: the caller of open mode, the metrics' label for what is not known."""
_OURS: Final = ("messages", "model", "stream", "stream_options", "n", "tools", "tool_choice")
_LISTEN: Final = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[^:\s]+):(?P<port>\d{1,5})\Z")

Environ = Mapping[str, str]


class SecretReader:
    """Reads secrets from variables and files; what is wrong becomes a mistake that never holds the secret."""

    def __init__(self, environ: Environ, mistakes: Mistakes) -> None:
        self._environ = environ
        self._mistakes = mistakes

    def variable(self, path: str, name: str, *, required: bool = True) -> Secret | None:
        """The secret in a variable; an unset or empty one is a mistake where it is required, else None."""
        text = self._environ.get(name, "")
        if text:
            return self._checked(path, f"the variable {name}", text)
        if required:
            self._mistakes.add(path, f"the variable {name} is not set; set it to the key, or name another")
        return None

    def file(self, path: str, name: str) -> Secret | None:
        """The secret in a file."""
        try:
            text = Path(name).read_text("utf-8")
        except UnicodeDecodeError:
            self._mistakes.add(path, f"the file {name} is not text; put the key there, on one line")
        except OSError as err:
            reason = err.strerror or type(err).__name__
            self._mistakes.add(
                path, f"the file {name} cannot be read ({reason}); create it with the key on one line"
            )
        else:
            return self._checked(path, f"the file {name}", text)
        return None

    def _checked(self, path: str, where: str, text: str) -> Secret | None:
        try:
            return secret_from_text(text)
        except KeyFormatError as err:
            self._mistakes.add(path, f"{where} {err}")
            return None


def resolve_admin(table: AdminTable, secrets: SecretReader, mistakes: Mistakes) -> Admin:
    """The admin settings. An unset variable means no admin access and stops nothing."""
    listen: tuple[str, int] | None = None
    if table.listen:
        match = _LISTEN.match(table.listen)
        if match is None or int(match["port"]) > 65535:
            mistakes.add("admin.listen", f'must be "address:port" such as "127.0.0.1:9000", not "{table.listen}"')
        else:
            listen = (match["host"].strip("[]"), int(match["port"]))
    key = secrets.variable("admin.key_env", table.key_env, required=False) if table.key_env else None
    return Admin(listen=listen, key=key)


def resolve_webhook(alerts: Alerts | None, secrets: SecretReader) -> Secret | None:
    """Where budgets report, as a secret: such addresses often hold one. None where nowhere is named."""
    if alerts is None or not alerts.webhook_url_env:
        return None
    return secrets.variable("alerts.webhook_url_env", alerts.webhook_url_env)


def check_state_url(url: str, mistakes: Mistakes) -> None:
    """The address of the state is one of the kinds that there are."""
    try:
        state_url(url)
    except StateUrlError as err:
        mistakes.add("state.url", str(err))


_SEAL_CHARACTERS: Final = 16


def resolve_seal(
    thinking: Thinking | None, state: State | None, secrets: SecretReader, mistakes: Mistakes
) -> Secret | None:
    """The secret that kept thoughts are sealed with; None where none is named."""
    if thinking is None or not thinking.encrypt_key_env:
        return None
    path = "thinking.encrypt_key_env"
    if state is not None and state.url == "memory://":
        mistakes.add(path, "has no effect while thoughts stay in this process; set state.url, or leave it out")
    secret = secrets.variable(path, thinking.encrypt_key_env)
    if secret is not None and len(secret.reveal()) < _SEAL_CHARACTERS:
        mistakes.add(
            path, f"the secret needs at least {_SEAL_CHARACTERS} characters; make one with openssl rand -base64 32"
        )
    return secret


_TARGET_NEEDS: Final = frozenset({"name", "dialect", "base_url", "api_key_env", "api_key_file", "models"})
_ROUTE_NEEDS: Final = frozenset({"model", "targets"})
"""Settings without which nothing sensible can be said about what hangs on the entry."""


def resolve_target(
    table: TargetTable,
    path: str,
    secrets: SecretReader,
    mistakes: Mistakes,
    *,
    wrong: frozenset[str] = frozenset(),
) -> Target | None:
    """The target; None where something it cannot do without is wrong. Of the settings `wrong` enough is said."""
    dialect = None if "dialect" in wrong else find_dialect(table.dialect, f"{path}.dialect", mistakes)
    if table.name in RESERVED:
        mistakes.add(f"{path}.name", f'"{table.name}" is taken by the gateway itself; choose another')
    base_url = _base_url(table.base_url, f"{path}.base_url", dialect, mistakes, is_wrong="base_url" in wrong)
    at_home = bool(base_url) and not wrong & {"api_key_env", "api_key_file"}
    key = _target_key(table, path, dialect if at_home else None, base_url, secrets, mistakes)
    prices = _prices(table.prices, f"{path}.prices", mistakes)
    extra_body = _extra_body(table.extra_body, f"{path}.extra_body", mistakes)
    for public, own in table.models.items():
        if not public or not own:
            mistakes.add(f"{path}.models", 'must map public names to the target\'s own, as in { "a" = "b" }')
    if dialect is None or wrong & _TARGET_NEEDS:
        return None
    models = table.models or dict(dialect.models)
    return Target(
        name=table.name,
        dialect=table.dialect,
        base_url=base_url,
        api_key=key,
        account=table.account or table.name,
        quota=Quota(table.max_concurrency, table.rpm, table.tpm, table.tpd),
        models=models,
        context_window=table.context_window,
        connect_timeout_s=table.connect_timeout_s,
        first_byte_timeout_s=table.first_byte_timeout_s,
        idle_timeout_s=table.idle_timeout_s,
        fold=table.fold,
        prices=prices,
        extra_body=extra_body,
        contract=table.contract,
        split_think_tags=table.split_think_tags,
        gpu_nano_per_hour=int((table.gpu_usd_per_hour or 0) * NANO),
        models_assumed=not table.models and not dialect.base_url,
    )


def find_dialect(name: str, path: str, mistakes: Mistakes) -> Dialect | None:
    """The dialect of that name; None, and a mistake, where there is none."""
    dialect = DIALECTS.get(name)
    if dialect is None:
        mistakes.add(path, f'"{name}" is not a dialect{suggestion(name, DIALECTS)}')
    return dialect


def _base_url(stated: str, path: str, dialect: Dialect | None, mistakes: Mistakes, *, is_wrong: bool) -> str:
    """The address, which is the dialect's own service where none is stated; "" where there is none."""
    url = stated or (dialect.base_url if dialect is not None else "")
    if is_wrong or (not url and dialect is None):
        return ""
    if dialect is not None and not url:
        mistakes.add(path, f"is missing; a {dialect.name} target needs one such as http://127.0.0.1:8001/v1")
        return ""
    problem = url_problem(url)
    if problem:
        mistakes.add(path, problem)
    return url.rstrip("/")


def url_problem(url: str) -> str:
    """What keeps a URL from being a target's base_url, "" where it is fine. Never repeats the URL."""
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        return "is not a URL; write one such as https://api.moonshot.ai/v1"
    if parts.scheme not in ("http", "https") or not host or any(c.isspace() or not c.isprintable() for c in url):
        return "must be an http:// or https:// URL such as https://api.moonshot.ai/v1"
    if parts.username is not None or parts.password is not None:
        return "must not hold a user or password; keys come by api_key_env or api_key_file"
    if parts.query or parts.fragment:
        return "must have no ? or # part"
    if parts.path.rstrip("/").endswith(("/chat/completions", "/models")):
        return "must stop before /chat/completions; it ends in /v1 at most services"
    return ""


def _target_key(
    table: TargetTable,
    path: str,
    dialect: Dialect | None,
    base_url: str,
    secrets: SecretReader,
    mistakes: Mistakes,
) -> Secret | None:
    """The target's key. Only the dialect's own service gets the key of its usual variable unasked: a key must
    not travel to a host that it was not meant for."""
    if table.api_key_env and table.api_key_file:
        mistakes.add(path, "has both api_key_env and api_key_file; keep one")
        return None
    if table.api_key_file:
        return secrets.file(f"{path}.api_key_file", table.api_key_file)
    if table.api_key_env:
        return secrets.variable(f"{path}.api_key_env", table.api_key_env)
    if dialect is not None and dialect.key_required and base_url == dialect.base_url:
        return secrets.variable(f"{path}.api_key_env", dialect.key_variable)
    return None


def _prices(prices: dict[str, Any] | None, path: str, mistakes: Mistakes) -> Rates | None:
    """The rates, each price checked on its own so that every wrong one is named."""
    if prices is None:
        return None
    good: dict[str, object] = {}
    for name, price in prices.items():
        try:
            Rates.from_usd({name: price})
        except ValueError as err:
            mistakes.add(path, str(err))
        else:
            good[name] = price
    return Rates.from_usd(good)


def _extra_body(extra: dict[str, Any], path: str, mistakes: Mistakes) -> dict[str, Any]:
    for name in extra:
        if name in _OURS:
            mistakes.add(f"{path}.{name}", "is set by the gateway for each request; take it out")
    try:
        encode(extra)
    except (TypeError, ValueError, msgspec.MsgspecError) as err:
        mistakes.add(path, f"cannot be written as JSON ({err})")
    return extra


def targets_from_variables(environ: Environ, secrets: SecretReader, mistakes: Mistakes) -> list[Target]:
    """A target for each dialect whose variable is set, named like the dialect."""
    targets = []
    for name, dialect in sorted(DIALECTS.items()):
        url, key = environ.get(dialect.url_variable, ""), None
        if dialect.url_variable and url:
            problem = url_problem(url)
            if problem:
                mistakes.add(dialect.url_variable, problem)
                continue
        elif dialect.key_variable and environ.get(dialect.key_variable):
            url, key = dialect.base_url, secrets.variable(dialect.key_variable, dialect.key_variable)
        else:
            continue
        targets.append(
            Target(
                name=name,
                dialect=name,
                base_url=url.rstrip("/"),
                api_key=key,
                account=name,
                models=dict(dialect.models),
                models_assumed=not dialect.base_url,
            )
        )
    return targets


def resolve_route(
    table: RouteTable,
    path: str,
    targets: Sequence[Target],
    known: Sequence[str] | None,
    mistakes: Mistakes,
    *,
    wrong: frozenset[str] = frozenset(),
) -> Route | None:
    """The route; None where something it cannot do without is wrong. `known` are the names of all targets written,
    of which some may be wrong themselves; None where not all can be read."""
    for name in table.targets:
        if known is not None and name not in known:
            mistakes.add(f"{path}.targets", f'"{name}" is not a target{suggestion(name, known)}')
    if wrong & _ROUTE_NEEDS:
        return None
    mapping = [target.name for target in targets if table.model in target.models]
    names = tuple(dict.fromkeys(table.targets)) or tuple(mapping)
    whole = known is not None and len(targets) == len(known) and all(name in known for name in names)
    if whole and not any(name in mapping for name in names):
        mistakes.add(path, f'no target of the route maps "{table.model}"; add it to the models of one')
    aliases = DEFAULT_ALIASES.get(table.model, ()) if table.aliases is None else table.aliases
    return Route(
        model=table.model,
        targets=names,
        aliases=aliases,
        policy=table.policy,
        weights=_weights(table, path, names, mistakes),
        wait_usd_per_hour=Decimal("0.50") if table.wait_usd_per_hour is None else table.wait_usd_per_hour,
        tier_fallback=table.tier_fallback,
        default_effort=table.default_effort,
        default_ttl=table.default_ttl,
        max_completion_tokens=table.max_completion_tokens,
        highspeed_aliases=table.highspeed_aliases,
        contract=table.contract,
        narrow_tools_above=table.narrow_tools_above,
    )


def _weights(table: RouteTable, path: str, names: Sequence[str], mistakes: Mistakes) -> Mapping[str, float]:
    """The weights of the route's targets; one of a target that the route does not have is a mistake."""
    for name in table.weights:
        if name not in names:
            mistakes.add(f"{path}.weights", f'"{name}" is not a target of this route{suggestion(name, names)}')
    if table.weights and not any(table.weights.get(name, 1.0) for name in names):
        mistakes.add(f"{path}.weights", "give every target 0, so that none is left; give one of them more")
    return table.weights
