"""Reads the configuration: flag before variable before file before default, and every mistake at once."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from backends.json import encode
from kimi_gateway.core.keys import KeyFormatError, KeyPolicy, KeyRing
from kimi_gateway.core.secret import Secret
from kimi_gateway.settings import tables
from kimi_gateway.settings.document import Document, read_document
from kimi_gateway.settings.mistakes import Mistakes, SettingsError, read_table, suggestion
from kimi_gateway.settings.model import Admin, Route, Settings, Target, all_routes
from kimi_gateway.settings.resolve import (
    SecretReader,
    check_state_url,
    resolve_admin,
    resolve_route,
    resolve_seal,
    resolve_target,
    resolve_webhook,
    targets_from_variables,
)
from kimi_gateway.settings.resolve_keys import resolve_key
from kimi_gateway.settings.unbuilt import refuse_unbuilt
from pricing.cards import CardError, load_cards

T = TypeVar("T")

DEFAULT_FILE: Final = Path("kimi-gateway.toml")
CONFIG_VARIABLE: Final = "KIMI_GATEWAY_CONFIG"

SECTIONS: Final[Mapping[str, type[Any]]] = {
    "server": tables.Server,
    "admin": tables.AdminTable,
    "ledger": tables.Ledger,
    "state": tables.State,
    "contract": tables.ContractMode,
    "thinking": tables.Thinking,
    "retry": tables.Retry,
    "queue": tables.Queue,
    "pricing": tables.Pricing,
    "alerts": tables.Alerts,
    "timing": tables.Timing,
}
ENTRIES: Final[Mapping[str, type[Any]]] = {
    "targets": tables.TargetTable,
    "routes": tables.RouteTable,
    "keys": tables.KeyTable,
}
_VARIABLES: Final = {"KIMI_LEDGER_URL": ("ledger", "url"), "KIMI_STATE_URL": ("state", "url")}


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One of an array of tables, with its dotted path. In `table` the settings that are `wrong` have defaults, or
    stand-ins where there is none; it is None where nothing can be read."""

    table: T | None
    path: str
    wrong: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line may set; None = not given."""

    host: str | None = None
    port: int | None = None
    workers: int | None = None


def process_environment() -> Mapping[str, str]:
    """The environment of this process: the one place where the gateway reads it."""
    return dict(os.environ)  # noqa: TID251


def load(path: Path | None, environ: Mapping[str, str], flags: Flags | None = None) -> Settings:
    """The settings from a file (None: KIMI_GATEWAY_CONFIG, else ./kimi-gateway.toml if it is there), the
    environment and the command line. Raises `SettingsError` with a line for every mistake."""
    source = find_file(path, environ)
    document = Document() if source is None else read_document(source, [*SECTIONS, *ENTRIES])
    place = "" if source is None else str(source)
    return settings_of(document.raw, environ, flags or Flags(), source=place, broken=document.broken)


def settings_of(
    raw: dict[str, Any], environ: Mapping[str, str], flags: Flags, *, source: str, broken: Sequence[str] = ()
) -> Settings:
    """The settings of a TOML document (which flags and variables are written into). `broken` says where it is
    none, so that `raw` is not all of it. Raises `SettingsError`."""
    mistakes = Mistakes(_override(raw, environ, flags))
    for problem in broken:
        mistakes.add("the file is not TOML", problem)
    settings = _settings(raw, environ, mistakes, source, is_whole=not broken)
    if settings is None:
        raise SettingsError(mistakes.lines, source)
    return settings


def find_file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read. One that is named must be there; the default one need not."""
    if path is not None:
        return path
    if environ.get(CONFIG_VARIABLE):
        return Path(environ[CONFIG_VARIABLE])
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def _override(raw: dict[str, Any], environ: Mapping[str, str], flags: Flags) -> dict[str, str]:
    """Puts variables and flags over the file's values; gives back where each came from, by dotted path."""
    origins: dict[str, str] = {}
    given = [
        (section, name, environ[variable], variable)
        for variable, (section, name) in _VARIABLES.items()
        if environ.get(variable)
    ]
    given += [
        ("server", item.name, getattr(flags, item.name), f"--{item.name}")
        for item in fields(flags)
        if getattr(flags, item.name) is not None
    ]
    for section, name, value, origin in given:
        table = raw.setdefault(section, {})
        if isinstance(table, dict):
            table[name] = value
            origins[f"{section}.{name}"] = origin
    return origins


def _settings(
    raw: dict[str, Any], environ: Mapping[str, str], mistakes: Mistakes, source: str, *, is_whole: bool
) -> Settings | None:
    """The settings; None where there are mistakes. What is not whole is not blamed for what it lacks."""
    for name in raw:
        if name not in SECTIONS and name not in ENTRIES:
            mistakes.add(name, "is not a section" + suggestion(name, [*SECTIONS, *ENTRIES]))
    sections: dict[str, Any] = {
        name: _section(kind, raw.get(name, {}), name, mistakes) for name, kind in SECTIONS.items()
    }
    secrets = SecretReader(environ, mistakes)
    targets, known = _targets(raw, environ, secrets, mistakes)
    routes = _routes(raw, targets, known if is_whole else None, mistakes)
    keys, ring, client_secrets = _keys(raw, secrets, mistakes)
    ledger, admin = sections["ledger"], sections["admin"]
    if ledger is not None:
        _check_ledger_url(ledger.url, mistakes)
    if sections["pricing"] is not None:
        _check_cards(sections["pricing"].cards_dir, mistakes)
    resolved_admin = Admin() if admin is None else resolve_admin(admin, secrets, mistakes)
    if sections["state"] is not None:
        check_state_url(sections["state"].url, mistakes)
    webhook = resolve_webhook(sections["alerts"], secrets)
    thoughts_secret = resolve_seal(sections["thinking"], sections["state"], secrets, mistakes)
    if mistakes.lines:
        return None
    return Settings(
        source=source,
        admin=resolved_admin,
        **{name: table for name, table in sections.items() if name != "admin"},
        targets=tuple(targets),
        routes=all_routes(tuple(routes), tuple(targets)),
        keys=keys,
        key_ring=ring,
        client_secrets=client_secrets,
        thoughts_secret=thoughts_secret,
        webhook_url=webhook,
    )


