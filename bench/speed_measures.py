"""The measures of `bench/speed.py`: each asks one subject once and gives back its figures by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import speed_wrk
from speed_process import Load, StartError, cpu_s, memory_bytes
from speed_subjects import Subject
from speed_upstream import FIRST_MIDDLE, shape_of

Figures = dict[str, float | None]
_SETTLE_TALK: Final = 500
"""Conversations of the measure of bodies have numbers from here on, those of uploads come before."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done. Times are seconds."""

    rounds: int = 5
    fresh_rounds: int = 3
    warm_s: float = 0.5
    calls_s: float = 3.0
    connections: tuple[int, ...] = (1, 64, 512)
    paced_s: float = 5.0
    paced_streams: int = 300
    first_calls: int = 200
    histories: int = 6
    uploads: int = 8
    upload_rounds: int = 3
    upload_streams: int = 100
    open_streams: int = 1000
    stall_rounds: int = 4


QUICK: Final = Scale(
    rounds=1,
    fresh_rounds=1,
    warm_s=0.2,
    calls_s=1.0,
    connections=(64,),
    paced_s=2.0,
    first_calls=50,
    histories=3,
    uploads=2,
    upload_rounds=2,
    open_streams=200,
    stall_rounds=2,
)


@dataclass(frozen=True, slots=True)
class Round:
    """What a measure has at hand: the clients, how much, the number of the round, a directory, which loop."""

    load: Load
    scale: Scale
    number: int
    directory: Path
    wrk: bool


Measure = Callable[[Round, Subject], Figures]


def _closed_loop(at: Round, subject: Subject, connections: int, say: str) -> Mapping[str, Any]:
    """Requests/s, latencies and CPU of a request."""
    scale = at.scale
    if not at.wrk:
        asked = {"connections": connections, "seconds": scale.calls_s, "warm_s": scale.warm_s, "say": say}
        return at.load.do("rps", **subject.asked(), **asked)
    before_s = cpu_s(subject.pid)
    found, count = speed_wrk.rps(subject.port, subject.headers, connections, scale.calls_s, say, at.directory)
    at.load.do("idle", **subject.asked())
    return {**found, "cpu_us": (cpu_s(subject.pid) - before_s) / count * 1e6 if count else None}


def rps(at: Round, subject: Subject) -> Figures:
    """0.8 KB in, 2.2 KB out in one write, over kept connections."""
    figures: Figures = {}
    for connections in at.scale.connections:
        found = _closed_loop(at, subject, connections, "one")
        figures.update({f"{name}_{connections}": found[name] for name in ("rps", "p50_ms", "p99_ms", "cpu_us")})
    return figures


def events(at: Round, subject: Subject) -> Figures:
    """The same answer in a write for each event."""
    found = _closed_loop(at, subject, 64, "events")
    return {"events_rps": found["rps"], "events_cpu_us": found["cpu_us"]}


def chunks(at: Round, subject: Subject) -> Figures:
    """Paced streams: the CPU of a chunk, and how evenly they come."""
    scale = at.scale
    asked = {"streams": scale.paced_streams, "seconds": scale.paced_s, "warm_s": 2 * scale.warm_s}
    found = at.load.do("paced", **subject.asked(), **asked, every_s=0.05)
    return {"chunk_cpu_us": found["cpu_us"], "chunks_per_s": found["events_per_s"], "gap_ms": found["gap_p99_ms"]}


def first(at: Round, subject: Subject) -> Figures:
    """The time to the first event of a request, one after the other."""
    found = at.load.do("first", **subject.asked(), count=at.scale.first_calls)
    return {"first_ms": found["p50_ms"]}


def bodies(at: Round, subject: Subject) -> Figures:
    """Histories of 100 KB and of 900 messages and 4.3 MB, that a client has lost all thoughts of."""
    figures: Figures = {}
    for name, talk in (("body_100kb_ms", FIRST_MIDDLE + at.number), ("body_4mb_ms", _SETTLE_TALK + at.number)):
        asked = {"talk": talk, "count": at.scale.histories, "store": subject.repairs}
        found = at.load.do("bodies", **subject.asked(), **asked)
        _check_repaired(subject, talk, found["head"])
        figures[name] = found["p50_ms"]
    return figures


