"""Sends one tiny request to a model and sees what comes back. It costs a few tokens.

The request is encoded as the gateway encodes a client's. Self-hosted targets are asked to call a tool: only a
call shows that calls are told from text. One that refuses tools is asked again without.
"""

import asyncio
from typing import Final

from backends.catalog import DIALECTS, foreign_fields
from backends.dialect import Dialect
from backends.encode import Wish, encode_request
from backends.faults import Fault, FaultKind, fault_from_response
from backends.json import encode
from backends.ports import Reply, UpstreamFault
from kimi_gateway.checks.fetch import Tools, call_of, read_all, silent_for
from kimi_gateway.checks.findings import Findings, Mistake, Probe, Sight
from kimi_gateway.checks.judge import fault_mistake, place
from kimi_gateway.checks.launch import (
    OFFERED_TOOL,
    is_self_hosted,
    launch_mistakes,
    sign_lines,
    unseen_flags,
)
from kimi_gateway.checks.targets import Look, tag_of
from kimi_gateway.checks.witness import Witness
from kimi_gateway.core.view import read
from kimi_gateway.relay.settle import book
from kimi_gateway.settings import Target
from pricing.cards import CardBook
from pricing.ledger.row import LedgerRow

OUTPUT_LIMIT: Final = 128
"""Tokens of thought and text together: a short thought and a word fit, and no mistake can cost more."""

TOOL_OUTPUT_LIMIT: Final = 512
"""The same where an engine shall call a tool: the thought before a call is longer, and nobody bills its tokens."""

_PROMPT: Final = "ping"
_TOOL_PROMPT: Final = f"Call the tool {OFFERED_TOOL} for the zone UTC."
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": OFFERED_TOOL,
        "description": "The time in a zone",
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
    },
}
_ENDS_THE_TARGET: Final = frozenset(
    {FaultKind.AUTH, FaultKind.QUOTA, FaultKind.CONNECT, FaultKind.TLS, FaultKind.TIMEOUT, FaultKind.RATE}
)
"""Faults that the target's next model would only repeat."""

_REFUSES_TOOLS: Final = frozenset({FaultKind.REQUEST, FaultKind.SERVER})


async def probe_target(tools: Tools, look: Look, cards: CardBook) -> Findings:
    """A probe for each of a target's usable models, one after the other: a small account takes no two at once."""
    found = Findings()
    for model in look.usable:
        probe, refused_tools = await _probe_model(tools, look, model, cards)
        found.probes.append(probe)
        _judge(found, look.target, probe, refused_tools)
        fault = probe.sight.fault
        if fault is not None and fault.kind in _ENDS_THE_TARGET:
            break
    return found


async def _probe_model(tools: Tools, look: Look, model: str, cards: CardBook) -> tuple[Probe, Fault | None]:
    """The probe, and how the target refused the one with a tool where it takes only the one without."""
    target, refused_tools = look.target, None
    dialect = DIALECTS[target.dialect]
    with_tool = is_self_hosted(dialect)
    at_s = tools.wall()
    sight = await _send(tools, target, dialect, model, with_tool=with_tool)
    if with_tool and sight.fault is not None and sight.fault.kind in _REFUSES_TOOLS and sight.fault.status >= 400:
        again = await _send(tools, target, dialect, model, with_tool=False)
        if again.fault is None:
            sight, refused_tools = again, sight.fault
    row = LedgerRow(request_id="", started_at=at_s, target=target.name, model=model)
    if sight.measured is not None:
        book(row, sight.measured, tag_of(target, dialect, sight.model or model, cards, at_s=at_s))
    return Probe(target.name, model, sight, row, look.version), refused_tools


