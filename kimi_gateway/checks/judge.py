"""What is wrong with a target, judged by its settings and by what it answered. Pure: no sockets, no clock."""

import difflib
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from backends.dialect import Dialect
from backends.faults import Fault, FaultKind
from kimi_gateway.checks.findings import Mistake
from kimi_gateway.settings import Target

MAX_SKEW_S: Final = 30.0
_SHOWN_MODELS: Final = 6

_FAULT_REMEDIES: Final[Mapping[FaultKind, str]] = {
    FaultKind.CONNECT: "start it, or set base_url to the host and port where it runs",
    FaultKind.TLS: "set base_url to an address whose certificate is valid",
    FaultKind.TIMEOUT: "look at its log, or set base_url to the port of its API",
    FaultKind.RESET: "check http:// or https:// and the port in base_url, and its log",
    FaultKind.SERVER: "look at its log; an engine that is loading answers after some minutes",
    FaultKind.OVERLOAD: "look at its log; an engine that is loading answers after some minutes",
    FaultKind.RATE: "check again later, or ask for higher limits",
    FaultKind.QUOTA: "top the account up",
    FaultKind.INCOMPLETE: "look at its log, and at what stands between it and the gateway",
}
_BY_ADDRESS: Final = frozenset(
    {FaultKind.CONNECT, FaultKind.TLS, FaultKind.TIMEOUT, FaultKind.RESET, FaultKind.SERVER}
)
"""Kinds that, without a status, may come of a wrong address."""

_OTHER_REMEDY: Final = "compare models and extra_body with what it takes"


def place(target: Target, setting: str = "") -> str:
    """Where a target's mistake stands, as in messages about the settings."""
    return f'targets["{target.name}"]' + (f".{setting}" if setting else "")


def key_in_clear(target: Target, addresses: Iterable[str]) -> Mistake | None:
    """The mistake of sending a key over plain http to a host that is reached over public networks."""
    is_plain = urlsplit(target.base_url).scheme == "http"
    if target.api_key is None or not is_plain or not any(_is_public(address) for address in addresses):
        return None
    return Mistake(
        place(target, "base_url"),
        f"{target.host} is a public address and http:// would send the key in clear",
        "write https://, or reach it over a private network; it was not asked",
    )


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_global
    except ValueError:
        return False


def fault_mistake(target: Target, dialect: Dialect, fault: Fault, *, asked: str) -> Mistake:
    """The mistake behind a call that got no answer, or a refusal. `asked` is what was asked for."""
    if fault.kind is FaultKind.AUTH:
        return key_mistake(target, dialect, fault)
    what, _, own_remedy = fault.message.partition("; ")
    remedy = own_remedy or _FAULT_REMEDIES.get(fault.kind, _OTHER_REMEDY)
    if fault.kind is FaultKind.TLS and "mismatch" in what:
        remedy = "write into base_url the host name that the certificate is for"
    if fault.status:
        what = f"{asked} was answered with {fault.status}: {what}"
    by_address = not fault.status and fault.kind in _BY_ADDRESS
    return Mistake(place(target, "base_url" if by_address else ""), what, remedy)


def key_mistake(target: Target, dialect: Dialect, fault: Fault) -> Mistake:
    """The mistake behind a 401 or 403; names the sister host whose keys are mistaken for this one's."""
    said = f"{fault.status}: {fault.message.partition('; ')[0]}"
    if target.api_key is None:
        remedy = "name the variable that holds it in api_key_env, or a file in api_key_file"
        return Mistake(place(target), f"it wants a key and none is configured ({said})", remedy)
    where = place(target, "api_key_env")
    if fault.status == 403:
        remedy = "check the key's rights and the account's list of allowed addresses"
        return Mistake(where, f"the key was not let in ({said})", remedy)
    default = f" ({dialect.key_variable} by default)" if dialect.key_variable else ""
    right_key = f"put the right key into the variable or file that the target names{default}"
    other = sister_host(target.host, dialect)
    if not other:
        return Mistake(where, f"the key was refused ({said})", right_key)
    return Mistake(
        where,
        f"the key was refused by {target.host} ({said})",
        f"most likely it is a key of {other}, which are not interchangeable: "
        f'set base_url = "{target.base_url.replace(target.host, other, 1)}", or {right_key}',
    )


