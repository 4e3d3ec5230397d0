"""A ranking in words and figures: for the header `x-kimi-plan`, and for `kimi-gateway check --explain`. Pure.

Money is exact, as decimal strings; waits and ages are seconds. A check that runs beside the gateway knows nothing
of caches and load: it says so instead of a figure, and its money is that of a prompt of which nothing is warm.
"""

import json
from typing import Final

from kimi_gateway.core.routing.candidate import Candidate, Policy, Wants
from kimi_gateway.core.routing.filters import Refusal
from kimi_gateway.core.routing.rank import Ranked, Ranking
from kimi_gateway.core.routing.score import bill
from pricing.money import usd_text

HEADER_BYTES_MAX: Final = 4096
UNKNOWN_HERE: Final = "unknown here"

_NAME_CHARACTERS: Final = 64
_WHY_CHARACTERS: Final = 160
_SHORT_CHARACTERS: Final = 40

Entry = dict[str, object]


def plan_object(
    ranking: Ranking, wants: Wants, policy: Policy, *, model: str, tier: str, is_live: bool = True
) -> dict[str, object]:
    """The whole plan: eligible targets in order, then those refused. `is_live` false: caches and load are not
    known here."""
    eligible = [_eligible(one, wants, is_live=is_live) for one in ranking.ranked]
    return {
        "policy": policy.name,
        "model": _cut(model, _NAME_CHARACTERS),
        "tier": tier,
        "prompt_tokens": wants.prompt.tokens,
        "output_tokens": wants.output_tokens,
        "wait_usd_per_hour": usd_text(policy.wait_nano_per_hour),
        "targets": [*eligible, *(_refused(one) for one in ranking.refused)],
    }


def plan_header(ranking: Ranking, wants: Wants, policy: Policy, *, model: str, tier: str) -> str:
    """The value of `x-kimi-plan`: compact JSON in ASCII of at most 4,096 bytes.

    Where all does not fit, reasons are shortened; then targets are left out from the end and counted in `omitted`.
    """
    whole = plan_object(ranking, wants, policy, model=model, tier=tier)
    text = _compact(whole)
    if len(text) <= HEADER_BYTES_MAX:
        return text
    entries = [_shortened(_refused(one)) for one in ranking.refused]
    entries = [*(_eligible(one, wants, is_live=True) for one in ranking.ranked), *entries]
    text = _compact({**whole, "targets": entries})
    if len(text) <= HEADER_BYTES_MAX:
        return text
    room = HEADER_BYTES_MAX - len(_compact({**whole, "targets": [], "omitted": len(entries)}))
    kept: list[Entry] = []
    for entry in entries:
        room -= len(_compact(entry)) + 1
        if room < 0:
            break
        kept.append(entry)
    return _compact({**whole, "targets": kept, "omitted": len(entries) - len(kept)})


def price_words(candidate: Candidate) -> str:
    """Why there is no money in figures, "" where there is."""
    if candidate.tariff is not None:
        return ""
    return "by the hour" if candidate.by_the_hour else "unknown"


def _eligible(one: Ranked, wants: Wants, *, is_live: bool) -> Entry:
    candidate = one.candidate
    entry: Entry = {"target": _cut(one.name, _NAME_CHARACTERS)}
    money = bill(wants, candidate)
    if money is None:
        entry["price"] = price_words(candidate)
    else:
        entry["usd"] = {meter: usd_text(nano) for meter, _, nano in money.lines}
        entry["money_usd"] = usd_text(money.nano)
    if not is_live:
        entry |= dict.fromkeys(("read_tokens", "read_age_s", "wait_s", "score_usd"), UNKNOWN_HERE)
    else:
        entry["read_tokens"] = candidate.read_tokens if candidate.read_tokens is not None else UNKNOWN_HERE
        entry["read_age_s"] = _seconds(candidate.read_age_s)
        entry["wait_s"] = _seconds(one.wait_s)
        entry["score_usd"] = usd_text(one.score_nano)
    notes = _notes(one, is_live=is_live)
    if notes:
        entry["notes"] = notes
    if one.not_before_s > wants.now_s:
        entry["held_s"] = _seconds(one.not_before_s - wants.now_s)
    return entry


def _notes(one: Ranked, *, is_live: bool) -> list[str]:
    """What else had a part in where the target stands."""
    candidate = one.candidate
    found = [f"last: {one.last}"] if one.last else []
    if not is_live:
        return found
    if candidate.read_shared:
        found.append("shared prefix")
    if candidate.pace is None:
        found.append("pace not measured")
    if candidate.full:
        found.append("full")
    if one.crowded:
        found.append("crowded")
    return found


def _refused(one: Refusal) -> Entry:
    name = _cut(one.candidate.name, _NAME_CHARACTERS)
    return {"target": name, "refused": one.filter, "why": _cut(one.why, _WHY_CHARACTERS)}


def _shortened(entry: Entry) -> Entry:
    return {**entry, "why": _cut(str(entry["why"]), _SHORT_CHARACTERS)}


def _seconds(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s, 3)


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 3] + "..."


def _compact(value: object) -> str:
    """Compact JSON without a character outside ASCII, as a header has to be."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)
