"""A fault file: one TOML document that says how an emulated upstream misbehaves.

    seed = 7                       # rolls the chances; default: the emulator's own seed

    [limits]                       # of each account; 0 or left out: none
    tier = 1                       # the platform's tier 0 to 5; the next four override it
    concurrency = 50
    rpm = 200
    tpm = 2_000_000
    tpd = 0

    [service]                      # how the deployment is set up: names of `SERVICE_KEYS`
    cached_counts = false

    [[faults]]                     # tried in order: the first that hits and fits is applied
    kind = "cut"                   # one of `faults.KINDS`
    requests = [3, 7]              # or every = 5, or probability = 0.1; none of them: every request
    contains = "cut me"            # conditions that may be added: contains, stream, times, path
    phase = "text"                 # the kind's own options

Nothing unknown is accepted: each mistake is a line that says where it is, what is wrong and what was meant.
"""

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final

from backends.emulator.config import EmulatorConfig
from backends.emulator.fault_options import Option
from backends.emulator.faults import CONDITIONS, KINDS, FaultPlan, Rule
from backends.emulator.limits import NO_LIMITS, TIERS, Limits

SERVICE_KEYS: Final[Mapping[str, Option]] = {
    "context_tokens": Option(0, "the window; 0: the dialect's"),
    "block_tokens": Option(0, "the cache's block; 0: the dialect's"),
    "text_only": Option(False, "the model takes no pictures (engines)"),
    "cached_counts": Option(True, "usage tells cached tokens (engines)"),
    "reasoning_parser": Option(True, "thought is told from text"),
    "tool_parser": Option(True, "calls are told from text"),
    "leaks_calls": Option(None, "with tool_choice none the marks of a call get into the text"),
    "comment_interval_s": Option(0.0, "a comment when so long nothing went out", most=86_400),
    "byok_share": Option(0.0, "the share of answers that the operator's provider key pays for", most=1),
    "balance_usd": Option("", "the account's money at the start"),
    "enforce_balance": Option(False, "an account without money left is refused"),
    "stream_ttl_headers": Option(False, "streams carry the headers with written tokens by lifetime"),
    "vary_usage_places": Option(False, "each request's seed picks one of the documented places of usage"),
    "max_body_bytes": Option(104_857_600, "the largest body"),
}
"""Settings of `EmulatorConfig` that a file may change."""

_LIMIT_KEYS: Final = ("tier", "concurrency", "rpm", "tpm", "tpd")
_TOP_KEYS: Final = ("seed", "limits", "service", "faults")
_HEAD: Final = re.compile(r"\s*\[\[?\s*(?:limits|service|faults)\s*(?:\]|#|$)")
_CHOOSERS: Final = ("requests", "every", "probability")
_LARGEST: Final = 2**62


class FaultFileError(ValueError):
    """The file cannot be used; the message has a line for each mistake."""


@dataclass(frozen=True, slots=True)
class FaultFile:
    """What a file says. `seed` and `limits` are None where it says nothing about them."""

    rules: tuple[Rule, ...] = ()
    seed: int | None = None
    limits: Limits | None = None
    service: Mapping[str, Any] = field(default_factory=dict)

    def plan(self, seed: int) -> FaultPlan:
        """The rules as a hook; `seed` is the emulator's, for a file without its own."""
        return FaultPlan(self.rules, seed=seed if self.seed is None else self.seed)

    def applied_to(self, config: EmulatorConfig) -> EmulatorConfig:
        """The configuration as the file changes it. Raises `FaultFileError`."""
        try:
            return replace(
                config,
                faults=self.plan(config.seed) if self.rules else config.faults,
                limits=config.limits if self.limits is None else self.limits,
                **self.service,
            )
        except ValueError as err:
            raise FaultFileError(f"service: {err}") from err


def read_fault_file(text: str) -> FaultFile:
    """The file's content. Raises `FaultFileError`."""
    try:
        held = tomllib.loads(text)
    except tomllib.TOMLDecodeError as err:
        raise FaultFileError("\n".join(_slips(text) or [f"not TOML: {err}"])) from err
    mistakes: list[str] = []
    _check_keys(held, _TOP_KEYS, "", mistakes)
    seed = held.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < _LARGEST):
        mistakes.append("seed: must be a whole number, zero or more")
    limits = _limits(held.get("limits"), mistakes)
    service = _service(held.get("service", {}), mistakes)
    rules = _rules(held.get("faults", []), mistakes)
    if mistakes:
        raise FaultFileError("\n".join(mistakes))
    return FaultFile(rules, seed, limits, service)