def _check_repaired(subject: Subject, talk: int, head: str) -> None:
    """Raises `StartError` where the gateway was not made to do what is measured."""
    wanted = f"x-kimi-thinking: repaired={shape_of(talk).turns}"
    if subject.repairs and wanted not in head:
        raise StartError(f"not every thought was put back, {wanted!r} was expected: {head}")


def uploads(at: Round, subject: Subject) -> Figures:
    """Such histories of several clients at once, beside paced streams."""
    scale = at.scale
    talk = at.number * scale.uploads
    asked = {
        "talk": talk,
        "uploads": scale.uploads,
        "rounds": scale.upload_rounds,
        "streams": scale.upload_streams,
    }
    found = at.load.do("uploads", **subject.asked(), **asked, every_s=0.04, store=subject.repairs)
    _check_repaired(subject, talk, found["head"])
    return {"late_p999_ms": found["late_p999_ms"], "upload_ms": found["upload_ms"]}


def memory(at: Round, subject: Subject) -> Figures:
    """Memory at so many open streams and at twice as many, and how soon a small path is answered then."""
    count = at.scale.open_streams
    sizes = []
    try:
        for wanted in (count, 2 * count):
            found = at.load.do("hold", **subject.asked(), streams=count, every_s=5.0, for_s=300.0)
            if found["open"] < wanted:
                raise StartError(f"only {found['open']} of {wanted} streams have begun")
            sizes.append(memory_bytes(subject.pid))
        found = at.load.do("health", **subject.asked(), path=subject.path, count=20)
    finally:
        at.load.do("release")
    further = (sizes[1] - sizes[0]) / count / 1024
    return {"memory_mb": sizes[0] / 1e6, "stream_kb": further, "health_ms": found["max_ms"]}


SHARED: Final[dict[str, Measure]] = {
    "rps": rps,
    "events": events,
    "chunks": chunks,
    "first": first,
    "bodies": bodies,
    "uploads": uploads,
}
"""Those for which all subjects run side by side and take turns."""

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Figure:
    """How a figure is shown. `added`: what the upstream alone takes is subtracted, round by round."""

    label: str
    better: Better = "lower"
    added: bool = False
    digits: int = 1


_OF_CALLS: Final = {
    "rps": Figure("requests/s", "higher", digits=0),
    "p50_ms": Figure("latency p50, ms", digits=2),
    "p99_ms": Figure("latency p99, ms", digits=2),
    "cpu_us": Figure("CPU of a request, µs", digits=0),
}
FIGURES: Final[dict[str, Figure]] = {
    **{
        f"{name}_{connections}": replace(figure, label=f"{figure.label}, {connections} connections")
        for connections in (1, 64, 512)
        for name, figure in _OF_CALLS.items()
    },
    "events_rps": Figure("requests/s, 12 writes an answer, 64", "higher", digits=0),
    "events_cpu_us": Figure("CPU of such a request, µs", digits=0),
    "chunk_cpu_us": Figure("CPU of a paced chunk, µs"),
    "chunks_per_s": Figure("paced chunks/s that came", "higher", digits=0),
    "gap_ms": Figure("added gap between events p99, ms", added=True, digits=2),
    "first_ms": Figure("added time to first event, 0.8 KB, ms", added=True, digits=2),
    "body_100kb_ms": Figure("added time, 100 KB, ms", added=True, digits=2),
    "body_4mb_ms": Figure("added time, 900 messages of 4.3 MB, ms", added=True),
    "late_p999_ms": Figure("chunks late by beside uploads p99.9, ms"),
    "upload_ms": Figure("such an upload to its first event, ms"),
    "start_s": Figure("start to the first 200 of /health, s", digits=2),
    "memory_mb": Figure("memory at {open:,} open streams, MB"),
    "stream_kb": Figure("memory of a further stream, KB"),
    "health_ms": Figure("longest /health at {twice:,} streams, ms"),
    "loop_p999_ms": Figure("event loop stalled by uploads p99.9, ms", digits=2),
}
