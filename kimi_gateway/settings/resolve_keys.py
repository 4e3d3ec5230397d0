"""From the checked tables of keys to what the gateway knows of them: secrets read, limits whole."""

from collections.abc import Callable
from decimal import Decimal

from kimi_gateway.core.key_record import budget_nano, limits_of
from kimi_gateway.core.keys import KeyFormatError, KeyPolicy, digest_from_hex, digest_of
from kimi_gateway.core.limits import Limits
from kimi_gateway.core.secret import Secret
from kimi_gateway.settings.mistakes import Mistakes
from kimi_gateway.settings.resolve import RESERVED, SecretReader
from kimi_gateway.settings.tables import KeyTable


def resolve_key(
    table: KeyTable, path: str, secrets: SecretReader, mistakes: Mistakes, *, wrong: frozenset[str] = frozenset()
) -> tuple[bytes, Secret | None, KeyPolicy] | None:
    """Digest, secret (None where only the digest is written) and policy of a key; None where it is wrong. Of the
    settings `wrong` enough is said."""
    if table.name in RESERVED:
        mistakes.add(f"{path}.name", f'"{table.name}" is taken by the gateway itself; choose another')
    given = [name for name in ("key_env", "key_file", "key_sha256") if getattr(table, name)]
    _check_default_effort(table, path, mistakes)
    if wrong & {"key_env", "key_file", "key_sha256"}:
        return None
    if len(given) != 1:
        found = f"has {' and '.join(given)}" if given else "has no secret"
        mistakes.add(path, f"{found}; give exactly one of key_env, key_file and key_sha256")
        return None
    limits = _limits(table, path, mistakes)
    policy = KeyPolicy(
        name=table.name,
        max_effort=table.max_effort,
        default_effort=table.default_effort,
        default_ttl=table.default_ttl,
        max_completion_tokens=table.max_completion_tokens,
        tiers=tuple(table.tiers),
        pin=table.pin,
        explain=table.explain,
        thinking_repair=table.thinking_repair,
        limits=limits,
    )
    readers: dict[str, Callable[[str, str], Secret | None]] = {
        "key_env": secrets.variable,
        "key_file": secrets.file,
    }
    field = given[0]
    if field in readers:
        secret = readers[field](f"{path}.{field}", getattr(table, field))
        return None if secret is None else (digest_of(secret.reveal()), secret, policy)
    try:
        return digest_from_hex(table.key_sha256), None, policy
    except KeyFormatError as err:
        mistakes.add(f"{path}.key_sha256", str(err))
        return None


def _limits(table: KeyTable, path: str, mistakes: Mistakes) -> Limits:
    """The key's limits; each budget that cannot be held is a mistake."""
    budgets: dict[str, Decimal | None] = {"budget_usd": table.budget_usd, "highspeed_budget_usd": None}
    budgets["highspeed_budget_usd"] = table.highspeed_budget_usd
    for name, dollars in budgets.items():
        try:
            budget_nano(dollars)
        except KeyFormatError as err:
            mistakes.add(f"{path}.{name}", str(err))
            budgets[name] = None
    return limits_of(
        budget_usd=budgets["budget_usd"],
        highspeed_budget_usd=budgets["highspeed_budget_usd"],
        period=table.budget_period,
        rpm=table.rpm,
        tpm=table.tpm,
        concurrency=table.concurrency,
    )


def _check_default_effort(table: KeyTable, path: str, mistakes: Mistakes) -> None:
    ranks = ("low", "high", "max")
    if table.default_effort and ranks.index(table.default_effort) > ranks.index(table.max_effort):
        mistakes.add(
            f"{path}.default_effort",
            f'"{table.default_effort}" is above max_effort "{table.max_effort}"; lower it or raise the ceiling',
        )