def _slips(text: str) -> list[str]:
    """Where a text is not TOML, a line for each table that cannot be read by itself."""
    lines = text.splitlines()
    begins = [number for number, line in enumerate(lines) if _HEAD.match(line)]
    found = []
    for begin, end in zip([0, *begins], [*begins, len(lines)], strict=True):
        try:
            tomllib.loads("\n" * begin + "\n".join(lines[begin:end]) + "\n")
        except tomllib.TOMLDecodeError as err:
            found.append(f"not TOML: {err}")
    return found


def _check_keys(held: Mapping[str, Any], known: Collection[str], where: str, mistakes: list[str]) -> None:
    """Notes each key that is not known, with the one that was probably meant."""
    for key in held:
        if key not in known:
            mistakes.append(f"{where}{key}: there is no such key{_meant(key, known)}")


def _meant(word: str, known: Collection[str]) -> str:
    close = get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(known))}"


def _limits(held: Any, mistakes: list[str]) -> Limits | None:
    if held is None:
        return None
    if not isinstance(held, dict):
        mistakes.append("limits: must be a table, [limits]")
        return None
    _check_keys(held, _LIMIT_KEYS, "limits.", mistakes)
    count = Option(0, "", most=_LARGEST)
    found = [
        f"limits.{key}: {wrong}" for key in _LIMIT_KEYS[1:] if key in held and (wrong := count.mistake(held[key]))
    ]
    tier = held.get("tier")
    if tier is not None and (isinstance(tier, bool) or not isinstance(tier, int) or tier not in TIERS):
        found.insert(0, f"limits.tier: must be one of {', '.join(map(str, TIERS))}")
    if found:
        mistakes += found
        return None
    named = {key: held[key] for key in _LIMIT_KEYS[1:] if key in held}
    return replace(NO_LIMITS if tier is None else TIERS[tier], **named)


def _service(held: Any, mistakes: list[str]) -> Mapping[str, Any]:
    if not isinstance(held, dict):
        mistakes.append("service: must be a table, [service]")
        return {}
    _check_keys(held, SERVICE_KEYS, "service.", mistakes)
    for key, value in held.items():
        if key in SERVICE_KEYS and (wrong := SERVICE_KEYS[key].mistake(value)):
            mistakes.append(f"service.{key}: {wrong}")
    return held


def _rules(held: Any, mistakes: list[str]) -> tuple[Rule, ...]:
    if not isinstance(held, list) or not all(isinstance(rule, dict) for rule in held):
        mistakes.append("faults: must be tables, each begun with [[faults]]")
        return ()
    made = [_rule(rule, f"faults[{at}].", mistakes) for at, rule in enumerate(held)]
    return tuple(rule for rule in made if rule is not None)


def _rule(held: dict[str, Any], where: str, mistakes: list[str]) -> Rule | None:
    before = len(mistakes)
    kind, own = _kind(held.get("kind"), where, mistakes)
    if own is not None:
        _check_keys(held, ("kind", "requests", *CONDITIONS, *own), where, mistakes)
    for key, option in {**CONDITIONS, **(own or {})}.items():
        if key in held and (wrong := option.mistake(held[key])):
            mistakes.append(f"{where}{key}: {wrong}")
    requests = held.get("requests", [])
    if not _are_numbers(requests) or ("requests" in held and not requests):
        mistakes.append(f"{where}requests: must be a list of request numbers, 1 or more")
    chosen = [key for key in _CHOOSERS if key in held]
    if len(chosen) > 1:
        mistakes.append(f"{where}{chosen[1]}: {' and '.join(chosen)} exclude one another; keep one")
    if own is None or len(mistakes) > before:
        return None
    return Rule(
        kind=kind,
        options={key: held[key] for key in own if key in held},
        requests=frozenset(requests),
        **{key: held[key] for key in CONDITIONS if key in held},
    )


def _kind(named: Any, where: str, mistakes: list[str]) -> tuple[str, Mapping[str, Option] | None]:
    """The kind and its own options; None for them where there is no such kind: then no option can be judged."""
    if isinstance(named, str) and named in KINDS:
        return named, KINDS[named].options
    said = "missing" if named is None else f"there is no kind {named!r}"
    mistakes.append(f"{where}kind: {said}{_meant(str(named or ''), KINDS)}")
    return "", None


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(number, int) and not isinstance(number, bool) and number >= 1 for number in value
    )