def _section(kind: type[T], raw: object, name: str, mistakes: Mistakes) -> T | None:
    if isinstance(raw, list):
        mistakes.add(name, f"is one table; write [{name}] with single brackets")
        return None
    return _table(kind, raw, name, name, mistakes).table


def _table(kind: type[T], raw: object, section: str, path: str, mistakes: Mistakes) -> Entry[T]:
    """The table, checked for what is not built as well; see `read_table`."""
    table, wrong = read_table(kind, raw, path, mistakes)
    if table is not None:
        refuse_unbuilt(section, table, path, mistakes)
    return Entry(table, path, wrong)


def _entries(
    kind: type[T], raw: dict[str, Any], section: str, label: str, mistakes: Mistakes
) -> Iterator[Entry[T]]:
    """The entries of an array of tables. Names occur once."""
    found = raw.get(section, [])
    if not isinstance(found, list):
        mistakes.add(section, f"is a list of tables; write [[{section}]] with double brackets")
        return
    seen: set[str] = set()
    for index, item in enumerate(found):
        name = item.get(label) if isinstance(item, dict) else None
        path = f"{section}[{encode(name).decode()}]" if isinstance(name, str) and name else f"{section}[{index}]"
        if isinstance(name, str) and name in seen:
            mistakes.add(path, f"stands there twice; give each of [[{section}]] its own {label}")
        seen.add(str(name))
        yield _table(kind, item, section, path, mistakes)


def _targets(
    raw: dict[str, Any], environ: Mapping[str, str], secrets: SecretReader, mistakes: Mistakes
) -> tuple[list[Target], list[str]]:
    """The usable targets, and the names of all that are written."""
    if not raw.get("targets"):
        targets = targets_from_variables(environ, secrets, mistakes)
        return targets, [target.name for target in targets]
    usable, known = [], []
    for entry in _entries(tables.TargetTable, raw, "targets", "name", mistakes):
        if entry.table is None:
            continue
        target = resolve_target(entry.table, entry.path, secrets, mistakes, wrong=entry.wrong)
        if target is not None:
            usable.append(target)
    for item in raw["targets"] if isinstance(raw["targets"], list) else []:
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            known.append(item["name"])
    return usable, known


def _routes(
    raw: dict[str, Any], targets: list[Target], known: list[str] | None, mistakes: Mistakes
) -> list[Route]:
    """The routes. `known` are the names of all targets that are written, None where not all can be read."""
    routes: list[Route] = []
    owners: dict[str, str] = {}
    entries = list(_entries(tables.RouteTable, raw, "routes", "model", mistakes))
    named = [entry.table for entry in entries if entry.table is not None and "model" not in entry.wrong]
    written = {name for table in named for name in (table.model, *(table.aliases or ()))}
    for entry in entries:
        table, path = entry.table, entry.path
        if table is None:
            continue
        route = resolve_route(table, path, targets, known, mistakes, wrong=entry.wrong)
        if route is None:
            continue
        if table.aliases is None:  # what ships gives way to what is written
            route = replace(route, aliases=tuple(alias for alias in route.aliases if alias not in written))
        for name in (route.model, *route.aliases):
            owner = owners.setdefault(name, route.model)
            if owner != route.model:
                mistakes.add(
                    f"{path}.aliases", f'"{name}" belongs to the route "{owner}" already; take it out of one'
                )
        routes.append(route)
    return routes


def _keys(
    raw: dict[str, Any], secrets: SecretReader, mistakes: Mistakes
) -> tuple[tuple[KeyPolicy, ...], KeyRing, tuple[Secret, ...]]:
    found = []
    for entry in _entries(tables.KeyTable, raw, "keys", "name", mistakes):
        if entry.table is not None:
            found.append(resolve_key(entry.table, entry.path, secrets, mistakes, wrong=entry.wrong))
    whole = [key for key in found if key is not None]
    try:
        ring = KeyRing((digest, policy) for digest, _, policy in whole)
    except KeyFormatError as err:
        mistakes.add("keys", str(err))
        ring = KeyRing(())
    policies = tuple(policy for _, _, policy in whole)
    return policies, ring, tuple(secret for _, secret, _ in whole if secret is not None)


def _check_cards(folder: str, mistakes: Mistakes) -> None:
    """Whether one's own rate cards can be read."""
    if folder:
        try:
            load_cards(Path(folder))
        except CardError as err:
            mistakes.add("pricing.cards_dir", str(err))


def _check_ledger_url(url: str, mistakes: Mistakes) -> None:
    scheme = url.partition("://")[0].partition("+")[0]
    if scheme != "sqlite" and not scheme.startswith("postgres"):
        mistakes.add(
            "ledger.url",
            "must be sqlite:///kimi-ledger.db (a file here), sqlite:////var/lib/kimi-ledger.db (three slashes and "
            "the path) or postgresql+psycopg://user:password@host/database",
        )
    elif scheme == "sqlite" and url.rstrip("/").endswith((":", ":memory:")):
        mistakes.add("ledger.url", "names no file; a ledger in memory would be lost at every stop")