async def _send(tools: Tools, target: Target, dialect: Dialect, model: str, *, with_tool: bool) -> Sight:
    """Sends the request and hears it out, at most `probe_timeout_s`."""
    view = read(
        encode(
            {
                "model": model,
                "messages": [{"role": "user", "content": _TOOL_PROMPT if with_tool else _PROMPT}],
                **({"tools": [_TOOL]} if with_tool else {}),
            }
        )
    )
    wish = Wish(
        fields=view.fields,
        messages=view.messages,
        heads=view.heads,
        model=model,
        effort="low",
        output_limit=TOOL_OUTPUT_LIMIT if with_tool else OUTPUT_LIMIT,
        extra_body=target.extra_body,
    )
    request = encode_request(wish, dialect, foreign_fields(dialect))
    call = call_of(target, "/chat/completions", body=request.body, headers=request.headers)
    began_s = tools.mono()
    try:
        async with asyncio.timeout(tools.probe_timeout_s):
            reply = await tools.upstream.open(call)
            try:
                return await _see(tools, target, reply, began_s, with_tool=with_tool)
            finally:
                reply.close()
    except TimeoutError:
        return Sight(tools=with_tool, fault=silent_for(tools.probe_timeout_s))
    except UpstreamFault as failure:
        return Sight(tools=with_tool, fault=failure.fault)


async def _see(tools: Tools, target: Target, reply: Reply, began_s: float, *, with_tool: bool) -> Sight:
    """What the answer shows, to its end or its break. Raises `UpstreamFault` where its head is all there is."""

    def now_ms() -> int:
        return round((tools.mono() - began_s) * 1000)

    if reply.status >= 300:
        body = await read_all(reply, tools.probe_timeout_s)
        fault = fault_from_response(reply.status, reply.headers, body, tools.wall())
        return Sight(status=reply.status, whole_ms=now_ms(), tools=with_tool, fault=fault)
    witness = Witness(
        DIALECTS[target.dialect],
        reply.status,
        reply.headers,
        tools=with_tool,
        split_think_tags=target.split_think_tags,
    )
    if not reply.headers.get("content-type", "").lower().startswith("text/event-stream"):
        witness.whole(await read_all(reply, tools.probe_timeout_s), now_ms())
        return witness.sight(now_ms())
    try:
        over = False
        while not over:
            data = await reply.read(tools.probe_timeout_s)
            if data is None:
                witness.failed(silent_for(tools.probe_timeout_s))
                break
            over = witness.feed(data, now_ms()) or not data
    except UpstreamFault as failure:
        witness.failed(failure.fault)
    return witness.sight(now_ms())


def _judge(found: Findings, target: Target, probe: Probe, refused_tools: Fault | None) -> None:
    dialect, sight = DIALECTS[target.dialect], probe.sight
    if sight.fault is not None:
        found.wrong(fault_mistake(target, dialect, sight.fault, asked=f"a probe of {probe.model}"))
        found.bad("probe", f"{target.name} {probe.model}")
        return
    missing = launch_mistakes(place(target), dialect, sight, refused_tools)
    found.wrong(*missing)
    found.well("probe", f"{target.name} {probe.model}", f"answered in {sight.whole_ms} ms")
    if is_self_hosted(dialect):
        _tell_flags(found, target.name, is_missing=bool(missing), unseen=unseen_flags(dialect, sight))
    if sight.measured is None:
        what = f"{probe.model} reported no usage although it was asked to, so every row would be an estimate"
        found.wrong(Mistake(place(target), what, "let stream_options.include_usage reach it"))
    found.note(*(f"{_who(target, probe)} {line}" for line in sign_lines(dialect, sight, missing)))
    if not sight.thought_names and not is_self_hosted(dialect):
        found.note(f"{target.name}: no thought came back from {probe.model}, so none can be kept")
    if sight.model and sight.model not in (probe.model, *_public_names(target, probe.model)):
        found.note(f"{target.name}: {probe.model} was asked for and {sight.model} says that it answered")


def _who(target: Target, probe: Probe) -> str:
    """Whose sign it is, down to the version where that is known."""
    version = f", version {probe.version}" if probe.version else ""
    return f"{target.name} ({probe.model}{version}) shows"


def _tell_flags(found: Findings, name: str, *, is_missing: bool, unseen: str) -> None:
    if is_missing:
        found.bad("engine flags", name)
    elif unseen:
        found.unseen("engine flags", name, unseen)
    else:
        found.well("engine flags", name, "nothing is missing")


def _public_names(target: Target, own: str) -> list[str]:
    return [public for public, theirs in target.models.items() if theirs == own]
