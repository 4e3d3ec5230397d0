"""What was found, as text: tables and lines for people, one JSON object for programs. Never a key.

First what probes brought back, then a table of what was checked, then notes, then a line for each mistake.
"""

from collections.abc import Iterable, Sequence
from io import StringIO
from itertools import groupby
from typing import Final

import msgspec
from rich.console import Console, RenderableType

from kimi_gateway.checks.findings import Findings, Output, Probe, Sight, card_text
from pricing.ledger.row import LedgerRow
from pricing.ledger.shown import money_text
from pricing.render import UNKNOWN, plain, table, text

_WIDTH: Final = 10_000
_TEXT_CHARS: Final = 40
_HIDDEN: Final = "***"


def shown(found: Findings, output: Output, secrets: Iterable[str]) -> str:
    """The whole output, with a line feed at its end."""
    made = _as_json(found) if output is Output.JSON else _as_text(found)
    return _without(made, secrets)


def _without(made: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, whoever repeated them to us; longest first, for one may hold another."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        escaped = msgspec.json.encode(secret).decode()[1:-1]
        made = made.replace(secret, _HIDDEN).replace(escaped, _HIDDEN)
    return made


# --- for people -----------------------------------------------------------------------------------------------


def _as_text(found: Findings) -> str:
    parts = [_probe_text(list(probes)) for _, probes in groupby(found.probes, key=lambda probe: probe.target)]
    if found.probes:
        parts.append(_spent(found.probes))
    if found.checked:
        parts.append(_checked_text(found))
    if found.notes:
        parts.append("".join(f"note: {plain(note)}\n" for note in found.notes))
    parts.append(_end(found))
    return "\n".join(parts)


def _end(found: Findings) -> str:
    """The mistakes, a line each, or that there are none."""
    count = len(found.mistakes)
    if count:
        lines = [f"{count} mistake{'' if count == 1 else 's'} to set right:"]
        return "\n".join([*lines, *(plain(mistake.line) for mistake in found.mistakes)]) + "\n"
    is_whole = all(row.is_checked for row in found.checked)
    return "All is well.\n" if is_whole else "All that was checked is well.\n"


def _checked_text(found: Findings) -> str:
    grid = table([("checked", False), ("where", False), ("result", False)])
    for row in found.checked:
        result = row.result if row.is_checked else f"not checked: {row.result}"
        grid.add_row(text(row.what), text(row.where), text(result))
    return _drawn(grid)


def _probe_text(probes: Sequence[Probe]) -> str:
    """The probes of one target: a column for each model, a row for each fact."""
    grid = table([(probes[0].target, False), *((probe.model, False) for probe in probes)])
    columns = [_facts(probe) for probe in probes]
    for name in columns[0]:
        if any(column[name] for column in columns):
            grid.add_row(text(name), *(text(column[name]) for column in columns))
    return _drawn(grid)


def _facts(probe: Probe) -> dict[str, str]:
    """What came back, in words; "" for what does not apply."""
    sight, row, measured = probe.sight, probe.row, probe.sight.measured
    cached = None if measured is None else measured.usage.cache_read
    fault = sight.fault
    return {
        "status": str(sight.status) if sight.status else "no answer",
        "failed": "" if fault is None else f"{fault.kind}: {fault.message}",
        "version": probe.version,
        "answered by": sight.model,
        "thought": _thought(sight),
        "text": _quoted(sight.text) if sight.text else "no",
        "tool calls": (", ".join(sight.calls) or "none (one was asked for)") if sight.tools else "",
        "finish_reason": sight.finish_reason,
        "signs": "" if fault is not None else ", ".join(sight.signs) or "none",
        "usage": f"in {' and '.join(sight.usage_places)}" if sight.usage_places else "not reported",
        "prompt tokens": _count(None if measured is None else measured.prompt_tokens),
        "cached tokens": _cached(sight, cached),
        "output tokens": _count(None if measured is None else measured.completion_tokens),
        "first token": _ms(sight.first_token_ms),
        "whole answer": _ms(sight.whole_ms),
        "cost": _cost(row) if measured is not None else "",
        "priced by": _priced_by(row),
    }


def _thought(sight: Sight) -> str:
    if not sight.thought_names:
        return f"yes, split off the text ({sight.thought_bytes:,} bytes)" if sight.thought_bytes else "no"
    return f"yes, in {' and '.join(sight.thought_names)} ({sight.thought_bytes:,} bytes)"


def _cached(sight: Sight, cached: int | None) -> str:
    if sight.has_cached_count:
        return f"reported: {_count(cached)}"
    return "not reported" if cached is None else f"not reported, which means {cached} here"


def _quoted(value: str) -> str:
    shortened = value if len(value) <= _TEXT_CHARS else value[:_TEXT_CHARS] + "…"
    return f'"{shortened}"'


def _count(count: int | None) -> str:
    return UNKNOWN if count is None else f"{count:,}"


def _ms(ms: int | None) -> str:
    return UNKNOWN if ms is None else f"{ms:,} ms"


def _cost(row: LedgerRow) -> str:
    return "unpriced" if row.cost_nano is None else f"{money_text(row.cost_nano)} USD"


def _priced_by(row: LedgerRow) -> str:
    """Where the cost comes from; "" where there is none."""
    card = card_text(row.card)
    if row.cost_source != "upstream":
        return card if row.cost_nano is not None else ""
    by_card = f"; {money_text(row.table_cost_nano)} USD by {card}" if row.table_cost_nano is not None else ""
    return f"the target's own report{by_card}"


def _spent(probes: Sequence[Probe]) -> str:
    """What the probes cost together."""
    measured = [probe.sight.measured for probe in probes if probe.sight.measured is not None]
    prompt = sum(one.prompt_tokens or 0 for one in measured)
    output = sum(one.completion_tokens or 0 for one in measured)
    nano = sum(probe.row.cost_nano or 0 for probe in probes)
    count = f"{len(probes)} probe{'' if len(probes) == 1 else 's'}"
    return f"{count}: {prompt:,} prompt and {output:,} output tokens used, {money_text(nano)} USD.\n"


def _drawn(what: RenderableType) -> str:
    """The lines of a table, without the spaces that fill them up."""
    page = StringIO()
    Console(file=page, width=_WIDTH, highlight=False, color_system=None).print(what)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


# --- for programs ---------------------------------------------------------------------------------------------


def _as_json(found: Findings) -> str:
    whole = {
        "ok": not found.mistakes,
        "mistakes": [
            {"where": mistake.where, "what": mistake.what, "remedy": mistake.remedy} for mistake in found.mistakes
        ],
        "checked": [
            {
                "what": row.what,
                "where": row.where,
                "result": row.result,
                "is_checked": row.is_checked,
                "is_well": row.is_well,
            }
            for row in found.checked
        ],
        "notes": found.notes,
        "probes": [_probe_object(probe) for probe in found.probes],
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"


def _probe_object(probe: Probe) -> dict[str, object]:
    sight, row, measured = probe.sight, probe.row, probe.sight.measured
    fault = sight.fault
    return {
        "target": probe.target,
        "model": probe.model,
        "version": probe.version or None,
        "status": sight.status or None,
        "fault": None if fault is None else {"kind": fault.kind.value, "message": fault.message},
        "answered_by": sight.model or None,
        "thought_names": sight.thought_names,
        "thought_bytes": sight.thought_bytes,
        "text": sight.text,
        "tool_calls": sight.calls,
        "finish_reason": sight.finish_reason or None,
        "signs": sight.signs,
        "usage_places": sight.usage_places,
        "prompt_tokens": None if measured is None else measured.prompt_tokens,
        "cached_tokens": None if measured is None else measured.usage.cache_read,
        "cached_tokens_reported": sight.has_cached_count,
        "completion_tokens": None if measured is None else measured.completion_tokens,
        "reasoning_tokens": None if measured is None else measured.usage.reasoning,
        "ttft_ms": sight.first_token_ms,
        "total_ms": sight.whole_ms,
        "cost_usd": money_text(row.cost_nano) if measured is not None else None,
        "table_cost_usd": money_text(row.table_cost_nano),
        "cost_source": row.cost_source,
        "card": row.card or None,
        "anomaly": row.anomaly or None,
    }
