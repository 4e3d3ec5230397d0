"""The commands `kimi-gateway keys`: keys that live in the ledger's database, made, listed, revoked and rotated."""

import contextlib
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, NoReturn

import msgspec
import typer

from kimi_gateway.checks.findings import Output
from kimi_gateway.core.key_record import budget_nano, decode_policy, dollars_from_text, encode_policy
from kimi_gateway.core.keys import BOTH_TIERS, OPEN_NAME, KeyFormatError, KeyPolicy
from kimi_gateway.core.limits import PERIODS, Limits, Period, period_end_s, period_start_s
from kimi_gateway.settings import SettingsError, process_environment
from kimi_gateway.settings.document import read_document
from kimi_gateway.settings.load import ENTRIES, SECTIONS, find_file
from pricing.cli_settings import DEFAULT_LEDGER
from pricing.ledger.errors import LedgerError
from pricing.ledger.store.keys import KeyTable, StoredKey
from pricing.ledger.store.spend import Spending
from pricing.money import usd_text

_USAGE: Final = 2
_SECRET_BYTES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_RESERVED: Final = (OPEN_NAME, "other")
_DURATION: Final = re.compile(r"(\d+)([smhd])\Z")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EFFORTS: Final = ("low", "high", "max")
_COUNT_MAX: Final = 2**53 - 1

