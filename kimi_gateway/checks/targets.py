"""Looks at one target: can it be reached, does it take the key, does it have the models, what time is it there.

No tokens are spent: the model list is asked for and, where that is open to everybody, a request without messages
is sent, which is refused after the key was looked at.
"""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from backends.catalog import DIALECTS
from backends.dialect import Dialect
from backends.faults import Fault, FaultKind, fault_from_response
from backends.json import encode
from backends.ports import UpstreamFault
from kimi_gateway.adapters.discovery import Listing, NotListed, completed, parse
from kimi_gateway.adapters.engine_version import ask_version
from kimi_gateway.checks.fetch import Heard, Tools, call_of, hear
from kimi_gateway.checks.findings import Findings, card_text
from kimi_gateway.checks.judge import (
    fault_mistake,
    is_listed,
    key_in_clear,
    list_mistake,
    model_mistakes,
    unpriced_note,
)
from kimi_gateway.relay.settle import PriceTag, price_tag, seller_of
from kimi_gateway.settings import Target
from pricing.cards import CardBook

_CHAT_PATH = "/chat/completions"
_PASSING = frozenset({FaultKind.RATE})


@dataclass(slots=True)
class Look:
    """What looking at a target gave. `usable` are its own names of models that may be probed; `clock_offset_s` is
    its clock less ours, None where it told no time; `version` is its engine's, "" where it tells none."""

    target: Target
    findings: Findings
    usable: tuple[str, ...] = ()
    clock_offset_s: float | None = None
    version: str = ""


async def look_at_target(tools: Tools, target: Target, cards: CardBook) -> Look:
    """Everything but probes. Does not raise for what a target does."""
    look = Look(target, Findings())
    look.findings.wrong(key_in_clear(target, await _addresses(target, tools.list_timeout_s)))
    if look.findings.mistakes:
        look.findings.bad("target", f"{target.name} {target.base_url}")
        return look
    dialect = DIALECTS[target.dialect]
    try:
        heard = await hear(tools, call_of(target, "/models"))
    except UpstreamFault as failure:
        look.findings.wrong(fault_mistake(target, dialect, failure.fault, asked="its model list"))
        look.findings.bad("target", f"{target.name} {target.base_url}")
        return look
    look.clock_offset_s = _clock_offset_s(heard)
    listing = _listing(look, dialect, heard)
    if listing is None:
        if look.findings.mistakes:
            look.findings.bad("target", f"{target.name} {target.base_url}")
        return look
    known, _ = completed(target, listing)
    look.target = known
    look.version = await ask_version(tools.upstream, target, timeout_s=tools.list_timeout_s)
    look.findings.well("target", f"{target.name} {target.base_url}", _reached(heard, listing, look.version))
    await _try_key(tools, look, dialect)
    _look_at_models(look, dialect, listing, cards, at_s=tools.wall())
    return look


async def _addresses(target: Target, timeout_s: float) -> list[str]:
    """The addresses of a target that would get a key over plain http; [] for any other, and for a name that does
    not resolve: then nothing is sent."""
    parts = urlsplit(target.base_url)
    if parts.scheme != "http" or target.api_key is None or not parts.hostname:
        return []
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):  # the last: no name that DNS could hold
        return []
    return [str(entry[4][0]) for entry in found]


def _clock_offset_s(heard: Heard) -> float | None:
    """The other clock less ours, in seconds; a cache on the way says how old its copy is."""
    try:
        then_s = parsedate_to_datetime(heard.headers.get("date", "")).timestamp()
    except ValueError:
        return None
    age = heard.headers.get("age", "0")
    return then_s + (int(age) if age.isascii() and age.isdigit() else 0) - heard.at_s


