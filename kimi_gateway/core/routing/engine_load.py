"""What an engine's answer says of its load: metrics in Prometheus' text form, or one of three JSON objects.

JSON, told apart by its members: vLLM's `/load` (`server_load`), SGLang's `/v1/loads` (`loads`, one for each
data-parallel rank) and its older `/get_load` (a list of such, with running and waiting together as `num_reqs`).
Only the lines of the numbers wanted are parsed: an engine's metrics are 3 to 100 KB of others.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from typing import Final

from backends.dialect import LoadReport
from backends.json import Json, JsonError, as_count, as_object, decode

_SAMPLE: Final = re.compile(rb"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?[ \t]+([^ \t]+)(?:[ \t]+-?\d+)?[ \t\r]*")
_LABEL: Final = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_LONGEST_LINE: Final = 8_192
_MOST: Final = 10**9

Labels = frozenset[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Reading:
    """How many requests an engine runs and has waiting, and the part of its KV cache in use (None: unsaid)."""

    running: int
    waiting: int
    cache_used: float | None = None


def reading(body: bytes, report: LoadReport) -> Reading | None:
    """What an answer with status 200 says, None where it says nothing of it."""
    start = body[:64].lstrip()
    return _from_json(body) if start[:1] in (b"{", b"[") else _from_metrics(body, report)


# --- metrics -------------------------------------------------------------------------------------------------


def _from_metrics(body: bytes, report: LoadReport) -> Reading | None:
    wanted = tuple(name.encode() for name in (*report.running, *report.waiting, *report.cache_used))
    samples: dict[str, list[tuple[Labels, float]]] = {}
    for name, labels, value in _samples(body, wanted):
        samples.setdefault(name, []).append((labels, value))
    running = _first(report.running, samples)
    if running is None:
        return None
    waiting = _first(report.waiting, samples) or ()
    used = _first(report.cache_used, samples)
    copies = frozenset(label.encode() for label in report.copy_labels)
    return Reading(
        _count(_added(running, copies)),
        _count(_added(waiting, copies)),
        None if used is None else _part(value for _, value in used),
    )


def _samples(body: bytes, wanted: tuple[bytes, ...]) -> Iterator[tuple[str, Labels, float]]:
    """Name, labels and value of the samples with these names; what cannot be read is left out."""
    for line in body.split(b"\n"):
        if not line.startswith(wanted) or len(line) > _LONGEST_LINE:
            continue
        found = _SAMPLE.fullmatch(line)
        if found is None or found[1] not in wanted:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        if isfinite(value) and value >= 0:
            yield found[1].decode(), frozenset(_LABEL.findall(found[2] or b"")), value


def _first(
    names: Iterable[str], samples: dict[str, list[tuple[Labels, float]]]
) -> list[tuple[Labels, float]] | None:
    return next((samples[name] for name in names if name in samples), None)


def _added(samples: Iterable[tuple[Labels, float]], copies: frozenset[bytes]) -> float:
    """The sum over what differs by more than labels of copies; of copies the largest."""
    groups: dict[Labels, float] = {}
    for labels, value in samples:
        group = frozenset(label for label in labels if label[0] not in copies)
        groups[group] = max(groups.get(group, 0.0), value)
    return sum(groups.values())


def _count(value: float) -> int:
    return min(round(value), _MOST)


def _part(values: Iterable[float]) -> float | None:
    """The fullest cache: a request that it has no room for waits, whatever the others have."""
    return min(1.0, max(values, default=0.0))


# --- JSON ----------------------------------------------------------------------------------------------------


def _from_json(body: bytes) -> Reading | None:
    try:
        said = decode(body)
    except (JsonError, RecursionError):
        return None
    if isinstance(said, list):
        return _summed(said)
    whole = as_object(said)
    if whole is None:
        return None
    loads = whole.get("loads")
    if isinstance(loads, list):
        return _summed(loads)
    taken = _whole(whole.get("server_load"))
    # 0 is also what is said where nobody counts (vLLM without --enable-server-load-tracking).
    return Reading(min(taken, _MOST), 0) if taken else None


def _summed(loads: list[Json]) -> Reading | None:
    """The load of all data-parallel ranks."""
    ranks = [rank for rank in map(_rank, loads) if rank is not None]
    if not ranks:
        return None
    used = [rank.cache_used for rank in ranks if rank.cache_used is not None]
    return Reading(
        min(sum(rank.running for rank in ranks), _MOST),
        min(sum(rank.waiting for rank in ranks), _MOST),
        max(used) if used else None,
    )


def _rank(said: Json) -> Reading | None:
    load = as_object(said)
    if load is None:
        return None
    waiting = _whole(load.get("num_waiting_reqs")) or 0
    running = _whole(load.get("num_running_reqs"))
    if running is None:
        together = _whole(load.get("num_reqs"))
        if together is None:
            return None
        running = max(0, together - waiting)
    used = load.get("token_usage")
    part = float(used) if isinstance(used, int | Decimal) and not isinstance(used, bool) and used >= 0 else None
    return Reading(running, waiting, None if part is None else min(1.0, part))


def _whole(value: Json) -> int | None:
    count = as_count(value)
    return count if count is not None and count >= 0 else None