keys_app = typer.Typer(
    name="keys",
    help="Callers' keys in the ledger's database. Running gateways follow in seconds.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Config = Annotated[Path | None, typer.Option("--config", help="The gateway's TOML file.", metavar="FILE")]
Ledger = Annotated[str | None, typer.Option("--ledger", help="URL of the ledger. Default: as `serve` finds it.")]
Form = Annotated[Output, typer.Option("--format", help="How to print.")]
Name = Annotated[str, typer.Argument(help="The key's name: budgets and reports hang on it.", metavar="NAME")]

_CREATE_HELP = """Make a key and print it, once: only its SHA-256 is stored, in the ledger.

The ledger is the one that `serve` books in (--ledger, KIMI_LEDGER_URL, [ledger] url in the file); it is made where
there is none. A limit that is not given is none. The first key ends open mode.

Examples:

\b
  kimi-gateway keys create team-a
  kimi-gateway keys create team-b --budget-usd 25 --period month --rpm 60 --max-effort high
  kimi-gateway keys create ci --budget-usd 2.50 --period day --tier standard --format json
"""

_LIST_HELP = """List the keys of the ledger with what they have spent in their period and what is left.

Left is what neither is booked nor held for requests whose end is not known. Keys of the configuration file are
not listed.

Examples:

\b
  kimi-gateway keys list
  kimi-gateway keys list --format json
"""

_REVOKE_HELP = """End a key with all of its secrets. Running gateways refuse it within 10 seconds.

Its spend stays in the ledger under its name, so the name cannot be given again.

Examples:

\b
  kimi-gateway keys revoke team-b
"""

_ROTATE_HELP = """Give a key a new secret and print it, once; name, limits and spend stay.

The old secret works for --overlap more, so that both can be in use meanwhile; 0s ends it at once.
Units: s, m, h, d.

Examples:

\b
  kimi-gateway keys rotate team-a
  kimi-gateway keys rotate team-a --overlap 7d
  kimi-gateway keys rotate ci --overlap 0s --format json
"""


@dataclass(frozen=True, slots=True)
class _Place:
    """The ledger's URL, and the names of the keys in the configuration file that goes with it."""

    url: str
    file: str
    names: frozenset[str]


@keys_app.command("create", help=_CREATE_HELP)
def create(
    name: Name,
    budget_usd: Annotated[str, typer.Option(help="The most it may spend in a period, in US dollars.")] = "",
    highspeed_budget_usd: Annotated[str, typer.Option(help="Of that, the most at the tier Highspeed.")] = "",
    period: Annotated[str, typer.Option(help="day | month | total: the budget's period, in UTC.")] = "month",
    rpm: Annotated[int, typer.Option(min=0, max=_COUNT_MAX, help="Requests a minute; 0 = no limit.")] = 0,
    tpm: Annotated[int, typer.Option(min=0, max=_COUNT_MAX, help="Tokens a minute.")] = 0,
    concurrency: Annotated[int, typer.Option(min=0, max=_COUNT_MAX, help="Requests at one time.")] = 0,
    max_effort: Annotated[str, typer.Option(help="low | high | max: a dearer wish is lowered.")] = "max",
    default_effort: Annotated[str, typer.Option(help="Where a request names none.")] = "",
    default_ttl: Annotated[str, typer.Option(help="5m | 1h, where a request names none.")] = "",
    max_completion_tokens: Annotated[int, typer.Option(min=0, help="Where a request names no limit.")] = 0,
    tier: Annotated[list[str] | None, typer.Option(help="standard, highspeed; default both.")] = None,
    pin: Annotated[bool, typer.Option("--pin", help="May choose a target with x-kimi-target.")] = False,
    no_thinking_repair: Annotated[
        bool, typer.Option("--no-thinking-repair", help="Nothing of its conversations is kept.")
    ] = False,
    config: Config = None,
    ledger: Ledger = None,
    output: Form = Output.TABLE,
) -> None:
    with _complaints():
        _check_name(name)
        limits = Limits(
            budget_nano=_budget("--budget-usd", budget_usd),
            highspeed_nano=_budget("--highspeed-budget-usd", highspeed_budget_usd),
            period=_period(period),
            rpm=rpm,
            tpm=tpm,
            concurrency=concurrency,
        )
        policy = KeyPolicy(
            name=name,
            max_effort=_one_of("--max-effort", max_effort, _EFFORTS),
            default_effort=_one_of("--default-effort", default_effort, ("", *_EFFORTS)),
            default_ttl=_one_of("--default-ttl", default_ttl, ("", "5m", "1h")),
            max_completion_tokens=max_completion_tokens,
            tiers=tuple(_one_of("--tier", one, BOTH_TIERS) for one in tier or BOTH_TIERS),
            pin=pin,
            thinking_repair=not no_thinking_repair,
            limits=limits,
        )
        _create(policy, _place(config, ledger), output)


def _create(policy: KeyPolicy, place: _Place, output: Output) -> None:
    _check_efforts(policy)
    if policy.name in place.names:
        raise KeyFormatError(
            f"{place.file} has a key {policy.name} already; choose another name, or take it out there"
        )
    secret = _new_secret()
    with _opened(place, create=True) as keys:
        keys.create(policy.name, encode_policy(policy), _digest(secret), at_s=_now_s())
        _print_secret(secret, policy.name, keys.name, output, {})


@keys_app.command("list", help=_LIST_HELP)
def list_keys(config: Config = None, ledger: Ledger = None, output: Form = Output.TABLE) -> None:
    with _complaints():
        place = _place(config, ledger)
        with _opened(place, create=False) as keys:
            spending = Spending(place.url)
            try:
                rows = [_listed(key, spending, _now_s(), place) for key in keys.all()]
            finally:
                spending.close()
            _print_list(rows, keys.name, output)


@keys_app.command("revoke", help=_REVOKE_HELP)
def revoke(name: Name, config: Config = None, ledger: Ledger = None) -> None:
    with _complaints():
        place = _place(config, ledger)
        _refuse_file_key(name, place)
        with _opened(place, create=False) as keys:
            keys.revoke(name, at_s=_now_s())
            typer.echo(f"revoked {name} in {keys.name}; running gateways refuse it within 10 seconds")


@keys_app.command("rotate", help=_ROTATE_HELP)
def rotate(
    name: Name,
    overlap: Annotated[str, typer.Option(help="How long the old secret works beside the new one.")] = "24h",
    config: Config = None,
    ledger: Ledger = None,
    output: Form = Output.TABLE,
) -> None:
    with _complaints():
        overlap_s = _seconds(overlap)
        place = _place(config, ledger)
        _refuse_file_key(name, place)
        secret, now_s = _new_secret(), _now_s()
        with _opened(place, create=False) as keys:
            older = keys.rotate(name, _digest(secret), at_s=now_s, overlap_s=overlap_s)
            more: dict[str, object] = {"older_secrets": older}
            if older:
                more["older_work_until"] = _moment(now_s + overlap_s)
            _print_secret(secret, name, keys.name, output, more)


def _listed(key: StoredKey, spending: Spending, now_s: float, place: _Place) -> dict[str, object]:
    """One key as `list` prints it; money as exact decimal text, None where there is no such budget."""
    row: dict[str, object] = {"name": key.name, "state": _state(key, now_s, place)}
    try:
        policy = decode_policy(key.name, key.policy)
    except KeyFormatError as err:
        return row | {"state": f"does not work: {err}"}
    limits = policy.limits
    since, until = period_start_s(limits.period, now_s), period_end_s(limits.period, now_s)
    booked = spending.booked(key.name, since=since, until=until)
    unknown = [one for one in booked.rows.values() if one.state != "settled"]
    held = sum(one.bound_nano - one.nano for one in unknown)
    fast = sum(one.bound_nano - one.nano for one in unknown if one.highspeed)
    return row | {
        "period": limits.period,
        "budget_usd": _left(limits.budget_nano, 0),
        "spent_usd": usd_text(booked.total_nano),
        "left_usd": _left(limits.budget_nano, booked.total_nano + held),
        "highspeed_budget_usd": _left(limits.highspeed_nano, 0),
        "highspeed_spent_usd": usd_text(booked.highspeed_nano),
        "highspeed_left_usd": _left(limits.highspeed_nano, booked.highspeed_nano + fast),
        "rpm": limits.rpm,
        "tpm": limits.tpm,
        "concurrency": limits.concurrency,
        "max_effort": policy.max_effort,
        "tiers": list(policy.tiers),
        "created_at": _moment(key.created_at),
        "revoked_at": None if key.revoked_at is None else _moment(key.revoked_at),
        "secrets": [
            {
                "sha256_begins": one.sha256[:8],
                "created_at": _moment(one.created_at),
                "expires_at": None if one.expires_at is None else _moment(one.expires_at),
            }
            for one in key.secrets
            if one.works_at(now_s)
        ],
    }


def _state(key: StoredKey, now_s: float, place: _Place) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.name in place.names:
        return "hidden by the file"
    working = sum(1 for one in key.secrets if one.works_at(now_s))
    return "works" if working == 1 else f"works, {working} secrets" if working else "expired"


_COLUMNS: Final = (
    *(("name", False), ("state", False), ("period", False), ("budget USD", True), ("spent USD", True)),
    *(("left USD", True), ("rpm", True), ("tpm", True), ("at once", True)),
)
_FIELDS: Final = ("name", "state", "period", "budget_usd", "spent_usd", "left_usd", "rpm", "tpm", "concurrency")


def _print_list(rows: list[dict[str, object]], ledger: str, output: Output) -> None:
    # Inside the function: it brings what draws tables, which `serve` does without.
    from pricing.render import console, print_note, table, text

    if output is Output.JSON:
        typer.echo(_json({"ledger": ledger, "keys": rows}))
        return
    screen = console()
    if not rows:
        screen.print("no keys")
    else:
        grid = table(_COLUMNS)
        for row in rows:
            grid.add_row(*(text(row.get(name) or None) for name in _FIELDS))
        screen.print(grid)
    print_note(screen, f"ledger {ledger}")


def _print_secret(secret: str, name: str, ledger: str, output: Output, more: Mapping[str, object]) -> None:
    if output is Output.JSON:
        typer.echo(_json({"name": name, "key": secret, "ledger": ledger, **more}))
        return
    typer.echo(secret)
    until = more.get("older_work_until")
    older = f"; the older secret works until {until}" if until else ""
    typer.echo(f"the key of {name}, in {ledger}; it is shown this once{older}", err=True)


def _place(config: Path | None, ledger: str | None) -> _Place:
    """Where keys are kept: flag before variable before file before default. Raises `SettingsError`."""
    environ = process_environment()
    file = find_file(config, environ)
    raw = {} if file is None else read_document(file, [*SECTIONS, *ENTRIES]).raw
    section = raw.get("ledger")
    written = section.get("url") if isinstance(section, dict) else None
    url = (
        ledger or environ.get("KIMI_LEDGER_URL") or (written if isinstance(written, str) else "") or DEFAULT_LEDGER
    )
    entries = raw.get("keys")
    names = [item.get("name") for item in entries if isinstance(item, dict)] if isinstance(entries, list) else []
    return _Place(url, str(file), frozenset(name for name in names if isinstance(name, str)))


def _opened(place: _Place, *, create: bool) -> contextlib.closing[KeyTable]:
    return contextlib.closing(KeyTable(place.url, create=create))


@contextlib.contextmanager
def _complaints() -> Iterator[None]:
    """Turns what a user can set right into one message and exit code 2."""
    try:
        yield
    except (KeyFormatError, LedgerError, SettingsError) as err:
        _stop(str(err))


def _stop(reason: str) -> NoReturn:
    typer.echo(f"kimi-gateway: {reason}", err=True)
    raise typer.Exit(_USAGE)


def _check_name(name: str) -> None:
    if not _NAME.match(name):
        raise KeyFormatError(
            f"{name[:70]!r} cannot be a key's name: it has 1 to 64 letters, digits, . _ - and begins with a "
            "letter or digit"
        )
    if name in _RESERVED:
        raise KeyFormatError(f"the name {name} is taken by the gateway itself; choose another")


def _check_efforts(policy: KeyPolicy) -> None:
    if policy.default_effort and _EFFORTS.index(policy.default_effort) > _EFFORTS.index(policy.max_effort):
        raise KeyFormatError(
            f"--default-effort {policy.default_effort} is above --max-effort {policy.max_effort}; "
            "lower it or raise the ceiling"
        )


def _refuse_file_key(name: str, place: _Place) -> None:
    if name in place.names:
        raise KeyFormatError(f"the key {name} is in {place.file}; change it there and send the gateway SIGHUP")


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise KeyFormatError(f"{option}: {value!r} is none of {', '.join(one for one in allowed if one)}")
    return value


def _period(value: str) -> Period:
    _one_of("--period", value, PERIODS)
    return next(one for one in PERIODS if one == value)


def _budget(option: str, value: str) -> int | None:
    try:
        return budget_nano(dollars_from_text(value))
    except KeyFormatError as err:
        raise KeyFormatError(f"{option}: {value[:40]!r} {err}") from err


def _seconds(value: str) -> float:
    match = _DURATION.match(value)
    if match is None:
        raise KeyFormatError(f"--overlap: {value!r} is no length of time; write 30m, 24h or 7d")
    return int(match[1]) * _UNIT_S[match[2]]


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _new_secret() -> str:
    return f"kg-{secrets.token_urlsafe(_SECRET_BYTES)}"


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def _now_s() -> float:
    return time.time()  # noqa: TID251  # the shell reads the clock


def _moment(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))


def _left(whole: int | None, used: int) -> str | None:
    return None if whole is None else usd_text(whole - used)