def _listing(look: Look, dialect: Dialect, heard: Heard) -> Listing | None:
    """The model list in an answer; None, and what that means is noted, where it holds none."""
    target, findings = look.target, look.findings
    if heard.status == 200:
        try:
            return parse(heard.body, dialect.models_window_field)
        except NotListed:
            findings.wrong(list_mistake(target, "something that is no model list"))
            return None
    fault = fault_from_response(heard.status, heard.headers, heard.body, heard.at_s)
    if fault.kind is FaultKind.REQUEST:
        findings.wrong(list_mistake(target, str(heard.status)))
    elif fault.kind in _PASSING:
        findings.unseen(
            "target", f"{target.name} {target.base_url}", f"its limits refuse its list: {fault.message}"
        )
        look.usable = tuple(dict.fromkeys(target.models.values()))
    else:
        findings.wrong(fault_mistake(target, dialect, fault, asked="its model list"))
    return None


def _reached(heard: Heard, listing: Listing, version: str) -> str:
    count = len(listing.windows)
    told = f", version {version}" if version else ""
    return f"reached in {heard.took_ms} ms, lists {count} model{'' if count == 1 else 's'}{told}"


async def _try_key(tools: Tools, look: Look, dialect: Dialect) -> None:
    """Finds out whether the key is good where its model list does not prove it."""
    target = look.target
    if target.api_key is None:
        return
    try:
        without = await hear(tools, call_of(target, "/models", with_key=False))
        if without.status == 200:
            body = encode({"model": next(iter(target.models.values()), ""), "messages": []})
            tried = await hear(tools, call_of(target, _CHAT_PATH, body=body))
        else:
            tried = None
    except UpstreamFault as failure:
        look.findings.unseen("key", target.name, f"not proved: {failure.fault.message}")
        return
    fault = None if tried is None or tried.status < 400 else _fault_of(tried)
    if fault is not None and fault.kind in (FaultKind.AUTH, FaultKind.QUOTA):
        look.findings.wrong(fault_mistake(target, dialect, fault, asked="a request without messages"))
        look.findings.bad("key", target.name)
    else:
        look.findings.well("key", target.name, "accepted" if tried is None else "not refused")


def _fault_of(heard: Heard) -> Fault:
    return fault_from_response(heard.status, heard.headers, heard.body, heard.at_s)


def _look_at_models(look: Look, dialect: Dialect, listing: Listing, cards: CardBook, *, at_s: float) -> None:
    """A row for each mapped model that is there, a mistake for each other one, a note for each without a price."""
    target, findings = look.target, look.findings
    listed = list(listing.windows)
    is_proved = not findings.mistakes
    findings.wrong(*model_mistakes(target, listed))
    for own in dict.fromkeys(target.models.values()):
        if not is_listed(own, listed):
            findings.bad("model", f"{target.name} {own}")
    there = [own for own in dict.fromkeys(target.models.values()) if is_listed(own, listed)]
    if is_proved:
        look.usable = tuple(there)
    for own in there:
        tag = tag_of(target, dialect, own, cards, at_s=at_s)
        window = replace(target, context_window=target.context_window or listing.windows.get(own, 0)).window
        price = f"priced by {card_text(tag.card)}" if tag.rates is not None else "unpriced"
        findings.well("model", f"{target.name} {own}", f"window {window:,}, {price}")
        findings.note(unpriced_note(target, dialect, own, is_priced=tag.rates is not None))


def unpriced_notes(targets: Sequence[Target], cards: CardBook, *, at_s: float) -> list[str]:
    """A note for each model of each target whose requests are booked without a cost, with the remedy."""
    notes = []
    for target in targets:
        dialect = DIALECTS[target.dialect]
        for own in dict.fromkeys(target.models.values()):
            tag = tag_of(target, dialect, own, cards, at_s=at_s)
            notes.append(unpriced_note(target, dialect, own, is_priced=tag.rates is not None))
    return [note for note in notes if note]


def tag_of(target: Target, dialect: Dialect, model: str, cards: CardBook, *, at_s: float) -> PriceTag:
    """What the answers of a model are billed by at a moment (Unix seconds)."""
    seller = seller_of(dialect, target.host)
    return price_tag(target.name, target.prices, seller=seller, model=model, at_s=at_s, cards=cards)