def sister_host(host: str, dialect: Dialect) -> str:
    """The host of the same service in another currency ("" where there is none): its keys look alike and are not
    taken here."""
    home = urlsplit(dialect.base_url).hostname or ""
    stem = home.rpartition(".")[0]
    sisters = [stem + suffix for suffix in dialect.other_currency_suffixes]
    if host == home and sisters:
        return sisters[0]
    return home if host in sisters else ""


def list_mistake(target: Target, answered: str) -> Mistake:
    """The mistake behind an answer to GET /models that is no model list; `answered` is such as `404`."""
    base = target.base_url
    where = place(target, "base_url")
    if not re.fullmatch(r"v\d+\w*", urlsplit(base).path.rpartition("/")[2]):
        return Mistake(
            where, f"{base} does not end in /v1, and {base}/models gives {answered}", _base(f"{base}/v1")
        )
    what = f"{base}/models gives {answered}, so this is not the address of the API"
    return Mistake(
        where, what, "set it to what stands before /chat/completions there, such as http://HOST:PORT/v1"
    )


def _base(url: str) -> str:
    return f'write base_url = "{url}"'


def is_listed(name: str, listed: Iterable[str]) -> bool:
    """Whether a list holds a model. Variants (`model:nitro`) and moving aliases (`~family`) are OpenRouter's ways
    to name a model that its list has under another name."""
    known = set(listed)
    return name in known or name.partition(":")[0] in known or name.startswith("~")


def model_mistakes(target: Target, listed: Sequence[str]) -> list[Mistake]:
    """A mistake for each mapped model that the target does not list, with what may have been meant."""
    found = []
    for public, own in target.models.items():
        if not is_listed(own, listed):
            what = f'"{own}" is not among the models it lists'
            found.append(Mistake(place(target, "models"), what, _meant(public, own, listed)))
    return found


def _meant(public: str, own: str, listed: Sequence[str]) -> str:
    if not listed:
        return "it lists none at all; look at its log"
    if len(listed) == 1:
        return f'its only model is "{listed[0]}": write {{ "{public}" = "{listed[0]}" }}'
    lowered = {name.lower(): name for name in reversed(listed)}
    near = difflib.get_close_matches(own.lower(), lowered, n=1, cutoff=0.6)
    if near:
        return f'did you mean "{lowered[near[0]]}"?'
    shown = ", ".join(listed[:_SHOWN_MODELS])
    more = f" and {len(listed) - _SHOWN_MODELS} more" if len(listed) > _SHOWN_MODELS else ""
    return f"write one of these: {shown}{more}"


def unpriced_note(target: Target, dialect: Dialect, model: str, *, is_priced: bool) -> str:
    """Why requests for a model are booked without a cost, and how to price them; "" where they have one."""
    if is_priced:
        return ""
    remedy = f"set prices = {{ input = …, output = … }} in {place(target)} to price them, in USD per 1M tokens"
    if dialect.other_currency_suffixes and target.host.endswith(dialect.other_currency_suffixes):
        return f"{target.name}: {target.host} does not bill in USD, so its requests are booked unpriced; {remedy}"
    return f"{target.name}: no rate card prices {model}, so its requests are booked unpriced; {remedy}"


def clock_mistake(offsets: Mapping[str, float]) -> Mistake | None:
    """The mistake of clocks that differ by more than `MAX_SKEW_S`. `offsets` are the targets' clocks less our own,
    in seconds. Where all of them agree with one another, ours is wrong."""
    skewed = {name: offset for name, offset in offsets.items() if abs(offset) > MAX_SKEW_S}
    if not skewed:
        return None
    spread = max(offsets.values()) - min(offsets.values())
    if len(offsets) > 1 and len(skewed) == len(offsets) and spread <= MAX_SKEW_S:
        offset = sorted(skewed.values())[len(skewed) // 2]
        what = f"this machine's clock is {_apart(-offset)} that of {', '.join(skewed)}"
        return Mistake("clock", what, "set it by NTP: rows, budgets and rate cards go by it")
    told = ", ".join(f"{name}'s is {_apart(offset)} ours" for name, offset in skewed.items())
    remedy = "set the one that is wrong by NTP: rows, budgets and rate cards go by this machine's"
    return Mistake("clock", f"the clocks differ: {told}", remedy)


def _apart(offset_s: float) -> str:
    return f"{abs(offset_s):,.0f} s {'ahead of' if offset_s > 0 else 'behind'}"
